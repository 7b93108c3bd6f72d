// The same stories with native workers on Vulkan (lavapipe where there is no GPU): exact, undisturbed by a worker that leaves, batched
// over users, hedged; and a small peer that speaks only the five published messages.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

import { Hub, NativeWorker, chat, generateText } from "./support/hub.mjs";
import { PublishedPeer } from "./support/published_peer.mjs";

const prompt = process.env.MOEX_STORY_PROMPT ?? "Tell me a story about a garden.";
const max_tokens = 48;
const request = { model: "moex-demo", messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens };
const patient = ["--local-fallback", "off", "--deterministic", "--timeout-ms", "60000", "--round-deadline-s", "300"];
let expected;

before(async () => {
  expected = await generateText(prompt, max_tokens);
  console.log(`prompt ${JSON.stringify(prompt)}: smallest greedy margin ${expected.margin} over ${max_tokens} tokens`);
  assert.ok(expected.margin >= 0.05, `the smallest margin is ${expected.margin}, wanted at least 0.05`);
});

const covered = (replicas) => (status) => status.health === "ok" && status.coverage.replicas_min >= replicas;

test("two native workers answer every call; one is killed in mid-stream", async (t) => {
  const hub = await Hub.start(["--replicas", "2", ...patient]);
  t.after(() => hub.remove());
  const workers = [await NativeWorker.start(hub), await NativeWorker.start(hub)];
  for (const worker of workers) t.after(() => worker.stop());
  console.log(`adapter: ${workers[0].adapter}`);
  await hub.until(covered(2), "two replicas");
  let killed = false;
  const answer = await chat(hub, request, async (count) => {
    if (count >= 10 && !killed) {
      killed = true;
      await workers[1].stop("SIGKILL");
    }
  });
  assert.ok(killed);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);
  const status = await hub.status();
  assert.equal(status.calls.local, 0);
  assert.equal(status.calls.remote, status.calls.calls);
  assert.deepEqual(status.workers.map((one) => one.backend), ["vulkan"]);
});

test("four concurrent chats share steps, and each equals its solo run", async (t) => {
  const hub = await Hub.start(["--replicas", "1", ...patient]);
  t.after(() => hub.remove());
  const worker = await NativeWorker.start(hub);
  t.after(() => worker.stop());
  await hub.until(covered(1), "the worker");
  const prompts = [prompt, "Write a story about a ship.", "Tell me a story about a key and a garden.", "Once upon a time"];
  const requests = prompts.map((content) => ({ ...request, messages: [{ role: "user", content }], max_tokens: 16 }));
  const solo = [];
  for (const one of requests) solo.push((await chat(hub, one)).text);
  const together = await Promise.all(requests.map((one) => chat(hub, one)));
  assert.deepEqual(together.map((one) => one.error), [null, null, null, null]);
  assert.deepEqual(together.map((one) => one.text), solo);
  const status = await hub.status();
  console.log(`steps ${status.engine.steps}, with rows of two sequences or more ${status.engine.steps_multi_sequence}`);
  assert.ok(status.engine.steps_multi_sequence > 0);
  // One frame each way per round: as many groups as rounds, and an answer for each.
  assert.equal(status.calls.groups_sent, status.calls.rounds);
  assert.equal(status.calls.groups_answered, status.calls.groups_sent);
});

test("with hedge 2 a stalled worker costs no timeout", async (t) => {
  const hub = await Hub.start(["--replicas", "2", "--hedge", "fixed 2", ...patient]);
  t.after(() => hub.remove());
  const workers = [await NativeWorker.start(hub), await NativeWorker.start(hub)];
  await hub.until(covered(2), "two replicas");
  let stalled = false;
  t.after(async () => {
    workers[1].child.kill("SIGCONT");
    for (const worker of workers) await worker.stop();
  });
  const answer = await chat(hub, request, async (count) => {
    if (count >= 10 && !stalled) {
      stalled = true;
      workers[1].child.kill("SIGSTOP");
    }
  });
  assert.ok(stalled);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);
  const status = await hub.status();
  console.log(`hedges sent ${status.calls.hedges_sent}, won ${status.calls.hedges_won}`);
  assert.equal(status.calls.timeouts, 0);
  assert.equal(status.calls.local, 0);
  assert.ok(status.calls.hedges_sent > 0);
});

test("an abort frees its slot while the only worker hangs; with no worker left a request is answered 503", async (t) => {
  const hub = await Hub.start(["--replicas", "1", ...patient]);
  t.after(() => hub.remove());
  const worker = await NativeWorker.start(hub);
  t.after(() => worker.stop("SIGKILL"));
  await hub.until(covered(1), "the worker");
  const headers = { "Content-Type": "application/json" };
  const freed_ms = [];
  while (freed_ms.length < 5 && !(freed_ms.at(-1) <= 100)) {      // the best of a few: the machine may be busy with something else
    const controller = new AbortController();
    const response = await fetch(`${hub.url}/v1/chat/completions`, {
      method: "POST", headers, signal: controller.signal, body: JSON.stringify({ ...request, max_tokens: 400, stream: true, logit_bias: { 8189: -100, 8191: -100 } }),
    });
    await response.body.getReader().read();
    worker.child.kill("SIGSTOP");
    const sent = (await hub.status()).calls.groups_sent;
    await hub.until((status) => status.engine.running === 1 && status.calls.groups_sent === sent, "a round that hangs");
    const aborted_at = performance.now();
    controller.abort();
    while ((await hub.status()).engine.running > 0) { /* each status is an event of its own */ }
    freed_ms.push(performance.now() - aborted_at);
    worker.child.kill("SIGCONT");
  }
  console.log(`slot seen free ${freed_ms.map((ms) => ms.toFixed(0)).join(", ")} ms after the abort`);
  assert.ok(freed_ms.at(-1) <= 100, `freed after ${freed_ms.map((ms) => ms.toFixed(0))} ms, wanted 100 ms at most`);

  await worker.stop("SIGKILL");
  const started = performance.now();
  const refused = await fetch(`${hub.url}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(request) });
  console.log(`${refused.status} after ${((performance.now() - started) / 1000).toFixed(1)} s`);
  assert.equal(refused.status, 503);
  assert.ok(refused.headers.has("retry-after"));
  assert.match((await refused.json()).error.message, /no worker holds expert/);
  assert.ok(performance.now() - started < 10_000);
});

test("a peer that speaks only the five published messages takes part", async (t) => {
  const { default: WebSocket } = await import(createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json")).resolve("ws"));
  const hub = await Hub.start(["--replicas", "1", ...patient]);
  t.after(() => hub.remove());
  const peer = new PublishedPeer(hub, WebSocket);
  t.after(() => peer.close());
  await hub.until(covered(1), "the peer");
  const answer = await chat(hub, { ...request, max_tokens: 8 });
  assert.equal(answer.error, null);
  assert.equal(answer.text, (await generateText(prompt, 8)).text);
  const status = await hub.status();
  assert.equal(status.workers.length, 1);
  assert.equal(status.workers[0].published_only, true);
  assert.equal(status.calls.local, 0);
  assert.deepEqual([...peer.types_received].sort((a, b) => a - b).filter((type) => type > 5), [], "the hub sent it published messages only");
  assert.ok(peer.answered > 0);
});
