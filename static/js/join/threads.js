// The page's part of web-worker/browser/page_threads.js, where the messages are defined: it starts the threads that
// help the worker, and passes messages on.
const programs = new URL("../../wasm/", import.meta.url);

// A view in a message is alone in its buffer, and the buffer belongs to this page, so it is moved on and not copied.
const buffersOf = (message) => Object.values(message).filter(ArrayBuffer.isView).map(({ buffer }) => buffer);

// The threads of one worker.
export class Threads {
  constructor(worker) {
    this.worker = worker;
    this.threads = new Map();      // id -> Worker
  }

  // Handles a message of type "thread".
  hear({ id, program, name, message, is_over = false }) {
    if (is_over) return this.end(id);
    try {
      if (program) this.start(id, program, name);
      else this.threads.get(id)?.postMessage(message, buffersOf(message));
    } catch (error) { this.fail(id, error.message); }
  }
  fail(id, error) { this.worker.postMessage({ type: "thread", id, error }); }

  start(id, program, name) {
    const thread = new Worker(new URL(program, programs), { type: "module", name });
    thread.onmessage = ({ data }) => this.worker.postMessage({ type: "thread", id, message: data }, buffersOf(data));
    thread.onerror = (event) => {
      event.preventDefault();      // the worker decides what it does without its thread
      this.fail(id, event.message ?? "");
    };
    this.threads.set(id, thread);
  }

  end(id) {
    this.threads.get(id)?.terminate();
    this.threads.delete(id);
  }
  endAll() {
    for (const id of [...this.threads.keys()]) this.end(id);
  }
}
