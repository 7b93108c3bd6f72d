// Expert blobs for one worker: read from the browser's disk, or else downloaded from the hub. Every blob is verified by
// SHA-256 before use, and a broken download is resumed. A stored blob that does not verify is dropped and downloaded
// again. Blobs are written to disk one after the other, after their caller has received them, because the disk is
// slower than the GPU.
const attempts_max = 4;
const fetches_max = 4;
const put_bytes_max = 64 << 20;  // limit of bytes that wait to be written to disk; above it, only urgent fetches start

const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const isBlob = async (bytes, hex) => toHex(await crypto.subtle.digest("SHA-256", bytes)) === hex;

// Fetches, verifies and stores the expert blobs of one worker.
export class Blobs {
  // `base`: URL of the weights folder, ending with a slash. `files`: an ExpertFiles, or null to store nothing.
  constructor(base, files = null) {
    this.base = base;
    this.files = files;
    this.waiting = [];
    this.running = 0;
    this.generation = 0;
    this.abort = new AbortController();
    this.refused = 0;            // count of blobs from disk or network with a wrong hash
    this.put_bytes = 0;          // bytes of fetched blobs that are not yet written to disk
    this.host_bytes = 0;         // limit of the bytes of blobs that this worker caches in main memory
    this.memory = new Map();     // hash -> verified bytes, in LRU order: the first entry is evicted first
    this.memory_bytes = 0;
    this.putting = Promise.resolve();
  }

  cancel() {
    this.generation += 1;
    this.waiting = [];
    this.abort.abort();
    this.abort = new AbortController();
  }

  // Fetches a blob. Calls progress(bytes, fromNetwork), and finally done(bytes or null, reason). Neither is called
  // after cancel(). An `urgent` fetch is one that a call waits for: it begins at once, in addition to the running ones.
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
    const { signal } = this.abort;             // keep this signal: cancel() replaces `abort`
    this.files?.use(hex, size);

    const known = this.recall(hex);
    if (known) {
      if (generation === this.generation) progress(size, false);
      return { bytes: known };
    }

    const stored = await this.files?.read(hex, size).catch(() => null);
    if (stored) {
      if (stored.length === size && await isBlob(stored, hex)) {
        if (generation === this.generation) progress(size, false);
        if (!this.files.isHere(hex)) this.put(hex, stored);
        this.remember(hex, stored);
        return { bytes: stored };
      }
      this.refused += 1;
      console.warn(`blobs: ${hex.slice(0, 12)} on the disk does not verify; fetching it again`);
      await this.files.drop(hex);
    }

    const url = this.base + hex;
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
        if (this.files) this.put(hex, answer.bytes);
        this.remember(hex, answer.bytes);
        return { bytes: answer.bytes };
      }

      this.refused += 1;
      reason = `blob ${hex.slice(0, 12)} from the hub does not match its hash`;
      if (generation === this.generation) progress(-size, true);
    }
    return { reason: reason || "cancelled" };
  }

  // Writes a complete blob to disk. A blob is stored even if its fetch was cancelled in the meantime.
  put(hex, bytes) {
    this.put_bytes += bytes.length;
    this.putting = this.putting.then(() => this.files.put(hex, bytes))
      .catch((error) => console.warn("blobs: not stored:", error.message))
      .then(() => {
        this.put_bytes -= bytes.length;
        this.next();
      });
  }

  // Downloads one blob over the network; a broken download is resumed where it broke.
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
