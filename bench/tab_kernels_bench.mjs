#!/usr/bin/env node
// Measures a worker's kernels in a tab and natively, alternately on one GPU: /bench.html in Chromium, and kernel_bench.
//   node bench/tab_kernels_bench.mjs [--shapes qwen3-30b-a3b,paper] [--turns 2] [--device NAME] [--model DIR]
//                                   [--header]
// CSV: turn, where, and the columns of kernel_bench, whose head explains them. where: tab; native, for rows that a tab
// measures too; or ratio, the tab's figure divided by the native one, for rows in which both move the same bytes.
// p50_us of page_round is the time of a round from frame to frame, without pauses between rounds; that of empty_round
// is the fixed cost of a round.
// --model: the model of the hub that serves the page; the page computes nothing of this model.
// MOEX_BUILD: build folder [build]. MOEX_CHROMIUM, MOEX_CHROMIUM_ARGS, MOEX_NPM: the browser and what it needs to find
// the GPU.
// example: node bench/tab_kernels_bench.mjs --shapes qwen3-30b-a3b --header
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub } = await import("../tests/browser/support/hub.mjs");
const { launch } = await import("../tests/browser/support/tab.mjs");

const options = { shapes: "qwen3-30b-a3b,paper", turns: "2", device: "", model: "static/models/demo" };
const with_header = readFlags("tab_kernels_bench", options);
const columns = "what,shape,slots,rows,routing,p10_us,p50_us,p99_us,gpu_us,dispatches,mb,gb_s";
const figures = ["p10_us", "p50_us", "p99_us", "gpu_us"];

// Returns the rows of a CSV, keyed by the name of the measurement.
function rowsOf(csv) {
  const names = columns.split(",");
  const rows = new Map();
  for (const line of csv.split("\n")) {
    const cells = line.split(",");
    if (cells.length !== names.length || cells[0] === "what") continue;
    const row = Object.fromEntries(names.map((name, i) => [name, cells[i]]));
    rows.set(["what", "shape", "rows", "routing"].map((name) => row[name]).join(), row);
  }
  return rows;
}

async function inTab(url) {
  const browser = await launch();
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(0);
    await page.goto(`${url}/bench.html?${new URLSearchParams({ shapes: options.shapes })}`);
    await page.getByRole("button", { name: "Measure", exact: true }).click();
    await page.waitForFunction(() => ["done", "failed"].includes(document.documentElement.dataset.phase));
    const { phase, detail, csv } = await page.evaluate(async () => ({
      phase: document.documentElement.dataset.phase, detail: document.getElementById("detail").textContent,
      csv: (await import("/js/bench/words.js")).csvOf(window.moexRows ?? []),
    }));
    if (phase === "failed") throw new Error(`/bench.html: ${detail}`);
    if (!said) console.log(`# tab: ${detail}`);
    return rowsOf(csv);
  } finally {
    await browser.close();
  }
}

// A round of the page holds one layer. The rounds of kernel_bench, which hold several layers, are not measured here.
function natively() {
  const rows = new Map();
  for (const shape of options.shapes.split(",")) {
    const device = options.device ? ["--device", options.device] : [];
    const csv = execFileSync(join(process.env.MOEX_BUILD, "kernel_bench"),
      ["--shape", shape, "--layers", "4", ...device], { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
    for (const [key, row] of rowsOf(csv)) if (!rows.has(key)) rows.set(key, row);
  }
  return rows;
}

const print = (turn, where, row) =>
  console.log([turn, where, ...columns.split(",").map((name) => row[name])].join());

let said = false;
const hub = await Hub.start(["--backend", "local", "--model", options.model]);
try {
  for (let turn = 1; turn <= Number(options.turns); ++turn) {
    const tab = await inTab(hub.url);
    const native = natively();
    if (!said && with_header) console.log(`turn,where,${columns}`);
    said = true;
    for (const [key, row] of tab) {
      print(turn, "tab", row);
      const other = native.get(key);
      if (!other) continue;
      print(turn, "native", other);
      const is_same = Number(row.mb) === Number(other.mb);
      const ratio = Object.fromEntries(figures.map((name) => [name,
        is_same && row[name] > 0 && other[name] > 0 ? (row[name] / other[name]).toFixed(2) : ""]));
      print(turn, "ratio", { ...row, dispatches: "", mb: "", gb_s: "", ...ratio });
    }
  }
} finally {
  await hub.remove();
}
