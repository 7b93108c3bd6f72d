// Stories with the small models of tests/golden/families. gpt-oss, whose experts have biases and a clamped SwiGLU:
// workers on Vulkan and on the processor, and a tab, compute them for a hub without local fallback. Models with shared
// experts, which a hub computes on its GPU beside workers.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { gpt_oss } from "../api/family_package.mjs";
import { allRemote, exact, farthest as differ, nearGolden, pack, patient, post, scores } from "./support/families.mjs";
import { Hub, NativeWorker } from "./support/hub.mjs";
import { launch, openTab, tabStatus } from "./support/tab.mjs";

const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object", properties: {
  city: { enum: ["Paris", "Oslo", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
required: ["city", "days"], additionalProperties: false } } }];
let folder, packed, alone;

// Chats with a forced call: a raised probability of the channel's mark makes the model think first. The result of the
// call goes back, and the last answer is words in the final channel. Resolves to both messages.
async function thinkAndCall(hub) {
  const messages = [{ role: "user", content: "Weather?" }];
  const request = { tools, temperature: 0, logit_bias: { [packed.ids["<|channel|>"]]: 20 } };
  const first = (await post(hub, "/v1/chat/completions",
    { ...request, messages, tool_choice: "required", max_tokens: 120 })).choices[0];
  assert.equal(first.finish_reason, "tool_calls");
  assert.equal(first.message.tool_calls.length, 1);
  const [call] = first.message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  const { city, days } = JSON.parse(call.function.arguments);
  assert.ok(["Paris", "Oslo", "Rome"].includes(city) && days >= 1 && days <= 9, call.function.arguments);
  assert.ok(first.message.reasoning_content.length > 0, "thoughts come first");

  const sea = { type: "object", properties: { sea: { enum: ["calm", "rough"] } }, required: ["sea"],
    additionalProperties: false };
  const last = (await post(hub, "/v1/chat/completions", { temperature: 0, max_tokens: 160, json_schema: sea,
    messages: [...messages, first.message, { role: "tool", tool_call_id: call.id, content: "rain" }], tools,
    tool_choice: "none" })).choices[0];
  assert.deepEqual(Object.keys(JSON.parse(last.message.content)), ["sea"]);
  return [first, last].map(({ message: { reasoning_content, content, tool_calls } }) =>
    [reasoning_content, content, tool_calls?.map((one) => one.function)]);
}

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "moex-clamped-"));
  packed = await pack(gpt_oss, folder);
  const hub = await Hub.start(["--model", packed.model, "--backend", "local", ...exact]);
  try {
    alone = { scores: await scores(hub, packed.golden), chat: await thinkAndCall(hub) };
  } finally {
    await hub.remove();
  }
});
after(() => rmSync(folder, { recursive: true, force: true }));

const farthest = (got, bound, wanted = alone.scores) => differ(got, bound, wanted);

test("two native workers compute gpt-oss's experts as the hub alone does", async (t) => {
  const hub = await Hub.start(["--model", packed.model, "--local-fallback", "off", "--replicas", "1", ...exact,
    ...patient]);
  t.after(() => hub.remove());
  assert.match(hub.child.printed, /experts have biases and a clamped SwiGLU; older workers are refused/);
  for (const args of [["--backend", "gpu"], ["--backend", "cpu", "--arithmetic", "exact"]]) {
    const worker = await NativeWorker.start(hub, args);
    t.after(() => worker.stop());
  }
  await hub.until(({ health, workers }) => health === "ok" && workers.length === 2
    && workers.every(({ units_ready }) => units_ready > 0), "two workers with experts");
  const found = await scores(hub, packed.golden);
  farthest(found, 1e-3);
  nearGolden("two native workers", found, packed.golden);
  assert.deepEqual(await thinkAndCall(hub), alone.chat);
  const { residual_max, rows_checked } = await allRemote(hub, ["cpu", "vulkan"]);
  assert.ok(rows_checked > 0 && residual_max < 1 / 3, `${rows_checked} rows, residual ${residual_max}`);
});

test("a worker with int8 arithmetic, asked in f16, passes the hub's checks", async (t) => {
  const hub = await Hub.start(["--model", packed.model, "--local-fallback", "off", ...patient]);
  t.after(() => hub.remove());
  const worker = await NativeWorker.start(hub, ["--backend", "cpu"]);
  t.after(() => worker.stop());
  await hub.until(({ health }) => health === "ok", "the worker");
  await thinkAndCall(hub);
  const { residual_max, rows_checked } = await allRemote(hub, ["cpu"]);
  assert.ok(rows_checked > 0 && residual_max < 1 / 3, `${rows_checked} rows, residual ${residual_max}`);
});

for (const [where, webgpu] of [["on a GPU", true], ["on the processor", false]])
  test(`a tab computes gpt-oss's experts ${where} as the hub alone does`, async (t) => {
    const hub = await Hub.start(["--model", packed.model, "--local-fallback", "off", ...exact, ...patient]);
    t.after(() => hub.remove());
    const browser = await launch([], { webgpu });
    t.after(() => browser.close());
    const page = await openTab(browser, hub.join);
    assert.equal((await tabStatus(page)).self_test_rounds, 2, "plain and clamped experts were tested");
    await hub.until(({ health }) => health === "ok", "the tab");
    const found = await scores(hub, packed.golden);
    farthest(found, 1e-3);
    nearGolden(`a tab ${where}`, found, packed.golden);
    assert.deepEqual(await thinkAndCall(hub), alone.chat);
    const { residual_max } = await allRemote(hub, [webgpu ? "webgpu" : "cpu"]);
    assert.ok(residual_max < 1 / 3, `${residual_max}`);
  });

// A hub's GPU and its cores compute gates that differ by 1e-6. Gates rounded to f16 would differ by up to 1e-4, where
// one of them is rounded up and the other down, and log-probabilities by 1.5e-3.
for (const [family, codes] of [["qwen2-moe", "int4"], ["glm4-moe", "int4"], [gpt_oss, "int4"], [gpt_oss, "auto"]])
  test(`a hub's GPU computes ${family} (${codes}) but for its routed experts`, async (t) => {
    const into = mkdtempSync(join(folder, "package-"));
    const { model, golden } = await pack(family, into, ["--expert-dtype", codes]);
    const alone_with = async (flags) => {
      const hub = await Hub.start(["--model", model, "--backend", "local", ...flags]);
      try { return await scores(hub, golden); } finally { await hub.remove(); }
    };
    const on_gpu = ["--gpu", "0", "--kv-mb", "16"], not_rounded = ["--arithmetic", "exact", "--kv-dtype", "f32"];
    farthest(await alone_with([...on_gpu, ...not_rounded]), 1e-4, await alone_with(not_rounded));

    const hub = await Hub.start(["--model", model, ...on_gpu, "--local-fallback", "off", ...exact, ...patient]);
    t.after(() => hub.remove());
    assert.match(hub.child.printed, /attention, routers and LM head on a GPU/);
    const worker = await NativeWorker.start(hub, ["--backend", "cpu", "--arithmetic", "exact"]);
    t.after(() => worker.stop());
    await hub.until(({ health }) => health === "ok", "the worker");
    const found = await scores(hub, golden);
    farthest(found, 1e-3, await alone_with(exact));
    farthest(found, 1e-5, await alone_with([...on_gpu, ...exact]));
    if (codes === "auto") nearGolden("a GPU and a worker", found, golden);
    await allRemote(hub, ["cpu"]);
  });
