// The files of a model in the browser, in a real Chromium without a GPU: files that are too large for the browser's own
// digest are hashed in stretches (wasm/sha256.js).
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Front } from "./support/front.mjs";
import { Hub } from "./support/hub.mjs";
import { launch } from "./support/tab.mjs";
import { openTestWorker } from "./support/test_worker.mjs";

// It answers {sizes} with the sizes whose bytes have another hash than the browser's own, in one stretch or in two, and
// {files, url} with "" or with the code of the error of a download, in which all files count as too large.
const program = `
import { FileStore } from "./file_store.js";
import { Sha256, sha256OfFile, toHex } from "./sha256.js";
async function isWrong(size, i) {
  const bytes = Uint8Array.from({ length: size }, (_, at) => at * 31 + size >> 3);
  const hash = new Sha256();
  const cut = i * 13 % (size + 1);
  hash.update(bytes.subarray(0, cut));
  hash.update(bytes.subarray(cut));
  const plain = toHex(await crypto.subtle.digest("SHA-256", bytes));
  return toHex(hash.digest()) !== plain || await sha256OfFile(new Blob([bytes]), 0) !== plain;
}
async function load({ files, url }) {
  const store = await FileStore.open();
  store.whole_bytes_max = 0;
  return store.fetchAll(files, { url, key: "", has() {}, progress() {} }).then(() => "", ({ code }) => code);
}
onmessage = async ({ data }) => {
  if (data.files) return postMessage({ code: await load(data) });
  const wrong = [];
  for (const [i, size] of data.sizes.entries()) if (await isWrong(size, i)) wrong.push(size);
  return postMessage({ wrong });
};`;

let browser, hub;
before(async () => {
  browser = await launch([], { webgpu: false });
  hub = await Hub.start(["--backend", "local"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

test("a hash over stretches is the browser's own hash", async (t) => {
  const { page } = await openTestWorker(t, browser, hub, program);
  const blocks = Array.from({ length: 260 }, (_, size) => size);
  const sizes = [...blocks, 4095, 4096, 4097, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, (17 << 20) + 5];
  assert.deepEqual(await page.evaluate((all) => globalThis.say({ sizes: all }), sizes), { wrong: [] });
});

test("a large file is verified in stretches, and an altered one is refused", async (t) => {
  const { files } = await (await fetch(`${hub.url}/api/package`)).json();
  const large = files.find(({ name }) => name === "hub.safetensors");
  let spoils = true;
  const front = await Front.start(hub, async (request, response, pass) => {
    delete request.headers.origin;
    if (!spoils || request.url !== `/api/package/${large.sha256}`) return pass();
    const answer = await fetch(hub.url + request.url, { headers: { range: request.headers.range } });
    const bytes = new Uint8Array(await answer.arrayBuffer());
    bytes[bytes.length >> 1] ^= 1;
    response.writeHead(206, { ...Object.fromEntries(answer.headers), "content-length": bytes.length });
    return response.end(bytes);
  });
  t.after(() => front.stop());
  const { page } = await openTestWorker(t, browser, front, program);
  const load = () => page.evaluate((file) => (
    globalThis.say({ files: [file], url: new URL("api/package/", location).href })), large);
  assert.deepEqual(await load(), { code: "hash_mismatch" });
  spoils = false;
  assert.deepEqual(await load(), { code: "" });
});
