// The join page in abnormal situations: each state is described by one sentence and offers a way out.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, before, test } from "node:test";

import { Blobs } from "../../web-worker/browser/blobs.js";
import { Front } from "./support/front.mjs";
import { Hub, chat } from "./support/hub.mjs";
import { launch, openTab, serving, tabStatus } from "./support/tab.mjs";

let browser;
let hub;
before(async () => {
  browser = await launch();
  hub = await Hub.start(["--local-fallback", "off", "--replicas", "2"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

const phase = (page, wanted) => page.waitForFunction(
  (name) => document.documentElement.dataset.phase === name, wanted, { timeout: 0, polling: 50 });
const detail = (page) => page.locator("#detail").textContent();
const serves = (worker) => worker.state === "active" && worker.units_ready === worker.units_assigned;
const workersServing = (count) => (status) => status.workers.filter(serves).length === count;

test("two tabs of one browser serve side by side", async () => {
  const context = await browser.newContext();
  const first = await openTab(context, hub.join);
  const second = await openTab(context, hub.join);
  await hub.until(workersServing(2), "both tabs");
  for (const page of [first, second]) assert.equal((await tabStatus(page)).phase, "serving");
  assert.notEqual((await tabStatus(first)).worker_id, (await tabStatus(second)).worker_id);
  await context.close();
  await hub.until((status) => status.workers.length === 0, "both to leave");
});

test("pause disconnects, resume reconnects, stop ends and Start again restarts", async () => {
  const context = await browser.newContext();
  const page = await openTab(context, hub.join);
  const { buffer_bytes } = (await tabStatus(page)).device;
  assert.match(await page.locator("#memory").textContent(), /^\d+(\.\d)? [kM]B of 1\.1 GB: /);
  assert.ok(buffer_bytes < 1024 ** 3);
  await page.getByRole("button", { name: "Pause" }).click();
  await phase(page, "paused");
  await hub.until((status) => status.workers.length === 0, "the paused tab to leave");
  await page.getByRole("button", { name: "Resume" }).click();
  await serving(page);
  assert.equal((await tabStatus(page)).self_test_rounds, 1, "the GPU stayed open");
  await page.getByRole("button", { name: "Stop" }).click();
  await phase(page, "stopped");
  await hub.until((status) => status.workers.length === 0, "the stopped tab to leave");
  await page.getByRole("button", { name: "Start again" }).click();
  await serving(page);
  await context.close();
});

test("the contributor's rules pause and resume a tab: visibility, daily data", async () => {
  const context = await browser.newContext();
  const page = await openTab(context, hub.join);
  const look = (state) => page.evaluate((seen) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => seen });
    document.dispatchEvent(new Event("visibilitychange"));
  }, state);
  await page.locator("#hidden").check();
  await phase(page, "paused");
  await page.locator("#detail", { hasText: "while another tab or window is in front" }).waitFor({ timeout: 0 });
  assert.equal(await page.locator("#resume").isVisible(), false, "a rule is no button's to lift");
  await hub.until((status) => status.workers.length === 0, "the waiting tab to leave");
  await look("hidden");
  await serving(page);
  await look("visible");
  await phase(page, "paused");
  await page.locator("#hidden").uncheck();
  await serving(page);

  await page.locator("#data_gb").fill("0.000001");
  await phase(page, "paused");
  await page.locator("#detail", { hasText: "of data are used" }).waitFor({ timeout: 0 });
  await page.locator("#data_gb").fill("50");
  await serving(page);
  await page.getByRole("button", { name: "Pause" }).click();
  await phase(page, "paused");
  await look("hidden");
  assert.equal(await page.locator("#resume").isVisible(), true, "paused by hand: no rule resumes it");
  await context.close();
  await hub.until((status) => status.workers.length === 0, "the tab to leave");
});

test("a tab works on an idle computer if the browser may report idleness", async () => {
  const context = await browser.newContext();
  const page = await openTab(context, hub.join);
  const front = await context.newCDPSession(page);
  const use = (isUserActive) => front.send("Emulation.setIdleOverride", { isUserActive, isScreenUnlocked: true });
  await use(true);
  await page.locator("#idle").check();
  await phase(page, "paused");
  await shown(page, "#detail", "may not report");
  await page.locator("#idle").uncheck();
  await serving(page);

  const { targetInfo: { browserContextId } } = await front.send("Target.getTargetInfo");
  const owner = await browser.newBrowserCDPSession();      // the permission lasts as long as this session
  await owner.send("Browser.grantPermissions", { browserContextId, permissions: ["idleDetection"] });
  await page.locator("#idle").check();
  await phase(page, "paused");
  await shown(page, "#detail", "nobody has used this computer");
  await use(false);
  await serving(page);
  await use(true);
  await phase(page, "paused");
  await owner.detach();
  await context.close();
  await hub.until((status) => status.workers.length === 0, "the tab to leave");
});

test("a joining tab asks for persistent storage and shows the reply", async () => {
  for (const [is_granted, words] of [[false, /^The browser may delete/], [true, /^The browser keeps the stored/]]) {
    const context = await browser.newContext();
    const page = await context.newPage();
    const front = await context.newCDPSession(page);
    const owner = await browser.newBrowserCDPSession();      // the permission lasts as long as this session
    const { targetInfo: { browserContextId } } = await front.send("Target.getTargetInfo");
    if (is_granted) await owner.send("Browser.grantPermissions", { browserContextId, permissions: ["durableStorage"] });
    await page.goto(hub.join);
    await page.locator("#more > summary").click();
    await page.locator("#stored", { hasText: / of .* that this browser gives the site$/ }).waitFor({ timeout: 0 });
    if (!is_granted) assert.equal(await page.locator("#store-words").textContent(), "", "not asked yet");
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await shown(page, "#store-words", words);
    assert.equal(await page.evaluate(() => navigator.storage.persisted()), is_granted);
    await owner.detach();
    await context.close();
  }
  await hub.until((status) => status.workers.length === 0, "the tabs to leave");
});

// Sends a request with the join token, like the join page.
const token = () => new URL(hub.join).hash.slice("#token=".length);
async function lenders(path) {
  const answer = await fetch(`${hub.url}${path}`, { headers: { Authorization: `Bearer ${token()}` } });
  assert.equal(answer.status, 200);
  return answer.json();
}
const shown = (page, id, words) => page.locator(id, { hasText: words }).waitFor({ timeout: 0 });

test("missing experts are shown before Start, and power changes are sent", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(hub.join);
  await page.locator("#more > summary").click();
  await shown(page, "#lend-words", /^\d+ experts are held by nobody; help is needed most in layers 0, 1, 2\./);
  await shown(page, "#lend-words", "A gigabyte here holds the whole model. One expert takes 157 kB.");

  const power = page.locator("#power");
  await power.fill("40");
  await shown(page, "#power-words", "about 40 % of the work");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await serving(page);
  await hub.until((status) => status.workers[0]?.power === 0.4, "the power that was chosen before");
  await power.fill("70");
  await hub.until((status) => status.workers[0]?.power === 0.7, "the one that was chosen later");
  await page.reload();
  assert.equal(await power.inputValue(), "70");
  await context.close();
  await hub.until((status) => status.workers.length === 0, "the tab to leave");
});

