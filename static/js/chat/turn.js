// Answers while they stream: chunks of the API go in, messages grow. The module is pure: the time is an argument.
import { splitReasoning } from "./reasoning.js";

// Returns a message for an answer that has no text yet.
export function newAnswer(id, at) {
  return {
    id, role: "assistant", at, content: "", reasoning: "", reasoning_ms: 0, thinking: false, end: null, facts: {},
    calls: [], is_form: false,
  };
}

// Builds one answer from the chunks of its stream.
export class Turn {
  // `message` is changed as the answer grows; if it has text already, the answer continues the text. `workers`: the
  // number of serving workers, null if unknown.
  constructor(message, { now_ms, workers = null }) {
    this.message = message;
    this.begun_ms = now_ms;
    this.first_ms = null;
    this.pieces = 0;
    this.content_before = message.content;
    this.reasoning_before = message.reasoning;
    this.reasoning_ms_before = message.reasoning_ms;
    this.raw = "";                     // the content that this stream has sent, including tags
    this.tagged = message.content === "";
    this.inside = this.tagged && message.reasoning !== "";
    this.facts_before = message.facts;
    this.timings = null;
    this.moex = null;
    this.usage = null;
    this.finish = null;
    this.thought_ms = null;            // time in ms at which the reasoning began
    message.end = null;
    message.calls = [];
    message.facts = { ...message.facts, ttft_ms: message.facts.ttft_ms ?? null };
    this.see(workers);
  }

  // Records the number of serving contributors; a stopped answer shows the least and the largest number.
  see(workers) {
    if (workers === null) return;
    const facts = this.message.facts;
    facts.workers_seen_min = Math.min(facts.workers_seen_min ?? workers, workers);
    facts.workers_seen_max = Math.max(facts.workers_seen_max ?? workers, workers);
  }

  add(chunk, now_ms) {
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    if (delta.reasoning_content || delta.content || delta.tool_calls) {
      this.pieces += 1;
      this.first_ms ??= now_ms;
    }
    if (delta.reasoning_content) this.think(delta.reasoning_content, now_ms);
    if (delta.content) this.say(delta.content, now_ms);
    for (const piece of delta.tool_calls ?? []) this.call(piece, now_ms);

    if (choice?.finish_reason) this.finish = choice.finish_reason;
    if (chunk.moex) this.moex = chunk.moex;
    if (chunk.timings) this.timings = chunk.timings;
    if (chunk.usage) this.usage = chunk.usage;
    this.count(now_ms);
  }

  // This server separates the reasoning from the answer, so stop searching the text for tags.
  think(text, now_ms) {
    this.tagged = false;
    this.thought_ms ??= now_ms;
    this.message.reasoning += text;
    this.message.thinking = true;
  }

  say(text, now_ms) {
    const message = this.message;
    this.raw += text;
    if (!this.tagged) {
      if (message.thinking) this.endThought(now_ms);
      message.content = this.content_before + this.raw;
      return;
    }

    const { reasoning, answer, thinking } = splitReasoning(this.raw, this.inside);
    if (reasoning || thinking) {
      this.thought_ms ??= now_ms;
      message.reasoning = this.reasoning_before + reasoning;
    }
    if (message.thinking && !thinking) this.endThought(now_ms);
    message.thinking = thinking;
    message.content = answer;
  }

  // Adds a piece of a tool call: its name arrives first, then its arguments grow.
  call({ index, id, function: { name, arguments: more = "" } = {} }, now_ms) {
    if (this.message.thinking) this.endThought(now_ms);
    const call = this.message.calls[index] ??= { id: "", name: "", arguments: "", result: null };
    if (id) call.id = id;
    if (name) call.name = name;
    call.arguments += more;
  }

  endThought(now_ms) {
    if (this.thought_ms !== null) this.message.reasoning_ms = this.reasoning_ms_before + now_ms - this.thought_ms;
    this.message.thinking = false;
  }

