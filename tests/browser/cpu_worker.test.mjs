// Stories with native workers on the processor: a hub without experts of its own gives the text of its own backend, in
// both arithmetics; and a worker without a GPU chooses the processor by itself.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Hub, NativeWorker, build, chat, generateText, run } from "./support/hub.mjs";

const prompt = process.env.MOEX_STORY_PROMPT ?? "Tell me a story about a garden.";
const max_tokens = 48;
const request = { model: "moex-demo", messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens };
const patient = ["--timeout-ms", "60000", "--round-deadline-s", "300"];

// Returns the text of a hub for which one worker computes all experts, and the hub's status.
async function textOf(t, hub_args, worker_args) {
  const hub = await Hub.start(["--local-fallback", "off", ...patient, ...hub_args]);
  t.after(() => hub.remove());
  const worker = await NativeWorker.start(hub, worker_args);
  t.after(() => worker.stop());
  console.log(`adapter: ${worker.adapter}`);
  await hub.until((status) => status.health === "ok", "the worker");
  const answer = await chat(hub, request);
  assert.equal(answer.error, null);
  const status = await hub.status();
  assert.equal(status.calls.local, 0);
  assert.ok(status.calls.remote > 0 && status.calls.remote === status.calls.calls);
  return { text: answer.text, status };
}

async function localText(t, args) {
  const hub = await Hub.start(args);
  t.after(() => hub.remove());
  return (await chat(hub, request)).text;
}

test("a deterministic hub keeps its text with an int8 worker", async (t) => {
  const expected = await generateText(prompt, max_tokens);
  assert.ok(expected.margin > 0, "no two tokens are level");
  // The worker's option int8 would give another answer, but the arithmetic in the hub's WELCOME takes precedence.
  const { text, status } = await textOf(t, ["--deterministic"], ["--backend", "cpu", "--arithmetic", "int8"]);
  assert.equal(text, expected.text);
  assert.deepEqual(status.workers.map(({ backend, arithmetic }) => [backend, arithmetic]), [["cpu", "exact"]]);
});

// With f32 on the wire neither rows nor gates are rounded between worker and hub.
test("int8 arithmetic is the same in a worker and in the hub", async (t) => {
  const expected = await localText(t, ["--backend", "local"]);
  const { text, status } = await textOf(t, ["--wire-dtype", "f32"], ["--backend", "cpu"]);
  assert.equal(text, expected);
  assert.deepEqual(status.workers.map(({ backend, arithmetic }) => [backend, arithmetic]), [["cpu", "int8"]]);
});

test("a worker without a real GPU uses the processor", async (t) => {
  const { status } = await textOf(t, [], ["--backend", "auto"]);
  const [{ backend, software }] = status.workers;
  assert.ok(["cpu", "vulkan"].includes(backend));
  assert.equal(software, false, "a software driver is no GPU");
});

// Two workers use the same identity file, as on two machines; one of the workers receives less work.
test("native workers of one identity add up at the hub", async (t) => {
  const hub = await Hub.start(["--local-fallback", "off", "--replicas", "2", ...patient]);
  t.after(() => hub.remove());
  const file = join(hub.state, "identity.pem");
  const mine = ["--backend", "cpu", "--identity", file, "--nickname", "Ada"];
  const first = await NativeWorker.start(hub, [...mine, "--show-nickname"]);
  t.after(() => first.stop());
  assert.equal(statSync(file).mode & 0o777, 0o600);
  const second = await NativeWorker.start(hub, [...mine, "--show-nickname", "--power", "50"]);
  t.after(() => second.stop());
  await hub.until(({ health, workers }) => health === "ok"
    && workers.length === 2 && workers.some(({ power }) => power === 0.5), "both workers");

  const token = new URL(hub.join).hash.slice("#token=".length);
  const told = async () => (await fetch(`${hub.url}/api/contributors`,
    { headers: { Authorization: `Bearer ${token}` } })).json();
  while ((await told()).contributors < 1) await new Promise((go) => setTimeout(go, 50));
  assert.equal((await chat(hub, { ...request, max_tokens: 8 })).error, null);
  // The hub counts once a second: wait until all work is counted, and check that no work is counted twice.
  const sum = (workers) => workers.reduce((all, { pairs_answered }) => all + pairs_answered, 0);
  const answered = async () => sum((await hub.status()).workers);
  let row;
  do [row] = (await told()).board; while (row?.pairs !== await answered());
  assert.equal(row.nickname, "Ada");
});

test("an identity file without an Ed25519 key is reported", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "moex-identity-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, "note.pem");
  writeFileSync(file, "not a key\n");
  const { code, stderr } = await run(join(build, "moex-worker"),
    ["--hub", "ws://127.0.0.1:1", "--identity", file]);
  assert.equal(code, 1);
  assert.match(stderr, /note\.pem: holds no Ed25519 key/);
});
