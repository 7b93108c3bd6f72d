#!/usr/bin/env node
// "OD-MoE" (002): the cost of a shadow's late departure, and the decoding speed of the six cases (Fig. 8) and of the
// grid of alignment periods (Fig. 9), from a simulation, since no such machine is available. Recall is measured, speeds
// are not.
//   node bench/seeds/shadow_speed.mjs [--recall FILE] [--shadow NAME] [--setting NAME] [--seeds N]
//                                     [bench/results/foresight_shadow.demo.csv int3 all 20]
// CSV: setting, case, token_period, kv_period, recall, tok_s, deviation (over seeds), of_resident, late_ms (a token's
// mean wait for predicted loads that came too late), missed_ms (for loads that were not predicted), bytes (aligned, per
// token).
//   The simulation walks a token's layers one after the other. The main node takes t_M, then the layer's group of
//     workers
//   (layer l modulo n groups) takes t_W. Each worker of the group loads one expert in t_L over a link of its own, as
//     soon
//   as the group is free and the shadow has predicted the layer. An expert that was not predicted is loaded when the
//   router has chosen it. The shadow takes t_S a layer, and without alignment it never waits. At every token at which
//     it
//   is aligned, it departs when the token is known and its keys and values have arrived (the bytes of the tokens since
//   the last alignment, over the link): this is the late departure. In between it runs ahead, as far as the group's
//   memory for one layer allows. Each of a layer's experts is predicted with the measured recall, independently.
//   Settings: "paper": Mixtral-8x7B on RTX 3090s in f32 (32 layers, 4 groups of 2; a layer of all-resident decoding is
//   1000 / 4.89 / 32 = 6.4 ms, split in half; an expert of 704 MB over 25 GB/s; 256 KB a token over 1 Gbit/s; the
//   shadow in INT8 takes half of the main model's time). "3080": loads of 1.5 times as long (its Fig. 10).
//   "qwen3-30b": 48 layers, 4 groups of 8 on the hub's times of on_demand_tables.mjs, 2.5 MB over 10 GB/s, 96 KB a
//   token over 10 Gbit/s, a shadow of 0.5 of the time.
//   The recall is that of the demo (4 of 16 experts), not of Mixtral; the paper's own for case 1 is 0.973.
// The simulation has no faults, noise or contention; its extreme cases are compared with closed forms first.
// example: node bench/seeds/shadow_speed.mjs --setting qwen3-30b
import { readFileSync } from "node:fs";

import { readFlags } from "../flags.mjs";

const options = { recall: "bench/results/foresight_shadow.demo.csv", shadow: "int3", setting: "all", seeds: "20" };
readFlags("seeds/shadow_speed", options);

const paperLayer = 1000 / 4.89 / 32;
const settings = {
  paper: { layers: 32, groups: 4, experts: 2, main: paperLayer / 2, worker: paperLayer / 2, load: 704.6 / 25,
    shadow: paperLayer / 2, kv: 256 * 1024 * 8 / 1e6, kv_bytes: 256 * 1024, chance: 0.25 },
  "qwen3-30b": { layers: 48, groups: 4, experts: 8, main: 36.06 / 48 - 0.32, worker: 0.32, load: 2.507 / 10,
    shadow: 36.06 / 48 / 2, kv: 96 * 1024 * 8 / 1e7, kv_bytes: 96 * 1024, chance: 8 / 128 },
};
settings["3080"] = { ...settings.paper, load: 1.5 * settings.paper.load };