const passphrase = async (page, words) => {
  await page.locator("#work-passphrase").fill(words);
  await page.locator("#work-dialog-yes").click();
};

test("an identity counts the work of its tabs, is exported and deleted", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(hub.join);
  await page.locator("#more > summary").click();
  await page.locator("#nickname").fill("Ada");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await serving(page);
  assert.equal((await lenders("/api/contributors")).contributors, 0, "no identity is created without a click");
  await page.getByRole("button", { name: "Keep count" }).click();
  await page.locator("#work-mine").waitFor({ timeout: 0 });
  const known = async (wanted) => {
    while ((await lenders("/api/contributors")).contributors !== wanted) await new Promise((go) => setTimeout(go, 100));
  };
  await known(1);

  // A second tab of the same browser has the same contributor's identity.
  const second = await openTab(context, hub.join);
  await hub.until(workersServing(2), "both tabs");
  await second.locator("#work-mine").waitFor({ timeout: 0 });
  const answer = await chat(hub, { messages: [{ role: "user", content: "Hello" }], max_tokens: 4, temperature: 0 });
  assert.equal(answer.error, null);
  for (const one of [page, second]) await one.locator("#work-total", { hasText: /[1-9]/ }).waitFor({ timeout: 0 });
  await shown(page, "#work-rank", "1 of 1");
  await shown(page, "#work-streak", "1 day");
  await shown(page, "#board", "you");
  assert.equal((await lenders("/api/contributors")).board[0].nickname, "", "not shown by default");
  await page.locator("#shows-name").check();
  await shown(page, "#board", "Ada");

  // Move the identity to another browser, with an export file that only its passphrase opens.
  await page.getByRole("button", { name: "Export" }).click();
  const [file] = await Promise.all([page.waitForEvent("download"), passphrase(page, "correct horse")]);
  const path = await file.path();
  assert.ok(!readFileSync(path, "utf8").includes("PRIVATE"));
  const other = await browser.newContext();
  const elsewhere = await other.newPage();
  await elsewhere.goto(hub.join);
  await elsewhere.locator("#more > summary").click();
  await elsewhere.locator("#work-none").waitFor({ timeout: 0 });
  await elsewhere.locator("#work-file").setInputFiles(path);
  await passphrase(elsewhere, "wrong horse");
  await shown(elsewhere, "#work-problem", "The passphrase does not open this file");
  await elsewhere.locator("#work-file").setInputFiles(path);
  await passphrase(elsewhere, "correct horse");
  await elsewhere.locator("#work-total", { hasText: /[1-9]/ }).waitFor({ timeout: 0 });

  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.locator("#work-dialog-yes").click();
  await page.locator("#work-none").waitFor({ timeout: 0 });
  await known(0);
  await second.locator("#work-none").waitFor({ timeout: 0 });
  await Promise.all([context.close(), other.close()]);
  await hub.until((status) => status.workers.length === 0, "the tabs to leave");
});

