// Pages of keys and values as a device has them, made of pages that a hub has computed.

const mask = (1n << 64n) - 1n;
const [p1, p2, p3, p4, p5] = [
  0x9e3779b185ebca87n, 0xc2b2ae3d27d4eb4fn, 0x165667b19e3779f9n, 0x85ebca77c2b2ae63n, 0x27d4eb2f165667c5n];
const turn = (x, by) => ((x << BigInt(by)) | (x >> BigInt(64 - by))) & mask;
const times = (a, b) => (a * b) & mask;
const round = (sum, word) => times(turn((sum + times(word, p2)) & mask, 31), p1);

// XXH64 with seed 0.
export function xxh64(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const word = (at) => view.getBigUint64(at, true);
  let at = 0, hash = p5;
  if (bytes.length >= 32) {
    let sums = [(p1 + p2) & mask, p2, 0n, (mask + 1n - p1) & mask];
    for (; at + 32 <= bytes.length; at += 32) sums = sums.map((sum, i) => round(sum, word(at + 8 * i)));
    hash = sums.reduce((all, sum, i) => (all + turn(sum, [1, 7, 12, 18][i])) & mask, 0n);
    for (const sum of sums) hash = (times(hash ^ round(0n, sum), p1) + p4) & mask;
  }
  hash = (hash + BigInt(bytes.length)) & mask;
  for (; at + 8 <= bytes.length; at += 8) hash = (times(turn(hash ^ round(0n, word(at)), 27), p1) + p4) & mask;
  if (at + 4 <= bytes.length) {
    hash = (times(turn(hash ^ times(BigInt(view.getUint32(at, true)), p1), 23), p2) + p3) & mask;
    at += 4;
  }
  for (; at < bytes.length; at += 1) hash = times(turn(hash ^ times(BigInt(bytes[at]), p5), 11), p1);
  hash = times(hash ^ (hash >> 33n), p2);
  hash = times(hash ^ (hash >> 29n), p3);
  return hash ^ (hash >> 32n);
}

// Returns the page with bytes of its header changed by `change(page)`, and with a checksum that is right again.
export function changed(page, change) {
  const other = Uint8Array.from(page);
  change(other);
  new DataView(other.buffer).setBigUint64(20, xxh64(other.subarray(28)), true);
  return other;
}

// Returns the pages of the text `prompt` that `hub` computes, with the header of a device's own pages.
export async function devicePages(hub, prompt, rows = "f16") {
  const response = await fetch(`${hub.url}/v1/prefill`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ prompt, rows }),
  });
  if (!response.ok) throw new Error(await response.text());
  const bytes = new Uint8Array(await response.arrayBuffer()), view = new DataView(bytes.buffer);
  const pages = [];
  for (let at = 0; at < bytes.length;) {
    const size = view.getUint32(at, true);
    // arithmetic of a GPU, weights of the package, experts that are not rounded
    if (size > 0) pages.push(changed(bytes.subarray(at + 4, at + 4 + size), (page) => page.set([3, 1, 1], 92)));
    at += 4 + size;
  }
  return pages;
}
