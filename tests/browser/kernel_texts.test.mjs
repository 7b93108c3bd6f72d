// Parses every kernel of wgsl/ in a real Chromium. Chromium's compiler is stricter than naga: it checks
// that control flow is uniform. No pipelines are created: a software adapter would compile them for minutes.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { build } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";

const text = readFileSync(join(build, "generated/kernels_text.inc"), "utf8");
const kernels = Array.from(text.matchAll(/KernelSource\{"(\w+)", R"WGSL\(([\s\S]*?)\)WGSL"/g),
  ([, name, code]) => ({ name, code }));

test("Chromium accepts the text of every kernel", async (t) => {
  assert.ok(kernels.length >= 30, `${kernels.length} kernels`);
  assert.ok(kernels.some(({ name }) => name === "attend_page"));
  const page_only = (request, response) =>
    response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html><title>kernels</title>");
  const server = createServer(page_only);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const browser = await launch();
  t.after(() => browser.close());
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${server.address().port}/`, { timeout: 0 });

  const wrong = await page.evaluate(async (all) => {
    const adapter = await navigator.gpu.requestAdapter();
    const device = await adapter.requestDevice();
    const problems = [];
    for (const { name, code } of all) {
      const module = device.createShaderModule({ code });
      const { messages } = await module.getCompilationInfo();
      for (const { type, lineNum, message } of messages)
        if (type === "error") problems.push(`${name}:${lineNum}: ${message}`);
    }
    return problems;
  }, kernels);
  assert.deepEqual(wrong, []);
});
