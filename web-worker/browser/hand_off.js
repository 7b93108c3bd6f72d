// Where the answer to a question is computed, and the hub's part of it: pages of keys and values of a prompt, which the
// hub computes and this device takes (POST /v1/prefill), or which this device has computed and the hub takes (POST
// /v1/pages, both in protocol/PROTOCOL.md). The choice is hub/route/route.h. What it needs is measured here: how fast
// this device reads and writes, how fast pages travel, and the round trip.
import { behindHash, hashOf, page_tokens } from "./page_files.js";

// Without a byte for so long, this device computes the rest; without an answer to pages for so long, the hub does.
const stalled_ms_max = 10000;
const round_trip_ms_every = 60000, round_trip_ms_max = 2000;
const measured_tokens_min = 16;      // a rate over fewer tokens says little
const measured_bytes_min = 1 << 16;
const tried_ms_min = 500;            // a connection is judged after so long
const record_bytes_max = 2 ** 30;
const sent_bytes_wanted = 2 ** 22;   // of one request with pages, of which one has at least a page
const hub_page_tokens = 16;          // the hub takes full pages of its own size
const tried_again_max = 2;            // so often a broken line is tried again

const prefill_url = new URL("../v1/prefill", import.meta.url).href;
const pages_url = new URL("../v1/pages", import.meta.url).href;
const health_url = new URL("../health", import.meta.url).href;

// Reads the records of a stream, each behind its length as a u32; records without bytes are pings.
export class Records {
  constructor() {
    this.parts = [];
    this.bytes = 0;
    this.last_bytes = 0;      // length of the last record that has begun
  }
  push(part) {
    this.parts.push(part);
    this.bytes += part.length;
  }
  // Returns the next whole record, or null.
  next() {
    while (this.bytes >= 4) {
      const size = new DataView(this.peek(4).buffer).getUint32(0, true);
      if (size > record_bytes_max) throw new Error(`a page of ${size} bytes`);
      if (size > 0) this.last_bytes = size;
      if (this.bytes < 4 + size) return null;
      const record = this.take(4 + size).subarray(4);
      if (size > 0) return record;
    }
    return null;
  }
  peek(size) {
    const bytes = new Uint8Array(size);
    let at = 0;
    for (const part of this.parts) {
      if (at === size) break;
      bytes.set(part.subarray(0, size - at), at);
      at += Math.min(part.length, size - at);
    }
    return bytes;
  }
  take(size) {
    const bytes = this.peek(size);
    let left = size;
    while (left > 0) {
      const [first] = this.parts;
      if (first.length > left) this.parts[0] = first.subarray(left);
      else this.parts.shift();
      left -= Math.min(first.length, left);
    }
    this.bytes -= size;
    return bytes;
  }
}

// Returns pages as the body of a request, each behind its length as a u32.
function bodyOf(pages) {
  const body = new Uint8Array(pages.reduce((bytes, page) => bytes + 4 + page.length, 0));
  let at = 0;
  for (const page of pages) {
    new DataView(body.buffer).setUint32(at, page.length, true);
    body.set(page, at + 4);
    at += 4 + page.length;
  }
  return body;
}

// Decides for one question after the other, and fetches pages.
export class HandOff {
  // `route(facts)` returns {place, as_u8, ...}, by hub/route; `takePage(bytes)` gives the model the hash before a page
  // and the page, and returns "refused", "partly" or "wholly"; `held()` is the number of the prompt's tokens on the
  // GPU; `readPage(before, index, num_tokens, as_u8)` resolves to a page of the prompt's first `num_tokens` tokens,
  // or to no bytes.
  constructor({ route, takePage, held, readPage }) {
    Object.assign(this, { route, takePage, held, readPage });
    this.measured = {
      here: { prompt_tokens_per_s: 0, answer_tokens_per_s: 0 },
      hub_prompt_tokens_per_s: 0, bytes_per_s: 0, up_bytes_per_s: 0, round_trip_s: 0,
    };
    this.on_processor = false;       // this device has no GPU
    this.hub_takes_pages = true;     // until the hub says otherwise
    this.texts = new Map();          // by conversation: the hub's name for the pages that it took
    this.conversation = "";
    this.round_trip_at = -Infinity;
    this.hub_hands_off = true;       // until the hub says otherwise
    this.wish = null;
    this.stop = new AbortController();
    this.result = null;
  }

