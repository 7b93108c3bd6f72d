// The kernels in a real Chromium through WebGPU, compared with doubles: the same cases that kernels_test runs through
// Vulkan. With the environment variable MOEX_EXPECT_GPU=1, the adapter must be a real GPU.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

import { build } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

const cases = new URL("../web-worker/browser/", import.meta.url);
const types = { js: "text/javascript", wasm: "application/wasm", html: "text/html" };

// Serves the page's few files; localhost is a secure context.
async function serve() {
  const server = createServer(async ({ url }, response) => {
    const name = url.slice(1);
    try {
      if (name === "") {
        response.writeHead(200, { "Content-Type": types.html }).end("<!doctype html><title>kernels</title>");
        return;
      }
      const built = join(build, name.startsWith("wasm/") ? "web" : "web-tests", name);
      const bytes = await readFile(name === "kernels_worker.js" ? new URL(name, cases) : built);
      response.writeHead(200, { "Content-Type": types[name.split(".").pop()] }).end(bytes);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

test("every shape, size and dtype agrees with double in Chromium", async (t) => {
  const server = await serve();
  t.after(() => server.close());
  const browser = await launch();
  t.after(() => browser.close());
  const page = await browser.newPage();
  const messages = [];
  let finish;
  const finished = new Promise((resolve, reject) => { finish = { resolve, reject }; });
  page.on("crash", () => finish.reject(new Error("the page crashed")));
  await page.exposeFunction("heard", (message) => {
    messages.push(message);
    if (message.failed) finish.reject(new Error(message.failed));
    if (message.adapter?.reason) finish.reject(new Error(message.adapter.reason));
    if (message.done) finish.resolve();
  });
  await page.goto(`http://127.0.0.1:${server.address().port}/`, { timeout: 0 });
  await page.evaluate(() => {
    const worker = new Worker("/kernels_worker.js", { type: "module" });
    worker.onmessage = ({ data }) => window.heard(data);
    worker.onerror = (event) => window.heard({ failed: event.message ?? "the worker did not load" });
  });
  await finished;

  const { adapter } = messages.find((message) => message.adapter);
  const { vendor, architecture, description, software } = adapter;
  console.log(`adapter: ${vendor} ${architecture} ${description}${software ? " (software)" : ""}`);
  assert.equal(adapter.backend, "webgpu");
  assert.ok(adapter.vendor, "the adapter has a vendor");
  if (process.env.MOEX_EXPECT_GPU) assert.equal(adapter.software, false, "a real GPU was wanted");

  const results = messages.filter((message) => message.result).map((message) => message.result);
  assert.equal(results.length, adapter.num_cases);
  const worst = {};
  for (const { name, dtype, error, tolerance, reason } of results) {
    assert.equal(reason, undefined, `${name}: ${reason}`);
    assert.ok(error <= tolerance, `${name}: normalised RMS error ${error}, at most ${tolerance} wanted`);
    worst[dtype] = Math.max(worst[dtype] ?? 0, error);
  }
  // The list of cases is checked, too: a missing case is a failure.
  const names = new Set(results.map(({ name }) => name.replace(/ (f32|f16|bf16|int8) .*/, "")));
  for (const shape of ["demo 384x256 g128", "odd 96x160 g32", "odd 352x224 g32"])
    for (const rows of [1, 2, 3, 4, 5, 8, 16, 17, 33, 64])
      assert.ok(names.has(`${shape} M=${rows}`), `${shape} M=${rows}`);
  for (const rows of [1, 8, 64]) assert.ok(names.has(`qwen 2048x768 g128 M=${rows}`));
  for (const rows of [1, 8]) assert.ok(names.has(`paper 4096x2048 g128 M=${rows}`));
  const errors = Object.entries(worst).map(([dtype, error]) => `${dtype} ${error.toExponential(1)}`);
  console.log(`${results.length} cases; largest normalised RMS error: ${errors.join(", ")}`);
});
