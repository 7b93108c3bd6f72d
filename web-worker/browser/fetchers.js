// The threads of a tab that download and verify blobs (fetch_worker.js), up to half as many as the machine has cores.
// They are started as they are needed. If there are none, or one fails, blobs are downloaded on the caller's thread.
import { downloadBlob } from "./download.js";

const workers_max = 4;

// Hands downloads to the thread that has the fewest.
export class Fetchers {
  // `startThread(program, name)` returns a thread (page_threads.js). If it is null, there are none.
  constructor(startThread, cores = globalThis.navigator?.hardwareConcurrency ?? 1) {
    this.startThread = startThread;
    this.num_workers = Math.min(workers_max, Math.max(1, cores >> 1));
    this.workers = [];           // {worker, jobs}: the number of jobs under way
    this.jobs = new Map();       // ticket -> {blob, signal, progress, arrived, counted, end}; counted: bytes so far
    this.tickets = 0;
    this.failed = startThread === null;
  }

  // Downloads `blob` ({hex, url, size}) as downloadBlob() does, and calls the same functions.
  get(blob, signal, progress, arrived) {
    const one = this.leastBusy();
    if (!one) return downloadBlob(blob, signal, progress, arrived);
    this.tickets += 1;
    const ticket = this.tickets;
    return new Promise((resolve) => {
      const abort = () => {
        one.worker.postMessage({ ticket, abort: true });
        end({ reason: "cancelled" });      // a thread that still loads its program would not answer
      };
      const end = (answer) => {
        if (!this.jobs.delete(ticket)) return;
        one.jobs -= 1;
        signal.removeEventListener("abort", abort);
        resolve(answer);
      };
      signal.addEventListener("abort", abort);
      one.jobs += 1;
      this.jobs.set(ticket, { blob, signal, progress, arrived, counted: 0, end });
      one.worker.postMessage({ ticket, ...blob });
    });
  }

  // Returns null if no thread can be used.
  leastBusy() {
    if (this.failed) return null;
    const free = this.workers.find(({ jobs }) => jobs === 0);
    if (free) return free;
    if (this.workers.length === this.num_workers)
      return this.workers.reduce((least, one) => (one.jobs < least.jobs ? one : least));
    return this.start();
  }
  start() {
    const worker = this.startThread("fetch_worker.js", "moex-fetch");
    const one = { worker, jobs: 0 };
    worker.onmessage = ({ data: { ticket, progress, has_arrived, is_last, ...answer } }) => {
      const job = this.jobs.get(ticket);
      if (!job) return;
      job.counted += progress;
      if (progress !== 0) job.progress(progress);
      if (has_arrived) job.arrived();
      if (is_last) job.end(answer);
    };
    worker.onerror = ({ message }) => this.fail(message);
    this.workers.push(one);
    return one;
  }

  // Downloads the blobs of all threads here, and all later ones.
  fail(message) {
    if (this.failed) return;
    console.warn("fetchers: a thread that downloads has failed:", message || "its program did not load");
    this.failed = true;
    for (const { worker } of this.workers) worker.terminate();
    for (const { blob, signal, progress, arrived, counted, end } of this.jobs.values()) {
      if (counted !== 0) progress(-counted);
      downloadBlob(blob, signal, progress, arrived).catch((error) => ({ reason: error.message })).then(end);
    }
  }
}
