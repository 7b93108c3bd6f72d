// A stopped and continued process is like a laptop that slept: timers of both sides have expired, pings are waiting,
// connections are closed or half closed. No process may die, and answers must be possible again.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Hub, NativeWorker, chat } from "./support/hub.mjs";

const stopped_ms = Number(process.env.MOEX_STOPPED_MS ?? 90000);
const request = {
  model: "moex-demo", messages: [{ role: "user", content: "Tell me a story about a garden." }], temperature: 0,
  max_tokens: 24,
};

// Starts a hub without experts of its own and two workers on the processor.
async function swarm(t) {
  const hub = await Hub.start(
    ["--local-fallback", "off", "--deterministic", "--timeout-ms", "60000", "--round-deadline-s", "300"]);
  t.after(() => hub.remove());
  const workers = [];
  for (let i = 0; i < 2; ++i) {
    const worker = await NativeWorker.start(hub, ["--backend", "cpu", "--threads", "1"]);
    t.after(() => worker.stop());
    workers.push(worker);
  }
  await serves(hub);
  return { hub, workers };
}

const serves = (hub) => hub.until(
  (status) => status.health === "ok" && status.workers.length === 2, "two workers that hold the model");

// Three hubs with their workers are stopped at the same time, so that the test takes only the time of one stop.
test(`hub, workers or both are stopped for ${stopped_ms / 1000} s, and the same processes answer again`, async (t) => {
  const hub_stops = await swarm(t);
  const workers_stop = await swarm(t);
  const both_stop = await swarm(t);
  const swarms = [hub_stops, workers_stop, both_stop];
  const before = await Promise.all(swarms.map(({ hub }) => chat(hub, request)));

  const stopped = [hub_stops.hub, ...workers_stop.workers, both_stop.hub, ...both_stop.workers];
  const children = stopped.map((one) => one.child);
  for (const child of children) child.kill("SIGSTOP");
  await new Promise((resolve) => setTimeout(resolve, stopped_ms));
  for (const child of children) child.kill("SIGCONT");

  for (const [index, { hub, workers }] of swarms.entries()) {
    await serves(hub);
    const after = await chat(hub, request);
    assert.equal(after.error, null);
    assert.equal(after.text, before[index].text);
    for (const { child } of [hub, ...workers])
      assert.deepEqual([child.exitCode, child.signalCode], [null, null], child.printed.slice(-2000));
  }
});
