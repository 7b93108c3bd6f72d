// /bench.html in a real Chromium: rows for a small shape (the page's own shapes take minutes on a software adapter),
// consistent figures, a whole model of the demo's shape, and pictures (light, dark, on a phone) in the build folder
// (pictures/).
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

async function openBench(t, query = "") {
  const hub = await Hub.start(["--backend", "local"]);
  t.after(() => hub.remove());
  const browser = await launch();
  t.after(() => browser.close());
  const page = await browser.newPage();
  page.setDefaultTimeout(0);
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(`${hub.url}/bench.html${query}`);
  return { page, errors };
}

// Measures the demo's shape with all options: the four conditions of the ablation, and two readback sizes.
async function measureModel(page) {
  await page.getByRole("button", { name: "Measure the model", exact: true }).click();
  await page.waitForFunction(() => ["done", "failed"].includes(document.documentElement.dataset.model));
  assert.equal(await page.locator("#model-state").textContent(), "done",
    await page.locator("#model-detail").textContent());

  const rows = await page.evaluate(() => window.moexModelRows);
  const whats = rows.map(({ what, fetch }) => `${what} ${fetch}`);
  for (const what of ["prefill 0", "none 1", "reuse 1", "pipeline 2", "both 2", "both 4"])
    assert.ok(whats.includes(what), `${what} is not among ${whats}`);
  for (const row of rows.filter(({ fetch }) => fetch > 0)) {
    assert.equal(row.tokens, 8);
    assert.equal(row.dispatches, 93, "of a step of the demo");
    assert.ok(row.ms_token > 0 && row.exec_ms > 0 && row.fetch_ms > 0 && row.model_ms >= row.exec_ms);
  }
  const found = (what) => rows.find((row) => row.what === what);
  assert.equal(found("both").created, 0, "a tab makes nothing in a step");
  for (const what of ["none", "pipeline"])      // these conditions also create objects for each part of a prompt
    assert.ok(found(what).created >= 2 * 93, `${what} makes a buffer and a bind group for each dispatch`);
  assert.ok(rows.some(({ what }) => what === "kernel route"));
  assert.equal(await page.locator("#model-tables tbody tr").count(), rows.length);
}

test("the bench page measures and says so on every screen", async (t) => {
  const { page, errors } = await openBench(t, "?shapes=demo&models=demo:int4:f16&fetch=2,4&kernels=on");
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

  await measureModel(page);
  assert.deepEqual(errors, []);

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

test("an existing pipeline is returned after the call that requests it", async (t) => {
  const { page } = await openBench(t);

  // Regression: a caller that requested the next pipeline in the callback nested one call deeper for each pipeline, and
  // a model of thirty layers overflowed the stack.
  const order = await page.evaluate(async () => {
    const { Gpu } = await import("/wasm/gpu.js");
    const heard = [];
    let answered = null;
    const gpu = new Gpu({
      onPipeline: (ticket, handle) => {
        heard.push(`${handle > 0 ? "made" : "refused"} ${ticket}`);
        answered();
      },
    });
    await gpu.open();
    for (const ticket of [1, 2]) {
      const answer = new Promise((resolve) => { answered = resolve; });
      gpu.createPipeline("@compute @workgroup_size(1) fn main() {}", "main", [], "", ticket);
      heard.push(`asked ${ticket}`);
      await answer;
    }
    gpu.close();
    return heard;
  });
  assert.deepEqual(order, ["asked 1", "made 1", "asked 2", "made 2"]);
});

// Gives the page a clock that goes on by 0.1 ms with each look at it. The limits in ms then count looks, and do not
// pass while the thread gets no core.
const countTime = (page) => page.evaluate(() => {
  let now = performance.now();
  performance.now = () => (now += 0.1);
});

test("a GPU does keep-alive work after an answer only if allowed", async (t) => {
  const { page } = await openBench(t);
  await countTime(page);
  const counts = await page.evaluate(async () => {
    const { Gpu } = await import("/wasm/gpu.js");
    const { canStayAwake } = await import("/wasm/awake.js");
    let answered = null;
    const gpu = new Gpu({ takeRead() {}, onRead: () => answered() });
    await gpu.open();
    const chosen = [gpu.can_stay_awake, canStayAwake(false, 4), canStayAwake(false, 8), canStayAwake(true, 8)];
    gpu.can_stay_awake = true;                          // open() forbids it for a software adapter

    const from = gpu.createBuffer(16, 0, "from");
    const to = gpu.createBuffer(16, 2, "to");
    const dispatches = [];
    for (const allowed of [false, true]) {
      gpu.may_stay_awake = allowed;
      const answer = new Promise((resolve) => { answered = resolve; });
      gpu.submit([1, from, to, 0, 0, 16, 0, 0], 0, 1);
      gpu.readBuffer(to, 16, 1);
      await answer;
      while (gpu.keeping_alive) await new Promise((resolve) => setTimeout(resolve));
      dispatches.push(gpu.keep_alive_dispatches);
    }
    const lost = gpu.device === null;
    gpu.close();
    return { chosen, dispatches, lost };
  });
  assert.deepEqual(counts.chosen, [false, false, true, false]);
  assert.equal(counts.dispatches[0], 0);
  assert.ok(counts.dispatches[1] > 0);
  assert.equal(counts.lost, false);
});

test("a GPU does keep-alive work for predicted calls, within limits",
  async (t) => {
    const { page } = await openBench(t);
    await countTime(page);
    const seen = await page.evaluate(async () => {
      const { Gpu } = await import("/wasm/gpu.js");
      const { expected_in_vain_max, expected_ms_max } = await import("/wasm/awake.js");
      let answered = null;
      const gpu = new Gpu({ takeRead() {}, onRead: () => answered() });
      await gpu.open();
      gpu.can_stay_awake = true;                        // open() forbids it for a software adapter
      const rest = async () => { while (gpu.keeping_alive) await new Promise((resolve) => setTimeout(resolve)); };
      const expect = async () => {
        const before = gpu.keep_alive_dispatches;
        gpu.expectWork(60000);
        const { keeping_alive } = gpu;
        const ahead_ms = gpu.awake_until - performance.now();
        await rest();
        const dispatches = gpu.keep_alive_dispatches - before;
        return { keeping_alive, short: ahead_ms <= expected_ms_max, dispatches };
      };

      const forbidden = await expect();                 // nothing is kept awake: the settings forbid it, as on battery
      gpu.may_stay_awake = true;
      const foreseen = [];
      for (let i = 0; i <= expected_in_vain_max; i += 1) foreseen.push(await expect());

      const from = gpu.createBuffer(16, 0, "from");
      const to = gpu.createBuffer(16, 2, "to");
      gpu.submit([1, from, to, 0, 0, 16, 0, 0], 0, 1);
      const answer = new Promise((resolve) => { answered = resolve; });
      gpu.readBuffer(to, 16, 1);
      await answer;
      await rest();
      const again = await expect();
      gpu.close();
      return { forbidden, foreseen, again };
    });
    const idle = { keeping_alive: false, short: seen.forbidden.short, dispatches: 0 };
    assert.deepEqual(seen.forbidden, idle);
    const in_vain = seen.foreseen.pop();
    for (const one of seen.foreseen)
      assert.ok(one.keeping_alive && one.short && one.dispatches > 0, JSON.stringify(one));
    assert.deepEqual(in_vain, { ...idle, short: in_vain.short });
    assert.ok(seen.again.keeping_alive && seen.again.dispatches > 0, "a call has come: the next one is waited for");
  });