test("a browser without Ed25519 says so and still serves", async () => {
  const context = await browser.newContext();
  await context.addInitScript(() => {
    SubtleCrypto.prototype.generateKey = () => Promise.reject(new DOMException("Unrecognized", "NotSupportedError"));
  });
  const page = await openTab(context, hub.join);
  await page.getByRole("button", { name: "Keep count" }).click();
  await shown(page, "#work-problem", /^This browser has no Ed25519/);
  assert.equal((await tabStatus(page)).phase, "serving");
  await context.close();
  await hub.until((status) => status.workers.length === 0, "the tab to leave");
});

const errors = {
  "inside a promise": () => { Promise.reject(new Error("out of luck")); },
  "outside a promise": () => { setTimeout(() => { throw new Error("out of luck"); }); },
};
for (const [where, fail] of Object.entries(errors)) {
  test(`an error ${where} ends the worker, and the page reports it`, async () => {
    const context = await browser.newContext();
    const page = await openTab(context, hub.join);
    await page.workers().find((worker) => worker.url().endsWith("/worker.js")).evaluate(fail);
    await phase(page, "failed");
    await hub.until((status) => status.workers.length === 0, "the broken tab to leave");
    assert.equal(await page.evaluate(() => window.moexStatus.phase), "failed");
    assert.match(await detail(page), /^The worker stopped: out of luck/);
    await page.getByRole("button", { name: "Start again" }).click();
    await serving(page);
    await context.close();
  });
}

test("a download that waits for a retry ends when cancelled", async () => {
  let asked = 0;
  const busy = createServer((request, response) => {
    asked += 1;
    response.writeHead(503).end();
  });
  await new Promise((resolve) => busy.listen(0, "127.0.0.1", resolve));
  const blobs = new Blobs(`http://127.0.0.1:${busy.address().port}/weights/`);
  const wait = globalThis.setTimeout;
  globalThis.setTimeout = (resolve, ...rest) => {
    if (asked === 1) blobs.cancel();
    return wait(resolve, ...rest);
  };
  try {
    assert.ok((await blobs.one({ hex: "0".repeat(64), size: 8, progress() {}, signal: blobs.abort.signal })).reason);
  } finally {
    globalThis.setTimeout = wait;
    busy.close();
  }
  assert.equal(asked, 1);
});

