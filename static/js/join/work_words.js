// Texts of the join page about the contributor's work, and about the experts that the hub lacks. The module is pure: it
// uses neither the page nor the hub.
import { bytes, compact, number, whole } from "../format.js";
import { say } from "../words/join.js";

const day_s = 86400;

// Returns this contributor's share of the work that all workers of the hub did today, 0 to 1.
export const shareOfToday = ({ mine, today }) => (mine && today.pairs > 0 ? mine.today.pairs / today.pairs : 0);

export function shareText(share) {
  if (share === 0) return "–";
  if (share < 0.001) return `< ${number.format(0.1)} %`;
  return `${number.format(100 * share)} %`;
}

export function rankText({ mine, contributors }) {
  return mine?.pairs > 0 ? say("rank", whole.format(mine.rank), whole.format(contributors)) : "–";
}

// Returns the contributor's computed pairs on each of the last `length` days, 0 for a day without work.
export function dailyPairs({ mine, now_s }, length = 30) {
  const today_s = now_s - (now_s % day_s);
  const by_day = new Map((mine?.days ?? []).map((day) => [day.day_s, day.pairs]));
  return Array.from({ length }, (_, i) => by_day.get(today_s - (length - 1 - i) * day_s) ?? 0);
}

// Returns the points of a line over `values`, in a box of `width` by `height`.
export function sparkPoints(values, width, height) {
  const most = Math.max(1, ...values);
  const x = (i) => (values.length > 1 ? (i * width) / (values.length - 1) : 0);
  return values.map((value, i) => `${x(i).toFixed(1)},${(height - (value / most) * height).toFixed(1)}`).join(" ");
}

export function verifiedText({ mine, verifies }) {
  if (!verifies) return say("not_verified");
  if (!(mine?.pairs > 0)) return "";
  const percent = Math.floor((100 * mine.verified) / mine.pairs);
  return say("verified", whole.format(percent));
}

export function sparkWords(told) {
  const days = dailyPairs(told).filter((pairs) => pairs > 0).length;
  return say("spark", days);
}

// Returns [rank, name, calls, true for this contributor] for each line of the board.
export function boardRows(told) {
  return told.board.map((row) => [
    whole.format(row.rank), row.nickname || say(row.mine ? "you" : "somebody"), compact.format(row.pairs), row.mine]);
}

// Describes the experts that the hub lacks, from /api/lend.
export function lendWords(lend) {
  if (!lend) return [];
  const room = Math.floor(1e9 / lend.expert_blob_bytes);
  const fits = room >= lend.units ? say("gigabyte_all") : say("gigabyte", room, lend.units);
  const gap = say("gap", lend.units - lend.held, lend.computes_itself);
  // Where every expert has a holder, what the layers lack are further copies.
  const kind = lend.held < lend.units ? "scarce" : "second_copies";
  const scarce = lend.scarce.length === 0 ? say("not_scarce") : say(kind, lend.scarce.map(({ layer }) => layer));
  return [`${gap}${scarce}`, `${fits} ${say("one_takes", bytes(lend.expert_blob_bytes))}`];
}

export const powerWords = (percent) => (percent >= 100 ? say("power_all") : say("power_part", percent));
