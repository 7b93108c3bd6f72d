// The whole system: a hub without local fallback, two real tabs, one chat; then tabs that leave, a hub that restarts, a
// damaged blob, a changed memory limit. Each story asserts the adapter of its tabs, and that the counters name the
// workers that answered.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Hub, NativeWorker, build, chat, generateText, run } from "./support/hub.mjs";
import { dropKept, namesKept, writeKept } from "./support/store.mjs";
import { launch, openTab, serving, tabStatus } from "./support/tab.mjs";

const prompt = process.env.MOEX_STORY_PROMPT ?? "Tell me a story about a garden.";
const max_tokens = 48;
const request = { model: "moex-demo", messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens };
// A software adapter is slow in a prefill, so the limits for GPUs are extended.
const patient = ["--deterministic", "--timeout-ms", "60000", "--round-deadline-s", "300"];
let browser;
let expected;

before(async () => {
  browser = await launch();
  expected = await generateText(prompt, max_tokens);
  console.log(`prompt ${JSON.stringify(prompt)}: smallest greedy margin ${expected.margin} over ${max_tokens} tokens`);
  assert.ok(expected.margin >= 0.05, `the smallest margin is ${expected.margin}, wanted at least 0.05`);
});
after(async () => { await browser?.close(); });

const context = () => browser.newContext();
function onBrowserGpu(status) {
  assert.equal(status.adapter.backend, "webgpu");
  assert.ok(status.adapter.vendor, "the adapter has a vendor");
  const { vendor, architecture, description, software } = status.adapter;
  console.log(`adapter: ${vendor} ${architecture} ${description}${software ? " (software)" : ""}`);
}

test("two tabs join and answer every call of a chat; one closes, then both", async (t) => {
  const hub = await Hub.start(["--local-fallback", "off", "--replicas", "2", ...patient]);
  t.after(() => hub.remove());
  const health = await fetch(`${hub.url}/health`);
  assert.equal(health.status, 503, "no answerer yet");
  const tabs = [await openTab(await context(), hub.join), await openTab(await context(), hub.join)];
  onBrowserGpu(await serving(tabs[0]));
  await hub.until((status) => status.health === "ok" && status.coverage.replicas_min === 2, "two replicas");
  assert.equal((await fetch(`${hub.url}/health`)).status, 200);

  const idle = await Promise.all(tabs.map(tabStatus));
  const first = await chat(hub, request);
  assert.equal(first.error, null);
  assert.equal(first.text, expected.text);
  const { calls, workers } = await hub.status();
  assert.equal(calls.local, 0);
  assert.ok(calls.remote > 0 && calls.remote === calls.calls, "tabs answered 100 % of the calls");
  console.log(`calls: ${calls.remote} of ${calls.calls} by tabs, ${first.moex?.workers} contributors`);

  // The hub knows which parts take the time of a round. It does not measure the speed of a software adapter.
  assert.ok(calls.split.groups > 0 && calls.split.worker_ms > 0, "the tabs reported their times");
  assert.ok(calls.split.group_ms >= calls.split.worker_ms, "the hub's times include the tabs' times");
  for (const worker of workers) assert.equal(worker.speed.read_mb_s > 0, !worker.software);

  // Each group of calls takes one GPU submit, one buffer map and one frame in each direction, and no GPU object is
  // created after warm-up. It takes four copies from the socket to the GPU and back; heartbeats add a few copies.
  for (const [i, page] of tabs.entries()) {
    // The page receives its worker's counters a moment later: wait until as many rounds were sent as read back.
    await page.waitForFunction(() => {
      const { groups_answered, rounds_at_warm, device, device_at_warm } = window.moexStatus;
      return groups_answered - rounds_at_warm === device.readbacks - device_at_warm.readbacks;
    }, null, { timeout: 0 });
    const status = await tabStatus(page);
    assert.ok(status.groups_answered > status.rounds_at_warm, "both tabs took part");
    const rounds = status.groups_answered - status.rounds_at_warm;
    for (const name of ["buffers_created", "bind_groups_created", "pipelines_created"])
      assert.equal(status.device[name], status.device_at_warm[name], name);
    assert.equal(status.device.submits - status.device_at_warm.submits, rounds, "one submit per round");
    assert.equal(status.device.readbacks - status.device_at_warm.readbacks, rounds, "one map per round");
    const since_idle = (name) => status.border[name] - idle[i].border[name];
    const answered = status.groups_answered - idle[i].groups_answered;
    console.log(`border: ${since_idle("copies")} copies, ${since_idle("mallocs")} mallocs, ${since_idle("promises")} `
      + `promises for ${answered} rounds; a keep-alive write every ${status.keep_alive_period_us} us, `
      + `${status.gpu_us_p50} us on the GPU`);
    assert.ok(since_idle("copies") <= 4.2 * answered + 100, "four copies a round");
    assert.ok(since_idle("promises") <= answered + 4, "a promise a round");
    assert.ok(since_idle("mallocs") <= 8, "no malloc a round");
  }

  // Close one of two tabs in the middle of a stream.
  let closed = false;
  const second = await chat(hub, request, async (count) => {
    if (count >= 10 && !closed) {
      closed = true;
      await tabs[1].close();
    }
  });
  assert.ok(closed);
  assert.equal(second.error, null);
  assert.equal(second.text, expected.text);

  // Let the hub compute experts itself (local fallback), and close the other tab as well.
  await hub.test({ local_fallback: true });
  closed = false;
  const third = await chat(hub, request, async (count) => {
    if (count >= 10 && !closed) {
      closed = true;
      await tabs[0].close();
    }
  });
  assert.ok(closed);
  assert.equal(third.error, null);
  assert.equal(third.text, expected.text);
  assert.ok((await hub.status()).calls.local > 0, "the hub took over");
});

