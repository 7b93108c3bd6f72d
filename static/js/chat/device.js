// "This device": the hub's model in this browser, which all its tabs share (model_link.js). Its current phase is in
// `state`; onChange() is called with each new state:
//   {phase: "off"} | {phase: "looking"} | {phase: "asking", name, bytes, missing_bytes, on_processor}
//   | {phase: "fetching" | "warming", done_bytes, all_bytes, on_processor}
//   | {phase: "ready", adapter, software, context_tokens, processor: {answer_tokens_per_s, ...} without a GPU,
//     is_paged: a part of a long conversation is in the browser's files, because memory is short,
//     is_short: the context was made smaller as well}
//   | {phase: "failed", code, message}
// A question may be asked before "ready", when the model `is_open`: its first tokens are read by the layers that are
// here, and `early` says how far: {layers, num_layers}.
import { ApiError } from "../api.js";
import { knownHub, rememberHub } from "../known_hub.js";
import { askToStay } from "../storage.js";
import { ModelLink } from "./model_link.js";

// The fields of a request that this device supports, with the same meaning as at the hub. A request with a form of
// answers (tools, a schema, a grammar) is refused earlier.
const fields = ["messages", "max_tokens", "stop", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
  "frequency_penalty", "repetition_penalty", "seed", "logit_bias", "reasoning_effort", "moex"];

// The context size in tokens that the model allocates. If the GPU's memory is too small, one page of keys and values in
// two has room there, then one in four; the others are in the browser's files. Then the size is halved, down to the
// minimum that is useful for a chat. A conversation that is longer is given twice the context, with as much of the
// GPU's memory as before.
const context_tokens_max = 4096, context_tokens_min = 512, context_tokens_most = 32768, kv_share_max = 4;

// A lost GPU is opened again, after growing delays, since a browser needs a moment to start its GPU process. After so
// many losses without a whole answer between them, the user decides.
const losses_max = 4, lost_wait_ms = 250;

// True if this page may compute at all, on a GPU or on the processor; which of them is known later. A model is kept in
// files, which browsers give to secure pages only.
export const mayCompute = () => Boolean(globalThis.isSecureContext && globalThis.WebAssembly
  && (globalThis.navigator?.gpu || globalThis.navigator?.storage?.getDirectory));

const aborted = () => new DOMException("stopped", "AbortError");

// Loads the hub's model into this browser and computes answers with it.
export class ThisDevice {
  // `apiKey()` returns the API key for requests to the hub; `remembers()` is true if pages of conversations are kept.
  // onPages() is called with each report of the kept pages.
  constructor({ apiKey, remembers, onChange, onPages }) {
    this.apiKey = apiKey;
    this.remembers = remembers;
    this.onChange = onChange;
    this.onPages = onPages;
    this.pages = null;           // the last report of the kept pages (wasm/page_files.js); null before the first
    this.link = null;            // to the model; null before the first begin()
    this.is_begun = false;       // true between begin() and end(), or a failure
    this.answering = null;       // callbacks of the running answer: {id, onText, onPlace, resolve, reject, free}
    this.num_answers = 0;
    this.waits = 0;              // number of answers of other tabs that come before the running one
    this.busy = null;            // promise that resolves when the model has ended its answer
    this.is_open = false;
    this.early = null;
    this.losses = 0;             // of the GPU, since the last whole answer
    this.reopening = 0;          // timer of the next begin() after a loss
    this.waiting = [];           // callbacks to call at the next change of `state`
    this.context_tokens = context_tokens_max;
    this.kv_share = 1;           // one of so many pages has room in the GPU's memory
    this.may_grow = true;        // memory was not short yet
    this.on_processor = false;   // the model finds no GPU
    this.agreed = "";            // name and bytes of the model whose download the user has agreed to
    this.state = { phase: "off" };
    // Chromium has an event for another network, and every browser has one for a network that is back.
    const forget = () => this.link?.post("CONNECTION");
    globalThis.addEventListener?.("online", forget);
    globalThis.navigator?.connection?.addEventListener?.("change", forget);
  }

  set(state) {
    this.state = state;
    if (!this.is_coming) Object.assign(this, { early: null, is_open: state.phase === "ready" });
    this.onChange(state);
    for (const tell of this.waiting.splice(0)) tell();
  }
  get ready() { return this.state.phase === "ready"; }
  // True while the model is on its way to the GPU, with nothing for the user to decide: a question may wait for it.
  get is_coming() { return ["looking", "fetching", "warming"].includes(this.state.phase); }

  // Asks the hub what has to be downloaded; files that are stored already are loaded onto the GPU without a question.
  begin() {
    if (this.is_begun) return;
    clearTimeout(this.reopening);
    Object.assign(this, { early: null, is_open: false });
    if (!mayCompute()) {
      this.set({ phase: "failed", code: "no_files", message: "" });
      return;
    }
    this.link ??= new ModelLink({
      facts: () => ({ key: this.apiKey(), hub_key: knownHub() }),
      onMessage: (message) => this.hearLink(message),
      onMoved: () => this.move(),
      onBroken: ({ message }) => this.fail({ code: "unavailable", message }),
    });
    this.is_begun = true;
    this.set({ phase: "looking" });
    this.link.start();
  }

