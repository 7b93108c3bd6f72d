// A hub below a path behind real proxies, with the snippets of the operator's manual as they are written: pages, API,
// join link, tabs and native workers, the page without the hub, streams, the body limit, quiet connections.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Hub, NativeWorker, build, run } from "./support/hub.mjs";
import { Proxy, dial, freePort, isInstalled, snippetOf } from "./support/proxy.mjs";
import { launch, openTab } from "./support/tab.mjs";

const key = "moex-key-for-the-story";
const quiet_s_min = 240;
let browser;
let cert;

before(async () => {
  cert = mkdtempSync(join(tmpdir(), "moex-cert-"));
  const made = await run(join(build, "moex-hub"), ["cert", "--out", cert]);
  assert.equal(made.code, 0, made.stderr);
  writeFileSync(join(cert, "cert-and-key.pem"),
    readFileSync(join(cert, "cert.pem"), "utf8") + readFileSync(join(cert, "key.pem"), "utf8"));
  // The tab computes on the processor: these stories are about the connection.
  browser = await launch(["--ignore-certificate-errors"], { webgpu: false });
});
after(async () => {
  await browser?.close();
  if (cert) rmSync(cert, { recursive: true, force: true });
});

// Starts a hub and a proxy before it, and calls story({hub, port, hub_url, base}).
async function behind(kind, story) {
  const port = await freePort(), hub_port = await freePort();
  const hub = await Hub.start(["--trusted-proxy", "127.0.0.1", "--host", `localhost:${port}/moex`],
    { port: hub_port, env: { MOEX_API_KEY: key } });
  let proxy;
  try {
    proxy = await Proxy.start(kind, { port, hub_port, cert });
    const hub_url = `http://127.0.0.1:${hub_port}`, base = `https://localhost:${port}/moex/`;
    await story({ hub, port, hub_port, hub_url, base });
  } finally {
    await proxy?.stop();
    await hub.remove();
  }
}

// Sends a request through the proxy. Resolves to the response, whose body is not read yet.
const send = (url, { method = "GET", headers = {}, body = "" } = {}) => new Promise((resolve, reject) => {
  const sent = request(url, { method, headers, rejectUnauthorized: false }, resolve);
  sent.on("error", reject);
  sent.end(body);
});
async function whole(response) {
  let text = "";
  for await (const piece of response.setEncoding("utf8")) text += piece;
  return text;
}
const json = { "Content-Type": "application/json", Authorization: `Bearer ${key}` };

async function statusOf(hub_url) {
  return (await fetch(`${hub_url}/api/status`, { headers: { Authorization: `Bearer ${key}` } })).json();
}

// Opens a page in a context of its own; `wrong` collects requests outside the path, errors and refused requests.
async function inPages(base, story, expected = [401]) {
  const context = await browser.newContext();
  context.setDefaultTimeout(0);
  const wrong = [];
  context.on("request", (one) => { if (!one.url().startsWith(base)) wrong.push(one.url()); });
  context.on("response", (one) => { if (one.status() >= 400) wrong.push(`${one.status()} ${one.url()}`); });
  const open = async (name) => {
    const page = await context.newPage();
    page.on("pageerror", (error) => wrong.push(String(error)));
    await page.goto(base + name);
    return page;
  };
  try {
    await story({ context, open });
    // Pages of a hub that wants a key ask for it (401).
    assert.deepEqual(wrong.filter((one) => !expected.includes(Number(one.split(" ")[0]))), []);
  } finally { await context.close(); }
}

// Resolves once a chat page knows its hub. It then removes the service worker, since its place is the hub; what a story
// stores afterwards stays.
const knowsHub = (page) => page.waitForFunction(() => document.getElementById("model").textContent !== "");

// Opens the chat page with the API key, as if its user had entered it.
async function openChat(open) {
  const page = await open("");
  await page.evaluate((text) => sessionStorage.setItem("moex-key", JSON.stringify(text)), key);
  await page.reload();
  await knowsHub(page);
  return page;
}

async function pagesWork({ hub, hub_url, base }) {
  assert.ok(hub.join.startsWith(`${base}join.html#token=`), hub.join);
  const moved = await send(base.slice(0, -1));
  assert.ok([301, 302, 308].includes(moved.statusCode), String(moved.statusCode));
  assert.equal(new URL(moved.headers.location, base).pathname, "/moex/");

  await inPages(base, async ({ context, open }) => {
    await openTab(context, hub.join);
    const worker = await NativeWorker.start({ url: base, join: hub.join },
      ["--backend", "cpu", "--ca", join(cert, "cert.pem")]);
    assert.equal((await statusOf(hub_url)).workers.length, 2);
    await worker.stop();

    const chat = await openChat(open);
    await chat.locator("#prompt").fill("Hello");
    await chat.locator("#prompt").press("Enter");
    await chat.locator(".message.assistant .facts").waitFor();
    assert.ok((await chat.locator("#snippet").textContent()).includes(`${base}v1`));
    assert.equal(await chat.locator("#join-link").evaluate((node) => node.href.split("#")[0]), `${base}join.html`);
    for (const [name, shown] of [["status.html", "#key-form"], ["admin.html", "#key-form"], ["bench.html", ".brand"]]) {
      const page = await open(name);
      await page.locator(shown).waitFor();
      assert.equal(await page.locator(".brand").evaluate((node) => node.href), base);
    }
  });
}

