// A tab that lends to a fleet of one origin: two hubs, one PostgreSQL, and haproxy with the snippet of the operator's
// manual. The tab joins the other hub when its own stops, comes back when it is asked to, and fetches nothing again.
// And a native worker of a fleet whose only hub has another key.
import assert from "node:assert/strict";
import { once } from "node:events";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { postgresIsInstalled, startPostgres } from "../api/postgres.mjs";
import { Hub, NativeWorker, build, run } from "./support/hub.mjs";
import { Proxy, freePort, isInstalled } from "./support/proxy.mjs";
import { launch, openTab, tabStatus } from "./support/tab.mjs";

const key = "moex-key-for-the-story";
const noStore = postgresIsInstalled() ? false : "SKIPPED: no postgresql-15";
const skip = isInstalled("haproxy fleet") ? noStore : "SKIPPED: no haproxy";

async function startFleet(t) {
  const folder = mkdtempSync(join(tmpdir(), "moex-fleet-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const cert = await run(join(build, "moex-hub"), ["cert", "--out", folder]);
  assert.equal(cert.code, 0, cert.stderr);
  writeFileSync(join(folder, "cert-and-key.pem"),
    readFileSync(join(folder, "cert.pem"), "utf8") + readFileSync(join(folder, "key.pem"), "utf8"));
  const store = await startPostgres();
  t.after(() => store.remove());
  const port = await freePort(), ports = [await freePort(), await freePort()], hubs = [];
  const state = (i) => join(folder, `hub${i}`);
  const start = async (i) => {
    const args = ["--store", store.url, "--trusted-proxy", "127.0.0.1", "--host", `localhost:${port}`];
    const hub = await Hub.start(args, { state: state(i), port: ports[i], env: { MOEX_API_KEY: key } });
    hubs[i] = hub;
    while (!hub.child.printed.includes("this hub has entered")) await once(hub.child.stderr, "data");
  };
  t.after(() => Promise.all(hubs.map((hub) => hub.stop("SIGKILL"))));
  await start(0);
  // One origin has one signing key.
  mkdirSync(state(1), { mode: 0o700 });
  copyFileSync(join(state(0), "signing-key"), join(state(1), "signing-key"));
  await start(1);
  const ids = [0, 1].map((i) => readFileSync(join(state(i), "hub_id"), "utf8").trim());
  const proxy = await Proxy.start("haproxy fleet", { port, cert: folder, more: [
    ["127.0.0.1:8081", `127.0.0.1:${ports[0]}`], ["127.0.0.1:8082", `127.0.0.1:${ports[1]}`],
    ["127.0.0.1:8080", `127.0.0.1:${ports[0]}`], ["127.0.0.1:8090", `127.0.0.1:${ports[1]}`],
    ["11111111", ids[0]], ["22222222", ids[1]]] });
  t.after(() => proxy.stop());
  return { hubs, start, ids, url: (i) => `http://127.0.0.1:${ports[i]}`, origin: `https://localhost:${port}` };
}

test("a tab of a fleet moves to the other hub and back with its experts", { skip }, async (t) => {
  const { hubs, start, ids, url, origin } = await startFleet(t);
  const browser = await launch(["--ignore-certificate-errors"], { webgpu: false });
  t.after(() => browser.close());
  const headers = { Authorization: `Bearer ${key}` };
  const statusOf = async (i) => (await fetch(`${url(i)}/api/status`, { headers })).json();
  // Resolves to the tab among the workers of hub `i`, once it is there with all its experts.
  const tabAt = async (i) => {
    for (;;) {
      const tab = (await statusOf(i)).workers.find(({ client }) => client.startsWith("tab"));
      if (tab?.state === "active" && tab.units_ready === tab.units_assigned) return tab;
      await new Promise((resolve) => { setTimeout(resolve, 100); });
    }
  };

  // The second hub has a worker, so that a tab there is one too many.
  const native = await NativeWorker.start({ url: url(1), join: hubs[1].join }, ["--backend", "cpu", "--threads", "1"]);
  t.after(() => native.stop());
  const context = await browser.newContext();
  const page = await openTab(context, hubs[0].join.replace(/^\w+:\/\/[^/]+/, origin));
  const first = await tabAt(0);
  const { bytes_downloaded: bytes } = await tabStatus(page);
  assert.ok(bytes > 0);

  await hubs[0].stop();
  const second = await tabAt(1);
  assert.equal(second.units_ready, first.units_ready);
  await start(0);
  const begun = Date.now();
  const back = await tabAt(0);
  t.diagnostic(`asked back ${Date.now() - begun} ms after the hub was there`);
  assert.equal(back.units_ready, first.units_ready);
  assert.equal((await tabStatus(page)).bytes_downloaded, bytes, "fetched again");
  assert.match(hubs[1].child.printed, /a worker is asked to join a hub that needs it more/);

  // The status page of any hub lists both.
  const status = await context.newPage();
  const errors = [];
  status.on("pageerror", (error) => errors.push(String(error)));
  await status.goto(`${origin}/status.html`);
  await status.evaluate((text) => sessionStorage.setItem("moex-key", JSON.stringify(text)), key);
  await status.reload();
  await status.locator("#fleet-hubs tr").nth(1).waitFor();
  const rows = (await status.locator("#fleet-hubs tr td:first-child").allTextContents()).sort();
  assert.deepEqual(rows.map((text) => text.slice(0, 8)), [...ids].sort());
  assert.equal(rows.filter((text) => text.endsWith(" (this one)")).length, 1);
  await status.locator("#language").selectOption("de");
  await status.getByText("Hubs dieser Flotte").first().waitFor();
  assert.deepEqual(errors, []);
  assert.deepEqual(page.errors.filter((text) => !/WebSocket|ERR_|50\d/.test(text)), []);
});

const keyTest = { skip: noStore, timeout: 60_000 };
test("a native worker whose only hub has another key ends with the reason", keyTest, async (t) => {
  const store = await startPostgres();
  t.after(() => store.remove());
  const state = mkdtempSync(join(tmpdir(), "moex-fleet-"));
  const port = await freePort();
  const hubs = [];
  t.after(async () => {
    await Promise.all(hubs.map((hub) => hub.stop("SIGKILL")));
    rmSync(state, { recursive: true, force: true });
  });
  const start = async () => {
    hubs.push(await Hub.start(["--store", store.url], { state, port, env: { MOEX_API_KEY: key } }));
    while (!hubs.at(-1).child.printed.includes("this hub has entered")) await once(hubs.at(-1).child.stderr, "data");
    return hubs.at(-1);
  };
  const first = await start();
  const worker = await NativeWorker.start(first, ["--backend", "cpu", "--threads", "1"]);
  t.after(() => worker.stop());
  await first.stop();
  rmSync(join(state, "signing-key"));
  await start();
  assert.equal((await worker.child.ended).code, 1);
  assert.match(worker.child.printed, /worker: refused: .* to accept another key/);
});