test("a tab whose downloading threads do not start downloads without them", async (t) => {
  let refused = 0;
  const front = await Front.start(hub, (request, response, pass) => {
    if (request.url !== "/wasm/fetch_worker.js") return pass();
    refused += 1;
    return response.writeHead(404).end();
  });
  t.after(() => front.stop());
  const context = await browser.newContext();
  t.after(() => context.close());
  const status = await tabStatus(await openTab(context, front.join));
  assert.ok(refused > 0, "the tab wanted its threads");
  assert.ok(status.bytes_downloaded > 0);
  assert.equal(status.bytes_downloaded, status.bytes_fetched);
});

// Opens a tab behind a front that appends `more` to the program `path`. Resolves to its page once the tab serves. The
// page notes its phases.
async function tabWithMore(t, path, more) {
  const front = await Front.changing(hub, path, (program) => program + more);
  t.after(() => front.stop());
  const context = await browser.newContext();
  t.after(() => context.close());
  await context.addInitScript(() => {
    window.phases = [];
    const note = () => window.phases.push(window.moexStatus?.phase);
    new MutationObserver(note).observe(document, { subtree: true, attributeFilter: ["data-phase"] });
  });
  return openTab(context, front.join);
}

test("a tab whose downloading thread fails downloads the rest without it", async (t) => {
  // The thread reports its second blob as far as it has arrived, and ends with an error instead of handing it over.
  const page = await tabWithMore(t, "/wasm/fetch_worker.js", `
    const post = self.postMessage.bind(self);
    let blobs = 0;
    self.postMessage = ({ ticket, progress, is_last, ...answer }, moved) => {
      blobs += is_last ? 1 : 0;
      if (blobs !== 2) return post({ ticket, progress, is_last, ...answer }, moved);
      post({ ticket, progress });
      return setTimeout(() => { throw new Error("this thread fails"); });
    };`);
  const status = await tabStatus(page);
  assert.match(page.warnings.join(), /this thread fails/);
  assert.equal((await page.evaluate(() => window.phases)).includes("failed"), false);
  assert.equal(status.units_ready, status.units_assigned);
  assert.equal(status.bytes_downloaded, status.bytes_fetched, "no byte is counted twice");
});

// In Firefox, a worker that starts another worker may stop for ever.
test("the page starts the threads of a tab", async (t) => {
  const page = await tabWithMore(t, "/wasm/worker.js", `
    self.Worker = class { constructor() { throw new Error("a worker started a worker"); } };`);
  await page.waitForFunction(() => window.moexStatus.store.kept === window.moexStatus.units_assigned, null,
    { timeout: 0 });
  assert.equal((await tabStatus(page)).store.failed, "");
  const programs = page.workers().map((worker) => new URL(worker.url()).pathname).sort();
  assert.deepEqual([...new Set(programs)], ["/wasm/fetch_worker.js", "/wasm/store_worker.js", "/wasm/worker.js"]);

  const before = page.workers();
  await page.getByRole("button", { name: "Stop" }).click();
  await phase(page, "stopped");
  await page.getByRole("button", { name: "Start again" }).click();
  await serving(page);
  const left = before.filter((worker) => page.workers().includes(worker));
  await Promise.all(left.map((worker) => worker.waitForEvent("close", { timeout: 0 })));
});

test("a tab whose writing thread fails serves, and keeps nothing", async (t) => {
  // A thread that goes on after an error may report another one before it is ended.
  const page = await tabWithMore(t, "/wasm/store_worker.js", `
    self.onmessage = ({ data }) => {
      if (data.type !== "put") return;
      setTimeout(() => { throw new Error("this thread fails"); });
      throw new Error("this thread fails");
    };`);
  // Experts serve before they are written.
  await page.waitForFunction(() => window.moexStatus.store.failed !== "" || window.phases.includes("failed"));
  const status = await tabStatus(page);
  assert.equal((await page.evaluate(() => window.phases)).includes("failed"), false);
  assert.equal(status.units_ready, status.units_assigned);
  assert.match(status.store.failed, /this thread fails/);
  assert.equal(status.store.kept, 0);
});

