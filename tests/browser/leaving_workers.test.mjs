// Stories of native workers that end in mid-answer, with one copy of each expert and no local backend: a worker that is
// asked to end serves until others have its experts, and after a crash the others get them within a moment.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Hub, NativeWorker, chat } from "./support/hub.mjs";

const num_workers = 6, num_streams = 8, max_tokens = 200;
const subjects = ["a garden", "the sea", "a king", "winter", "a clock", "two brothers", "a road", "the moon"];

async function startSwarm(t) {
  const hub = await Hub.start(["--local-fallback", "off", "--replicas", "1", "--deterministic", "--hot-copies", "0",
    "--timeout-ms", "5000", "--round-deadline-s", "60"]);
  t.after(() => hub.remove());
  const workers = [];
  for (let i = 0; i < num_workers; i += 1)
    workers.push(NativeWorker.start(hub, ["--backend", "cpu", "--budget-mb", "24", "--nickname", `worker ${i}`]));
  const started = await Promise.all(workers);
  t.after(() => Promise.all(started.map((worker) => worker.stop("SIGKILL"))));
  const is_whole = ({ workers: all, coverage }) => all.length === num_workers && coverage.covered === coverage.units
    && all.every((one) => one.units_ready === one.units_assigned && one.units_ready > 0);
  await hub.until(is_whole, "every worker's experts");
  return { hub, workers: started };
}

// Runs all streams. `disturb` is called once half of the first stream has arrived. Returns the texts, the longest pause
// between two tokens of a stream in seconds, and what /health answered meanwhile, asked every 10 ms.
async function streams(hub, disturb = () => {}) {
  let longest = 0, is_running = true;
  const healths = [];
  const poll = (async () => {
    for (; is_running; await new Promise((resolve) => setTimeout(resolve, 10)))
      healths.push(await (await fetch(`${hub.url}/health`)).json());
  })();
  const answers = await Promise.all(subjects.slice(0, num_streams).map((subject, stream) => {
    let last = 0;
    return chat(hub, {
      model: "moex-demo", messages: [{ role: "user", content: `Tell me a story about ${subject}.` }], temperature: 0,
      max_tokens,
    }, (count) => {
      const now = performance.now();
      if (last > 0) longest = Math.max(longest, (now - last) / 1000);
      last = now;
      if (stream === 0 && count === max_tokens / 4) disturb();
    });
  }));
  is_running = false;
  await poll;
  for (const answer of answers) assert.equal(answer.error, null);
  return { texts: answers.map(({ text }) => text), longest, healths };
}

test("a worker that is asked to end causes no stall", async (t) => {
  const { hub, workers } = await startSwarm(t);
  await streams(hub);
  const before = await streams(hub);
  let ended = null;
  const during = await streams(hub, () => { ended = workers[0].stop("SIGTERM"); });
  assert.deepEqual(await ended, { code: 0, signal: null });
  console.log(`longest pause: ${before.longest.toFixed(3)} s, while a worker leaves ${during.longest.toFixed(3)} s`);
  assert.deepEqual(during.texts, before.texts);
  assert.ok(during.longest <= before.longest + 0.3, `${during.longest} s`);
  assert.deepEqual([...new Set(during.healths.map(({ status }) => status))], ["ok"]);
  assert.match(hub.child.printed, /it drained/);
});

test("after a crash the other workers get its experts within a moment", async (t) => {
  const { hub, workers } = await startSwarm(t);
  await streams(hub);
  const before = await streams(hub);
  const during = await streams(hub, () => workers[0].stop("SIGKILL"));
  console.log(`longest pause: ${before.longest.toFixed(3)} s, after a crash ${during.longest.toFixed(3)} s`);
  assert.deepEqual(during.texts, before.texts);
  assert.ok(during.longest <= before.longest + 0.7, `${during.longest} s`);
  const uncovered = during.healths.filter(({ status }) => status === "uncovered");
  assert.ok(uncovered.length > 0, "/health reported the experts without a holder");
  assert.ok(uncovered.some(({ returning }) => returning > 0), "the lost worker may return");
  assert.equal(during.healths.at(-1).status, "ok");
});