  // This device computes on its processor, with these rates, which were measured before the first answer.
  useProcessor({ prompt_tokens_per_s, answer_tokens_per_s }) {
    this.on_processor = true;
    this.measured.here = { prompt_tokens_per_s, answer_tokens_per_s };
  }

  // Begins a question of `conversation`. `wish`: {words: "nowhere" | "to_hub", key, model, hub_answers, hub_hands_off,
  // hub_context_tokens, answer_tokens, hub: {prompt_tokens_per_s, answer_tokens_per_s}, battery_is_low, hub_is_better,
  // quality: "quickest" | "best" | "draft_then_best"}; `place`, `rows` and `sends` ("f16", "u8" or "") force a way, for
  // measurements.
  begin(wish, conversation = "") {
    this.wish = wish;
    this.conversation = conversation;
    this.stop = new AbortController();
    this.result = null;
  }
  cancel() { this.stop.abort(); }

  // Forgets what was measured of the connection to the hub, which is another one now.
  forgetConnection() {
    this.measured.bytes_per_s = this.measured.up_bytes_per_s = 0;
    this.measured.round_trip_s = 0;
    this.round_trip_at = -Infinity;
    this.hub_hands_off = this.hub_takes_pages = true;
  }

  // Learns from a download from the hub of `bytes` bytes that took `ms`.
  downloaded(bytes, ms) {
    if (bytes >= measured_bytes_min && ms > 0) this.measured.bytes_per_s ||= bytes / (ms / 1000);
  }

  // Decides for the prompt `tokens`, and takes the hub's pages if that is the way. Returns the place.
  async place(tokens) {
    const { wish } = this;
    if (wish?.words !== "to_hub") return "here";
    await this.measureRoundTrip();
    const { measured } = this;
    const choice = this.route({
      words: wish.words, hub_answers: wish.hub_answers ?? true,
      hub_hands_off: this.hub_hands_off && (wish.hub_hands_off ?? true),
      hub_context_tokens: wish.hub_context_tokens ?? 0, answer_tokens: wish.answer_tokens ?? 0,
      hub_takes_pages: this.hub_takes_pages && (wish.hub_hands_off ?? true),
      hub_is_better: wish.hub_is_better ?? false, quality: wish.quality ?? "quickest",
      battery_is_low: wish.battery_is_low ?? false, here_on_processor: this.on_processor, here: measured.here,
      hub: {
        prompt_tokens_per_s: Math.max(wish.hub?.prompt_tokens_per_s ?? 0, measured.hub_prompt_tokens_per_s),
        answer_tokens_per_s: wish.hub?.answer_tokens_per_s ?? 0,
      },
      bytes_per_s: measured.bytes_per_s, up_bytes_per_s: measured.up_bytes_per_s, round_trip_s: measured.round_trip_s,
    });
    const place = wish.place ?? choice.place;
    this.result = { ...choice, chosen: choice.place, place, handed_pages: 0, handed_bytes: 0 };
    if (place === "handed") await this.takePages(tokens, wish.rows ?? (choice.as_u8 ? "u8" : "f16"));
    const as_u8 = (wish.sends ?? (choice.sends_as_u8 ? "u8" : "f16")) === "u8";
    const sends = wish.sends !== undefined ? wish.sends !== "" : choice.sends_pages;
    if (place === "hub" && sends) await this.sendPages(tokens, as_u8);
    return place;
  }

  async measureRoundTrip() {
    const now = performance.now();
    if (now - this.round_trip_at < round_trip_ms_every) return;
    this.round_trip_at = now;
    const signal = AbortSignal.timeout(round_trip_ms_max);
    const answered = await fetch(health_url, { method: "HEAD", cache: "no-store", signal }).catch(() => null);
    this.measured.round_trip_s = answered ? (performance.now() - now) / 1000 : 0;
  }

  // Takes the hub's pages from the page on that the device lacks. A line that broke after some pages is tried again,
  // from the next page on. Without the pages, or where one is refused, the device computes the rest itself.
  async takePages(tokens, rows) {
    const { result } = this, first_page = Math.floor(this.held() / page_tokens);
    for (let tries = 0, before = -1; tries <= tried_again_max && result.handed_pages > before; tries += 1) {
      before = result.handed_pages;
      delete result.trouble;
      const is_cut = await this.takePagesFrom(tokens, rows, first_page + result.handed_pages);
      if (!is_cut) return;
    }
  }

