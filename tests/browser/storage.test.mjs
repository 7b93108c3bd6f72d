// Browsers whose storage refuses every call, or never answers one: pages work, and say what they cannot keep.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { ask, brief, answers, settled, setUp, story } from "./support/chat_page.mjs";
import { Hub } from "./support/hub.mjs";
import { launch, openTab } from "./support/tab.mjs";

setUp();
let browser;
let hub;
before(async () => {
  browser = await launch([], { webgpu: false });
  hub = await Hub.start(["--local-fallback", "off", "--timeout-ms", "60000", "--round-deadline-s", "300"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// Every call of the browser's storage throws or rejects, as where cookies are blocked. Runs in pages and workers.
function refuse() {
  const no = () => { throw new DOMException("The operation is insecure.", "SecurityError"); };
  const reject = () => Promise.reject(new DOMException("denied", "SecurityError"));
  for (const name of ["localStorage", "sessionStorage", "caches", "indexedDB"]) {
    Object.defineProperty(globalThis, name, { get: no });
  }
  for (const name of ["serviceWorker"]) Object.defineProperty(Navigator.prototype, name, { get: no });
  globalThis.BroadcastChannel = no;
  for (const name of ["request", "query"]) LockManager.prototype[name] = reject;
  for (const name of ["getDirectory", "estimate", "persist", "persisted"]) StorageManager.prototype[name] = reject;
}

// No call of the browser's storage is ever answered. Runs in pages and workers.
function keepSilent() {
  const never = () => new Promise(() => {});
  for (const name of ["open", "deleteDatabase"]) IDBFactory.prototype[name] = () => ({});
  for (const name of ["keys", "open", "delete", "match", "has"]) CacheStorage.prototype[name] = never;
  for (const name of ["request", "query"]) LockManager.prototype[name] = never;
  for (const name of ["getDirectory", "estimate", "persist", "persisted"]) StorageManager.prototype[name] = never;
  if (!globalThis.ServiceWorkerContainer) return;
  for (const name of ["register", "getRegistrations"]) ServiceWorkerContainer.prototype[name] = never;
}

// Workers reach storage through one module; the fault is put at its head.
const module = readFileSync(new URL("../../static/js/storage.js", import.meta.url), "utf8");
async function withFault(context, fault) {
  await context.addInitScript(fault);
  const inWorker = String(fault).replaceAll("Navigator.prototype", "WorkerNavigator.prototype");
  await context.route("**/wasm/storage.js", (route) => route.fulfill({
    contentType: "text/javascript", body: `${inWorker}\n${fault.name}();\n${module}`,
  }));
}

for (const [name, fault] of [["refuses", refuse], ["does not answer", keepSilent]]) {
  test(`chat works and says what it cannot keep where storage ${name}`, async () => {
    await story(async ({ context, open }) => {
      await withFault(context, fault);
      const page = await open();
      await page.locator("#trouble", { hasText: "cannot keep the conversation" }).waitFor();
      await ask(page, "Still here?");
      await settled(page);
      assert.deepEqual(await answers(page), ["Answer to Still here?"]);
      await page.locator("#new-chat").click();
      await ask(page, "And now?");
      await settled(page);
      assert.deepEqual(await answers(page), ["Answer to And now?"]);
      assert.deepEqual(page.errors, []);
    }, { answer: brief });
  });

  test(`a tab serves and says what it cannot keep where storage ${name}`, async (t) => {
    const context = await browser.newContext();
    t.after(() => context.close());
    await withFault(context, fault);
    const page = await openTab(context, hub.join);
    await page.locator("#store-words", { hasText: "Experts could not be stored" }).waitFor();
    if (fault === refuse) await page.locator("#unkept-words", { hasText: "stores no settings" }).waitFor();
    assert.deepEqual(page.errors.filter((one) => !one.includes("status of 503")), []);

    const status = await context.newPage();
    const errors = [];
    status.on("pageerror", (error) => errors.push(String(error)));
    await status.goto(`${hub.url}/status.html`);
    await status.locator("#workers tr").first().waitFor();
    assert.deepEqual(errors, []);
  });
}

test("forgetting ends and says so where storage does not answer", async () => {
  await story(async ({ context, open }) => {
    await withFault(context, keepSilent);
    const page = await open();
    await page.locator("#open-settings").click();
    await page.locator("#forget").click();
    await Promise.all([page.waitForEvent("load"), page.locator("#forget-yes").click()]);
    await page.locator("#toast", { hasText: "did not delete everything" }).waitFor();
  }, { answer: brief });
});
