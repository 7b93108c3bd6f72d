// Expert blobs for one worker: from the browser's cache, else from the hub; verified by SHA-256 before use, resumed
// when a download breaks. A cached blob that does not verify is dropped and fetched again. Only whole blobs are cached
// (a 206 cannot be), one after the other and behind the back of who waits for them: the disk is slower than the GPU.
// Where the browser's quota is full, blobs go that nobody asked for since this worker began (another model's, as a
// rule), then those that were asked for less often than the one that comes; else that one is not cached.
const cache_name = "moex-weights-v1";
const attempts_max = 4;
const fetches_max = 4;
const gone_max = 8;              // blobs that go for one that comes: a browser counts some time later what is free
const put_bytes_max = 64 << 20;  // that wait for the disk; beyond, further fetches wait for it too

const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const isBlob = async (bytes, hex) => toHex(await crypto.subtle.digest("SHA-256", bytes)) === hex;

export async function forgetBlobs() {
  return caches.delete(cache_name);
}

export class Blobs {
  // `base`: URL of the weights folder, with a slash at its end.
  constructor(base) {
    this.base = base;
    this.waiting = [];
    this.running = 0;
    this.generation = 0;
    this.abort = new AbortController();
    this.refused = 0;            // blobs that did not verify, from cache or network
    this.cache = null;
    this.cache_failed = "";
    this.put_bytes = 0;          // of blobs that are not on the disk yet
    this.host_bytes = 0;         // that may stay in this machine's memory, for who will ask for them again
    this.memory = new Map();     // hex -> verified bytes, the one that was not asked for longest first
    this.memory_bytes = 0;
    this.putting = Promise.resolve();
    this.uses = new Map();       // hex -> how often it was asked for
  }

  cancel() {
    this.generation += 1;
    this.waiting = [];
    this.abort.abort();
    this.abort = new AbortController();
  }

  // progress(bytes, fromNetwork); done(bytes or null, reason). Neither is called after cancel(). A call waits for an
  // urgent one: it begins at once, beside those that run.
  fetch(hex, size, urgent, progress, done) {
    const job = { hex, size, urgent, progress, done, generation: this.generation };
    if (urgent) this.waiting.unshift(job);
    else this.waiting.push(job);
    this.next();
  }

  next() {
    const may_run = () => this.running < fetches_max && this.put_bytes <= put_bytes_max;
    while (this.waiting.length > 0 && (this.waiting[0].urgent || may_run())) {
      const job = this.waiting.shift();
      this.running += 1;
      this.one(job).catch((error) => ({ reason: error.message })).then((answer) => {
        this.running -= 1;
        if (job.generation === this.generation) job.done(answer.bytes ?? null, answer.reason ?? "");
        this.next();
      });
    }
  }

  async openCache() {
    if (this.cache || this.cache_failed) return this.cache;
    try {
      this.cache = await caches.open(cache_name);
    } catch (error) {
      this.cache_failed = error.message;      // e.g. a private window: serve without a cache
      console.warn("blobs: no cache:", error.message);
    }
    return this.cache;
  }

  recall(hex) {
    const bytes = this.memory.get(hex);
    if (!bytes) return null;
    this.memory.delete(hex);
    this.memory.set(hex, bytes);
    return bytes;
  }
  remember(hex, bytes) {
    if (this.memory.has(hex) || bytes.length > this.host_bytes) return;
    this.memory.set(hex, bytes);
    this.memory_bytes += bytes.length;
    for (const [oldest, { length }] of this.memory) {
      if (this.memory_bytes <= this.host_bytes) break;
      this.memory.delete(oldest);
      this.memory_bytes -= length;
    }
  }

