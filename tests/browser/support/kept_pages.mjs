// What "this device" keeps of conversations, seen from a page of the site and in the browser's profile on disk.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

// Returns {files: [names], databases: [names]} of the site: page.evaluate(keptOf).
export async function keptOf() {
  const files = [];
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-pages").catch(() => null);
  let has_folder = folder !== null;
  try {
    if (folder) for await (const name of folder.keys()) files.push(name);
  } catch (error) {
    if (error.name !== "NotFoundError") throw error;
    has_folder = false;      // it was deleted meanwhile
  }
  const databases = (await indexedDB.databases()).map(({ name }) => name);
  return { has_folder, files, databases };
}

// Returns the names of the pages that are whole on the disk, or of the states: page.evaluate(wholePages, is_state). A
// record is written after its file. The database is not created here.
export async function wholePages(is_state = false) {
  if (!(await indexedDB.databases()).some(({ name }) => name === "moex-pages")) return [];
  const ended = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  const database = await ended(indexedDB.open("moex-pages"));
  try {
    const store = [...database.objectStoreNames][0];
    const names = store ? await ended(database.transaction(store).objectStore(store).getAllKeys()) : [];
    return names.filter((name) => name.includes(".") && name.endsWith(".state") === is_state);
  } finally { database.close(); }
}

// Returns the number and the bytes of the files of pages, and those of states: page.evaluate(keptBytes).
export async function keptBytes() {
  const found = { num_pages: 0, bytes: 0, num_states: 0, state_bytes: 0 };
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-pages").catch(() => null);
  if (folder) for await (const handle of folder.values()) {
    const { size } = await handle.getFile().catch(() => ({ size: 0 }));
    const is_state = handle.name.endsWith(".state");
    found[is_state ? "num_states" : "num_pages"] += 1;
    found[is_state ? "state_bytes" : "bytes"] += size;
  }
  return found;
}

// Changes one byte of each kept file, or of the file `name`. `offset` counts from the end if it is negative:
// page.evaluate(spoil, offset) or (spoil, [offset, name]). A file that is being written or replaced meanwhile stays as
// it is.
export async function spoil(which) {
  const [offset, name] = [which].flat();
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("moex-pages");
  for await (const handle of folder.values()) {
    if (name && handle.name !== name) continue;
    try {
      const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
      bytes.set([bytes.at(offset) ^ 1], (offset + bytes.length) % bytes.length);
      const stream = await handle.createWritable();
      await stream.write(bytes);
      await stream.close();
    } catch (error) {
      if (!["NotFoundError", "NoModificationAllowedError"].includes(error.name)) throw error;
    }
  }
}

// Returns the paths of the files in `folder`, in which one of `needles` (texts or bytes) can be read.
export function filesWith(folder, needles) {
  const found = [];
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const bytes = readFileSync(join(entry.parentPath ?? entry.path, entry.name));
    const forms = needles.flatMap((one) => (
      typeof one === "string" ? [Buffer.from(one), Buffer.from(one, "utf16le")] : [Buffer.from(one)]));
    if (forms.some((form) => bytes.includes(form))) found.push(join(entry.parentPath ?? entry.path, entry.name));
  }
  return found;
}
