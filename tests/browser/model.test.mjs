// `moex-hub model`: its arithmetic alone, and with a running hub and native workers. This test checks counts and
// states; the accuracy of a prediction is measured by a bench (bench/seeds/model_bench.mjs).
import assert from "node:assert/strict";
import { test } from "node:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { spawn } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Hub, NativeWorker, build, chat, run } from "./support/hub.mjs";

const model = (...args) => run(join(build, "moex-hub"), ["model", ...args]);
const rowsOf = async (...args) => {
  const { code, stdout, stderr } = await model(...args, "--json");
  assert.equal(code, 0, stderr);
  return JSON.parse(stdout);
};

// Runs `moex-hub model` with `input` on its stdin.
function modelReading(input, ...args) {
  const child = spawn(join(build, "moex-hub"), ["model", ...args], { stdio: ["pipe", "pipe", "inherit"] });
  let stdout = "";
  child.stdout.setEncoding("utf8").on("data", (text) => { stdout += text; });
  child.stdin.end(input);
  return new Promise((resolve) => child.once("close", (code) => resolve({ code, stdout })));
}

test("the paper's tables agree with the twin in JavaScript", async () => {
  const ours = (await rowsOf("--paper")).filter(({ table, how }) => table === "Table 1" && how.startsWith("eq. 18"));
  const { stdout } = await run("node", ["bench/seeds/moex_tables.mjs"]);
  const theirs = stdout.split("\n").filter((line) => line.startsWith("Table 1") && line.includes("eq. 18"));
  assert.equal(ours.length, 4);
  assert.deepEqual(ours.map(({ computed }) => computed.toFixed(2)), theirs.map((line) => line.split(",")[4]));
});

test("a given swarm has a row for each h, the same in every format", async () => {
  const rows = await rowsOf("--rtt-ms", "10", "--copies", "2", "--sigma", "0.3");
  const tokens = rows.filter(({ table }) => table === "eq. 12");
  assert.deepEqual(tokens.map(({ row }) => row), ["h=1", "h=1", "h=2", "h=2"]);
  assert.ok(tokens[2].computed < tokens[0].computed, "a second copy takes no longer");
  const csv = (await model("--rtt-ms", "10", "--copies", "2", "--sigma", "0.3", "--csv")).stdout.trim().split("\n");
  assert.equal(csv.length, rows.length + 1);
  assert.equal(csv[0], "table,row,quantity,paper,computed,how");

  for (const [args, says] of [[["--sigma", "x"], "--sigma"], [["--shape", "none"], "--shape"],
    [["--from-metrics", "ftp://here"], "http://HOST:PORT"]]) {
    const { code, stderr } = await model(...args);
    assert.equal(code, 2);
    assert.ok(stderr.includes(says), stderr);
  }
});

test("spans have a row each: four of them take seven trips instead of 48", async () => {
  const spans = (await rowsOf("--rtt-ms", "20")).filter(({ table }) => table === "spans");
  assert.deepEqual(spans.map(({ row }) => row),
    ["1 span", "1 span", "2 spans", "2 spans", "4 spans", "4 spans", "8 spans", "8 spans"]);
  const four = spans.filter(({ row }) => row === "4 spans");
  assert.match(four[0].how, /7 round trips instead of 48/);
  assert.ok(four[1].computed > 2, `${four[1].computed} times as fast`);
});

test("drafts have a row each: a long link gains all their tokens, and slow drafts lose", async () => {
  const drafts = async (...args) => (await rowsOf(...args)).filter(({ table }) => table === "drafts");
  assert.deepEqual(await drafts("--rtt-ms", "20"), []);
  const far = await drafts("--rtt-ms", "20", "--acceptance", "0.8", "--workers", "1");
  const gains = far.filter(({ quantity }) => quantity === "x");
  assert.equal(gains.length, 8);
  assert.deepEqual(gains[3].row, "4 drafts");
  const tokens = far.filter(({ quantity }) => quantity === "tokens");
  assert.ok(Math.abs(tokens[3].computed - (1 + 0.8 + 0.8 ** 2 + 0.8 ** 3 + 0.8 ** 4)) < 1e-9);
  assert.ok(Math.abs(gains[3].computed - tokens[3].computed) < 1e-9, "rows cost nothing by default");
  const slow = await drafts("--rtt-ms", "0", "--acceptance", "0.2", "--draft-ms", "500");
  assert.ok(slow.filter(({ quantity }) => quantity === "x").every(({ computed }) => computed < 1));
});

test("a running hub shows predictions from worker times beside measurements", async (t) => {
  const hub = await Hub.start(["--local-fallback", "off", "--replicas", "2", "--timeout-ms", "60000"]);
  t.after(() => hub.remove());
  const before = await model("--from-metrics", hub.url);
  assert.equal(before.code, 1);
  assert.match(before.stderr, /no layer was exchanged/);

  const workers = [];
  for (let i = 0; i < 2; i += 1) {
    workers.push(await NativeWorker.start(hub, ["--backend", "cpu"]));
    t.after(() => workers[i].stop());
  }
  await hub.until(({ coverage }) => coverage.replicas_min === 2, "both workers");
  const { error } = await chat(hub, {
    model: "moex-demo", temperature: 0, max_tokens: 32, messages: [{ role: "user", content: "Tell me a story." }],
  });
  assert.equal(error, null);

  const rows = await rowsOf("--from-metrics", hub.url);
  const pass = rows.find(({ row, quantity }) => row === "pass" && quantity === "ms");
  const round = rows.find(({ row }) => row === "round");
  for (const { measured, predicted } of [pass, round]) assert.ok(measured > 0 && predicted > 0, JSON.stringify(rows));
  assert.equal(rows[0].table, "moex-demo");
  assert.match(round.how, /answers from [12] workers, h=1/);
  assert.equal(rows.some(({ row }) => row === "calls"), false, "nothing was computed by the hub");

  // Metrics that another program fetched, read from stdin, give the same rows as metrics read from the hub. A hub that
  // had no calls in the time of --over has no data for the model.
  const told = await modelReading(JSON.stringify(await hub.status()), "--from-metrics", "-", "--json");
  assert.equal(told.code, 0);
  assert.equal(JSON.parse(told.stdout).length, rows.length);
  const idle = await model("--from-metrics", hub.url, "--over", "0.01");
  assert.equal(idle.code, 1);
  assert.match(idle.stderr, /no layer was exchanged/);
});

test("a hub with keys is queried with a key", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "moex-key-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, "key");
  const key = "moex-api-one-two-three-four";
  writeFileSync(file, `${key}\n`);
  const hub = await Hub.start(["--require-key"], { env: { MOEX_API_KEY: key } });
  t.after(() => hub.remove());
  const without = await model("--from-metrics", hub.url);
  assert.equal(without.code, 1);
  assert.match(without.stderr, /401.*--key-file/);
  const withKey = await model("--from-metrics", hub.url, "--key-file", file);
  assert.match(withKey.stderr, /no layer was exchanged/);
});
