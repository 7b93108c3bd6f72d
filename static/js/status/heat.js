// The map of experts and their holders, as distinguishable cells. All functions but drawLayer() are pure.
import { say } from "../words/status.js";

const cell_min_px = 7;       // width of a cell with its gap; a layer with less room takes several rows
const cell_max_px = 18;
const gap_px = 1.5;

// Returns the grid {columns, rows, cell_px} that shows the experts of a layer within `width_px`.
export function heatLayout(width_px, num_experts) {
  const fitting = Math.max(1, Math.floor(width_px / cell_min_px));
  if (num_experts <= fitting) {
    return { columns: num_experts, rows: 1, cell_px: Math.min(cell_max_px, width_px / num_experts) };
  }
  // Give all rows the same length, a multiple of eight if possible, so that a reader can count positions.
  const rows = Math.ceil(num_experts / (fitting >= 8 ? fitting - (fitting % 8) : fitting));
  const columns = Math.ceil(num_experts / rows);
  return { columns, rows, cell_px: Math.min(cell_max_px, width_px / columns) };
}

// Returns the kind of cell for the number of contributors that hold an expert; "none" only if the hub does not compute
// the expert either.
export function holderKind(replicas, hub_computes) {
  if (replicas === 0) return hub_computes ? "hub" : "none";
  return replicas === 1 ? "one" : "more";
}

// Returns the kind of cell for a letter of `tiers` in /api/status: the tier of the nearest holder. Experts without a
// holder are shown as in holderKind().
const tier_kinds = { s: "slot", m: "memory", d: "disk" };
export const tierKind = (letter, hub_computes) => tier_kinds[letter] ?? holderKind(0, hub_computes);

// The share of a cell that is filled for each storage tier, so that tiers can be distinguished without colours.
const tier_fill = { slot: 1, memory: 0.6, disk: 0.25 };

// Returns true if some experts are not resident, so that the tiers say more than the number of holders.
export const tellsTiers = (tiers = []) => tiers.some((layer) => /[md]/.test(layer));

export function tierSentence(tiers) {
  const count = (letter) => tiers.join("").split(letter).length - 1;
  return say("tiers_map", count("s"), count("m"), count("d"));
}

// Describes the whole map of experts in one sentence.
export function heatWords(replicas, hub_computes) {
  const all = replicas.flat();
  const lent = all.filter((one) => one > 0).length;
  if (all.length === 0) return "";
  if (lent === all.length) return say("all_held", all.length);
  if (lent === 0) return say(hub_computes ? "all_hub" : "all_nobody");
  return say("held", lent, all.length, say(hub_computes ? "hub_rest" : "nobody_rest"));
}

// Draws one layer. `kinds`: the kind of each of its experts; `colours`: the colour of each kind.
export function drawLayer(canvas, kinds, { width_px, colours }) {
  const { columns, rows, cell_px } = heatLayout(width_px, kinds.length);
  const scale = window.devicePixelRatio || 1;
  const height_px = Math.min(cell_px, 14);
  canvas.width = Math.round(columns * cell_px * scale);
  canvas.height = Math.round(rows * height_px * scale);
  canvas.style.width = `${columns * cell_px}px`;
  canvas.style.height = `${rows * height_px}px`;

  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  kinds.forEach((kind, expert) => {
    const [x, y] = [(expert % columns) * cell_px, Math.floor(expert / columns) * height_px];
    const [across, all] = [cell_px - gap_px, height_px - gap_px];
    const filled = Math.max(2, all * (tier_fill[kind] ?? 1));
    context.fillStyle = colours.empty;
    context.fillRect(x, y, across, all);
    context.fillStyle = colours[kind];
    context.fillRect(x, y + all - filled, across, filled);
  });
  return { columns, cell_px, height_px };
}
