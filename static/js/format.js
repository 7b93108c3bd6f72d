// Figures for people, in the page's language. The module is pure: pages, tests and benches may import it.
import { dateLocale, numberLocale } from "./language.js";
import { say } from "./words/shared.js";

// Like Intl.NumberFormat, but uses the language that is current when format() is called.
function formatOf(options) {
  const made = {};
  return { format: (value) => (made[numberLocale()] ??= new Intl.NumberFormat(numberLocale(), options)).format(value) };
}
export const number = formatOf({ maximumFractionDigits: 1 });
export const compact = formatOf({ notation: "compact", maximumFractionDigits: 1 });
export const whole = formatOf({ maximumFractionDigits: 0 });
export const tenths = formatOf({ minimumFractionDigits: 1, maximumFractionDigits: 1 });

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit += 1) value /= 1000;

  return `${value < 10 && unit ? tenths.format(value) : Math.round(value)} ${units[unit]}`;
}

export function ms(value) {
  if (!(value > 0)) return "–";
  if (value >= 10000) return `${number.format(value / 1000)} s`;
  return `${value < 10 ? tenths.format(value) : Math.round(value)} ms`;
}

// Formats a time in ms; a time below 1 ms is shown as "64 µs".
export function fine(value_ms) {
  return value_ms > 0 && value_ms < 1 ? `${Math.max(1, Math.round(value_ms * 1000))} µs` : ms(value_ms);
}

export function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${number.format(seconds / 3600)} h`;
}

// Returns a number with its noun, such as "2 contributors". `many`: a plural that is not formed with an s.
export function count(value, one, many = `${one}s`) {
  return `${whole.format(value)} ${value === 1 ? one : many}`;
}

// Returns a date as text, such as "today 14:05", "yesterday", "3 Nov", "3 Nov 2024".
export function when(time_ms, now_ms = Date.now()) {
  const then = new Date(time_ms);
  const now = new Date(now_ms);
  const day = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  const days = Math.round((day(now) - day(then)) / 86400000);
  if (days <= 0) return then.toLocaleTimeString(dateLocale(), { hour: "2-digit", minute: "2-digit" });
  if (days === 1) return say("yesterday");

  const year = then.getFullYear() === now.getFullYear() ? {} : { year: "numeric" };
  return then.toLocaleDateString(dateLocale(), { day: "numeric", month: "short", ...year });
}
