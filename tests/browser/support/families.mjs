// What the stories of the small models of families share: flags, log-probabilities, and checks of a swarm.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

import { packFamily } from "../../api/family_package.mjs";
import { build, run } from "./hub.mjs";

export const { Template } = createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json"))(
  "@huggingface/jinja");

// Nothing is rounded between hub and worker: neither rows nor gates (ExpertRounding in hub/engine/expert_backend.h). So
// only the order of f32 sums within an expert differs from the hub's own.
export const exact = ["--deterministic", "--wire-dtype", "f32", "--kv-dtype", "f32"];
export const patient = ["--timeout-ms", "60000", "--round-deadline-s", "300"];

export const pack = (family, into, flags = []) =>
  packFamily(into, family, (args) => run(join(build, "moex-hub"), args), flags);

export async function post(hub, path, body) {
  const response = await fetch(`${hub.url}${path}`,
    { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const answer = await response.json();
  assert.equal(response.status, 200, JSON.stringify(answer));
  return answer;
}

// Resolves to the tokens and log-probabilities of the golden prompts and of 24 greedy tokens after each. A greedy
// token's margin is the gap between the two likeliest tokens at its place.
export async function scores(hub, golden) {
  const all = [];
  for (const { ids } of golden) {
    const { choices: [{ logprobs }] } = await post(hub, "/v1/completions",
      { prompt: ids, echo: true, logprobs: 2, max_tokens: 24, temperature: 0 });
    const margins = logprobs.top_logprobs.slice(ids.length).map((top) => {
      const [first, second] = Object.values(top).sort((a, b) => b - a);
      return first - second;
    });
    all.push({ tokens: logprobs.tokens, values: logprobs.token_logprobs.slice(1), margins, num_prompt: ids.length });
  }
  return all;
}

// Compares a swarm's answers with those of the hub alone, up to a greedy token whose margin is not above twice the
// bound and that differs. Prints the largest difference of a log-probability.
export function farthest(got, bound, wanted) {
  let worst = 0;
  for (const [i, { tokens, values }] of got.entries()) {
    const { tokens: known, values: known_values, margins, num_prompt } = wanted[i];
    let end = known.findIndex((token, at) => tokens[at] !== token);
    if (end < 0) end = known.length;
    else assert.ok(end >= num_prompt && margins[end - num_prompt] <= 2 * bound, `prompt ${i}: token ${end} differs`);
    for (let at = 0; at < end - 1; ++at) worst = Math.max(worst, Math.abs(values[at] - known_values[at]));
  }
  console.log(`largest difference of a log-probability: ${worst}`);
  assert.ok(worst <= bound, `${worst}`);
}

// Compares scores() with golden.json, which an independent implementation wrote. The experts must be as the checkpoint
// stores them. Prints the largest difference of a log-probability, with `name`.
export function nearGolden(name, got, golden, bound = 1e-3) {
  let worst = 0, compared = 0;
  for (const [i, { values }] of got.entries())
    for (const [at, loss] of golden[i].nll.entries()) {
      worst = Math.max(worst, Math.abs(values[at] + loss));
      ++compared;
    }
  console.log(`${name}: ${compared} golden log-probabilities, largest difference ${worst.toExponential(1)}`);
  assert.ok(compared > 0 && worst <= bound, `${name}: ${worst}`);
  return compared;
}

// Checks that workers on these backends, in alphabetical order, have computed every call and no wrong row.
export async function allRemote(hub, backends) {
  const { calls, workers } = await hub.status();
  assert.equal(calls.local, 0);
  assert.ok(calls.remote > 0 && calls.remote === calls.calls, JSON.stringify(calls));
  assert.deepEqual(workers.map((one) => one.backend).sort(), backends);
  for (const { groups_answered, bad_answers } of workers) assert.ok(groups_answered > 0 && bad_answers === 0);
  return calls;
}
