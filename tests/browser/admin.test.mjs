// The admin page in a real Chromium: the one-time link, the life of a key, a new join link. Its pictures (light, dark,
// on a phone) are written to the build folder (pictures/), for people to look at.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { after, before, test } from "node:test";

import { Hub, build } from "./support/hub.mjs";
import { PublishedPeer } from "./support/published_peer.mjs";
import { launch } from "./support/tab.mjs";

const require = createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json"));
const folder = join(build, "pictures");
const looks = [["light", "light", 1280], ["dark", "dark", 1280], ["phone", "light", 390]];
let browser;
let hub;
before(async () => {
  mkdirSync(folder, { recursive: true });
  browser = await launch();
  hub = await Hub.start(["--backend", "local", "--threads", "1"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

async function open(context, url) {
  context.setDefaultTimeout(0);
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(String(error)));
  await page.goto(url);
  return page;
}
const ask = (key, path = "/v1/completions", more = {}) => fetch(`${hub.url}${path}`, {
  method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${key}` },
  body: JSON.stringify({ prompt: "The sea", max_tokens: 5, ...more }),
});

test("an operator opens the printed link once, makes, watches and revokes a key", async () => {
  const [, link] = /^ {2}admin {2}(\S+)/m.exec(hub.child.printed);
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce" });
  const page = await open(context, link);
  await page.locator("#keys").waitFor();
  assert.equal(new URL(page.url()).hash, "", "the token has left the address");
  await page.locator("#setting-heads th").first().waitFor();

  // Another browser that opens the same one-time link is refused.
  const late = await open(await browser.newContext(), link);
  await late.locator("#notice", { hasText: "used before" }).waitFor();
  assert.equal(await late.locator("#rooms").isVisible(), false);

  await page.locator("#key-name").fill("Ada's notebook <b>bold</b>");
  await page.locator("#key-limit").fill("20000");
  await page.locator("#key-days").fill("30");
  await page.getByRole("button", { name: "Make a key" }).click();
  await page.locator("#fresh-key").waitFor();
  const key = await page.locator("#fresh-value").textContent();
  assert.match(key, /^moex-api-/);
  const row = page.locator("#keys tr", { hasText: "Ada's notebook <b>bold</b>" });
  await row.locator("td", { hasText: "20,000 / min" }).waitFor();

  const answer = await (await ask(key)).json();
  await row.locator("td[data-name='In all']", { hasText: String(answer.usage.total_tokens) }).waitFor();
  for (const [name, colorScheme, width] of looks) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 900 });
    await page.screenshot({ path: join(folder, `admin-${name}.png`), fullPage: true });
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `${name}: the page is ${overflow} px too wide`);
  }
  await page.setViewportSize({ width: 1280, height: 900 });

  await row.getByRole("button", { name: "Revoke" }).click();
  await page.locator("#ask-yes").click();
  await row.locator(".pill", { hasText: "revoked" }).waitFor();
  assert.deepEqual(page.errors, []);

  // The tab keeps the key, also after a reload.
  await page.reload();
  await row.locator(".pill", { hasText: "revoked" }).waitFor();
  await context.close();
});

// A worker that identifies itself and then stays silent: it never loads the experts that the hub assigns to it.
class SilentPeer extends PublishedPeer {
  constructor(at, worker_key) {
    super(at, require("ws"), { more: { worker_key, nickname: "Ada's tower" } });
    this.closed = new Promise((resolve) => this.socket.on("close", (code) => resolve(code)));
  }
  async handle() {}
}

test("an operator drains, pins, bans and readmits a contributor", async () => {
  const admin = "an admin key of this test";
  const keyed = await Hub.start(["--threads", "1", "--require-key"], { env: { MOEX_ADMIN_KEY: admin } });
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce" });
  const page = await open(context, `${keyed.url}/admin.html`);
  await page.locator("#key").fill(admin);
  await page.getByRole("button", { name: "Open" }).click();
  const peer = new SilentPeer(keyed, "0123456789abcdef");
  const row = page.locator("#workers tr", { hasText: "Ada's tower" });
  const press = (name) => row.getByRole("button", { name, exact: true }).click();

  await press("Drain");
  await row.locator(".pill", { hasText: "drained" }).waitFor();
  await press("Pin");
  await row.locator(".pill", { hasText: "pinned" }).waitFor();
  // The rows are drawn again every two seconds, and a focused button keeps its focus.
  await row.getByRole("button", { name: "Unpin" }).focus();
  await page.evaluate(() => new Promise((resolve) => {
    new MutationObserver(resolve).observe(document.getElementById("workers"), { childList: true });
  }));
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Unpin");
  for (const [name, colorScheme, width] of looks) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 900 });
    await page.screenshot({ path: join(folder, `admin-workers-${name}.png`), fullPage: true });
    const wide = await page.evaluate(() => [document.documentElement, ...document.querySelectorAll(".scroll-x")]
      .filter((one) => one.scrollWidth > one.clientWidth + 1).map(({ textContent }) => textContent.slice(0, 40)));
    assert.deepEqual(wide, [], name);
  }
  await page.setViewportSize({ width: 1280, height: 900 });
  await press("Use again");
  await row.locator(".pill", { hasText: "loading" }).waitFor();

  await press("Ban");
  await page.locator("#ask-yes").click();
  assert.equal(await peer.closed, 1008);
  await row.waitFor({ state: "detached" });
  const ban = page.locator("#bans tr", { hasText: "Ada's tower" });
  await ban.locator("td[data-name='Blocked']", { hasText: "until" }).waitFor();
  assert.equal(await new SilentPeer(keyed, "0123456789abcdef").closed, 1008);

  await ban.getByRole("button", { name: "Lift" }).click();
  await page.locator("#bans-box").waitFor({ state: "hidden" });
  const again = new SilentPeer(keyed, "0123456789abcdef");
  await row.waitFor();
  again.socket.close();
  assert.deepEqual(page.errors, []);
  await context.close();
  await keyed.remove();
});

test("a new join link ends the previous one, and a wrong key is refused", async () => {
  const admin = "an admin key of this test";
  const keyed = await Hub.start(["--backend", "local", "--threads", "1", "--require-key"],
    { env: { MOEX_ADMIN_KEY: admin } });
  const page = await open(await browser.newContext(), `${keyed.url}/admin.html`);
  await page.locator("#key").fill("not the key of anybody");
  await page.getByRole("button", { name: "Open" }).click();
  await page.locator("#notice", { hasText: "not an admin key" }).waitFor();
  await page.locator("#key").fill(admin);
  await page.getByRole("button", { name: "Open" }).click();

  await page.locator("#join-url", { hasText: keyed.join }).waitFor();
  await page.locator("#qr svg path").waitFor();
  const drawn = await page.locator("#qr svg path").getAttribute("d");
  await page.getByRole("button", { name: "Make a new link" }).first().click();
  await page.locator("#ask-yes").click();
  await page.waitForFunction((old) => document.getElementById("join-url").textContent !== old, keyed.join);
  assert.notEqual(await page.locator("#qr svg path").getAttribute("d"), drawn);
  assert.deepEqual(page.errors, []);
  await keyed.remove();
});
