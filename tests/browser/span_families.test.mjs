// Stories of spans of other families, with two native workers on Vulkan (lavapipe without a GPU). They compute the
// experts of gpt-oss, in MXFP4 as they are released, and hold a layer of it whole; they hold the layers of a hybrid.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { farAway } from "../../bench/far_away.mjs";
import { gpt_oss, packFamily } from "../api/family_package.mjs";
import { Hub, NativeWorker, build, run } from "./support/hub.mjs";

const hub_program = join(build, "moex-hub");
// Rows are f32 on the wire: a prompt of the golden set has two experts whose router scores differ by less than the
// rounding of f16 rows.
const exact = ["--arithmetic", "exact", "--kv-dtype", "f16", "--speculative", "off", "--timeout-ms", "60000",
  "--round-deadline-s", "300", "--local-fallback", "off", "--wire-dtype", "f32"];

// Resolves to the log-probabilities of a prompt's tokens from the second on, which the hub computes to echo it.
async function scores(hub, prompt) {
  const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
  const response = await fetch(`${hub.url}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, prompt, max_tokens: 1, temperature: 0, echo: true, logprobs: 1 }),
  });
  const body = await response.json();
  assert.equal(response.status, 200, JSON.stringify(body));
  return body.choices[0].logprobs.token_logprobs.slice(1, prompt.length);
}

test("two native workers compute gpt-oss's layers and MXFP4 experts", { timeout: 280_000 }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "moex-span-family-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const { model, golden } = await packFamily(folder, gpt_oss, (args) => run(hub_program, args));
  const { stdout } = await run(hub_program, ["inspect", "--model", model]);
  assert.match(stdout, /mxfp4 in groups of 32/);

  const hub = await Hub.start(["--model", model, ...exact, "--spans", "auto"]);
  t.after(() => hub.remove());
  assert.match(hub.child.printed, /MXFP4; older workers are refused/);
  for (const name of ["one", "other"]) {
    const worker = await NativeWorker.start(hub, ["--nickname", name]);
    t.after(() => worker.stop("SIGKILL"));
    assert.equal(worker.units, 4 * 6, "every expert of every layer");
  }

  // Two layers at the begin and one at the end stay here, so that both workers hold layer 2.
  const prompts = golden.filter(({ ids }) => ids.length > 1);
  // Here a layer is faster at the hub, so that it measures the workers' layers at growing intervals.
  const isChecked = ({ spans }) => spans.held.length === 2 && spans.held.every(({ away_ms }) => away_ms > 0);
  let worst = 0, num_compared = 0;
  const until = performance.now() + 120_000;
  while (num_compared === 0 || !isChecked(await hub.status())) {
    assert.ok(performance.now() < until, JSON.stringify((await hub.status()).spans));
    for (const { ids, nll } of prompts) {
      const found = await scores(hub, ids);
      found.forEach((score, i) => { worst = Math.max(worst, Math.abs(score + nll[i])); });
      num_compared += found.length;
    }
  }
  const { spans } = await hub.status();
  console.log(`${num_compared} log-probabilities, largest difference ${worst.toExponential(2)}; `
    + `${spans.checks} checks, difference ${spans.difference_max.toFixed(4)}, ${spans.trips} trips`);
  assert.ok(worst <= 2e-2, `${worst}`);
  assert.ok(num_compared >= 140);
  assert.deepEqual(spans.held.map(({ first_layer, end_layer }) => [first_layer, end_layer]), [[2, 3], [2, 3]]);
  assert.ok(spans.checks > 0 && spans.lies === 0 && spans.wrong === 0, JSON.stringify(spans));
  // Beside exact arithmetic an honest span differs by rounding alone.
  assert.ok(spans.difference_max < 0.05, `${spans.difference_max}`);
});

// Resolves to the greedy answer to a prompt of ids, as text and log-probabilities.
async function answer(hub, prompt, max_tokens = 24) {
  const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
  const response = await fetch(`${hub.url}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, prompt, max_tokens, temperature: 0, logprobs: 1 }),
  });
  const body = await response.json();
  assert.equal(response.status, 200, JSON.stringify(body));
  const [{ text, logprobs }] = body.choices;
  return { text, logprobs: logprobs.token_logprobs };
}

// A model with gated delta rules in six of its eight layers. Both workers hold the layers 2 to 6 whole, behind 20 ms;
// the hub has experts of the other layers only, and states of its own, on its cores or on the first Vulkan device, that
// move on with what the workers return.
for (const on of [[], ["--gpu", "0"]])
  test(["two native workers hold the layers of a hybrid whole", ...on].join(" "), { timeout: 280_000 },
    (t) => hybrid(t, on));

