// The answers that stream now: requests them from their sources, lets their messages grow, keeps them, and ends them.
// One question is answered at a time in a tab, and a lock prevents two tabs from writing the same answer. An answer
// that a closed page was reading is resumed, and a question that failed because the hub was away is asked once more.
//   begin(conversation, [A, B]): one stream for both; A and B grow on the page, and are saved every two seconds
import { ApiError, stopChat, streamChat } from "../api.js";
import { element } from "../dom.js";
import { drop, read, withLock, write } from "../storage.js";
import { say } from "../words/chat.js";
import { messagesFor } from "./conversation.js";
import { betterOf, pairUp } from "./refine.js";
import { formOf, lengthLimit, samplingOf } from "./settings.js";
import { Turns } from "./turn.js";
import { endWords, errorWords, isFinal, offerWords, unreachable } from "./words.js";

const keep_every_ms = 2000;
const left_name = "moex-stream";
// The place of a message, by the place of the worker's report.
const place_names = { here: "device", hub: "hub", handed: "handed", refined: "device" };

// Lets screen readers read the finished answer once, and how it ended.
function announce(words, text = "") {
  element("announce").textContent = [text, words].filter(Boolean).join(" — ");
}

// Streams answers into the messages of a conversation.
export class Answers {
  // facts() returns {info, health, key} as they are now. onChange() is called when answers begin or have ended, and
  // onMessages() when a message was added.
  constructor({ store, thread, panel, device, places, sources, facts, onChange, onMessages }) {
    Object.assign(this, { store, thread, panel, device, places, sources, facts, onChange, onMessages });
    // State of the answers that stream now: {controller, conversation, messages, turns, others}. `messages` are those
    // that grow, `turns` the Turns of each stream, `others` the streams that began later.
    this.running = null;
    this.unanswered = null;      // the question that failed last because the hub was away: {conversation, messages}
    this.lock_before = Promise.resolve();      // resolves when this tab has released its previous lock
  }

  get isRunning() { return this.running !== null; }
  get conversation() { return this.running?.conversation ?? null; }
  get messages() { return this.running?.messages ?? []; }
  stop() { this.running?.controller.abort(); }

  // Records the number of serving workers, which the hub has just reported.
  see() { this.running?.turns.forEach((turns) => turns.see(this.workersNow())); }
  workersNow() {
    const { health } = this.facts();
    return health?.status === "ok" ? health.workers ?? 0 : null;
  }

  // Streams answers into `messages`. `left`: the stream that a closed page was reading, if this page resumes it.
  async begin(conversation, messages, left = null) {
    if (this.running) return;
    const own = { controller: new AbortController(), conversation, messages: [...messages], turns: [], others: [] };
    this.running = own;
    this.onChange();
    try {
      await this.lock_before.catch(() => {});
      // To resume a stream, wait for the lock: the previous page may still be closing. Another tab that is a copy of
      // this tab may have completed the answer in the meantime.
      const how = left ? { signal: own.controller.signal } : { ifAvailable: true };
      const isWhole = () => messages.every(({ id }) => conversation.messages.some((one) => one.id === id && one.end));
      this.lock_before = withLock(`moex-chat-${conversation.id}`, how, (lock) => {
        if (left && isWhole()) return undefined;
        if (lock !== null) return this.stream(messages, left);
        announce(say("other_tab"));
        return undefined;
      });
      await this.lock_before;
    } catch (error) {
      if (error.name !== "AbortError") throw error;      // it was stopped before the previous page had closed
    } finally {
      if (this.running === own) {      // true if this call started no stream
        this.running = null;
        messages.forEach((message) => this.thread.end(message));
      }
      this.onChange();
    }
  }

  // Begins the hub's answer that is offered in the place of `draft`, an answer of `run`.
  beginBetter(run, draft) {
    const { conversation, controller } = run;
    const [, better] = pairUp([draft, this.store.answerBeside(conversation, draft)]);
    run.messages.push(better);
    this.onMessages();
    const way = { messages: [better], place: "hub", answerFrom: streamChat };
    run.others.push(this.streamFrom(conversation, way, controller.signal, null));
  }

  // Streams the answers `messages`, from the hub, from this device, or from both.
  async stream(messages, left) {
    const { controller, conversation, others } = this.running;
    this.store.busy = conversation;
    const ways = this.sources.of(this.running, messages, left);
    const is_over = await Promise.all(ways.map((way) => this.streamFrom(conversation, way, controller.signal, left)));
    is_over.push(...await Promise.all(others));
    const had_focus = document.activeElement === document.body || document.activeElement === element("stop");
    this.running = null;
    this.store.busy = null;
    is_over.forEach((tell) => tell());
    this.onChange();
    if (had_focus && !matchMedia("(pointer: coarse)").matches) element("prompt").focus();
  }

  // A draft and its better answer say so at their place, and name their models.
  noteRole(conversation, message) {
    const { facts } = message, { info } = this.facts();
    if (facts.place === "device" && betterOf(conversation.messages, message)) {
      Object.assign(facts, { place: "drafted", model: info.device_model ?? info.model });
    } else if (facts.place === "hub" && message.refines) Object.assign(facts, { place: "refined", model: info.model });
  }

