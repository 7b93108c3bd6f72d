// What the join page says of work that was done, and of what the hub lacks. Pure.
import { bytes, compact, count, number, whole } from "../format.js";

const day_s = 86400;

// Of all that the hub's workers did today, 0 to 1.
export const shareOfToday = ({ mine, today }) => (mine && today.pairs > 0 ? mine.today.pairs / today.pairs : 0);

export function shareText(share) {
  if (share === 0) return "–";
  if (share < 0.001) return "< 0.1 %";
  return `${number.format(100 * share)} %`;
}

export function rankText({ mine, contributors }) {
  return mine?.pairs > 0 ? `${whole.format(mine.rank)} of ${whole.format(contributors)}` : "–";
}

// One number a day of the last thirty, 0 where nothing was done.
export function dailyPairs({ mine, now_s }, length = 30) {
  const today_s = now_s - (now_s % day_s);
  const by_day = new Map((mine?.days ?? []).map((day) => [day.day_s, day.pairs]));
  return Array.from({ length }, (_, i) => by_day.get(today_s - (length - 1 - i) * day_s) ?? 0);
}

// The points of a line over those, in a box of `width` by `height`.
export function sparkPoints(values, width, height) {
  const most = Math.max(1, ...values);
  const x = (i) => (values.length > 1 ? (i * width) / (values.length - 1) : 0);
  return values.map((value, i) => `${x(i).toFixed(1)},${(height - (value / most) * height).toFixed(1)}`).join(" ");
}

export function verifiedText({ mine, verifies }) {
  if (!verifies) return "This hub does not compute answers again, so none of it is verified.";
  if (!(mine?.pairs > 0)) return "";
  const percent = Math.floor((100 * mine.verified) / mine.pairs);
  return `${whole.format(percent)} % of it stands verified: the hub computes some answers again.`;
}

export function sparkWords(told) {
  const days = dailyPairs(told).filter((pairs) => pairs > 0).length;
  return `Expert calls on each of the last 30 days; ${count(days, "day")} with work.`;
}

// [rank, name, calls, is it mine] for each line of the board.
export function boardRows(told) {
  return told.board.map((row) => [
    whole.format(row.rank), row.nickname || (row.mine ? "you" : "somebody"), compact.format(row.pairs), row.mine]);
}

// What the hub lacks, from /api/lend.
export function lendWords(lend) {
  if (!lend) return [];
  const room = Math.floor(1e9 / lend.expert_blob_bytes);
  const fits = room >= lend.units
    ? "A gigabyte here holds the whole model."
    : `A gigabyte here holds ${count(room, "expert")} of ${whole.format(lend.units)}.`;

  const missing = lend.units - lend.held;
  const who = lend.computes_itself ? "no contributor" : "nobody";
  const gap = missing > 0
    ? `${count(missing, "expert is", "experts are")} held by ${who}`
    : "Every expert is held by somebody";
  const scarce = lend.scarce.length === 0
    ? "; each is there as often as the host wants it."
    : `; what is missing most is in ${lend.scarce.length === 1 ? "layer" : "layers"} `
      + `${lend.scarce.map(({ layer }) => whole.format(layer)).join(", ")}.`;
  return [`${gap}${scarce}`, `${fits} One takes ${bytes(lend.expert_blob_bytes)}.`];
}

export const powerWords = (percent) => (percent >= 100
  ? "The hub asks as often as it likes." : `The hub asks this tab about ${percent} times where it would ask 100.`);
