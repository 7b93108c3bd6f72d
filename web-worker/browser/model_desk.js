// Lets all tabs of a browser profile use one model of "this device" (local_model.js). A tab has a session, and speaks
// over a MessagePort. Every message is {type, sessionId, payload}:
//   START_SESSION {key, hub_key}       a tab wants to use the model; the first session of all begins to load it
//   ACK {home, reports}                the answer: a name of this desk, and what it has reported of the model so far
//   GROW {context_tokens_max, kv_share}     a conversation is longer than the context: the model is loaded again
//   STATE                              a report of the model (local_model.js) that is not about an answer
//   LOAD {key, context_tokens_max, kv_share}     the user has agreed to the download
//   GET_TOKEN {answer, body, conversation, wish}   asks for the tokens of an answer; `answer` names it in the session
//   TOKEN {answer, ...}                a report about that answer: {text}, {early}, {placed}, {ended}, {refused}, and
//                                      {waits: number of the answers before it}
//   CANCEL {answer}, REMEMBER {is_on}, FORGET {conversation}, CONNECTION, END_SESSION     see LocalModel
//   LEND, LENT (with a port)           see lent_store.js
// Questions are answered in the order in which they came. A session also ends when its tab is gone: each tab holds the
// lock `session_lock` + sessionId, and the desk waits for that lock.
import { withLock } from "./storage.js";

export const session_lock = "moex-session-", home_lock = "moex-home-";
const about_answers = ["text", "early", "placed", "ended", "refused"];
// A report is replaced by a later one of its own kind; both kinds of progress are one.
const kindOf = (report) => {
  const [kind] = Object.keys(report);
  return kind === "progress" ? "fetched" : kind;
};

// Holds the sessions, and the queue of their questions.
export class ModelDesk {
  // `makeModel(how)` returns a LocalModel. `is_warm`: the model stays when the tabs are gone, until a tab ends the last
  // session. onUnused() is called when the model has ended because nobody uses it.
  constructor({ makeModel, is_warm = false, onUnused = () => {} }) {
    Object.assign(this, { makeModel, is_warm, onUnused });
    this.home = crypto.randomUUID();
    this.sessions = new Map();      // sessionId -> {id, port, gone: a promise, leave()}
    this.model = null;
    this.reports = new Map();       // by kind: what a tab that comes later has to know
    this.is_loading = false;
    this.memory = {};               // of the last GROW
    this.queue = [];                // questions [{session, answer, payload}]; the first is being answered
    this.is_remembering = null;     // the last REMEMBER; null before the first
    this.lent = [];                 // callbacks that wait for a LENT
    // Tabs learn from this lock when the desk is gone.
    this.named = new Promise((go) => {
      withLock(home_lock + this.home, {}, (lock) => {
        go();
        return lock ? new Promise(() => {}) : undefined;
      });
    });
  }

  connect(port) {
    port.onmessage = ({ data, ports }) => this.hear(port, data, ports);
  }
  hear(port, { type, sessionId, payload = {} }, ports) {
    if (type === "START_SESSION") {
      this.startSession(port, sessionId, payload);
      return;
    }
    const session = this.sessions.get(sessionId);
    if (!session) return;
    if (type === "LENT") for (const take of this.lent.splice(0)) take({ port: ports[0], gone: session.gone });
    else if (type === "END_SESSION") this.endSession(session, true);
    else if (type === "GET_TOKEN") this.ask(session, payload);
    else if (type === "CANCEL") this.cancel(({ session: its, answer }) => its === session && answer === payload.answer);
    else if (this.model) this.tellModel(session, type, payload);
  }
  tellModel(session, type, payload) {
    const { model } = this;
    if (type === "LOAD" && !this.is_loading) {
      this.is_loading = true;
      this.guard(model.load({ ...payload, ...this.memory }));
    } else if (type === "GROW") {
      this.memory = payload;
      this.moveAll();
    } else if (type === "FORGET") model.forget(payload.conversation);
    else if (type === "CONNECTION") model.forgetConnection();
    else if (type === "REMEMBER") {
      const known = this.reports.get("pages");
      if (this.is_remembering === payload.is_on && known?.pages.trouble !== "failed") {
        if (known) this.send(session, "STATE", known);
        return;
      }
      this.is_remembering = payload.is_on;
      model.remember(payload.is_on);
    }
  }

