// Reads and damages the files that a browser keeps for a site by hash (web-worker/browser/store_folder.js), from a page
// of the site.

// Returns the names of all files by hash: page.evaluate(namesKept).
export async function namesKept() {
  const names = [];
  const top = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-models").catch(() => null);
  if (!top) return names;
  for await (const [shard, folder] of top.entries())
    if (folder.kind === "directory")
      for await (const name of folder.keys()) names.push({ name, shard });
  return names.filter(({ name }) => /^[0-9a-f]{64}$/.test(name)).map(({ name }) => name).sort();
}

// Writes a file of the site's folder moex-models: page.evaluate(writeKept, [name, size or array of bytes]).
export async function writeKept([name, bytes]) {
  const top = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-models", { create: true });
  const shard = await top.getDirectoryHandle(name.slice(0, 2), { create: true });
  const stream = await (await shard.getFileHandle(name, { create: true })).createWritable();
  await stream.write(new Uint8Array(bytes));
  await stream.close();
}

export async function dropKept(name) {
  const top = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-models");
  await (await top.getDirectoryHandle(name.slice(0, 2))).removeEntry(name);
}

// Deletes all files, like a user who deletes the site's data. The lock keeps tabs from writing uses.json meanwhile: a
// folder that gets a new file is not removed (InvalidModificationError), and neither is a file that is being written.
export const dropAllKept = () => navigator.locks.request("moex-uses", async () => {
  const root = await navigator.storage.getDirectory();
  for (;;) {
    try {
      return await root.removeEntry("moex-models", { recursive: true });
    } catch (error) {
      if (!["NoModificationAllowedError", "InvalidModificationError"].includes(error.name)) throw error;
    }
    await new Promise((go) => { setTimeout(go, 50); });
  }
});

// Resolves when all downloads of a tab are on the disk.
export const allStored = (page) =>
  page.waitForFunction(() => window.moexStatus.bytes_to_store === 0, null, { timeout: 0 });

// Resolves when uses.json has the uses of `count` blobs, and the served model.
export const usesWritten = (page, count) => page.waitForFunction(async (wanted) => {
  const top = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-models");
  const handle = await top.getFileHandle("uses.json").catch(() => null);
  const text = await (await handle?.getFile())?.text();
  const { served = "", blobs = {} } = text ? JSON.parse(text) : {};
  return served !== "" && Object.keys(blobs).length === wanted;
}, count, { timeout: 0, polling: 100 });
