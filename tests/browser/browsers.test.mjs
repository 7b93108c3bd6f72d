// Firefox and WebKitGTK as a contributor's and as a user's browser: join, serve, stop, chat, reload, history. A part of
// the page that a browser cannot do is hidden. Both compute on the processor.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Hub, chat } from "./support/hub.mjs";
import { Firefox, WebKit, firefox, has_webkit } from "./support/other_browsers.mjs";

const alone = ["--local-fallback", "off", "--timeout-ms", "60000", "--round-deadline-s", "300"];
const question = { messages: [{ role: "user", content: "Tell me of the sea." }], max_tokens: 24, temperature: 0 };
const absent = "not installed: scripts/test.sh --browsers installs it";
const browsers = [
  ["Firefox", () => Firefox.start(), firefox ? false : `firefox-esr is ${absent}`],
  ["WebKitGTK", () => WebKit.start(), has_webkit ? false : `webkit2gtk-driver or xvfb is ${absent}`],
];
const serving = (page) => page.until(() => {
  const status = window.moexStatus;
  if (["failed", "refused"].includes(status?.phase)) throw new Error(`${status.phase}: ${status.detail}`);
  return status?.phase === "serving" && status.units_ready === status.units_assigned && status.units_assigned > 0;
});

async function startTab(browser, hub) {
  const tab = await browser.open(hub.join);
  await tab.until(() => !document.getElementById("start").disabled);
  await tab.click("#start");
  await serving(tab);
  return tab;
}

async function ask(page, words) {
  await page.type("#prompt", words);
  await page.click("#send");
  await page.hasText(".message.user", words);
  await page.until(() => document.getElementById("stop").hidden
    && document.querySelector(".message.assistant:last-child .facts")?.textContent);
}

// Runs a story with a hub, started with `args`, and one browser.
async function withHub(t, start, args, story) {
  const hub = await Hub.start(args);
  t.after(() => hub.remove());
  const browser = await start();
  t.after(() => browser.close());
  t.diagnostic(await browser.version());
  await story(hub, browser);
}

for (const [name, start, skip] of browsers) {
  test(`${name}: a tab joins, serves and stops`, { skip }, (t) => withHub(t, start, alone, async (hub, browser) => {
    const tab = await startTab(browser, hub);
    assert.equal(await tab.run(() => window.moexStatus.adapter.backend), "cpu");
    await tab.hasText("#gpu", "none: computing on the processor");
    const answer = await chat(hub, question);
    assert.equal(answer.error, null);
    const { calls } = await hub.status();
    assert.ok(calls.remote > 0 && calls.local === 0, JSON.stringify(calls));

    // Rules that this browser cannot follow are not offered.
    await tab.until(() => document.getElementById("more").open);
    for (const field of ["#mains-field", "#idle-field"]) assert.equal(await tab.isVisible(field), false, field);
    await tab.click("#stop");
    await tab.until(() => window.moexStatus.phase === "stopped");
    await hub.until((status) => status.workers.length === 0, "the tab to leave");
    assert.deepEqual(tab.errors, []);
  }));

  test(`${name}: the chat answers, and a reload finds the history`, { skip }, (t) => (
    withHub(t, start, ["--backend", "local"], async (hub, browser) => {
      const page = await browser.open(`${hub.url}/`);
      await page.until(() => document.getElementById("model").textContent);
      await page.hasText("#pool", "hub only");
      await ask(page, "Tell me of the sea.");
      const answer = await page.text(".message.assistant .body");
      assert.ok(answer.length > 0);

      await page.reload();
      await page.hasText(".message.user", "Tell me of the sea.");
      await page.until(() => document.querySelector(".message.assistant .facts")?.textContent);
      assert.equal(await page.text(".message.assistant .body"), answer);
      await page.click("#new-chat");
      await ask(page, "Tell me of the forest.");
      await page.until(() => document.querySelectorAll(".conversation-title").length === 2);

      // This browser has no WebGPU: the page does not offer this device as a place, and nothing else is missing.
      await page.click("#open-settings");
      await page.until(() => !document.getElementById("settings").hidden);
      assert.equal(await page.run(() => Boolean(navigator.gpu)), false);
      assert.equal(await page.isVisible("#place-field"), false);
      assert.equal(await page.isVisible("#system"), true);
      assert.deepEqual(page.errors, []);
    })));
}
