// Expert blobs for one worker: read from the browser's disk, or else downloaded from the hub. Every blob is verified by
// SHA-256 before use, and a broken download is resumed. A stored blob that does not verify is dropped and downloaded
// again.
//
// Blobs are written to disk a few at a time, after their caller has received them. A disk that is slower than the
// network delays no caller: what it cannot take in time is downloaded once more for it, as a copy, when nothing else is
// downloaded. Copies share the browser's network process with calls, so few begin while calls are answered. None is
// downloaded while the worker does not serve, because a pause is to end all traffic.
import { isBlob } from "./download.js";
import { Fetchers } from "./fetchers.js";

const attempts_max = 4;
const loads_max = 4;             // a browser has six connections to a hub, and the page needs one now and then
const fetches_max = 8;           // with those that have arrived and are being verified
const puts_max = 4;              // blobs that are written at a time
const put_bytes_max = 64 << 20;  // limit of bytes that wait in memory to be written to disk
const copies_max = 2;            // copies for the disk that are downloaded at a time
const quiet_ms = 1000;           // calls are answered if the newest answer is younger
const copy_every_ms = 1000;      // then one copy begins in this time

// Fetches, verifies and stores the expert blobs of one worker.
export class Blobs {
  // `base`: URL of the weights folder, ending with a slash. `files`: an ExpertFiles, or null to store nothing.
  // The threads that download start with `startThread` (fetchers.js).
  constructor(base, files = null, startThread = null) {
    this.base = base;
    this.files = files;
    this.fetchers = new Fetchers(startThread);
    this.waiting = [];
    this.running = 0;            // fetches that have begun
    this.loading = 0;            // those of them that may use a connection
    this.abort = new AbortController();
    this.model = "";             // the hub's model, of which copies are
    this.copying = null;         // an AbortController while copies may be downloaded
    this.copied_bytes = 0;       // bytes of copies that were downloaded
    this.refused = 0;            // count of blobs from disk or network with a wrong hash
    this.put_bytes = 0;          // bytes of fetched blobs that wait in memory to be written to disk
    this.put_bytes_max = put_bytes_max;
    this.unwritten = new Map();  // hash -> size of the blobs that found no room there
    this.unwritten_bytes = 0;    // of these, and of those that are being downloaded again
    this.answered_at = -Infinity;      // time of the newest answer to a call; worker.js sets it
    this.copied_at = -Infinity;        // time at which the newest copy began
    this.copy_timer = 0;
    this.host_bytes = 0;         // limit of the bytes of blobs that this worker caches in main memory
    this.memory = new Map();     // hash -> verified bytes, in LRU order: the first entry is evicted first
    this.memory_bytes = 0;
    this.num_puts = 0;
    this.lanes = Array.from({ length: puts_max }, () => Promise.resolve());      // each writes one blob at a time
  }

  cancel() {
    this.waiting = [];
    this.abort.abort();
    this.abort = new AbortController();
  }

  // Lets copies be downloaded from now on, or ends those that run. At first there are none.
  letCopy(may_copy) {
    if (may_copy === (this.copying !== null)) return;
    this.copying?.abort();
    this.copying = may_copy ? new AbortController() : null;
    this.next();
  }

  // Sets the model that the hub serves: blobs of an earlier one are not copied any more.
  serves(model) {
    if (this.model === model) return;
    this.model = model;
    for (const size of this.unwritten.values()) this.unwritten_bytes -= size;
    this.unwritten.clear();
  }

  // Fetches a blob. Calls progress(bytes, fromNetwork), and finally done(bytes or null, reason). Neither is called
  // after cancel(). An `urgent` fetch is one that a call waits for: it begins at once, in addition to the running ones.
  fetch(hex, size, urgent, progress, done) {
    const job = { hex, size, urgent, progress, done, signal: this.abort.signal };
    if (urgent) this.waiting.unshift(job);
    else this.waiting.push(job);
    this.next();
  }

