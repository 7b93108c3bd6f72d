// The chat page in a real Chromium, for stories about it: the pages and the hub are real. The model's answers are
// scripted if the demo model would not write them.
import { after, before } from "node:test";

import { Hub } from "./hub.mjs";
import { ScriptedHub } from "./scripted_hub.mjs";
import { launch } from "./tab.mjs";

let browser;
let hub;

// Call once in a file of stories; starts the browser and the hub that they share.
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

// Calls run({context, open}) in a new browser context, so that each story has its own storage. open(address) opens a
// page of `url`.
async function inContext(url, how, run) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...how });
  context.setDefaultTimeout(0);      // only the time limit of the test ends a wait: a machine may be busy
  try {
    await run({ context, open: (address = "/") => openPage(context, url + address) });
  } finally {
    await context.close();
  }
}

// Runs a story with a scripted hub of its own: answer(stream, index) writes the model's answers.
export async function story(run, { answer, routes, ...how } = {}) {
  const scripted = await ScriptedHub.start(hub, { answer, routes });
  try {
    await inContext(scripted.url, how, (its) => run({ ...its, scripted }));
  } finally {
    await scripted.stop();
  }
}

// Runs a story with the real hub and the demo model.
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

// Returns the browser's stored data: the conversations, and the stream that this tab would resume (js/chat/answers.js).
export const keptNow = (page) => page.evaluate(async () => {
  const { Keeper } = await import(new URL("js/chat/keep.js", document.baseURI));
  const keeper = await Keeper.open();
  const conversations = await keeper.all();
  keeper.close();
  return { conversations, stream: JSON.parse(sessionStorage.getItem("moex-stream")) };
});

// Resolves once `isKept` returns true for the stored data: a pending write would be lost with the page.
export async function keptWhen(page, isKept) {
  while (!await isKept(await keptNow(page))) await new Promise((resolve) => setTimeout(resolve, 50));
}
async function reloadWhen(page, isKept) {
  await keptWhen(page, isKept);
  await page.reload();
}

// Reloads the page when the browser has stored everything that the page shows, and every answer is complete.
export function reload(page) {
  const isWhole = ({ messages }) => messages.every(({ role, end }) => role === "user" || end !== null);
  return reloadWhen(page, async ({ conversations }) => {
    const kept = conversations.map(({ title }) => title).sort();
    return conversations.every(isWhole) && kept.join() === (await titles(page)).sort().join();
  });
}

// Reloads the page in the middle of an answer, when the answer is stored: complete, or resumable by this tab.
export function reloadInAnswer(page) {
  return reloadWhen(page, ({ conversations, stream }) => {
    const all = conversations.flatMap(({ messages }) => messages);
    if (stream) return stream.messages.every((wanted) => all.some(({ id }) => id === wanted));
    return all.some(({ role, end }) => role === "assistant" && end !== null);
  });
}
