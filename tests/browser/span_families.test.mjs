// Story of a model whose layers need version 2 of a layer's blob, and whose experts are in MXFP4 as they are released:
// two native workers on Vulkan (lavapipe without a GPU) compute gpt-oss's experts, and hold a layer of it whole.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

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
