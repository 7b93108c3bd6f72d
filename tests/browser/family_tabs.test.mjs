// Each family of tests/golden/families end to end in Chromium: two tabs share the experts of a hub without local
// fallback, on a GPU through WebGPU (SwiftShader without one). The model thinks where its family does, calls a tool,
// reads the result and answers in a form, as the hub alone does. family_chats.test.mjs has the same with native
// workers, in all dialects.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { talk } from "../api/family_chat.mjs";
import { families } from "../api/family_package.mjs";
import { allRemote, exact, farthest, pack, patient, scores } from "./support/families.mjs";
import { Hub } from "./support/hub.mjs";
import { launch, openTab } from "./support/tab.mjs";

const brief = { max_tokens: 128 };   // a call in the longest syntax and some thoughts
let browser, folder;
before(async () => {
  browser = await launch();
  folder = mkdtempSync(join(tmpdir(), "moex-family-tabs-"));
});
after(async () => {
  rmSync(folder, { recursive: true, force: true });
  await browser.close();
});

for (const family of Object.keys(families))
  test(`two tabs serve ${family}`, { timeout: 280_000 }, async (t) => {
    const { model, golden } = await pack(family, folder), prompts = golden.slice(0, 2);
    const alone = await Hub.start(["--model", model, "--backend", "local", ...exact]);
    const wanted = { chat: null, scores: null };
    try {
      wanted.chat = await talk(alone, family, "openai", brief);
      wanted.scores = await scores(alone, prompts);
    } finally {
      await alone.remove();
    }

    const hub = await Hub.start(["--model", model, "--local-fallback", "off", "--replicas", "1", ...exact, ...patient]);
    t.after(() => hub.remove());
    for (let tab = 0; tab < 2; ++tab) {
      const context = await browser.newContext();
      t.after(() => context.close());
      await openTab(context, hub.join);
    }
    await hub.until(({ health, workers }) => health === "ok" && workers.length === 2
      && workers.every(({ units_ready }) => units_ready > 0), "two tabs with experts");
    assert.deepEqual(await talk(hub, family, "openai", brief), wanted.chat);
    farthest(await scores(hub, prompts), 1e-3, wanted.scores);
    await allRemote(hub, ["webgpu", "webgpu"]);
  });
