// Firefox and WebKitGTK as a contributor's and as a user's browser: join, serve, stop, chat, reload, history. A part of
// the page that a browser cannot do is hidden. Both compute on the processor; Firefox does so as "this device" of the
// chat page, too, and WebKitGTK is not offered it, since it gives pages no files (OPFS). Firefox with its preference
// for WebGPU serves on a software GPU and answers on "this device" there, and Firefox that blocks cookies works without
// storage.
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

      await page.click("#open-settings");
      await page.until(() => !document.getElementById("settings").hidden);
      const has_files = await page.run(() => Boolean(navigator.storage?.getDirectory));
      assert.equal(has_files, name === "Firefox");
      assert.equal(await page.isVisible("#place-field"), has_files);
      assert.equal(await page.isVisible("#system"), true);
      assert.deepEqual(page.errors, []);
    })));
}

// Debian's Firefox has WebGPU behind a preference, and refuses software GPUs unless a second preference allows them.
const with_gpu = { "dom.webgpu.enabled": true, "gfx.webgpu.ignore-blocklist": true };
const skip = firefox ? false : `firefox-esr is ${absent}`;

test("Firefox with WebGPU: a tab serves on the GPU", { skip }, (t) => (
  withHub(t, () => Firefox.start(with_gpu), [...alone, "--deterministic"], async (hub, browser) => {
    const alone_hub = await Hub.start(["--backend", "local", "--deterministic"]);
    t.after(() => alone_hub.remove());
    const tab = await startTab(browser, hub);
    assert.equal(await tab.run(() => window.moexStatus.adapter.backend), "webgpu");
    t.diagnostic(await tab.text("#gpu"));
    const answer = await chat(hub, question);
    assert.equal(answer.error, null);
    assert.equal(answer.text, (await chat(alone_hub, question)).text);
    const { calls, workers } = await hub.status();
    assert.ok(calls.remote > 0 && calls.local === 0, JSON.stringify(calls));
    assert.deepEqual(workers.map(({ backend }) => backend), ["webgpu"]);

    await tab.reload();
    await hub.until((status) => status.workers.length === 0, "the tab to leave");
    await tab.until(() => !document.getElementById("start").disabled);
    await tab.click("#start");
    await serving(tab);
    assert.equal(await tab.run(() => window.moexStatus.bytes_downloaded), 0, "the experts were stored");
    assert.deepEqual(tab.errors, []);
  })));

async function chooseDevice(page) {
  await page.click("#open-settings");
  await page.select("#place", "device");
  await page.until(() => (
    !document.getElementById("device-load").hidden || document.getElementById("device-words").className === "problem"));
}
async function deviceReady(page) {
  await page.until(() => {
    const words = document.getElementById("device-words");
    if (words.className === "problem") throw new Error(words.textContent);
    return words.textContent.startsWith("Ready");
  });
}

test("Firefox: this device answers on the processor, also after a reload without the hub", { skip }, (t) => (
  withHub(t, () => Firefox.start(), ["--backend", "local"], async (hub, browser) => {
    const expected = await chat(hub, question);
    const page = await browser.open(`${hub.url}/`);
    await page.until(() => document.getElementById("model").textContent);
    assert.equal(await page.run(() => Boolean(navigator.gpu)), false);
    await chooseDevice(page);
    await page.hasText("#device-words", "computed on this device's processor, which is slower");
    await page.click("#device-load");
    await deviceReady(page);
    t.diagnostic(await page.text("#device-words"));
    await page.set("#max_tokens", String(question.max_tokens));
    await page.set("#temperature", "0");
    await page.click("#close-settings");
    await ask(page, question.messages[0].content);
    assert.equal(await page.text(".message.assistant .body"), expected.text);
    assert.equal(await page.text(".facts .place"), "this device");
    await page.hasText("#pool-text", "this device's processor");

    await page.until(() => !document.getElementById("device-kept").hidden);
    await hub.stop();
    await page.reload();
    await page.hasText("#pool-text", "this device's processor");
    await page.click("#new-chat");
    await ask(page, question.messages[0].content);
    assert.equal(await page.text(".message.assistant .body"), expected.text);
    assert.deepEqual(page.errors, []);
  })));

test("Firefox with WebGPU: two tabs load the model at once, answer on this device, and reload", { skip }, (t) => (
  withHub(t, () => Firefox.start(with_gpu), ["--backend", "local", "--hub-dtype", "int8"], async (hub, browser) => {
    const short = { ...question, max_tokens: 8 };
    const expected = await chat(hub, short);
    const pages = [await browser.open(`${hub.url}/`), await browser.open(`${hub.url}/`)];
    for (const page of pages) {
      await page.until(() => document.getElementById("model").textContent);
      await chooseDevice(page);
    }
    // A handle of a file is exclusive here: the second tab has to wait for the first one.
    await Promise.all(pages.map((page) => page.run(() => document.getElementById("device-load").click())));
    for (const page of pages) await deviceReady(page);
    await pages[1].close();

    const [page] = pages;
    await page.set("#max_tokens", String(short.max_tokens));
    await page.set("#temperature", "0");
    await page.click("#close-settings");
    await ask(page, question.messages[0].content);
    assert.equal(await page.text(".message.assistant .body"), expected.text);
    assert.equal(await page.text(".facts .place"), "this device");

    const asked = page.requests();
    await page.reload();
    await page.hasText(".message.assistant .body", expected.text.slice(0, 20));
    await page.hasText("#pool-text", "this device");
    await page.click("#new-chat");
    await ask(page, question.messages[0].content);
    assert.equal(await page.text(".message.assistant .body"), expected.text);
    const loaded = asked.filter((path) => path.startsWith("/api/package/") || path === "/v1/chat/completions");
    assert.deepEqual(loaded, [], "files are stored, and the hub computes nothing");
    assert.deepEqual(page.errors, []);
  })));

test("Firefox that blocks cookies: chat, join and status work without storage", { skip }, (t) => (
  withHub(t, () => Firefox.start({ "network.cookie.cookieBehavior": 2 }), alone, async (hub, browser) => {
    const tab = await startTab(browser, hub);
    await tab.hasText("#unkept-words", "stores no settings");
    const page = await browser.open(`${hub.url}/`);
    await page.hasText("#trouble", "cannot keep the conversation");
    await page.set("#max_tokens", "8");
    await ask(page, "Tell me of the sea.");
    assert.ok((await page.text(".message.assistant .body")).length > 0);
    const status = await browser.open(`${hub.url}/status.html`);
    await status.until(() => document.querySelectorAll("#workers tr").length === 1);
    for (const { errors } of [tab, page, status]) assert.deepEqual(errors, []);
  })));
