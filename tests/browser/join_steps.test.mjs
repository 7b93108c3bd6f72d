// The join page as a contributor meets it: one button on a phone, the rest once something works, true words about the
// hub, lending again after a reload, another link instead of a refused one, and a polite end.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Front } from "./support/front.mjs";
import { Hub } from "./support/hub.mjs";
import { launch, openTab, serving } from "./support/tab.mjs";

const patient = ["--timeout-ms", "60000", "--round-deadline-s", "300"];      // this machine may be busy
const drain_type = 27;      // FrameType::drain of protocol/PROTOCOL.md
const phone = {
  viewport: { width: 390, height: 664 }, isMobile: true, hasTouch: true,
  userAgent: "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
};
let browser;
let hub;
before(async () => {
  browser = await launch([], { webgpu: false });
  hub = await Hub.start(["--local-fallback", "off", "--replicas", "2", ...patient]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

async function openPage(t, url, how = {}) {
  const context = await browser.newContext(how);
  t.after(() => context.close());
  context.setDefaultTimeout(0);
  const page = await context.newPage();
  await page.goto(url);
  return page;
}
const startOf = (page) => page.getByRole("button", { name: "Start", exact: true });
const isMoreOpen = (page) => page.locator("#more").evaluate((node) => node.open);

test("a phone shows Start without scrolling and lends 256 MB", async (t) => {
  for (const locale of ["en-GB", "de-DE"]) {
    const page = await openPage(t, hub.join, { ...phone, locale });
    await page.locator("#hub-words", { hasText: "moex-demo" }).waitFor();
    const { y, height } = await page.locator("#start").boundingBox();
    assert.ok(y + height <= phone.viewport.height, `${locale}: Start ends at ${y + height}`);
    assert.equal(await isMoreOpen(page), false);
    assert.match(await page.locator("#offer").textContent(), /268 MB/);
    assert.equal(await page.locator("#pause").isVisible(), false);
  }
  const page = await openPage(t, hub.join);
  assert.match(await page.locator("#offer").textContent(), /1\.1 GB/);
});

test("the rest of the page appears once the tab serves, and its words are true", async (t) => {
  const page = await openPage(t, hub.join);
  await page.locator("#hub-words", { hasText: "Nobody lends it a GPU yet" }).waitFor();
  await startOf(page).click();
  await serving(page);
  assert.equal(await isMoreOpen(page), true);
  await page.locator("#hub-words", { hasText: "1 contributor is here" }).waitFor();
  const words = page.locator("#lend-words", { hasText: /^Every expert is held by a contributor; a further copy/ });
  await words.waitFor();

  const asked = fetch(`${hub.url}/v1/chat/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model: "moex-demo", max_tokens: 300, ignore_eos: true,
      messages: [{ role: "user", content: "A story." }] }),
  });
  await page.locator("#tokens", { hasText: /[1-9]/ }).waitFor();
  assert.equal((await asked).status, 200);
});

test("a tab lends again after a reload only if its user wants that", async (t) => {
  const page = await openPage(t, hub.join);
  await startOf(page).click();
  await serving(page);
  await page.reload();
  await startOf(page).waitFor();
  assert.equal(await page.evaluate(() => window.moexStatus), undefined);

  await page.locator("#more summary").click();
  await page.locator("#again").check();
  await startOf(page).click();
  await serving(page);
  await page.reload();
  await serving(page);
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.waitForFunction(() => document.documentElement.dataset.phase === "stopped");
  await page.reload();
  await startOf(page).waitFor();
  assert.equal(await page.evaluate(() => window.moexStatus), undefined, "stopped by its user");
});

test("a refused or missing token asks for another link", async (t) => {
  const page = await openPage(t, hub.join.replace(/token=.*/, "token=wrong"));
  await startOf(page).click();
  await page.locator("#link").waitFor();
  assert.equal(await page.getByRole("button", { name: "Start again" }).isVisible(), false);
  await page.locator("#link").fill(`${hub.url}/join.html`);
  await page.locator("#link").press("Enter");
  await page.locator("#link-problem", { hasText: "no join link" }).waitFor();
  await page.locator("#link").fill(hub.join);
  await Promise.all([page.waitForEvent("load"), page.locator("#link").press("Enter")]);
  await startOf(page).click();
  await serving(page);

  const other = await openPage(t, `${hub.url}/join.html`);
  await other.locator("#detail", { hasText: "no join token" }).waitFor();
  assert.equal(await startOf(other).isVisible(), false);
  await other.locator("#link").fill(hub.join);
  await Promise.all([other.waitForEvent("load"), other.locator("#link").press("Enter")]);
  await startOf(other).waitFor();
});

test("a page that closes or is frozen tells the hub that it leaves", async (t) => {
  // The page waits a tenth of a second for its worker, which is too short where the worker gets no core.
  const front = await Front.changing(hub, "/js/join.js",
    (program) => program.replace("leave_ms_max = 100;", "leave_ms_max = 60_000;"));
  t.after(() => front.stop());
  const isDrain = ({ payload }) => payload.length > 16 && payload.readUInt16LE(6) === drain_type;
  const drains = () => front.frames.filter(isDrain).length;
  const context = await browser.newContext();
  t.after(() => context.close());
  const empty = (status) => status.workers.length === 0;

  const closed = await openTab(context, front.join);
  await closed.close();
  await hub.until(empty, "the closed tab to leave");
  assert.equal(drains(), 1, "closed");

  const left = await openTab(context, front.join);
  await left.goto("about:blank");
  await hub.until(empty, "the tab that went elsewhere to leave");
  assert.equal(drains(), 2, "went elsewhere");

  const frozen = await openTab(context, front.join);
  await frozen.evaluate(() => document.dispatchEvent(new Event("freeze")));
  await hub.until(empty, "the frozen tab to leave");
  assert.equal(drains(), 3, "frozen");
  await frozen.evaluate(() => document.dispatchEvent(new Event("resume")));
  await serving(frozen);
});

test("a tab joins again as soon as the page sees that the hub is back", async (t) => {
  const own = await Hub.start(["--local-fallback", "off", ...patient]);
  const context = await browser.newContext();
  t.after(() => context.close());
  const page = await openTab(context, own.join);
  await own.stop();
  await page.waitForFunction(() => window.moexStatus.phase === "offline");
  // By itself, the tab would never try again: timers as long as its delays are stopped here.
  await page.workers().find((worker) => worker.url().endsWith("/worker.js")).evaluate(() => {
    const later = self.setTimeout;
    self.setTimeout = (run, wait_ms = 0) => (wait_ms < 200 ? later(run, wait_ms) : 0);
  });
  const back = await Hub.start(own.args, { state: own.state, port: own.port });
  t.after(() => back.remove());
  await serving(page);
});