// The page is kept by a service worker of the path alone; what other programs of the origin store is left alone.
async function pageIsKept({ hub, base }) {
  await inPages(base, async ({ open }) => {
    const page = await open("");
    await knowsHub(page);
    await page.evaluate(async () => {
      localStorage.setItem("other", "1");
      await caches.open("other");
    });
    const kept = await page.evaluate(async () => {
      const { keepPage } = await import(new URL("js/chat/away.js", location.href));
      const is_kept = await keepPage(null);
      return { is_kept, scopes: (await navigator.serviceWorker.getRegistrations()).map(({ scope }) => scope) };
    });
    assert.deepEqual(kept, { is_kept: true, scopes: [base] });
    await page.locator("#open-settings").click();
    await page.locator("#forget").click();
    await page.locator("#forget-yes").click();
    await page.locator("#toast", { hasText: "has been deleted" }).waitFor();
    await knowsHub(page);
    const left = await page.evaluate(async () => ({
      values: Object.keys(localStorage), caches: await caches.keys(),
      workers: (await navigator.serviceWorker.getRegistrations()).length,
    }));
    assert.deepEqual(left, { values: ["other"], caches: ["other"], workers: 0 });

    const keepPage = async () => (await import(new URL("js/chat/away.js", location.href))).keepPage(null);
    assert.equal(await page.evaluate(keepPage), true);
    // The proxy now answers 502, and the kept page opens instead.
    await hub.stop();
    await page.reload();
    await page.locator("#banner", { hasText: "does not answer" }).waitFor();
  }, [401, 502, 503]);
}

// A stream arrives piece by piece: at its first event, the hub is still computing the rest.
async function streamsArrive({ hub_url, base }) {
  const body = JSON.stringify({ model: "moex-demo", stream: true, max_tokens: 900, ignore_eos: true,
    messages: [{ role: "user", content: "Tell me a long story." }] });
  const headers = { ...json, "Accept-Encoding": "gzip" };
  const response = await send(`${base}v1/chat/completions`, { method: "POST", headers, body });
  assert.equal(response.statusCode, 200);
  await new Promise((resolve) => { response.once("data", resolve); });
  const { engine } = await statusOf(hub_url);
  assert.ok(engine.running > 0, JSON.stringify(engine));
  response.destroy();
}

// A text of the hub's limit passes, and a longer one is refused by the hub in its own words.
async function textsPass({ base }) {
  const limit = 1 << 20;
  const empty = JSON.stringify({ model: "moex-demo", messages: [{ role: "user", content: "" }] }).length;
  for (const [bytes, status, code] of [[limit, 400, "context_length_exceeded"], [limit + 1, 413, "body_too_large"]]) {
    const content = "a".repeat(bytes - empty);
    const body = JSON.stringify({ model: "moex-demo", messages: [{ role: "user", content }] });
    const response = await send(`${base}v1/chat/completions`, { method: "POST", headers: json, body });
    const { error } = JSON.parse(await whole(response));
    assert.deepEqual([response.statusCode, error.code], [status, code]);
  }
}

for (const kind of ["nginx", "caddy", "haproxy"]) {
  const skip = isInstalled(kind) ? false : `${kind} is not installed: scripts/test.sh --proxies installs it`;
  test(`${kind}: pages, tab, native worker and chat work below a path`, { skip }, () => behind(kind, pagesWork));
  test(`${kind}: the page is kept for its path alone`, { skip }, () => behind(kind, pageIsKept));
  test(`${kind}: streams arrive in pieces, long texts whole`, { skip }, () => behind(kind, async (its) => {
    await streamsArrive(its);
    await textsPass(its);
  }));
}

// Returns the times in seconds of the settings that `pattern` finds.
function timesIn(text, pattern) {
  const units = { s: 1, m: 60, h: 3600 };
  return [...text.matchAll(pattern)].map(([, n, unit]) => Number(n) * units[unit]);
}

test("the manual's proxies keep a quiet connection for 4 minutes and more", () => {
  const bounds = {
    nginx: timesIn(snippetOf("nginx"), /proxy_(?:read|send)_timeout (\d+)(\w)/g),
    haproxy: timesIn(snippetOf("haproxy"), /timeout (?:client|server|tunnel) (\d+)(\w)/g),
  };
  assert.deepEqual([bounds.nginx.length, bounds.haproxy.length], [2, 3]);
  for (const seconds of Object.values(bounds).flat()) assert.ok(seconds >= quiet_s_min, JSON.stringify(bounds));
  assert.doesNotMatch(snippetOf("caddyfile"), /timeout/);      // Caddy has no such bound unless it is asked for one
});

// The bound that the manual names is the one in force: with 1 s in its place, a quiet WebSocket ends, and one through
// the proxy as it is written is still open then.
for (const kind of ["nginx", "haproxy"]) {
  const skip = isInstalled(kind) ? false : `${kind} is not installed: scripts/test.sh --proxies installs it`;
  test(`${kind}: the bound of the manual is in force`, { skip }, () => behind(kind, async ({ hub, port, hub_port }) => {
    const short_port = await freePort();
    const proxy = await Proxy.start(kind, { port: short_port, hub_port, cert, more: [[/\b1h\b/, "1s"]] });
    try {
      const open = async (at) => {
        const socket = await dial(at);
        socket.on("error", () => {});
        const ended = new Promise((resolve) => { socket.once("close", resolve); });
        socket.write(`GET /moex/worker HTTP/1.1\r\nHost: localhost:${at}\r\nUpgrade: websocket\r\n`
          + "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
          + `Authorization: Bearer ${new URL(hub.join).hash.slice("#token=".length)}\r\n\r\n`);
        const head = String(await new Promise((resolve) => { socket.once("data", resolve); }));
        assert.match(head, /^HTTP\/1\.1 101 /);
        return { socket, ended };
      };
      const [long, short] = [await open(port), await open(short_port)];
      await short.ended;
      assert.equal(long.socket.destroyed, false);
      long.socket.destroy();
    } finally { await proxy.stop(); }
  }));
}
