// The chat page in a real Chromium, for stories about it: the pages and the hub are real; what the model says is
// scripted where the demo model would not say it.
import { after, before } from "node:test";

import { Hub } from "./hub.mjs";
import { ScriptedHub } from "./scripted_hub.mjs";
import { launch } from "./tab.mjs";

let browser;
let hub;

// Call once in a file of stories: the browser and the hub that they share.
export function setUp() {
  before(async () => {
    browser = await launch();
    hub = await Hub.start(["--backend", "local"]);
  });
  after(async () => {
    await browser?.close();
    await hub?.remove();
  });
}

async function openPage(context, url) {
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(String(error)));
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById("model").textContent !== "");
  return page;
}

// A story has its own browser context, so its own storage. `run({context, open})`; open(address) gives a page of `url`.
async function inContext(url, how, run) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...how });
  context.setDefaultTimeout(0);      // the test's own limit counts: a busy machine is no failure
  try {
    await run({ context, open: (address = "/") => openPage(context, url + address) });
  } finally {
    await context.close();
  }
}

// With a scripted hub of its own: answer(stream, index) says what the model says.
export async function story(run, { answer, routes, ...how } = {}) {
  const scripted = await ScriptedHub.start(hub, { answer, routes });
  try {
    await inContext(scripted.url, how, (its) => run({ ...its, scripted }));
  } finally {
    await scripted.stop();
  }
}

// With the real hub and the demo model.
export const realStory = (run) => inContext(hub.url, {}, run);

export async function ask(page, words) {
  await page.locator("#prompt").fill(words);
  await page.locator("#prompt").press("Enter");
}
export const settled = (page) => page.locator("#send").waitFor();
export const titles = (page) => page.locator(".conversation-title").allTextContents();
export const answers = (page) => page.locator(".message.assistant .body").allTextContents();
export const brief = (stream) => {
  stream.say(`Answer to ${stream.body.messages.at(-1).content}`);
  stream.end();
};

// What the browser keeps: the conversations, and the name of the stream that this tab would go on with.
export const keptNow = (page) => page.evaluate(() => new Promise((resolve) => {
  const request = indexedDB.open("moex-chat");
  request.onsuccess = () => {
    const all = request.result.transaction("conversations").objectStore("conversations").getAll();
    all.onsuccess = () => {
      request.result.close();
      resolve({ conversations: all.result, stream: sessionStorage.getItem("moex-stream") });
    };
  };
}));

// Resolves once `isKept` holds of that: a write that is still under way would be lost with the page.
export async function keptWhen(page, isKept) {
  while (!await isKept(await keptNow(page))) await new Promise((resolve) => setTimeout(resolve, 50));
}
async function reloadWhen(page, isKept) {
  await keptWhen(page, isKept);
  await page.reload();
}

// Once it holds all that is shown, and every answer whole.
export function reload(page) {
  const isWhole = ({ messages }) => messages.every(({ role, end }) => role === "user" || end !== null);
  return reloadWhen(page, async ({ conversations }) => {
    const kept = conversations.map(({ title }) => title).sort();
    return conversations.every(isWhole) && kept.join() === (await titles(page)).sort().join();
  });
}

// In mid-answer, once it holds the answer: whole, or as one that this tab can go on with.
export function reloadInAnswer(page) {
  return reloadWhen(page, ({ conversations, stream }) => {
    const isSafe = ({ role, end }) => role === "assistant" && (end !== null || stream !== null);
    return conversations.some(({ messages }) => messages.some(isSafe));
  });
}
