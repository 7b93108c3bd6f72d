// Each family of tests/golden/families end to end with native workers: packed with its chat template, verified, and
// served by a hub without local fallback. Two workers share the experts: on the processor, where every bit is that of
// the hub alone, then on Vulkan (lavapipe without a GPU). In the dialects of OpenAI, Anthropic and Ollama the model
// thinks, calls a tool, and answers in a form. Another program renders the same prompts, and the log-probabilities are
// golden.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { comparePrompts, talk, talkInAll } from "../api/family_chat.mjs";
import { families, gpt_oss } from "../api/family_package.mjs";
import { Template, allRemote, exact, farthest, nearGolden, pack, patient, scores } from "./support/families.mjs";
import { Hub, NativeWorker } from "./support/hub.mjs";

// Serves a model without workers, and resolves to what `story(hub)` resolves to.
async function alone(model, flags, story) {
  const hub = await Hub.start(["--model", model, "--backend", "local", ...flags]);
  try { return await story(hub); } finally { await hub.remove(); }
}

// Serves a model whose experts two workers share, and calls `story(hub)`.
async function shared(model, flags, story, arithmetic = exact) {
  const hub = await Hub.start(["--model", model, "--local-fallback", "off", "--replicas", "1", ...arithmetic,
    ...patient]);
  const workers = [];
  try {
    for (const nickname of ["one", "other"])
      workers.push(await NativeWorker.start(hub, [...flags, "--nickname", nickname]));
    await hub.until(({ health, workers: list }) => health === "ok" && list.length === 2
      && list.every(({ units_ready }) => units_ready > 0), "two workers with experts");
    await story(hub);
  } finally {
    for (const worker of workers) await worker.stop();
    await hub.remove();
  }
}

// Compares the log-probabilities of a package whose experts are exactly as stored with the golden ones.
async function checkGolden(family, folder) {
  const { model, golden } = await pack(family, mkdtempSync(join(folder, "stored-")),
    family === gpt_oss ? [] : ["--expert-dtype", "f32"]);
  const found = await alone(model, ["--arithmetic", "exact", "--kv-dtype", "f32"], (hub) => scores(hub, golden));
  assert.ok(nearGolden(family, found, golden) >= 45);
}

// Has all conversations of the story.
async function talkAll(hub, family, ids) {
  const said = [await talkInAll(hub, family)];
  // A raised probability of the channel's mark makes gpt-oss think before it calls.
  if (family === gpt_oss)
    said.push(await talk(hub, family, "openai", { logit_bias: { [ids["<|channel|>"]]: 20 } }, ["first", "last"]));
  // Thoughts that are off end in the prompt, unless the model begins new ones.
  if (["glm4-moe", "qwen35-moe"].includes(family))
    said.push(await talk(hub, family, "openai",
      { chat_template_kwargs: { enable_thinking: false }, logit_bias: { [ids["<think>"]]: -100 } }, []));
  return said;
}

for (const [family, { syntax }] of Object.entries(families))
  test(`two native workers serve ${family}`, { timeout: 120_000 }, async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "moex-family-"));
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    await checkGolden(family, folder);
    const { model, ids, golden } = await pack(family, folder);
    const wanted = await alone(model, exact, async (hub) => {
      assert.match(hub.child.printed, new RegExp(`api: .* written as .* syntax=${syntax}$`, "m"));
      const chats = await talkAll(hub, family, ids);
      assert.ok(await comparePrompts(hub, family, chats[0], Template) >= 2);
      return { chats, scores: await scores(hub, golden) };
    });

    await shared(model, ["--backend", "cpu", "--arithmetic", "exact"], async (hub) => {
      assert.deepEqual(await talkAll(hub, family, ids), wanted.chats);
      const found = await scores(hub, golden);
      assert.deepEqual(found, wanted.scores);
      if (family === gpt_oss) nearGolden(`${family}, two processors`, found, golden);
      await allRemote(hub, ["cpu", "cpu"]);
    });
    await shared(model, ["--backend", "gpu"], async (hub) => {
      const found = await scores(hub, golden);
      farthest(found, 1e-3, wanted.scores);
      if (family === gpt_oss) nearGolden(`${family}, two GPUs`, found, golden);
      await allRemote(hub, ["vulkan", "vulkan"]);
    });
    // The hub has its default flags, and so its words differ from the exact ones.
    await shared(model, ["--backend", "cpu"], async (hub) => {
      await talkInAll(hub, family);
      await allRemote(hub, ["cpu", "cpu"]);
    }, []);
  });