test("a tab closed during a download leaves no trace, and the next visit completes", async (t) => {
  await hub.until((status) => status.workers.length === 0, "other tabs to leave");
  const context = await browser.newContext();
  let served = 0, is_slow = true;
  const front = await Front.start(hub, (request, response, pass) => {
    if (is_slow && request.url.startsWith("/weights/")) served += 1;
    // Answer no further download: the connection seems to be extremely slow.
    return is_slow && served > 5 ? undefined : pass();
  });
  t.after(() => front.stop());
  const page = await openTab(context, front.join, { wait: false });
  await page.waitForFunction(() => window.moexStatus?.bytes_downloaded > 0, null, { timeout: 0, polling: 50 });
  assert.ok((await tabStatus(page)).bytes_downloaded < (await tabStatus(page)).bytes_to_fetch);
  await page.close();
  await hub.until((status) => status.workers.length === 0, "the tab to leave");
  is_slow = false;
  const again = await openTab(context, front.join);
  assert.equal((await tabStatus(again)).blobs_refused, 0);
  await context.close();
});

test("a tab without a hub shows its next attempt and reconnects", async () => {
  const context = await browser.newContext();
  const own = await Hub.start(["--local-fallback", "off", "--replicas", "1"]);
  const page = await openTab(context, own.join);
  await own.stop();
  await phase(page, "offline");
  const sentence = /^The hub .*\. (Trying again\.|This worker comes back when it does\.)( Next try in \d+ s\.)?$/;
  await page.locator("#detail", { hasText: sentence }).waitFor({ timeout: 0 });
  await context.setOffline(true);
  await page.locator("#detail", { hasText: /^This device has no network\./ }).waitFor({ timeout: 0 });
  await context.setOffline(false);
  const back = await Hub.start(own.args, { state: own.state, port: own.port });
  await page.evaluate(() => dispatchEvent(new Event("online")));      // the worker then reconnects at once
  await serving(page);
  await context.close();
  await back.remove();
});

test("another hub at a known address is refused until a person accepts its key", async () => {
  const context = await browser.newContext();
  const args = ["--local-fallback", "off", "--replicas", "1"];
  const own = await Hub.start(args);
  const keyOf = async (one) => (await (await fetch(`${one.url}/api/signature`)).json()).fingerprint;
  const page = await openTab(context, own.join);
  const known = await keyOf(own);
  assert.equal(await page.locator("#hub-key").textContent(), known);
  assert.equal((await tabStatus(page)).hub_key.state, "first");
  await own.stop();

  const other = await Hub.start(args, { port: own.port });
  await page.close();
  const again = await openTab(context, other.join, { wait: false });
  await phase(again, "refused");
  const fingerprint = await keyOf(other);
  assert.notEqual(fingerprint, known);
  assert.ok((await detail(again)).startsWith(`This hub has the key ${fingerprint}; this browser knows ${known}. `));
  assert.equal((await other.status()).workers.length, 0);
  await again.locator("#language").selectOption("de");
  assert.match(await detail(again), /^Dieser Hub hat den Schlüssel .* frag nach und vergleiche\.$/);
  await again.getByRole("button", { name: "Neuen Schlüssel annehmen" }).click();
  await serving(again);
  assert.equal((await tabStatus(again)).hub_key.state, "known");
  assert.equal(await again.getByRole("button", { name: "Neuen Schlüssel annehmen" }).isVisible(), false);
  await context.close();
  await own.remove();
  await other.remove();
});

test("a memory limit below one expert is reported with a remedy", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  // Give the worker a limit that the slider does not offer.
  await page.addInitScript(() => {
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function(message, ...rest) {
      post.call(this, message.type === "start" ? { ...message, budget_bytes: 150000 } : message, ...rest);
    };
  });
  await page.goto(hub.join);
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await phase(page, "failed");
  assert.equal(await detail(page), "The memory limit of 150 kB has no room for one expert of this model, which takes "
    + "156 kB. Raise the limit, then start again.");
  assert.ok(await page.getByRole("button", { name: "Start again" }).isVisible());
  await context.close();
});