  next() {
    const may_load = () => this.loading < loads_max && this.running < fetches_max;
    while (this.waiting.length > 0 && (this.waiting[0].urgent || may_load())) this.begin(this.waiting.shift());
    while (this.mayCopy()) this.beginCopy();
  }
  mayCopy() {
    if (!this.copying || this.unwritten.size === 0 || this.waiting.length > 0) return false;
    if (this.loading >= copies_max || this.put_bytes > this.put_bytes_max) return false;
    const now = performance.now();
    const left_ms = now - this.answered_at < quiet_ms ? this.copied_at + copy_every_ms - now : 0;
    if (left_ms > 0) this.copy_timer ||= setTimeout(() => this.goOnCopying(), left_ms);
    return left_ms <= 0;
  }
  goOnCopying() {
    this.copy_timer = 0;
    this.next();
  }
  begin(job) {
    this.running += 1;
    this.loading += 1;
    job.is_loading = true;
    this.one(job).catch((error) => ({ reason: error.message })).then((answer) => {
      this.running -= 1;
      this.endLoading(job);
      if (!job.signal.aborted) job.done(answer.bytes ?? null, answer.reason ?? "");
      if (job.is_copy) this.endCopy(job);
      if (answer.is_new && this.files) this.put(job, answer.bytes);
      this.next();
    });
  }
  // Fetches a blob again that the disk could not take. If this fails, the blob is stored at the next visit. A copy that
  // letCopy() ends begins again later.
  beginCopy() {
    const [[hex, size]] = this.unwritten;
    this.unwritten.delete(hex);
    this.copied_at = performance.now();
    if (this.files.told.is_full) {
      this.unwritten_bytes -= size;
      return;
    }
    const progress = (bytes, fromNetwork) => { if (fromNetwork) this.copied_bytes += bytes; };
    const { model, copying: { signal } } = this;
    this.begin({ hex, size, model, signal, is_copy: true, progress, done() {} });
  }
  endCopy({ hex, size, model, signal }) {
    if (signal.aborted && model === this.model) this.unwritten.set(hex, size);
    else this.unwritten_bytes -= size;
  }

  endLoading(job) {
    if (job.is_loading) this.loading -= 1;
    job.is_loading = false;
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

  async one(job) {
    const { hex, size, is_copy = false, progress, signal } = job;
    if (!is_copy) this.files?.use(hex, size);

    const known = this.recall(hex);
    if (known) {
      if (!signal.aborted) progress(size, false);
      return { bytes: known, is_new: is_copy };
    }

    const stored = await this.files?.read(hex, size).catch(() => null);
    if (stored) {
      if (stored.length === size && await isBlob(stored, hex)) {
        if (!signal.aborted) progress(size, false);
        this.remember(hex, stored);
        return { bytes: stored, is_new: !this.files.isHere(hex) };
      }
      this.refused += 1;
      console.warn(`blobs: ${hex.slice(0, 12)} on the disk does not verify; fetching it again`);
      await this.files.drop(hex);
    }

    const url = this.base + hex;
    let reason = "";
    for (let attempt = 0; attempt < attempts_max && !signal.aborted; attempt += 1) {
      if (attempt > 0) await new Promise((resolve) => setTimeout(resolve, 250 * 2 ** attempt * Math.random()));
      if (signal.aborted) break;
      const { bytes, matches, reason: why = "" } = await this.fetchers.get({ hex, url, size }, signal, (count) => {
        if (!signal.aborted) progress(count, true);
      }, () => {
        this.endLoading(job);
        this.next();
      });

      reason = why;
      if (!bytes) continue;
      if (matches) {
        this.remember(hex, bytes);
        return { bytes, is_new: true };
      }

      this.refused += 1;
      reason = `blob ${hex.slice(0, 12)} from the hub does not match its hash`;
      if (!signal.aborted) progress(-size, true);
    }
    return { reason: reason || "cancelled" };
  }

  // Writes a complete blob to disk, after its caller has received it. A blob is stored even if its fetch was cancelled
  // in the meantime. Its memory is handed over to the thread that writes, unless it is cached here.
  put({ hex, is_copy = false }, bytes) {
    const { length } = bytes;
    if (this.unwritten.delete(hex)) this.unwritten_bytes -= length;
    if (this.put_bytes > this.put_bytes_max && !is_copy) {
      this.unwritten.set(hex, length);
      this.unwritten_bytes += length;
      return;
    }
    this.put_bytes += length;
    const lane = this.num_puts++ % puts_max;
    this.lanes[lane] = this.lanes[lane]
      .then(() => this.files.put(hex, bytes, { gives_memory: this.memory.get(hex) !== bytes }))
      .catch((error) => console.warn("blobs: not stored:", error.message))
      .then(() => {
        this.put_bytes -= length;
        this.next();
      });
  }
  get bytes_to_store() { return this.put_bytes + this.unwritten_bytes; }
  // A promise that resolves when all blobs that wait in memory are written.
  get putting() { return Promise.all(this.lanes); }
}
