// The list of hubs on the admin page and the status page, and in `moex-hub fleet`, in a real Chromium beside a real
// fleet: one hub with a worker, one without, one that is gone. Its pictures (light, dark, on a phone, in German) are
// written to the build folder (pictures/), for people to look at.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { command, hubsOf, knownAt, makeKey, until } from "../api/fleet_process.mjs";
import { cleanEnvironment, startHub } from "../api/hub_process.mjs";
import { postgresIsInstalled, startPostgres } from "../api/postgres.mjs";
import { build } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

const skip = postgresIsInstalled() ? false : "SKIPPED: no postgresql-15";
const folder = join(build, "pictures");
const looks = [["light", "light", 1280, "en"], ["dark", "dark", 1280, "en"], ["phone", "light", 390, "en"],
  ["german", "light", 1280, "de"], ["german-phone", "dark", 390, "de"]];

test("the admin page lists the hubs of a fleet as the status page does", { skip, timeout: 240_000 }, async (t) => {
  mkdirSync(folder, { recursive: true });
  const store = await startPostgres();
  const state = mkdtempSync(join(tmpdir(), "moex-fleet-"));
  const hubs = [];
  t.after(async () => {
    for (const hub of hubs) { hub.signal("SIGKILL"); await hub.ended; }
    await store.remove();
    rmSync(state, { recursive: true, force: true });
  });
  for (let i = 0; i < 3; ++i) {
    hubs.push(await startHub(["--state", `${state}/${i}`, "--store", store.url, "--threads", "1", "--kv-disk-mb",
      "0"]));
    await hubs[i].logged("this hub has entered");
  }
  const worker = spawn(process.env.MOEX_NATIVE_WORKER ?? "build/moex-worker",
    ["--hub", hubs[0].join, "--backend", "cpu", "--threads", "1"], { env: cleanEnvironment(), stdio: "ignore" });
  const worker_ended = new Promise((resolve) => { worker.on("close", resolve); });
  t.after(async () => { worker.kill("SIGTERM"); await worker_ended; });
  assert.equal(await hubs[2].stop(), 0);
  const fleet = async () => (await (await fetch(`${hubs[0].url}/api/status`)).json()).fleet;
  await until(async () => (await fleet()).filter((one) => one.lives && one.units > 0).length === 2
    && (await fleet()).some((one) => one.units > 0 && one.units_missing === 0));

  const browser = await launch([], { webgpu: false });
  t.after(() => browser.close());
  const { key } = await makeKey(store, "ada", "--role", "admin");
  await knownAt(hubs.slice(0, 2), key);
  const rowsOf = (page) => page.locator("#fleet-hubs tr").evaluateAll((rows) => rows.map((row) => [...row.cells]
    .map((cell) => cell.textContent)));
  for (const [name, colorScheme, width, language] of looks) {
    const viewport = { width, height: 900 };
    const context = await browser.newContext({ viewport, colorScheme, reducedMotion: "reduce" });
    const page = await context.newPage();
    const errors = [];
    page.on("pageerror", (error) => errors.push(String(error)));
    const seen = {};
    for (const file of ["admin", "status"]) {
      await page.goto(`${hubs[0].url}/${file}.html`);
      await page.evaluate((text) => sessionStorage.setItem("moex-admin-key", JSON.stringify(text)), key);
      await page.reload();
      await page.locator("#language").selectOption(language);
      await page.locator("#fleet-hubs tr").nth(2).waitFor();
      seen[file] = await rowsOf(page);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(wide <= 0, `${file} ${name}: ${wide} px too wide`);
      await page.locator("#fleet").scrollIntoViewIfNeeded();
      await page.screenshot({ path: join(folder, `fleet-${file}-${name}.png`) });
    }
    const told = (rows) => rows.map(([id, state_words, , ...more]) => [id, state_words.replace(/\d+/, "N"), ...more]);
    assert.deepEqual(told(seen.admin), told(seen.status));
    const lacks = seen.admin.map((cells) => cells[6]).sort();
    const wanted = language === "en" ? [/^–$/, /too few copies$|^lacks none$/, /^lacks \d+ of \d+/]
      : [/^es fehlen \d+ von \d+/, /zu wenigen Kopien$|^keiner fehlt$/, /^–$/];
    for (const words of wanted) assert.ok(lacks.some((text) => words.test(text)), `${words}: ${lacks}`);
    assert.deepEqual(errors, []);
    await context.close();
  }

  // The command says the same.
  const listed = await hubsOf(store);
  assert.deepEqual(listed.map((one) => [one.hub, one.lives, one.workers]).sort(),
    (await fleet()).map((one) => [one.hub, one.lives, one.workers]).sort());
  assert.match((await command(store, "fleet")).stdout, /lacks \d+ of \d+ experts/);
});