  send(session, type, payload, ports = []) {
    session.port.postMessage({ type, sessionId: session.id, payload }, ports);
  }
  // Reports an error of `work`, a promise of the model.
  guard(work) {
    const { model } = this;
    work.catch((error) => model?.fail(error));
  }

  // ---- sessions

  async startSession(port, id, payload) {
    const known = this.sessions.get(id);
    const session = known ?? { id };
    session.port = port;
    if (!known) {
      session.gone = new Promise((leave) => { session.leave = leave; });
      this.sessions.set(id, session);
      // The lock is free when the tab is gone. Without locks there is one tab only.
      withLock(session_lock + id, {}, (lock) => { if (lock) this.endSession(session, false); });
    }
    await this.named;
    if (this.model && !await this.model.isCurrent(payload)) this.moveAll();
    if (this.sessions.get(id) !== session) return;
    if (!this.model) this.begin(payload);
    if (this.lent.length > 0) this.send(session, "LEND", {});
    this.send(session, "ACK", { home: this.home, reports: [...this.reports.values()] });
  }
  begin(payload) {
    const model = this.makeModel({
      report: (report) => this.report(report),
      mayWrite: () => this.sessions.size > 0,
    });
    this.model = model;
    this.guard(model.look(payload));
  }
  // Lets all tabs begin anew: the hub has another model by now.
  moveAll() {
    this.endModel();
    for (const session of this.sessions.values()) this.send(session, "STATE", { moved: {} });
  }

  // `is_said`: the tab itself has ended the session, and is not gone.
  endSession(session, is_said) {
    if (this.sessions.get(session.id) !== session) return;
    this.sessions.delete(session.id);
    session.leave();
    this.cancel(({ session: its }) => its === session);
    if (this.sessions.size > 0 || (this.is_warm && !is_said)) return;
    this.endModel();
    this.onUnused();
  }
  endModel() {
    this.model?.end();
    this.model = null;
    this.reports.clear();
    this.queue = [];
    this.is_loading = false;
    this.is_remembering = null;
  }

  // ---- answers

  ask(session, { answer, ...payload }) {
    this.queue.push({ session, answer, payload });
    if (this.queue.length > 1) this.tell(this.queue.at(-1), { waits: this.queue.length - 1 });
    else this.askFirst();
  }
  // The model answers when it is open.
  askFirst() {
    const [first] = this.queue;
    if (first && this.reports.has("opened")) this.model.ask(first.payload);
  }
  cancel(isMeant) {
    const [first] = this.queue;
    const left = this.queue.filter((one) => one !== first && isMeant(one));
    this.queue = this.queue.filter((one) => !left.includes(one));
    for (const one of left) this.tell(one, { ended: { finish_reason: "cancelled" } });
    if (first && isMeant(first)) this.model?.cancel();
  }
  tell({ session, answer }, report) { this.send(session, "TOKEN", { answer, ...report }); }

  // ---- reports of the model

  report(report) {
    const kind = kindOf(report);
    if (about_answers.includes(kind)) {
      this.reportAnswer(report);
      return;
    }
    if (kind === "failed") {
      this.memory = {};             // a tab asks for less, if memory is short
      this.endModel();
    } else this.reports.set(kind, report);
    if (kind === "ready") this.reports.delete("fetched");
    for (const session of this.sessions.values()) this.send(session, "STATE", report);
    if (kind === "opened") this.askFirst();
  }
  reportAnswer(report) {
    const [first] = this.queue;
    if (!first) return;
    this.tell(first, report);
    if (!report.ended && !report.refused) return;
    this.queue.shift();
    this.askFirst();
  }

  // ---- what tabs lend

  // Resolves to {port, gone}: the port of a store worker that a tab lends, and a promise that resolves when that tab's
  // session has ended. Without a tab, the next one is asked.
  lentStore() {
    return new Promise((take) => {
      this.lent.push(take);
      const [session] = this.sessions.values();
      if (session) this.send(session, "LEND", {});
    });
  }
}
