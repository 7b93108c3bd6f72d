// /bench.html in a real Chromium: rows for a small shape (the page's own take minutes on a software adapter), figures
// that hang together, pictures of it light, dark and on a phone. The pictures land in the build folder (pictures/).
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Hub, build } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

const looks = {
  light: { colorScheme: "light", viewport: { width: 1280, height: 800 } },
  dark: { colorScheme: "dark", viewport: { width: 1280, height: 800 } },
  phone: { colorScheme: "light", viewport: { width: 390, height: 780 } },
};

test("the bench page measures and says so on every screen", async (t) => {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const browser = await launch();
  t.after(() => browser.close());
  const page = await browser.newPage();
  page.setDefaultTimeout(0);
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(`${hub.url}/bench.html?shapes=demo`);
  await page.getByRole("button", { name: "Measure", exact: true }).click();
  await page.waitForFunction(() => ["done", "failed"].includes(document.documentElement.dataset.phase));
  assert.equal(await page.locator("#state").textContent(), "done", await page.locator("#detail").textContent());
  assert.deepEqual(errors, []);

  const rows = await page.evaluate(() => window.moexRows);
  const found = (what, shape, num_rows) => rows.find((row) => row.what === what && row.shape === shape
    && row.rows === num_rows);
  assert.ok(found("read", "", 0).gb_s > 0);
  assert.ok(found("empty_round", "", 0).p50_us > 0);
  for (const what of ["gate_up", "silu_mul", "down", "total", "readback", "round"])
    assert.ok(found(what, "demo", 1)?.gpu_us > 0, what);
  const round = found("round", "demo", 1);
  assert.ok(round.p50_us > 0 && round.p10_us <= round.p50_us && round.p50_us <= round.p99_us, "frame to frame");
  const { mb } = found("total", "demo", 1);
  assert.ok(Math.abs(mb - 0.156672) < 1e-6, `${mb} MB an expert`);

  mkdirSync(join(build, "pictures"), { recursive: true });
  for (const [name, { colorScheme, viewport }] of Object.entries(looks)) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize(viewport);
    const { scrollWidth, clientWidth } = await page.evaluate(() => {
      const root = document.documentElement;
      return { scrollWidth: root.scrollWidth, clientWidth: root.clientWidth };
    });
    assert.ok(scrollWidth <= clientWidth, `${name}: the page scrolls sideways`);
    await page.screenshot({ path: join(build, "pictures", `bench-${name}.png`), fullPage: true });
  }
});
