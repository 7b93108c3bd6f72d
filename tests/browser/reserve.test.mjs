// Stories of workers in reserve: a hub that is faster alone does not ask a contributor behind a slow line, says so, and
// asks it as soon as it has to.
import assert from "node:assert/strict";
import { test } from "node:test";

import { slowLine } from "../../bench/slow_line.mjs";
import { Hub, NativeWorker, chat } from "./support/hub.mjs";

const request = {
  model: "moex-demo", messages: [{ role: "user", content: "Tell me a story about a garden." }], temperature: 0,
  max_tokens: 64,
};
const patient = ["--timeout-ms", "60000", "--round-deadline-s", "300"];

// The hub's answer to a contributor that asks for its own state with the token of the join link.
async function stateOf(hub, worker) {
  const token = new URL(hub.join).hash.slice(1).split("token=")[1];
  const headers = { Authorization: `Bearer ${token}` };
  const response = await fetch(`${hub.url}/api/lend?worker=${worker}`, { headers });
  return (await response.json()).worker_state;
}

// Starts a hub with a worker that holds every expert and answers each call 100 ms late.
async function hubWithFarWorker(t, args) {
  const hub = await Hub.start([...patient, ...args]);
  t.after(() => hub.remove());
  const line = await slowLine(hub.port);
  t.after(() => line.close());
  const near = { url: `http://127.0.0.1:${line.port}`, join: hub.join };
  const worker = await NativeWorker.start(near, ["--backend", "cpu"]);
  t.after(() => worker.stop("SIGKILL"));
  const is_whole = ({ workers: [one] }) => one?.units_ready > 0 && one.units_ready === one.units_assigned;
  await hub.until(is_whole, "the worker's experts");
  line.set({ rtt_ms: 100, mbit_per_s: 0 });
  return hub;
}

test("a far worker is in reserve, is told why, and serves when the hub's experts are gone", async (t) => {
  const hub = await hubWithFarWorker(t, ["--use-workers", "auto", "--deterministic"]);
  const alone = await chat(hub, request);
  assert.equal(alone.error, null);
  // A verdict needs a round after the answer to the first probe.
  let status = await hub.status();
  for (; status.workers[0].state !== "reserve"; status = await hub.status()) await chat(hub, request);
  const { calls, workers: [worker], options } = status;
  assert.equal(options.use_workers, "auto");
  assert.equal(calls.remote, 0, "no answer came from the worker");
  assert.ok(calls.probes_sent > 0);
  assert.equal(calls.groups_sent, calls.probes_sent);
  assert.equal(worker.units_ready, worker.units_assigned);
  assert.equal(await stateOf(hub, worker.id), "reserve");
  assert.equal(await stateOf(hub, worker.id + 1000), null);

  await hub.test({ local_fallback: false });
  const remote = await chat(hub, { ...request, max_tokens: 2 });
  assert.equal(remote.error, null);
  assert.ok((await hub.status()).calls.remote > 0);
  assert.equal(await stateOf(hub, worker.id), "active");
});

test("a hub that always asks its workers asks the far one", async (t) => {
  const hub = await hubWithFarWorker(t, ["--use-workers", "always"]);
  const answer = await chat(hub, { ...request, max_tokens: 2 });
  assert.equal(answer.error, null);
  const { calls, workers: [worker] } = await hub.status();
  assert.ok(calls.remote > 0);
  assert.equal(worker.state, "active");
});
