// The chat's settings: what holds when nothing is set, what a field may say, and what the API is sent. Pure.

export const defaults = { system: "", temperature: 0.8, top_p: 0.95, max_tokens: "", seed: "" };

const within = (value, low, high, otherwise) => (
  typeof value === "number" && value >= low && value <= high ? value : otherwise);

// Whatever was kept, from this version or an older one, as settings.
export function settingsOf(kept) {
  const from = kept && typeof kept === "object" ? kept : {};
  const text = (value) => (typeof value === "number" || typeof value === "string" ? String(value) : "");
  return {
    system: typeof from.system === "string" ? from.system : defaults.system,
    temperature: within(from.temperature, 0, 2, defaults.temperature),
    top_p: within(from.top_p, 0.05, 1, defaults.top_p),
    // A number is the slider of an older page, which nobody could set to "as long as it takes".
    max_tokens: typeof from.max_tokens === "string" ? from.max_tokens : defaults.max_tokens,
    seed: text(from.seed),
  };
}

// A sentence when the text is no seed, "" when it is one or is empty. Beyond 2^53 a number would be rounded on its way.
export function seedProblem(text) {
  const trimmed = text.trim();
  if (trimmed === "") return "";
  if (/^\d+$/.test(trimmed) && Number.isSafeInteger(Number(trimmed))) return "";
  return `A seed is a whole number from 0 to ${Number.MAX_SAFE_INTEGER}. Empty means random.`;
}

export function lengthProblem(text) {
  const trimmed = text.trim();
  if (trimmed === "") return "";
  if (/^\d+$/.test(trimmed) && Number(trimmed) >= 1 && Number(trimmed) <= 1e9) return "";
  return "A number of tokens, at least 1. Empty means as long as the model's context.";
}

// The longest answer in tokens, null for as long as the context.
export function lengthLimit(settings) {
  return settings.max_tokens.trim() === "" ? null : Number(settings.max_tokens.trim());
}

// The fields of a request that come from the settings.
export function samplingOf(settings) {
  const limit = lengthLimit(settings);
  const seed = settings.seed.trim();
  return {
    temperature: settings.temperature,
    top_p: settings.top_p,
    ...(limit === null ? {} : { max_tokens: limit }),
    ...(seed === "" ? {} : { seed: Number(seed) }),
  };
}
