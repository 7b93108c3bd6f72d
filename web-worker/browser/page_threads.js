// The threads that help the worker that serves: they download blobs (fetch_worker.js) and write them (store_worker.js).
//
// Problem: in Firefox 153, `new Worker` inside a worker sometimes never returns, and then the tab answers no call.
// Solution: the worker asks its page for a thread, and the page passes messages on in both directions
// (static/js/join/threads.js). A page may start workers in every browser.
// Cost: experts arrive as fast as before, since buffers are moved and not copied (bench/results/tab_threads.*). A
// MessagePort between both threads would need no page in between, but Firefox copies what passes through a port.
//
// Messages to the page:   {type: "thread", id, program, name} | {type: "thread", id, message}
//                         | {type: "thread", id, is_over: true}
// Messages from the page: {type: "thread", id, message} | {type: "thread", id, error}

// A thread has the part of a Worker's interface that its callers need.
class PageThread {
  constructor(id, owner) {
    this.id = id;
    this.owner = owner;
    this.onmessage = () => {};      // called with {data}
    this.onerror = () => {};        // called with {message}, "" if the program did not load; the thread may go on
  }
  postMessage(message, moved = []) { this.owner.post({ type: "thread", id: this.id, message }, moved); }
  terminate() {
    if (this.owner.threads.delete(this.id)) this.owner.post({ type: "thread", id: this.id, is_over: true });
  }
}

export class PageThreads {
  // `post(message, moved)` sends a message to the page, and moves the buffers `moved`.
  constructor(post) {
    this.post = post;
    this.threads = new Map();      // id -> PageThread
    this.num_started = 0;
  }

  // Starts a thread that runs the file `program` of this folder. A failure to start is an error of the thread.
  start(program, name) {
    this.num_started += 1;
    const thread = new PageThread(this.num_started, this);
    this.threads.set(thread.id, thread);
    this.post({ type: "thread", id: thread.id, program, name });
    return thread;
  }

  // Handles a message from the page. Messages of a thread that was terminated are dropped.
  hear({ id, message, error }) {
    const thread = this.threads.get(id);
    if (error !== undefined) thread?.onerror({ message: error });
    else thread?.onmessage({ data: message });
  }
}