  async one({ hex, size, progress, generation }) {
    const { signal } = this.abort;             // cancel() puts another in its place
    this.uses.set(hex, (this.uses.get(hex) ?? 0) + 1);

    const known = this.recall(hex);
    if (known) {
      if (generation === this.generation) progress(size, false);
      return { bytes: known };
    }

    const url = this.base + hex;
    const cache = await this.openCache();

    const stored = await cache?.match(url).catch(() => null);
    if (stored) {
      const bytes = new Uint8Array(await stored.arrayBuffer().catch(() => new ArrayBuffer(0)));
      if (bytes.length === size && await isBlob(bytes, hex)) {
        if (generation === this.generation) progress(size, false);
        this.remember(hex, bytes);
        return { bytes };
      }
      this.refused += 1;
      console.warn(`blobs: ${hex.slice(0, 12)} in the cache does not verify; fetching it again`);
      await cache.delete(url).catch(() => false);
    }

    let reason = "";
    for (let attempt = 0; attempt < attempts_max && generation === this.generation; attempt += 1) {
      if (attempt > 0) await new Promise((resolve) => setTimeout(resolve, 250 * 2 ** attempt * Math.random()));
      if (signal.aborted) break;
      const answer = await this.download(url, size, signal, (bytes) => {
        if (generation === this.generation) progress(bytes, true);
      });

      reason = answer.reason ?? "";
      if (!answer.bytes) continue;
      if (await isBlob(answer.bytes, hex)) {
        if (cache) this.put(cache, hex, answer.bytes);
        this.remember(hex, answer.bytes);
        return { bytes: answer.bytes };
      }

      this.refused += 1;
      reason = `blob ${hex.slice(0, 12)} from the hub does not match its hash`;
      if (generation === this.generation) progress(-size, true);
    }
    return { reason: reason || "cancelled" };
  }

  // Also those of a fetch that was cancelled since: they are whole.
  put(cache, hex, bytes) {
    this.put_bytes += bytes.length;
    this.putting = this.putting.then(() => this.keep(cache, hex, bytes))
      .catch((error) => console.warn("blobs: not cached:", error.message))
      .then(() => {
        this.put_bytes -= bytes.length;
        this.next();
      });
  }
  async keep(cache, hex, bytes) {
    for (let gone = 0; ; gone += 1) {
      try {
        const headers = { "Content-Type": "application/octet-stream" };
        return await cache.put(this.base + hex, new Response(bytes, { headers }));
      } catch (error) {
        const is_full = error.name === "QuotaExceededError" && gone < gone_max;
        if (!is_full || !await this.makeRoom(cache, hex)) throw error;
      }
    }
  }

  // Takes the least used blob out of the cache. False: all are used as much as the one that comes.
  async makeRoom(cache, hex) {
    const usesOf = ({ url }) => this.uses.get(url.slice(url.lastIndexOf("/") + 1)) ?? 0;
    let least = null;
    for (const key of await cache.keys())
      if (!least || usesOf(key) < usesOf(least)) least = key;
    return least !== null && usesOf(least) < this.uses.get(hex) && cache.delete(least);
  }

  // One blob over the network; a broken line is taken up again where it broke.
  async download(url, size, signal, progress) {
    const bytes = new Uint8Array(size);
    let have = 0;
    let reason = "";
    for (let attempt = 0; attempt < attempts_max && !signal.aborted; attempt += 1) {
      reason = "";
      try {
        const headers = have > 0 ? { Range: `bytes=${have}-` } : {};
        const response = await fetch(url, { signal, headers, cache: "no-store" });
        if (response.status !== 200 && response.status !== 206) {
          reason = `the hub answered ${response.status} for a weight blob`;
          await response.body?.cancel();
          if (response.status === 404) break;
          throw new Error(reason);
        }

        if (response.status === 200 && have > 0) {
          progress(-have);
          have = 0;
        }

        const reader = response.body.getReader();
        for (;;) {
          const { done, value } = await reader.read();
          if (done) break;
          if (have + value.length > size) {
            progress(-have);
            return { reason: `a weight blob is longer than ${size} bytes` };
          }
          bytes.set(value, have);
          have += value.length;
          progress(value.length);
        }

        if (have === size) return { bytes };
        reason = `a weight blob ended after ${have} of ${size} bytes`;
      } catch (error) {
        reason = error.name === "AbortError" ? "cancelled" : reason || `download failed: ${error.message}`;
        if (error.name === "AbortError") break;
      }

      await new Promise((resolve) => setTimeout(resolve, 300 * 2 ** attempt * Math.random()));
    }
    progress(-have);
    return { reason };
  }
}
