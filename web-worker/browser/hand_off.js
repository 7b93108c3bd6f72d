// Where the answer to a question is computed, and the hub's part of it: pages of keys and values of a prompt, which the
// hub computes and this device takes (POST /v1/prefill, protocol/PROTOCOL.md). The choice is hub/route/route.h. What it
// needs is measured here: how fast this device reads and writes, how fast pages arrive, and the round trip.
import { behindHash, hashOf, page_tokens } from "./page_files.js";

const stalled_ms_max = 10000;        // without a byte for so long, this device computes the rest
const round_trip_ms_every = 60000, round_trip_ms_max = 2000;
const measured_tokens_min = 16;      // a rate over fewer tokens says little
const measured_bytes_min = 1 << 16;
const tried_ms_min = 500;            // a connection is judged after so long
const record_bytes_max = 2 ** 30;

const prefill_url = new URL("../v1/prefill", import.meta.url).href;
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

// Decides for one question after the other, and fetches pages.
export class HandOff {
  // `route(facts)` returns {place, as_u8, ...}, by hub/route; `takePage(bytes)` gives the model the hash before a page
  // and the page, and returns "refused", "partly" or "wholly"; `held()` is the number of the prompt's tokens on the
  // GPU.
  constructor({ route, takePage, held }) {
    Object.assign(this, { route, takePage, held });
    this.measured = {
      here: { prompt_tokens_per_s: 0, answer_tokens_per_s: 0 },
      hub_prompt_tokens_per_s: 0, bytes_per_s: 0, round_trip_s: 0,
    };
    this.round_trip_at = -Infinity;
    this.hub_hands_off = true;       // until the hub says otherwise
    this.wish = null;
    this.stop = new AbortController();
    this.result = null;
  }

  // Begins a question. `wish`: {words: "nowhere" | "to_hub", key, model, hub_answers, hub_hands_off,
  // hub_context_tokens, answer_tokens, hub: {prompt_tokens_per_s, answer_tokens_per_s}, battery_is_low}; `place` and
  // `rows` force a way, for measurements.
  begin(wish) {
    this.wish = wish;
    this.stop = new AbortController();
    this.result = null;
  }
  cancel() { this.stop.abort(); }

  // Forgets what was measured of the connection to the hub, which is another one now.
  forgetConnection() {
    this.measured.bytes_per_s = 0;
    this.measured.round_trip_s = 0;
    this.round_trip_at = -Infinity;
    this.hub_hands_off = true;
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
      battery_is_low: wish.battery_is_low ?? false, here: measured.here,
      hub: {
        prompt_tokens_per_s: Math.max(wish.hub?.prompt_tokens_per_s ?? 0, measured.hub_prompt_tokens_per_s),
        answer_tokens_per_s: wish.hub?.answer_tokens_per_s ?? 0,
      },
      bytes_per_s: measured.bytes_per_s, round_trip_s: measured.round_trip_s,
    });
    const place = wish.place ?? choice.place;
    this.result = { ...choice, chosen: choice.place, place, handed_pages: 0, handed_bytes: 0 };
    if (place === "handed") await this.takePages(tokens, wish.rows ?? (choice.as_u8 ? "u8" : "f16"));
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

  // Takes the hub's pages from the page on that the device lacks. Without them, or where one is refused, the device
  // computes the rest itself.
  async takePages(tokens, rows) {
    const { wish, stop } = this;
    const first_page = Math.floor(this.held() / page_tokens);
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
        return;
      }
      await this.readPages(response.body.getReader(), tokens, first_page, began, stalls);
    } catch (error) {
      this.result.trouble = error.name === "AbortError" ? "the hub's pages stopped" : error.message;
    } finally {
      clearTimeout(patience);
    }
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
    this.result.handed_bytes = bytes;
    if (records.bytes > 0) throw new Error("the hub's stream ended within a page");
    this.learn(bytes, tokens.length - first_page * page_tokens, began, first_at);
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