test("an insecure page and a wrong token are reported", async () => {
  const context = await browser.newContext();
  const stranger = await context.newPage();
  await stranger.goto(hub.join.replace(/token=.*/, "token=wrong"));
  await stranger.getByRole("button", { name: "Start", exact: true }).click();
  await phase(stranger, "refused");
  assert.match(await detail(stranger), /Ask the (?:host|operator) for a fresh join link\.$/);
  // Open a new join link in the same tab.
  await Promise.all([stranger.waitForEvent("load"), stranger.goto(hub.join)]);
  assert.equal(new URL(stranger.url()).hash, "");
  await stranger.getByRole("button", { name: "Start", exact: true }).click();
  await serving(stranger);
  await context.close();

  // Open the hub's page under an address that is neither https nor localhost.
  const front = createServer(async (request, response) => {
    const answer = await fetch(`${hub.url}${request.url}`);
    response.writeHead(answer.status, { "Content-Type": answer.headers.get("content-type") ?? "" });
    response.end(Buffer.from(await answer.arrayBuffer()));
  });
  await new Promise((resolve) => front.listen(0, "127.0.0.1", resolve));
  const plain = await launch(["--host-resolver-rules=MAP hub.example 127.0.0.1"]);
  const page = await plain.newPage();
  await page.goto(`http://hub.example:${front.address().port}/join.html#token=x`);
  assert.match(await detail(page), /^Browsers give the GPU to secure pages only\./);
  await plain.close();
  front.close();
});

test("a browser without storage and locks still serves", async () => {
  const context = await browser.newContext();
  await context.addInitScript(() => {
    const get = () => { throw new DOMException("The operation is insecure.", "SecurityError"); };
    for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, { get });
    LockManager.prototype.request = () => Promise.reject(new DOMException("denied", "SecurityError"));
  });
  const pages = [await openTab(context, hub.join), await openTab(context, hub.join)];
  await hub.until(workersServing(2), "both tabs");
  const [page] = pages;
  await page.locator("#budget").evaluate((slider) => {
    slider.value = "6";
    slider.dispatchEvent(new Event("change"));
  });
  await page.locator("#memory", { hasText: "of 4.3 GB" }).waitFor({ timeout: 0 });
  // Ignore the console's message that /health answered 503 while no worker served.
  for (const { errors } of pages) assert.deepEqual(errors.filter((one) => !one.includes("status of 503")), []);
  await context.close();
});

test("Forget everything deletes token and weights, and ends the tab", async () => {
  const context = await browser.newContext();
  const page = await openTab(context, hub.join);
  await page.getByRole("button", { name: "Forget everything" }).click();
  await page.locator("#forget-no").click();
  assert.equal((await tabStatus(page)).phase, "serving", "asked, then cancelled");
  // Cancel the dialog, and open it again in the same frame.
  await page.evaluate(() => ["forget", "forget-no", "forget"].forEach((id) => document.getElementById(id).click()));
  // Delay the deletion of the store, so that the page would receive its own message before the deletion ends.
  await page.evaluate(() => {
    const heard = new Promise((resolve) => { new BroadcastChannel("moex-forget").onmessage = resolve; });
    const keys = CacheStorage.prototype.keys;
    CacheStorage.prototype.keys = async function() {
      await heard;
      for (let i = 0; i < 20; ++i) await fetch("/join.html", { cache: "no-store" });
      return keys.call(this);
    };
  });
  await Promise.all([page.waitForEvent("load"), page.locator("#forget-yes").click()]);

  const gone = /^Everything that this site stored.* deleted\. This link has no join token/;
  await page.locator("#detail", { hasText: gone }).waitFor({ timeout: 0 });
  const left = await page.evaluate(async () => ({
    session: Object.keys(sessionStorage), local: Object.keys(localStorage), caches: await caches.keys(),
    files: await Array.fromAsync((await navigator.storage.getDirectory()).keys()),
  }));
  assert.deepEqual(left, { session: [], local: [], caches: [], files: [] });
  await hub.until((status) => status.workers.length === 0, "the tab to leave");
  await context.close();
});