  // Streams the answers `messages`, side by side, from one source. Resolves when they have ended, to a function that
  // ends them on the page.
  async streamFrom(conversation, { messages, answerFrom, ...way }, signal, left) {
    const { store, thread, panel } = this, { settings } = panel;
    // The hub sends a resumed stream from its first event on, so each message restarts with the text that it had then.
    const from = messages.map(({ content, reasoning, reasoning_ms, facts }, i) => {
      const mine = { reasoning_ms, facts: { ...facts } };
      const { content: chars, reasoning: thought_chars, ...past } = left?.from[i] ?? mine;
      return { content: content.slice(0, chars), reasoning: reasoning.slice(0, thought_chars), ...past };
    });
    let { place } = way;
    const notePlace = () => messages.forEach((message, i) => {
      const { content, facts } = from[i];
      message.facts.place = content && facts.place === "hub" && ["device", "handed"].includes(place) ? "both" : place;
      this.noteRole(conversation, message);
    });
    let turns = null, stream_id = left?.id ?? "";
    const begin = () => {
      if (turns) return;
      messages.forEach((message, i) => {
        const { facts } = from[i];
        Object.assign(message, from[i], { facts: { ...facts, ttft_ms: message.facts.ttft_ms ?? null } });
      });
      notePlace();
      turns = new Turns(messages, { now_ms: performance.now(), workers: this.workersNow() });
      this.running.turns.push(turns);
    };
    if (!left) {
      begin();
      for (const message of messages) message.is_form = formOf(settings).response_format !== undefined;
    }
    messages.forEach((message) => thread.begin(message));
    thread.offer(this.running.messages);
    store.save(conversation, messages);

    let kept_at = performance.now();
    let reason = "", words = "", is_final = false;
    const how = {
      key: this.facts().key, signal, conversation: conversation.id,
      onStream(id) {
        stream_id = id;
        begin();
        const ids = messages.map((message) => message.id);
        // Of the texts only their lengths: the conversation has them, encrypted.
        const lengths = from.map((one) => ({ ...one, content: one.content.length, reasoning: one.reasoning.length }));
        if (id) write(left_name, { id, conversation: conversation.id, messages: ids, from: lengths });
      },
      onPlace({ placed }) {
        place = place_names[placed];
        notePlace();
        messages.forEach((message) => thread.grow(message));
      },
      onChunk: (chunk) => {
        const now = performance.now();
        this.places.learn(chunk, place);
        turns.add(chunk, now).forEach((message) => thread.grow(message));
        if (now - kept_at < keep_every_ms) return;
        kept_at = now;
        store.save(conversation, messages);
      },
    };
    try {
      await answerFrom(this.requestFor(conversation, messages), how);
    } catch (error) {
      reason = error.name === "AbortError" ? "stopped" : "failed";
      if (reason === "failed") words = error instanceof ApiError ? errorWords(error) : unreachable();
      is_final = isFinal(error);
      // While the hub is away, a proxy answers without an error of the hub.
      const is_away = !error.status || (error.status >= 502 && !error.code);
      if (reason === "failed" && place === "hub" && is_away) this.unanswered = { conversation, messages };
      if (error.status === 401) panel.open(element("api-key"));
    }
    if (reason === "stopped" && stream_id) stopChat(stream_id, this.facts().key);

    const { context_tokens } = place !== "hub" && this.device.ready ? this.device.state : this.facts().info;
    turns?.see(this.workersNow());
    turns?.end(reason, { now_ms: performance.now(), words, is_final, limit: lengthLimit(settings), context_tokens });
    // Drop the note about the stream only after the answer is saved: until then, a reloaded page can resume the stream.
    const forget = () => read(left_name, null)?.id === stream_id && drop(left_name);
    const end = () => {
      store.save(conversation, messages).then(forget, forget);
      messages.forEach((message) => thread.end(message));
      this.tellEnd(messages);
    };
    this.running.messages = this.running.messages.filter((message) => !messages.includes(message));
    if (this.running.messages.length === 0) return end;
    end();
    return () => {};
  }

  // The request for the answers `messages`, side by side, to the question before the first of them.
  requestFor(conversation, messages) {
    const { settings } = this.panel;
    return {
      model: this.facts().info.model,
      messages: messagesFor(conversation, messages[0], settings.system),
      ...samplingOf(settings),
      ...formOf(settings),
      ...(messages.length > 1 ? { n: messages.length } : {}),
    };
  }

  // Lets screen readers read the shown one of `messages`, or that one is offered in the place of what is shown.
  tellEnd(messages) {
    const shown = messages.find((message) => this.thread.shows(message));
    if (!shown && messages[0].refines) {
      this.thread.offer(this.messages);
      return announce(offerWords(messages[0], false).text);
    }
    const { content } = shown ?? messages[0];
    return announce(endWords(shown ?? messages[0])?.text ?? "", content);
  }

  // Asks the question again that failed because the hub was away, when the hub is back; at most once.
  askUnanswered() {
    if (this.running || !this.unanswered) return;
    const { conversation, messages } = this.unanswered;
    this.unanswered = null;
    const isFailed = (message) => message.end?.reason === "failed" && conversation.messages.includes(message);
    if (messages.every(isFailed) && !this.sources.isHere()) this.begin(conversation, messages);
  }

  // Resumes the answer that this tab was reading when its page was closed; the hub continues it for a while.
  resumeLeft() {
    const left = read(left_name, null);
    const conversation = this.store.conversations.get(left?.conversation);
    const messages = left?.messages?.map((wanted) => conversation?.messages.find(({ id }) => id === wanted)) ?? [];
    if (messages.length === 0 || messages.some((message) => !message || message.end)) drop(left_name);
    else this.begin(conversation, messages, left);
  }
}