test("a restarted hub is served without a click; a damaged blob is downloaded again", async (t) => {
  let hub = await Hub.start(["--local-fallback", "off", "--replicas", "1", ...patient]);
  t.after(() => hub.remove());
  const shared = await context();
  const page = await openTab(shared, hub.join);
  const before_restart = await serving(page);
  assert.ok(before_restart.bytes_downloaded > 0);

  hub = await hub.restart();
  await hub.until((status) => status.health === "ok", "the tab to come back by itself");
  const after_restart = await serving(page);
  assert.equal(after_restart.bytes_downloaded, before_restart.bytes_downloaded, "nothing was downloaded again");
  const answer = await chat(hub, request);
  assert.equal(answer.text, expected.text);

  // A second visit downloads nothing; a damaged file is refused and downloaded again. Downloaded experts are served
  // before they are written to disk.
  await page.waitForFunction(() => window.moexStatus.bytes_to_store === 0, null, { timeout: 0 });
  await page.close();
  const again = await openTab(shared, hub.join);
  assert.equal((await tabStatus(again)).bytes_downloaded, 0, "the second visit came from the cache");
  const blob_bytes = (await hub.status()).model.expert_blob_bytes;
  // A slow disk delays no answer: what finds no room before it is downloaded once more when the disk has room.
  const names = (await again.evaluate(namesKept)).slice(0, 4);
  for (const name of names) await again.evaluate(dropKept, name);
  const stored = await again.evaluate(async ([hexes, size]) => {
    const { Blobs } = await import("/wasm/blobs.js");
    const { ExpertFiles } = await import("/wasm/expert_files.js");
    const files = new ExpertFiles((name) => new Worker(`/wasm/${name}`, { type: "module" }));
    let goOn = null, num_puts = 0, num_loads = 0;
    const disk = new Promise((resolve) => { goOn = resolve; });
    const put = files.put.bind(files);
    const blobs = new Blobs(new URL("/weights/", location.origin).href, files);
    blobs.put_bytes_max = size;      // so that two blobs may wait
    const all_put = new Promise((resolve) => {
      files.put = async (...what) => {
        await disk;
        await put(...what);
        num_puts += 1;
        if (num_puts === hexes.length) resolve();
      };
    });
    const get = blobs.fetchers.get.bind(blobs.fetchers);
    blobs.fetchers.get = (...what) => {
      num_loads += 1;
      const answer = get(...what);
      if (num_loads === hexes.length + 1) blobs.letCopy(false);      // the first copy: a pause ends it
      return answer;
    };
    const fetched = (hex) => new Promise((resolve) => {
      blobs.fetch(hex, size, false, () => {}, (bytes) => resolve(bytes?.length));
    });
    const got = await Promise.all(hexes.map(fetched));
    const before = { loads: num_loads, waiting: blobs.put_bytes, left: blobs.bytes_to_store };
    const count = () => ({ loads: num_loads, left: blobs.bytes_to_store, copied: blobs.copied_bytes });
    blobs.answered_at = performance.now();      // as if it answered calls just now
    goOn();
    await blobs.putting;
    const not_serving = count();
    blobs.letCopy(true);
    while (blobs.copying || blobs.running > 0) await new Promise((resolve) => setTimeout(resolve));
    const paused = count();
    blobs.letCopy(true);
    await all_put;
    await blobs.putting;
    const all = count();
    // Blobs of a model that the hub no longer serves are not copied: the hub has them no more.
    blobs.put_bytes_max = -1;
    blobs.put({ hex: hexes[0] }, new Uint8Array(size));
    const unwritten = count();
    blobs.serves("another model");
    return { got, before, not_serving, paused, all, kept: files.told.kept, unwritten, of_another: count() };
  }, [names, blob_bytes]);
  assert.deepEqual(stored, {
    got: names.map(() => blob_bytes), before: { loads: 4, waiting: 2 * blob_bytes, left: 4 * blob_bytes },
    not_serving: { loads: 4, left: 2 * blob_bytes, copied: 0 }, paused: { loads: 5, left: 2 * blob_bytes, copied: 0 },
    all: { loads: 7, left: 0, copied: 2 * blob_bytes }, kept: 4,
    unwritten: { loads: 7, left: blob_bytes, copied: 2 * blob_bytes },
    of_another: { loads: 7, left: 0, copied: 2 * blob_bytes },
  });
  const kept = await again.evaluate(namesKept);
  assert.ok(names.every((name) => kept.includes(name)));
  const [first] = names;
  await again.evaluate(writeKept, [first, blob_bytes]);
  await again.close();
  const mended = await openTab(shared, hub.join);
  const status = await tabStatus(mended);
  assert.equal(status.blobs_refused, 1);
  assert.equal(status.bytes_downloaded, blob_bytes, "exactly the damaged blob was fetched");
  assert.equal((await chat(hub, request)).text, expected.text);
});