async function hybrid(t, on) {
  const folder = mkdtempSync(join(tmpdir(), "moex-span-hybrid-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const model = join(folder, "hybrid");
  const made = await run(hub_program, ["synth", "--shape", "tiny-hybrid", model]);
  assert.equal(made.code, 0, made.stderr);
  const options = [...exact.slice(0, exact.indexOf("--local-fallback")), ...on];
  const alone = await Hub.start(["--model", model, ...options, "--backend", "local"]);
  t.after(() => alone.remove());
  // Prompts in which no two experts have nearly the same score, so that f16 rows choose the same ones.
  const prompts = [0, 2, 3].map((seed) => Array.from({ length: 40 }, (_, i) => (i * 37 + seed * 91 + 5) % 256));
  const wanted = [];
  for (const prompt of prompts) wanted.push(await answer(alone, prompt));

  const hub = await Hub.start(["--model", model, ...options, "--own-layers", "3", "--local-fallback", "off",
    "--spans", "auto"]);
  t.after(() => hub.remove());
  const line = await farAway(hub.port, 20);
  t.after(() => line.close());
  const far = { url: `http://127.0.0.1:${line.address().port}`, join: hub.join };
  const workers = {};
  for (const nickname of ["one", "other"]) {
    workers[nickname] = await NativeWorker.start(far, ["--nickname", nickname]);
    t.after(() => workers[nickname].stop("SIGKILL"));
  }
  const same = (found, index, what) => {
    assert.ok(found.text.startsWith(wanted[index].text), what);
    wanted[index].logprobs.forEach((one, i) =>
      assert.ok(Math.abs(one - found.logprobs[i]) <= 2e-2, `${what}: token ${i}`));
  };
  // Asks until a holder is used and both have a record.
  const until = performance.now() + 150_000;
  const isReady = ({ spans }) => spans.held.length === 2 && spans.held.every(({ proven }) => proven) &&
    spans.held.some(({ used }) => used);
  for (let i = 0; !isReady(await hub.status()); i = (i + 1) % prompts.length) {
    assert.ok(performance.now() < until, JSON.stringify((await hub.status()).spans));
    same(await answer(hub, prompts[i]), i, "on the way to a record");
  }
  const { spans } = await hub.status();
  assert.deepEqual(spans.held.map(({ first_layer, end_layer }) => [first_layer, end_layer]), [[2, 7], [2, 7]]);
  assert.ok(spans.lies === 0 && spans.wrong === 0, JSON.stringify(spans));

  // A holder is killed in the midst of an answer that it takes part in.
  for (let is_killed = false; !is_killed;) {
    assert.ok(performance.now() < until, JSON.stringify((await hub.status()).spans));
    const before = (await hub.status()).spans.trips;
    let is_over = false;
    const asked = answer(hub, prompts[0], 100).finally(() => { is_over = true; });
    while (!is_over && !is_killed) {
      const status = await hub.status(), holder = status.spans.held.find(({ used }) => used);
      is_killed = !is_over && holder !== undefined && status.spans.trips >= before + 2;
      if (is_killed) workers[status.workers.find(({ id }) => id === holder.worker).nickname].child.kill("SIGKILL");
    }
    same(await asked, 0, "a holder was killed");
  }
  const later = performance.now() + 60_000;
  const goesOn = ({ spans: now }) => now.held.length === 1 && now.held[0].used;
  for (let i = 0; !goesOn(await hub.status()); i = (i + 1) % prompts.length) {
    assert.ok(performance.now() < later, JSON.stringify((await hub.status()).spans));
    same(await answer(hub, prompts[i]), i, "with the other holder");
  }
  const { spans: last } = await hub.status();
  console.log(`${last.trips} trips, ${last.states} states sent, ${last.checks} checks, difference `
    + `${last.difference_max.toFixed(4)}, ${last.late} late, ${last.failed} lost`);
  assert.ok(last.lies === 0 && last.wrong === 0, JSON.stringify(last));
}

// Experts of random weights have nothing in common, and a hub in int8 chooses others than a worker where routes are
// close together. A holder for which two checks show this gets no layers any more, but it is honest: it keeps its
// experts and is not banned. By chance a holder may have eight right checks before that.
test("an int8 hub bans no honest holder of a random hybrid", { timeout: 280_000 }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "moex-span-aside-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const model = join(folder, "hybrid");
  const made = await run(hub_program, ["synth", "--shape", "tiny-hybrid", model]);
  assert.equal(made.code, 0, made.stderr);
  const hub = await Hub.start(["--model", model, "--timeout-ms", "60000", "--round-deadline-s", "300",
    "--spans", "auto"]);
  t.after(() => hub.remove());
  for (const nickname of ["one", "other"]) {
    const worker = await NativeWorker.start(hub, ["--nickname", nickname]);
    t.after(() => worker.stop("SIGKILL"));
  }
  let seed = 7;
  const random = (end) => { seed = (seed * 1103515245 + 12345) % 2 ** 31; return Math.floor(seed / 2 ** 31 * end); };
  let status = await hub.status();
  for (let i = 0; i < 200; i += 1) {
    await answer(hub, Array.from({ length: 150 }, () => random(250)), 8);
    status = await hub.status();
    assert.deepEqual([status.calls.bans, status.spans.lies], [0, 0], JSON.stringify(status.spans));
  }
  const { spans, workers, calls } = status;
  console.log(`${spans.checks} checks, ${spans.wrong} beyond the tolerance, difference `
    + `${spans.difference_max.toFixed(2)}, ${spans.set_aside} set aside`);
  assert.deepEqual([spans.held.length, workers.length], [2 - spans.set_aside, 2]);
  const said = /worker set aside.* It computes no layers whole any more, and experts as before; it is not banned/g;
  assert.equal((hub.child.printed.match(said) ?? []).length, spans.set_aside);
  // They compute experts as before.
  const before = calls.remote;
  await answer(hub, Array.from({ length: 150 }, () => random(250)), 8);
  assert.ok((await hub.status()).calls.remote > before);
  assert.ok(workers.every(({ bad_answers }) => !bad_answers), JSON.stringify(workers));
});
