// Measures a browser's store of experts: listing and opening thousands of files, in one folder and in 256, and writing
// and reading an expert, beside the Cache API that was used before. CSV: what, files, ms_all (for all files), ms_each
// (per file; for whole experts the median, and for four at a time the mean). The browser's own cache of the disk is
// warm.
//   usage: MOEX_BUILD=build MOEX_NPM=build/npm node bench/tab_store_bench.mjs [FILES] [EXPERTS]
//   example: MOEX_BUILD=build MOEX_NPM=build/npm node bench/tab_store_bench.mjs 6144 64
import { Hub } from "../tests/browser/support/hub.mjs";
import { launch } from "../tests/browser/support/tab.mjs";

const num_files = Number(process.argv[2] ?? 6144), num_experts = Number(process.argv[3] ?? 64);
const expert_bytes = 2506752;      // size of an expert of Qwen3-30B-A3B

// This function runs in a page. It resolves to {what: ms}, a time for each measurement.
async function folders([count, num_shards]) {
  const took = {};
  const time = async (what, work) => {
    const begin = performance.now();
    await work();
    took[what] = performance.now() - begin;
  };
  const root = await navigator.storage.getDirectory();
  await root.removeEntry("bench", { recursive: true }).catch(() => {});
  const top = await root.getDirectoryHandle("bench", { create: true });
  const nameOf = (i) => ((i * 2654435761) % 2 ** 32).toString(16).padStart(8, "0").repeat(8);
  const shards = new Map();
  const shardOf = async (name, create) => {
    if (num_shards === 1) return top;
    const key = name.slice(0, 2);
    if (!shards.has(key)) shards.set(key, await top.getDirectoryHandle(key, { create }));
    return shards.get(key);
  };
  const all = Array.from({ length: count }, (_, i) => nameOf(i));
  await time("make", async () => {
    for (const name of all) await (await shardOf(name, true)).getFileHandle(name, { create: true });
  });
  const list = async (f) => {
    const lists = [];
    const walk = async (folder) => { for await (const entry of folder.entries()) await f(entry); };
    if (num_shards === 1) return walk(top);
    for await (const folder of top.values()) lists.push(walk(folder));
    return Promise.all(lists);
  };
  await time("list", () => list(() => {}));
  await time("list with sizes", async () => {
    const handles = [];
    await list(([, handle]) => { handles.push(handle); });
    await Promise.all(handles.map((handle) => handle.getFile()));
  });
  await time("open one after the other", async () => {
    for (const name of all) await (await (await shardOf(name)).getFileHandle(name)).getFile();
  });
  await root.removeEntry("bench", { recursive: true });
  return took;
}

// Measures whole experts through the modules that a tab uses and through the Cache API, alternately; returns the
// medians of their times.
async function experts([count, size]) {
  const took = {};
  const time = async (what, work) => {
    const begin = performance.now();
    await work();
    (took[what] ??= []).push(performance.now() - begin);
  };
  const { ExpertFiles } = await import("/wasm/expert_files.js");
  const bytes = new Uint8Array(size).map((_, i) => i * 31);
  const nameOf = (i) => ((i * 2654435761) % 2 ** 32).toString(16).padStart(8, "0").repeat(8);
  const files = new ExpertFiles((name) => new Worker(`/wasm/${name}`, { type: "module" }));
  await files.open();
  const cache = await caches.open("bench");
  for (let i = 0; i < count; i += 1) {
    await time("write an expert to the store", () => files.put(nameOf(i), bytes));
    await time("write an expert to the Cache API", () => cache.put(`/weights/${nameOf(i)}`, new Response(bytes)));
  }
  const begin = performance.now();
  let next = count;
  const lane = async () => {
    for (let i = next++; i < 2 * count; i = next++) await files.put(nameOf(i), bytes);
  };
  await Promise.all([lane(), lane(), lane(), lane()]);
  const four_ms = performance.now() - begin;
  for (let i = 0; i < count; i += 1) {
    await time("read an expert of the store", () => files.read(nameOf(i), size));
    await time("read an expert of the Cache API",
      async () => (await cache.match(`/weights/${nameOf(i)}`)).arrayBuffer());
    await time("verify it", () => crypto.subtle.digest("SHA-256", bytes));
  }
  await caches.delete("bench");
  const median = (times) => times.sort((a, b) => a - b)[times.length >> 1];
  return { ...Object.fromEntries(Object.entries(took).map(([what, times]) => [what, count * median(times)])),
    "write experts to the store four at a time": four_ms };
}

const browser = await launch();
const hub = await Hub.start(["--backend", "local"]);
try {
  const page = await (await browser.newContext()).newPage();
  await page.goto(`${hub.url}/status.html`);
  console.log("what,files,ms_all,ms_each");
  const show = (where, count, took) => {
    for (const [what, ms] of Object.entries(took))
      console.log(`${what}${where},${count},${ms.toFixed(1)},${(ms / count).toFixed(3)}`);
  };
  for (const num_shards of [1, 256])
    show(` in ${num_shards === 1 ? "one folder" : "256 folders"}`, num_files,
      await page.evaluate(folders, [num_files, num_shards]));
  show("", num_experts, await page.evaluate(experts, [num_experts, expert_bytes]));
} finally {
  await browser.close();
  await hub.remove();
}