  // Starts the download, after the user has agreed to it.
  load() {
    if (this.state.phase !== "asking") return;
    const { name, bytes, missing_bytes } = this.state;
    this.agreed = `${name} ${bytes}`;
    askToStay();
    const { on_processor } = this;
    this.set({ phase: "fetching", done_bytes: bytes - missing_bytes, all_bytes: bytes, on_processor });
    this.link.post("LOAD", {
      key: this.apiKey(), context_tokens_max: this.context_tokens, kv_share: this.kv_share,
    });
    this.remember();
  }

  // Sends the user's choice about keeping pages of conversations to the model. Call it when the choice changes.
  remember() {
    this.pages = null;
    const knows_model = ["fetching", "warming", "ready"].includes(this.state.phase);
    if (knows_model) this.link.post("REMEMBER", { is_on: this.remembers() });
  }

  // Deletes the pages of a conversation that was deleted. Returns false if there is no model, which could keep more.
  forget(conversation) {
    if (this.is_begun) this.link.post("FORGET", { conversation });
    return this.is_begun;
  }

  // Ends the use of the model. If no other tab uses it, its GPU and main memory is free. Downloaded files stay on disk.
  end() {
    clearTimeout(this.reopening);
    if (this.is_begun) this.link.end();
    this.is_begun = false;
    this.agreed = "";
    this.set({ phase: "off" });
    this.endAnswer("reject", aborted());
  }

  // Begins anew, because the model is computed elsewhere from now on. The running answer is repeated, and only its new
  // words are passed on.
  move() {
    Object.assign(this, { early: null, is_open: false });
    this.set({ phase: "looking" });
    const error = new ApiError(400, { code: "device_moved", message: "" });
    error.is_passing = true;
    this.endAnswer("reject", error);
  }

  // Notes that a question may be asked, or how far one has been read before all layers are here.
  open(early = null) {
    if (!this.is_coming) return;
    Object.assign(this, { is_open: true, early });
    this.set(this.state);
  }

  fail({ code, message }) {
    this.is_begun = false;
    Object.assign(this, { early: null, is_open: false });
    const error = new ApiError(400, { code: `device_${code}`, message });
    if (code === "no_memory" && this.shrink()) {
      error.is_passing = true;
      this.begin();
    } else if (code === "device_lost" && this.losses < losses_max) {
      error.is_passing = true;
      this.reopening = setTimeout(() => this.begin(), lost_wait_ms * 2 ** this.losses);
      this.losses += 1;
      this.set({ phase: "looking" });
    } else this.set({ phase: "failed", code, message });
    this.endAnswer("reject", error);
  }

  // Asks for less memory next time. Returns false if that is not possible.
  shrink() {
    this.may_grow = false;
    if (this.kv_share < kv_share_max) this.kv_share *= 2;
    else if (this.context_tokens > context_tokens_min) this.context_tokens /= 2;
    else return false;
    return true;
  }

  // Loads the model again for longer conversations, with the same memory on the GPU. Returns false if the model or this
  // page has no longer context.
  grow() {
    const is_longest = this.state.context_tokens !== this.context_tokens || this.context_tokens >= context_tokens_most;
    if (is_longest || !this.may_grow) return false;
    this.context_tokens *= 2;
    this.kv_share *= 2;
    this.link.post("GROW", { context_tokens_max: this.context_tokens, kv_share: this.kv_share });
    return true;
  }

  // A message of the model, over the link.
  hearLink({ type, payload }) {
    if (type === "ACK") {
      globalThis.moexDevice = { home: payload.home, way: this.link.way };
      payload.reports.forEach((report) => this.hear(report));
    } else if (type === "TOKEN") this.hearAnswer(payload);
    else if (payload.moved) {
      this.move();
      this.link.startSession();
    } else this.hear(payload);
  }

  hear(message) {
    if (message.looked) {
      this.is_begun = true;      // another tab may have begun after a failure
      if (message.looked.hub_key) rememberHub(message.looked.hub_key);
      this.on_processor = Boolean(message.looked.on_processor);
      this.set({ phase: "asking", ...message.looked });
      const { name, bytes, missing_bytes } = message.looked;
      if (missing_bytes === 0 || this.agreed === `${name} ${bytes}`) this.load();
    } else if (message.pages) {
      this.pages = message.pages;
      this.onPages();
    } else if (message.fetched) this.set({ phase: "fetching", ...message.fetched, on_processor: this.on_processor });
    else if (message.progress) this.set({ phase: "warming", ...message.progress, on_processor: this.on_processor });
    else if (message.opened) this.open();
    else if (message.ready) {
      const is_short = message.ready.processor?.is_short
        ?? (message.ready.context_tokens === this.context_tokens && this.context_tokens < context_tokens_max);
      // A report to all tabs may come before this tab's ACK.
      globalThis.moexDevice = { ...globalThis.moexDevice, ...message.ready };
      this.set({ phase: "ready", ...message.ready, is_short });
    } else if (message.failed) this.fail(message.failed);
  }

