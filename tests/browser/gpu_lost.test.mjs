// The browser's GPU process dies in the middle of a chat: the tab opens the GPU again, and the same chat ends with the
// same text.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Hub, chat, generateText } from "./support/hub.mjs";
import { launch, openTab, serving, tabStatus } from "./support/tab.mjs";

const prompt = process.env.MOEX_STORY_PROMPT ?? "Tell me a story about a garden.";
const max_tokens = 24;
let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

async function killGpuProcess() {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  await session.detach();
  const gpu = processInfo.find((process) => process.type === "GPU");
  assert.ok(gpu, `a GPU process among ${processInfo.map((process) => process.type).join(", ")}`);
  process.kill(gpu.id, "SIGKILL");
}

test("a chat survives the loss of the GPU process", async (t) => {
  const expected = await generateText(prompt, max_tokens);
  const hub = await Hub.start(["--local-fallback", "off", "--replicas", "1", "--deterministic",
    "--timeout-ms", "60000", "--round-deadline-s", "300", "--holder-wait-s", "300"]);
  t.after(() => hub.remove());
  const page = await openTab(await browser.newContext(), hub.join);
  const first = await tabStatus(page);
  await page.evaluate(() => {
    window.phases = [];
    const record = () => window.phases.push(window.moexStatus.phase);
    new MutationObserver(record).observe(document.documentElement, { attributeFilter: ["data-phase"] });
  });
  let killed = false;
  const request = { model: "moex-demo", messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens };
  const answer = await chat(hub, request, async (count) => {
    if (count >= 5 && !killed) {
      killed = true;
      await killGpuProcess();
    }
  });
  assert.ok(killed);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);
  // The answer may have been complete before the hub saw the loss.
  await page.waitForFunction(() => window.phases.includes("gpu_lost"), null, { timeout: 0, polling: 100 });
  const status = await serving(page);
  assert.equal(status.self_test_rounds, first.self_test_rounds + 1, "the new GPU was tested before it served");
  assert.equal(status.bytes_downloaded, first.bytes_downloaded, "the weights came from the cache");
  assert.equal((await hub.status()).calls.local, 0);
});