  // Updates the figures of the message; a continued answer adds to the figures of its first part.
  count(now_ms) {
    const facts = this.message.facts;
    const before = this.facts_before;
    facts.ttft_ms ??= this.first_ms === null ? null : this.first_ms - this.begun_ms;
    facts.tokens = (before.tokens ?? 0) + (this.usage?.completion_tokens ?? this.pieces);
    if (this.timings?.predicted_per_second > 0) facts.tokens_per_s = this.timings.predicted_per_second;
    else if (this.pieces > 1 && now_ms > this.first_ms) {
      facts.tokens_per_s = ((this.pieces - 1) * 1000) / (now_ms - this.first_ms);
    }
    if (this.usage) facts.total_tokens = this.usage.total_tokens;
    const known = this.usage?.prompt_tokens_details?.cached_tokens;
    if (known !== undefined) Object.assign(facts, { prompt_tokens: this.usage.prompt_tokens, cached_tokens: known });
    if (this.moex) {
      facts.workers = Math.max(before.workers ?? 0, this.moex.workers ?? 0);
      for (const name of ["calls_local", "verified", "proven", "unchecked", "doubted"]) {
        facts[name] = (before[name] ?? 0) + (this.moex[name] ?? 0);
      }
      const way = this.moex.experts;
      facts.lossy_way = way && way !== "exact" ? way : before.lossy_way;
      facts.perplexity_excess = this.moex.perplexity_excess || before.perplexity_excess;
      facts.tokens_per_step = this.moex.speculative?.tokens_per_step ?? before.tokens_per_step;
      facts.is_told = true;
    }
  }

  // Ends the answer. `reason`: "" when the stream ended normally, "stopped" by the user, or "failed" with the error in
  // `words`.
  end(reason, { now_ms, words = "", is_final = false, limit = null, context_tokens = null }) {
    const message = this.message;
    if (message.thinking && this.thought_ms !== null) {
      message.reasoning_ms = this.reasoning_ms_before + now_ms - this.thought_ms;
    }
    const was_thinking = message.thinking;
    message.thinking = false;
    this.count(now_ms);
    // If one part of an answer ended without its final data, it is unknown which workers computed the whole answer.
    if (!this.moex && this.pieces > 0) message.facts.is_told = false;

    if (reason) message.end = { reason, words, ...(is_final ? { is_final } : {}) };
    else if (this.finish === "length") message.end = this.endOfLength(limit, context_tokens);
    else message.end = { reason: "stop", words: "" };
    if (was_thinking) message.end.in_thought = true;
    return message;
  }

  endOfLength(limit, context_tokens) {
    const is_full = limit === null || (context_tokens && (this.usage?.total_tokens ?? 0) >= context_tokens);
    if (is_full) return { reason: "context", words: "", limit: context_tokens };
    return { reason: "length", words: "", limit };
  }
}

// The answers of a stream, side by side: a chunk belongs to the answer with the index of its choice.
export class Turns {
  constructor(messages, how) { this.turns = messages.map((message) => new Turn(message, how)); }

  see(workers) { this.turns.forEach((turn) => turn.see(workers)); }

  // Passes a chunk to its answer. Returns the messages that have grown.
  add(chunk, now_ms) {
    const { choices = [] } = chunk;
    const grown = choices.length > 0 ? [this.turns[choices[0].index ?? 0]].filter(Boolean) : this.turns;
    for (const turn of grown) turn.add(this.turns.length > 1 ? shareOf(chunk, turn) : chunk, now_ms);
    return grown.map(({ message }) => message);
  }

  // An answer that ended by itself before the stream was stopped or failed is complete.
  end(reason, how) {
    for (const turn of this.turns) turn.end(turn.finish && this.turns.length > 1 ? "" : reason, how);
  }
}

// The counts at the end of a stream are totals of all its answers, which were computed together. Each answer
// therefore shows the number of pieces that it received.
function shareOf({ timings, usage, ...chunk }, { pieces }) {
  const out = { ...chunk };
  if (usage) {
    const total_tokens = usage.prompt_tokens + pieces;
    out.usage = { ...usage, completion_tokens: pieces, total_tokens };
  }
  const { predicted_ms = 0 } = timings ?? {};
  if (predicted_ms > 0) out.timings = { predicted_per_second: ((pieces - 1) * 1000) / predicted_ms };
  return out;
}