  // A report about the answer `message.answer`.
  hearAnswer({ answer, ...message }) {
    if (answer !== this.answering?.id) return;
    if (this.waits > 0 || message.waits) {
      this.waits = message.waits ?? 0;
      this.onChange(this.state);
    }
    if (message.early) this.open(message.early);
    else if (message.text !== undefined) this.answering.onText(message.text);
    else if (message.refused) {
      const { code, message: words } = message.refused;
      const is_long = code === "overloaded";
      if (is_long && this.grow()) return;      // the answer is repeated when the model has moved
      const error = { code: is_long ? "context_length_exceeded" : code, message: words };
      this.endAnswer("reject", new ApiError(400, error));
    } else if (message.placed) {
      this.answering.onPlace(message);
      if (message.placed === "hub") this.endAnswer("resolve", { is_hubs: true });
    } else if (message.ended) {
      this.losses = 0;
      this.endAnswer("resolve", message.ended);
    }
  }

  // Computes one answer and passes it on in chunks of the API, like streamChat(). `how.conversation`: the id of the
  // conversation, which names the pages that are kept for it. `how.wish`: the facts by which the place is chosen
  // (wasm/hand_off.js); without it, this device computes the answer alone. onPlace() is called with the place before
  // the first word. Resolves to false if the place is the hub, which has then not been asked yet. Rejects with an
  // AbortError when `how.signal` is aborted. A question that is asked while the model loads waits for it. If the GPU is
  // lost in the middle of an answer, or has too little memory, the answer is computed once more: the same seed gives
  // the same words, and only words after the interruption are passed on.
  async answer(request, how) {
    await this.settled(how.signal);
    while (this.busy) await this.busy;
    const body = { seed: crypto.getRandomValues(new Uint32Array(1))[0] };
    for (const name of fields) if (request[name] !== undefined) body[name] = request[name];
    let said = 0;
    const ask = () => {
      let heard = 0;
      return this.run(body, how, (text) => {
        const fresh = text.slice(Math.max(0, said - heard));
        heard += text.length;
        said = Math.max(said, heard);
        if (fresh) how.onChunk({ choices: [{ delta: { content: fresh } }] });
      });
    };

    let ended = null;
    while (!ended) {
      ended = await ask().catch((error) => {
        if (!error.is_passing) throw error;
        return null;
      });
      if (!ended) await this.settled(how.signal);
    }
    if (ended.is_hubs) return false;
    const { finish_reason, prompt_tokens, completion_tokens, cached_tokens, tokens_per_s, speculative } = ended;
    how.onChunk({
      choices: [{ delta: {}, finish_reason }],
      usage: {
        prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens,
        prompt_tokens_details: { cached_tokens },
      },
      timings: { predicted_per_second: tokens_per_s },
      ...(speculative ? { moex: { speculative } } : {}),
    });
    return true;
  }

  // Lets the model compute an answer. This tab is busy until the answer has ended, even if the caller was aborted.
  run(body, { signal, conversation, wish = null, onPlace = () => {} }, onText) {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(aborted());
      if (!this.is_open) return reject(this.notReady());
      this.num_answers += 1;
      const id = this.num_answers;
      this.busy = new Promise((free) => {
        this.answering = {
          id, resolve, reject, free,
          onPlace: (report) => signal.aborted || onPlace(report),
          onText: (text) => signal.aborted || onText(text),
        };
      });
      signal.addEventListener("abort", () => {
        if (this.answering?.id === id) this.link.post("CANCEL", { answer: id });
        reject(aborted());
      }, { once: true });
      this.link.post("GET_TOKEN", { answer: id, body, conversation, wish });
    });
  }

  // Settles the promise of the running answer with `value`. `how`: "resolve" or "reject".
  endAnswer(how, value) {
    const { answering } = this;
    this.answering = null;
    this.busy = null;
    this.waits = 0;
    answering?.[how](value);
    answering?.free();
  }

  // Resolves when the model is open, or the device has failed, or needs a decision of the user. Rejects with an
  // AbortError when `signal` is aborted.
  async settled(signal) {
    const changed = (resolve, reject) => {
      this.waiting.push(resolve);
      signal?.addEventListener("abort", () => reject(aborted()), { once: true });
    };
    while (this.is_coming && !this.is_open) {
      if (signal?.aborted) throw aborted();
      await new Promise(changed);
    }
  }
  notReady() {
    const { phase, code, message = "" } = this.state;
    return new ApiError(400, { code: phase === "failed" ? `device_${code}` : "device_off", message });
  }
}
