// Experts on demand: a worker that has memory for an eighth of the model's experts holds all of them and gives the same
// text; and what the hub foresees is there before it is asked for.
import assert from "node:assert/strict";
import { before, test } from "node:test";
import { appendFileSync, mkdtempSync, readdirSync, rmSync, truncateSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Hub, NativeWorker, chat, generateText } from "./support/hub.mjs";

const prompt = "Tell me a story about a garden.";
const max_tokens = 48;
const request = { model: "moex-demo", messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens };
const patient = ["--local-fallback", "off", "--deterministic", "--replicas", "1", "--timeout-ms", "60000",
  "--round-deadline-s", "300"];
// Of 3 MiB three quarters are for experts, of 156 kB each.
const small = ["--budget-mb", "3", "--keep-mb", "80"];
let expected;
before(async () => { expected = await generateText(prompt, max_tokens); });

// A hub, and one worker that holds all experts. run(hub, cache) -> what the worker says of its calls at its end.
async function onDemand(t, { serve = [], worker: more = [], backend = "gpu" }, run) {
  const cache = mkdtempSync(join(tmpdir(), "moex-on-demand-"));
  const hub = await Hub.start([...patient, ...serve]);
  t.after(async () => {
    await hub.remove();
    rmSync(cache, { recursive: true, force: true });
  });
  const worker = await NativeWorker.start(hub, ["--backend", backend, "--cache", cache, ...small, ...more]);
  t.after(() => worker.stop());
  const { coverage } = await hub.until(({ health, coverage }) => health === "ok" && coverage.replicas_min === 1, "it");
  await run(hub, cache);

  await worker.stop();
  const output = worker.child.printed;
  const said = Object.fromEntries(/worker: (asked=.*)/.exec(output)[1].split(" ").map((one) => one.split("=")));
  for (const name of Object.keys(said)) said[name] = Number(said[name]);
  const [, resident] = /resident=(\d+)$/m.exec(output.slice(output.indexOf("serving units=")));
  assert.ok(Number(resident) <= coverage.units / 8, `${resident} of ${coverage.units} experts lie in memory`);
  return { ...said, missing: said.asked - said.resident };
}

const sameText = async (hub) => {
  const answer = await chat(hub, request);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);
  const { calls } = await hub.status();
  assert.equal(calls.local, 0);
};

test("memory for an eighth of the experts gives the same text, and foresight finds them there", async (t) => {
  const counts = {};
  for (const prefetch of ["off", "on"])
    counts[prefetch] = await onDemand(t, { serve: ["--prefetch", prefetch] }, sameText);
  console.log(counts);
  assert.equal(counts.off.prefetched, 0);
  assert.ok(counts.on.prefetched > 0);
  assert.ok(counts.on.missing < counts.off.missing);
});

test("whatever leaves its memory first, on the processor as well, the text is the same", async (t) => {
  for (const evict of ["lfu", "cacheless"])
    console.log(evict, await onDemand(t, { worker: ["--evict", evict], backend: "cpu" }, sameText));
});

test("experts that are damaged or gone from the folder are fetched again, and none is used unverified", async (t) => {
  await onDemand(t, {}, async (hub, cache) => {
    const blobs = readdirSync(cache).filter((name) => /^[0-9a-f]{64}$/.test(name));
    blobs.forEach((name, i) => {
      if (i % 3 === 0) rmSync(join(cache, name));
      else if (i % 3 === 1) truncateSync(join(cache, name), 1000);
      else appendFileSync(join(cache, name), "x");
    });
    await sameText(hub);
  });
});
