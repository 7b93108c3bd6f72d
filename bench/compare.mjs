// Runs two builds alternately on one machine, so that other load affects both alike: decode, prefill, pack, dispatch,
// and the round through a native worker.
//   node bench/compare.mjs BUILD_BEFORE BUILD_AFTER [--turns N] [--only decode,dispatch,pack,round]
//                          [--shape NAME] [--threads N] [--megabytes N]
// Each build folder holds decode_bench, dispatch_bench, pack_bench, moex-hub and moex-worker. A missing program is
// reported on stderr, and its rows are left out.
// CSV: bench, condition, measure, before and after (medians of the turns), and speedup (median, lowest and highest of
// the ratios of each turn; above 1 the second program is faster).
// example: node bench/compare.mjs ../base/build build --turns 5
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const options = { turns: "3", only: "decode,dispatch,pack,round", shape: "bench-moe", threads: "2", megabytes: "500" };

function usage(sentence) {
  console.error(`compare: ${sentence}; see the head of bench/compare.mjs`);
  process.exit(2);
}

const builds = [];
for (let i = 2; i < process.argv.length; i += 1) {
  const name = process.argv[i].replace(/^--/, "");
  if (!process.argv[i].startsWith("--")) builds.push(resolve(process.argv[i]));
  else if (name in options && i + 1 < process.argv.length) options[name] = process.argv[i += 1];
  else usage(`unknown flag ${process.argv[i]}`);
}
if (builds.length !== 2) usage("wanted two build folders");

// `keys`: the columns that name a condition. `better`: for each measured column, whether larger or smaller values are
// better.
const benches = {
  decode: {
    programs: ["decode_bench"],
    command: (build) => [join(build, "decode_bench"), "--shape", options.shape, "--threads", options.threads],
    keys: ["shape", "threads", "phase", "rows_per_step"],
    better: { tok_s_median: "more" },
  },
  dispatch: {
    programs: ["dispatch_bench"],
    command: (build) => [join(build, "dispatch_bench")],
    keys: ["what", "workers", "rows", "experts", "hidden"],
    better: { median_us: "less" },
  },
  pack: {
    programs: ["pack_bench"],
    command: (build) => [
      join(build, "pack_bench"), "--megabytes", options.megabytes, "--threads", options.threads, "--repeats", "1",
    ],
    keys: ["threads", "experts"],
    better: { mb_per_s_median: "more" },
  },
  round: {
    programs: ["moex-hub", "moex-worker"],
    command: () => [
      process.execPath, join(root, "bench/serving_bench.mjs"), "--header", "--workers", "native",
      "--prompt", "32", "--tokens", "16", "--repeats", "3",
    ],
    keys: ["model", "workers"],
    better: { decode_tok_s: "more", prefill_tok_s: "more", p50_ms: "less" },
  },
};

// Splits a CSV line into cells; a quoted cell may hold commas.
const cells = (line) => line.split(/,(?=(?:[^"]*"[^"]*")*[^"]*$)/);

// Parses a bench's CSV into objects; blank lines and comments are skipped.
function runBench(bench, build) {
  const [program, ...args] = bench.command(build);
  return new Promise((done, fail) => {
    const child = spawn(program, args, {
      cwd: root, env: { ...process.env, MOEX_BUILD: build }, stdio: ["ignore", "pipe", "inherit"],
    });
    let text = "";
    child.stdout.setEncoding("utf8").on("data", (piece) => { text += piece; });
    child.on("error", fail);
    child.on("close", (code) => {
      if (code !== 0) return fail(new Error(`${program} ended with ${code}`));
      const [head, ...lines] = text.split("\n").filter((line) => line && !line.startsWith("#"));
      const columns = cells(head);
      return done(lines.map((line) => Object.fromEntries(cells(line).map((cell, i) => [columns[i], cell]))));
    });
  });
}

const sorted = (values) => [...values].sort((a, b) => a - b);
function median(values) {
  const ordered = sorted(values);
  const middle = ordered.length >> 1;
  return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}
const shown = (value) => String(Number(value.toPrecision(5)));

function report(name, bench, turns) {
  for (const first of turns[0].before) {
    const condition = bench.keys.map((key) => first[key]).join(" ");
    const same = (row) => bench.keys.every((key) => row[key] === first[key]);

    for (const [measure, better] of Object.entries(bench.better)) {
      const pairs = turns
        .map((turn) => [turn.before, turn.after].map((rows) => Number(rows.find(same)?.[measure])))
        .filter(([before, after]) => before > 0 && after > 0);
      if (pairs.length === 0) continue;

      const speedups = sorted(pairs.map(([before, after]) => (better === "more" ? after / before : before / after)));
      console.log([
        name, condition, measure, shown(median(pairs.map(([before]) => before))),
        shown(median(pairs.map(([, after]) => after))),
        ...[median(speedups), speedups[0], speedups.at(-1)].map((value) => value.toFixed(3)),
      ].join(","));
    }
  }
}

console.log("bench,condition,measure,before,after,speedup_median,speedup_min,speedup_max");
for (const name of options.only.split(",")) {
  const bench = benches[name] ?? usage(`there is no bench ${name}`);
  const missing = builds.flatMap((build) => bench.programs.map((program) => join(build, program)))
    .find((program) => !existsSync(program));
  if (missing) {
    console.error(`compare: ${name} is left out, ${missing} is not there`);
    continue;
  }

  const turns = [];
  for (let turn = 0; turn < Number(options.turns); turn += 1) {
    // The build that runs first alternates, so that neither build always runs on the warmer machine.
    const order = turn % 2 === 0 ? ["before", "after"] : ["after", "before"];
    const rows = {};
    for (const side of order) rows[side] = await runBench(bench, builds[side === "before" ? 0 : 1]);
    turns.push(rows);
  }
  report(name, bench, turns);
}