// Returns a generator of random numbers in [0, 1) that depend only on the seed (mulberry32).
function randomOf(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// Simulates the decoding of `tokens` tokens and returns the time of a token. `recall` null: no predictions. `depart`:
// returns for a token whether the shadow waits for it, and the number of tokens whose keys and values arrive with it.
function decode(setting, { recall, depart, instant = false }, tokens, random) {
  const { layers, groups, experts, main, worker, load, shadow, kv } = setting;
  const freeAt = Array(groups).fill(0);
  let [now, shadowAt, late, missed] = [0, 0, 0, 0];
  for (let token = 0; token < tokens; token += 1) {
    const { waits, kv_tokens } = depart(token);
    if (waits) shadowAt = Math.max(shadowAt, now + kv_tokens * kv);
    for (let layer = 0; layer < layers; layer += 1) {
      const group = (token * layers + layer) % groups;
      shadowAt += instant ? 0 : shadow;
      const routed = now + main;
      let foreseen = recall !== null;
      for (let expert = 0; foreseen && expert < experts; expert += 1) foreseen = random() < recall;
      // If the prediction was wrong, the load in flight is abandoned and the right expert is loaded.
      const guessed = Math.max(freeAt[group], instant ? 0 : shadowAt) + load;
      const begin = Math.max(routed, foreseen ? guessed : routed + load);
      if (foreseen) late += begin - routed;
      else missed += begin - routed;
      now = freeAt[group] = begin + worker;
    }
  }
  return { ms: now / tokens, late: late / tokens, missed: missed / tokens };
}

const due = (token, period) => period > 0 && token % period === 0;
// A shadow that aligns keys waits for the keys and for the last token that they belong to. A shadow that aligns only
// tokens waits for tokens.
const departing = (token_period, kv_period) => (token) => ({
  waits: token > 0 && (due(token, token_period) || due(token, kv_period)),
  kv_tokens: token > 0 && due(token, kv_period) ? kv_period : 0,
});
const never = () => ({ waits: false, kv_tokens: 0 });

// Checks the simulation in its extreme cases. With all experts resident a token takes t_M + t_W in each layer; without
// predictions each layer adds its load; a perfect shadow whose window is n t_M + (n - 1) t_W hides a load of that
// length.
for (const [name, setting] of Object.entries(settings)) {
  const { layers, groups, main, worker, load } = setting;
  const near = (found, wanted, what) => {
    if (Math.abs(found / wanted - 1) < 0.01) return;
    console.error(`shadow_speed: ${name}, ${what}: the walk gives ${found}, the closed form ${wanted}`);
    process.exit(1);
  };
  const perfect = { recall: 1, depart: never, instant: true };
  const window = groups * main + (groups - 1) * worker;
  near(decode({ ...setting, load: 0 }, perfect, 256, randomOf(1)).ms, layers * (main + worker), "all resident");
  const unforeseen = decode(setting, { recall: null, depart: never }, 256, randomOf(1));
  near(unforeseen.ms, layers * (main + load + worker), "case 6");
  near(decode({ ...setting, load: window }, perfect, 256, randomOf(1)).ms, layers * (main + worker), "eq. 1");
  near(decode({ ...setting, load: window + groups }, perfect, 256, randomOf(1)).ms, layers * (main + worker + 1),
    "a load beyond eq. 1");
}

// The mean recall on answers, over all layers, keyed by the alignment periods "token,kv".
const measured = new Map(readFileSync(options.recall, "utf8").split("\n").map((line) => line.split(","))
  .filter((cells) => cells[0] === options.shadow && cells[3] === "answers" && cells[6] === "all" && cells[7] === "4")
  .map((cells) => [`${cells[4]},${cells[5]}`, Number(cells[8])]));
if (measured.size === 0) {
  console.error(`shadow_speed: ${options.recall} has no answers of a shadow ${options.shadow}`);
  process.exit(1);
}

// The last value of a row is the shadow's time as a share of the model's time. 0.76 is the share of an INT3 shadow of
// the demo on a processor, without its LM head since tokens are given (foresight_shadow_times.xeon-2-cores.csv); 0.98
// with the head.
const rows = [["case 1", 1, 1], ["case 2", 1, 0], ["case 3", 0, 1], ["case 4", 0, 0], ["case 5: random", "", ""],
  ["case 6: none", "", ""]];
for (const token of [1, 2, 4, 8, 16]) for (const kv of [1, 2, 4, 8, 16]) rows.push(["grid", token, kv]);
for (const share of [0.1, 0.25, 0.5, 0.76, 0.98]) rows.push([`case 1: shadow ${share}`, 1, 1, share]);

console.log("setting,case,token_period,kv_period,recall,tok_s,deviation,of_resident,late_ms,missed_ms,bytes");
for (const [name, setting] of Object.entries(settings)) {
  if (options.setting !== "all" && options.setting !== name) continue;
  const resident = setting.layers * (setting.main + setting.worker);
  for (const [title, token, kv, share] of rows) {
    const shadow = share === undefined ? setting.shadow : share * (setting.main + setting.worker);
    const recall = title === "case 6: none" ? null : title === "case 5: random" ? setting.chance
      : measured.get(`${token},${kv}`);
    if (recall === undefined) continue;
    const is_shadow = token !== "";
    const way = { recall, depart: is_shadow ? departing(token, kv) : never, instant: !is_shadow };
    const found = Array.from({ length: Number(options.seeds) }, (_, i) => decode({ ...setting, shadow }, way, 256,
      randomOf(i + 1)));
    const mean = (value) => found.reduce((sum, one) => sum + value(one), 0) / found.length;
    const speed = mean(({ ms }) => 1000 / ms);
    const deviation = Math.sqrt(mean(({ ms }) => (1000 / ms - speed) ** 2) * found.length / (found.length - 1));
    const bytes = is_shadow ? (token > 0 ? 4 / token : 0) + (kv > 0 ? setting.kv_bytes : 0) : 0;
    console.log([name, title, token, kv, recall === null ? "" : recall.toFixed(3), speed.toFixed(3),
      deviation.toFixed(3), (speed * resident / 1000).toFixed(3), mean(({ late }) => late).toFixed(2),
      mean(({ missed }) => missed).toFixed(2), bytes.toFixed(0)].join(","));
  }
}
