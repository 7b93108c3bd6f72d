// "This device": the hub's model in this browser, behind a worker of its own (/wasm/local_worker.js). What it is about
// stands in `state`, which onChange() hears of:
//   {phase: "off"} | {phase: "looking"} | {phase: "asking", name, bytes, missing_bytes}
//   | {phase: "fetching" | "warming", done_bytes, all_bytes} | {phase: "ready", adapter, software, context_tokens}
//   | {phase: "failed", code, message}
import { ApiError } from "../api.js";

// What acts here as it does at the hub. A form of answers does not, and is refused before it comes here.
const fields = ["messages", "max_tokens", "stop", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
  "frequency_penalty", "repetition_penalty", "seed", "logit_bias", "reasoning_effort"];

// Tokens that keys and values have room for. A GPU whose memory is too small for all of them gets half of it, down to
// the least that a chat is any use with.
const context_tokens_max = 4096, context_tokens_min = 512;

const aborted = () => new DOMException("stopped", "AbortError");

export class ThisDevice {
  // `apiKey()` is asked when the hub is.
  constructor({ apiKey, onChange }) {
    this.apiKey = apiKey;
    this.onChange = onChange;
    this.worker = null;
    this.answering = null;       // {onText, resolve, reject, free} of the answer that runs
    this.busy = null;            // until the worker has ended it
    this.waiting = [];           // for another state
    this.context_tokens = context_tokens_max;
    this.state = { phase: "off" };
  }

  set(state) {
    this.state = state;
    this.onChange(state);
    for (const tell of this.waiting.splice(0)) tell();
  }
  get ready() { return this.state.phase === "ready"; }

  // Asks what there is to load; what is here already is given to the GPU without a question.
  begin() {
    if (this.worker) return;
    if (!window.isSecureContext || !navigator.gpu) {
      this.set({ phase: "failed", code: "no_webgpu", message: "" });
      return;
    }
    this.worker = new Worker("/wasm/local_worker.js", { type: "module" });
    this.worker.onmessage = ({ data }) => this.hear(data);
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.fail({ code: "unavailable", message: event.message || "its program did not load" });
    };
    this.set({ phase: "looking" });
    this.worker.postMessage({ type: "look", key: this.apiKey() });
  }

  // Consent to the bytes.
  load() {
    if (this.state.phase !== "asking") return;
    const { bytes, missing_bytes } = this.state;
    navigator.storage?.persist?.().catch(() => {});
    this.set({ phase: "fetching", done_bytes: bytes - missing_bytes, all_bytes: bytes });
    this.worker.postMessage({ type: "load", key: this.apiKey(), context_tokens_max: this.context_tokens });
  }

  // Lets go of GPU and memory; what was fetched stays.
  end() {
    this.worker?.terminate();
    this.worker = null;
    this.set({ phase: "off" });
    this.endAnswer("reject", aborted());
  }

  fail({ code, message }) {
    this.worker?.terminate();
    this.worker = null;
    const error = new ApiError(400, { code: `device_${code}`, message });
    if (code === "no_memory" && this.context_tokens > context_tokens_min) {
      this.context_tokens /= 2;
      error.is_passing = true;
      this.begin();
    } else {
      error.is_passing = code === "device_lost";
      this.set({ phase: "failed", code, message });
    }
    this.endAnswer("reject", error);
  }

  hear(message) {
    if (message.looked) {
      this.set({ phase: "asking", ...message.looked });
      if (message.looked.missing_bytes === 0) this.load();
    } else if (message.fetched) this.set({ phase: "fetching", ...message.fetched });
    else if (message.progress) this.set({ phase: "warming", ...message.progress });
    else if (message.ready) this.set({ phase: "ready", ...message.ready });
    else if (message.failed) this.fail(message.failed);
    else if (message.text !== undefined) this.answering?.onText(message.text);
    else if (message.refused) {
      const { code, message: words } = message.refused;
      const is_long = code === "overloaded";
      const error = { code: is_long ? "context_length_exceeded" : code, message: words };
      this.endAnswer("reject", new ApiError(400, error));
    } else if (message.ended) this.endAnswer("resolve", message.ended);
  }

  // One answer, as streamChat() gives it: chunks of the API. Rejects with an AbortError when `how.signal` says so.
  // A GPU that is lost in mid-answer, or has no memory for it, is asked for once more: by the same seed the same words
  // come, and are said on from where they broke off.
  async answer(request, how) {
    while (this.busy) await this.busy;
    const body = { seed: crypto.getRandomValues(new Uint32Array(1))[0] };
    for (const name of fields) if (request[name] !== undefined) body[name] = request[name];
    let said = 0;
    const ask = () => {
      let heard = 0;
      return this.run(body, how.signal, (text) => {
        const fresh = text.slice(Math.max(0, said - heard));
        heard += text.length;
        said = Math.max(said, heard);
        if (fresh) how.onChunk({ choices: [{ delta: { content: fresh } }] });
      });
    };

    const { finish_reason, prompt_tokens, completion_tokens, tokens_per_s } = await ask().catch(async (error) => {
      if (!error.is_passing) throw error;
      this.begin();
      await this.settled();
      return ask();
    });
    how.onChunk({
      choices: [{ delta: {}, finish_reason }],
      usage: { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens },
      timings: { predicted_per_second: tokens_per_s },
    });
  }

  // The worker is busy until it has ended the answer, also one that nobody waits for any more.
  run(body, signal, onText) {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(aborted());
      if (!this.ready) return reject(new ApiError(400, { code: "device_off", message: this.state.message ?? "" }));
      this.busy = new Promise((free) => {
        this.answering = {
          resolve, reject, free,
          onText: (text) => signal.aborted || onText(text),
        };
      });
      signal.addEventListener("abort", () => {
        if (this.answering?.resolve === resolve) this.worker?.postMessage({ type: "cancel" });
        reject(aborted());
      }, { once: true });
      this.worker.postMessage({ type: "ask", body });
    });
  }

  // `how`: "resolve" or "reject".
  endAnswer(how, value) {
    const { answering } = this;
    this.answering = null;
    this.busy = null;
    answering?.[how](value);
    answering?.free();
  }

  // When it is ready, or wants somebody to decide.
  async settled() {
    const isUnderWay = () => ["looking", "fetching", "warming"].includes(this.state.phase);
    while (isUnderWay()) await new Promise((resolve) => { this.waiting.push(resolve); });
  }
}