// Regression: a move of the slider for the memory limit once dropped all weights, and the page said that the hub was
// gone.
test("a memory limit changed during a stream drops and reloads experts", async (t) => {
  const hub = await Hub.start(["--local-fallback", "off", "--replicas", "2", ...patient]);
  t.after(() => hub.remove());
  // A memory limit below the range of the slider, because the demo model is small.
  const small_bytes = 8e6;
  const moved = await context();
  await moved.addInitScript((bytes) => {
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function(message, ...rest) {
      post.call(this, message.type === "budget" && message.bytes < 1e8 ? { ...message, bytes } : message, ...rest);
    };
    window.phases = [];
    const record = () => window.phases.push(document.documentElement.dataset.phase);
    new MutationObserver(record).observe(document.documentElement, { attributeFilter: ["data-phase"] });
  }, small_bytes);
  const page = await openTab(moved, hub.join);
  await openTab(await context(), hub.join);
  await hub.until((status) => status.coverage.replicas_min === 2, "two replicas of every expert");
  const before_move = await serving(page);
  await page.evaluate(() => { window.phases = []; });
  const moveSlider = (value) => page.locator("#budget").evaluate((slider, to) => {
    slider.value = to;
    slider.dispatchEvent(new Event("change"));
  }, value);

  let moves = 0;
  const answer = await chat(hub, request, async (count) => {
    if (count === 8) {
      moves += 1;
      await moveSlider("0");
      await page.waitForFunction((bytes) => {
        const { device, units_assigned, units_ready } = window.moexStatus;
        return device.buffer_bytes <= bytes && units_assigned > 0 && units_ready === units_assigned;
      }, small_bytes, { timeout: 0 });
    } else if (count === 24) {
      moves += 1;
      assert.ok((await tabStatus(page)).units_assigned < before_move.units_assigned);
      await moveSlider("4");
    }
  });
  assert.equal(moves, 2);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);

  await hub.until((status) => status.coverage.replicas_min === 2, "all experts to be back");
  const { units_ready } = before_move;
  await page.waitForFunction((wanted) => window.moexStatus.units_ready === wanted, units_ready, { timeout: 0 });
  const status = await serving(page);
  assert.equal(status.worker_id, before_move.worker_id, "one connection all along");
  assert.equal(status.self_test_rounds, 1, "the GPU stayed open");
  assert.equal(status.bytes_downloaded, before_move.bytes_downloaded, "what came back came from the cache");
  const phases = new Set(await page.evaluate(() => window.phases));
  for (const phase of phases) assert.ok(["serving", "downloading"].includes(phase), phase);
});