  // Returns true if the line broke.
  async takePagesFrom(tokens, rows, first_page) {
    const { wish, stop } = this;
    const headers = { "Content-Type": "application/json" };
    if (wish.key) headers.Authorization = `Bearer ${wish.key}`;
    const began = performance.now();
    let patience = null;
    const stalls = () => {
      clearTimeout(patience);
      patience = setTimeout(() => stop.abort(), stalled_ms_max);
    };
    stalls();
    try {
      const response = await fetch(prefill_url, {
        method: "POST", headers, cache: "no-store", signal: stop.signal,
        body: JSON.stringify({ model: wish.model, prompt: Array.from(tokens), first_page, rows }),
      });
      if (!response.ok) {
        this.hub_hands_off = ![404, 501].includes(response.status);
        this.result.trouble = `the hub answered ${response.status}`;
        return false;
      }
      await this.readPages(response.body.getReader(), tokens, first_page, began, stalls);
    } catch (error) {
      this.result.trouble = error.name === "AbortError" ? "the hub's pages stopped" : error.message;
      return error.name !== "AbortError";
    } finally {
      clearTimeout(patience);
    }
    return false;
  }

  async readPages(reader, tokens, first_page, began, stalls) {
    const records = new Records();
    const { place: wish_place } = this.wish;
    let first_at = 0, bytes = 0, page = first_page;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      stalls();
      first_at ||= performance.now();
      bytes += value.length;
      records.push(value);
      for (let record = records.next(); record; record = records.next()) {
        const before = await hashOf(tokens, page * page_tokens);
        const taken = this.takePage(behindHash(before, record));
        if (taken === "refused") {
          this.result.trouble = "a page of the hub was refused";
          await reader.cancel();
          return;
        }
        page += 1;
        this.result.handed_pages += 1;
      }
      if (!wish_place && this.isSlow(bytes, records.last_bytes, first_at)) {
        this.result.trouble = "this device reads faster than the hub's pages come";
        await reader.cancel();
        this.learn(bytes, 0, began, first_at);
        return;
      }
    }
    this.result.handed_bytes += bytes;
    if (records.bytes > 0) throw new Error("the hub's stream ended within a page");
    this.learn(bytes, tokens.length - first_page * page_tokens, began, first_at);
  }

  // Sends the pages that this device holds and the hub lacks. Afterwards `result.sent_as` is the hub's name for them,
  // or missing: the hub computes what it did not get.
  async sendPages(tokens, as_u8) {
    const { wish, stop, conversation, result } = this;
    // The hub computes the last token in any case.
    const num_tokens = Math.floor(Math.min(this.held(), tokens.length - 1) / hub_page_tokens) * hub_page_tokens;
    if (num_tokens === 0) return;
    const sent = { num_tokens, as_u8, name: this.texts.get(conversation), has: 0, began: performance.now() };
    Object.assign(result, { sent_pages: 0, sent_bytes: 0, sent_ms: 0 });
    const call = async (url, type, body) => {
      const patience = setTimeout(() => stop.abort(), stalled_ms_max);
      const headers = { "Content-Type": type, ...wish.key ? { Authorization: `Bearer ${wish.key}` } : {} };
      try {
        return await fetch(url, { method: "POST", cache: "no-store", signal: stop.signal, body, headers });
      } finally {
        clearTimeout(patience);
      }
    };
    for (let tries = 0; tries <= tried_again_max; tries += 1) {
      try {
        const { name: pages, num_tokens: held } = sent;
        const opened = await call(pages_url, "application/json",
          JSON.stringify({ model: wish.model, prompt: Array.from(tokens), held, pages }));
        this.hub_takes_pages = ![404, 501].includes(opened.status);
        if (!opened.ok) throw new Error(`the hub answered ${opened.status}`);
        const { pages: name, tokens: has } = await opened.json();
        if (name === null) return;      // the hub has all of them
        Object.assign(sent, { name, has });
        this.texts.set(conversation, name);
        const post = (body) => call(`${pages_url}/${name}`, "application/octet-stream", body);
        if (has < held) await this.sendFrom(tokens, sent, post);
        delete result.trouble;
        break;
      } catch (error) {
        result.trouble = error.name === "AbortError" ? "sending stopped" : error.message;
        if (!(error instanceof TypeError)) break;      // fetch() says so where a line breaks
      }
    }
    if (sent.name && sent.has > 0) result.sent_as = sent.name;
    result.sent_ms = performance.now() - sent.began;
  }

  // Sends pages in requests of some megabytes. The next ones are read from the GPU while a request is on its way.
  async sendFrom(tokens, sent, post) {
    const { result, wish } = this;
    const first = Math.floor(sent.has / page_tokens), began = performance.now();
    let on_its_way = Promise.resolve(), batch = [], batch_bytes = 0, bytes = 0;
    const send = (pages) => {
      const body = bodyOf(pages);
      on_its_way = post(body).then(async (response) => {
        const { tokens: has, error } = await response.json();
        if (!response.ok) throw new Error(error?.message ?? `the hub answered ${response.status}`);
        sent.has = has;
        bytes += body.length;
        result.sent_pages += pages.length;
        result.sent_bytes += body.length;
      });
      on_its_way.catch(() => {});      // awaited below
      [batch, batch_bytes] = [[], 0];
    };
    for (let page = first; page * page_tokens < sent.num_tokens; page += 1) {
      const before = await hashOf(tokens, page * page_tokens);
      const read = await this.readPage(before, page, sent.num_tokens, sent.as_u8);
      if (read.length === 0) throw new Error("a page has left this device");
      batch.push(read);
      batch_bytes += read.length;
      if (batch_bytes < sent_bytes_wanted) continue;
      const full = batch;
      await on_its_way;
      if (wish.sends === undefined && this.sendsTooSlowly(sent, first, began)) return this.learnUp(bytes, began);
      send(full);
    }
    await on_its_way;
    if (batch.length > 0) send(batch);
    await on_its_way;
    return this.learnUp(bytes, began);
  }
  learnUp(bytes, began) {
    const s = Math.max(performance.now() - began, 0.1) / 1000;
    if (bytes >= measured_bytes_min) this.measured.up_bytes_per_s = bytes / s;
  }

  // Returns true if the hub would compute the rest before it arrived.
  sendsTooSlowly({ has }, first, began) {
    const ms = performance.now() - began, hub_rate = this.measured.hub_prompt_tokens_per_s;
    const done = has - first * page_tokens;
    return ms >= tried_ms_min && hub_rate > 0 && done / (ms / 1000) < hub_rate;
  }

  // Lets the hub forget the pages of a conversation that was deleted. It does so by itself after some minutes.
  forget(conversation) {
    const name = this.texts.get(conversation);
    this.texts.delete(conversation);
    if (!name || this.wish?.words !== "to_hub") return;
    const headers = this.wish.key ? { Authorization: `Bearer ${this.wish.key}` } : {};
    fetch(`${pages_url}/${name}`, { method: "DELETE", headers, cache: "no-store" }).catch(() => {});
  }

  // Returns true if tokens come more slowly than this device would read them. `page_bytes`: of a page of the stream.
  isSlow(bytes, page_bytes, first_at) {
    const ms = performance.now() - first_at;
    const { prompt_tokens_per_s } = this.measured.here;
    if (ms < tried_ms_min || page_bytes === 0 || prompt_tokens_per_s === 0) return false;
    return (bytes / page_bytes) * page_tokens / (ms / 1000) < prompt_tokens_per_s;
  }

  // The first bytes come when the hub has computed a page, and the others behind them.
  learn(bytes, num_tokens, began, first_at) {
    const now = performance.now();
    const s = (ms) => Math.max(ms, 0.1) / 1000;
    if (bytes >= measured_bytes_min) this.measured.bytes_per_s = bytes / s(now - first_at);
    const computed_s = s(now - began) - this.measured.round_trip_s;
    if (num_tokens > 0 && computed_s > 0) {
      this.measured.hub_prompt_tokens_per_s = Math.max(
        num_tokens / computed_s, this.measured.hub_prompt_tokens_per_s * 0.9);
    }
  }

  // Learns from the end of an answer that this device computed.
  ended({ prompt_tokens, cached_tokens, completion_tokens, prompt_tokens_per_s, tokens_per_s }) {
    const { here } = this.measured;
    // A short prompt is read at a lower rate, because each answer has a fixed cost.
    if (prompt_tokens - cached_tokens >= measured_tokens_min && prompt_tokens_per_s > 0) {
      here.prompt_tokens_per_s = Math.max(prompt_tokens_per_s, here.prompt_tokens_per_s * 0.9);
    }
    if (completion_tokens >= measured_tokens_min && tokens_per_s > 0) here.answer_tokens_per_s = tokens_per_s;
  }
}