test("a tab and a native worker share a model", async (t) => {
  const hub = await Hub.start(["--local-fallback", "off", "--replicas", "1", ...patient]);
  t.after(() => hub.remove());
  const worker = await NativeWorker.start(hub);
  t.after(() => worker.stop());
  await openTab(await context(), hub.join, { wait: false });
  const isReady = (one) => one.state === "active" && one.units_ready === one.units_assigned && one.units_ready > 0;
  const joined = await hub.until((status) => status.workers.filter(isReady).length === 2, "both workers");
  assert.deepEqual(joined.workers.map((one) => one.backend).sort(), ["vulkan", "webgpu"]);
  const answer = await chat(hub, request);
  assert.equal(answer.error, null);
  assert.equal(answer.text, expected.text);
  const status = await hub.status();
  assert.equal(status.calls.local, 0);
  for (const one of status.workers) assert.ok(one.groups_answered > 0, `${one.backend} took part`);
});

test("over TLS, with the hub's self-signed certificate", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "moex-tls-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const made = await run(join(build, "moex-hub"), ["cert", "--out", folder]);
  assert.equal(made.code, 0, made.stderr);
  const certificate = join(folder, "cert.pem");
  const hub = await Hub.start(["--local-fallback", "off", "--replicas", "2",
    "--tls-cert", certificate, "--tls-key", join(folder, "key.pem"), ...patient]);
  t.after(() => hub.remove());
  assert.match(hub.join, /^https:/);
  const worker = await NativeWorker.start(hub, ["--ca", certificate]);
  t.after(() => worker.stop());
  const trusting = await browser.newContext({ ignoreHTTPSErrors: true });
  onBrowserGpu(await tabStatus(await openTab(trusting, hub.join)));
  const response = await trusting.request.post(`${hub.url}/v1/chat/completions`, {
    data: { ...request, max_tokens: 8 }, timeout: 0,
  });
  assert.equal(response.status(), 200);
  const text = (await response.json()).choices[0].message.content;
  assert.ok(text.length > 0 && expected.text.startsWith(text), text);
  const status = await (await trusting.request.get(`${hub.url}/api/status`)).json();
  assert.deepEqual(status.workers.map((one) => one.backend).sort(), ["vulkan", "webgpu"]);
  assert.equal(status.calls.local, 0);
  await trusting.close();
});
