// The sources of answers: the hub, this device, either, or both: a draft here, and a better answer by the hub. The
// setting "place" is the user's choice. Where both may answer, route() decides for each question (hub/route/route.h).
// A source passes on the chunks of an answer in the format of streamChat().
//   place "hub": of() returns [{messages, place: "hub", answerFrom: streamChat}]
//   place "refine", and the question may have a draft: [{messages, place: "", answerFrom}]; route() decides the place
import { ApiError, resumeChat, streamChat } from "../api.js";
import { say } from "../words/chat.js";
import { hasOtherModel } from "./places.js";
import { betterOf } from "./refine.js";
import { formOf, numAnswers } from "./settings.js";

// Returns the request with the hub's name for what this device has read of the question, if it has a name.
const withPages = (request, pages) => (pages ? { ...request, moex: { ...request.moex, pages } } : request);

// Chooses where the answers to a question are computed.
export class Sources {
  // facts() returns {info, health, key} as they are now. onDraft(run, message) is called when the answer `message` of
  // `run` is a draft, so that the better answer can begin.
  constructor({ panel, device, places, facts, onDraft }) {
    this.panel = panel;
    this.device = device;
    this.places = places;
    this.facts = facts;
    this.onDraft = onDraft;
  }

  // True if no word may leave this device.
  isHere() { return this.panel.settings.place === "device"; }
  isEither() { return this.panel.settings.place === "either"; }
  isRefined() { return this.panel.settings.place === "refine"; }
  usesHubToo() { return this.isEither() || this.isRefined(); }

  // True if this device may write a draft of a question's answer, and the hub the better one. Forms, and several
  // answers to a question, are the hub's alone, and so is a question before the model is here, as long as the hub
  // answers.
  mayDraft() {
    const { panel: { settings }, device } = this;
    const { response_format, tools, grammar } = formOf(settings);
    const is_here = device.ready || (device.is_coming && this.facts().health?.status !== "ok");
    return this.isRefined() && is_here && numAnswers(settings) === 1 && !(response_format || tools || grammar);
  }

  // The number of answers to a question, side by side; this device computes only one.
  numAnswers() { return this.isHere() || this.mayDraft() ? 1 : numAnswers(this.panel.settings); }

  // Returns the streams of the answers `messages` of `run`: [{messages, place, answerFrom}]; the place "" is chosen
  // later. `left`: the stream that a closed page was reading.
  of(run, messages, left) {
    if (left) return [{ messages, place: "hub", answerFrom: (_, how) => resumeChat(left.id, how) }];
    const answerHere = (request, how) => this.answerHere(request, how);
    if (this.isHere()) return [{ messages, place: "device", answerFrom: answerHere }];
    if (this.isEither()) {
      return [{ messages, place: "", answerFrom: (request, how) => this.answerFromEither(request, how) }];
    }
    const { conversation } = run;
    const [first] = messages;
    const is_new = !first.refines && !betterOf(conversation.messages, first) && !first.content && !first.reasoning;
    if (is_new && this.mayDraft()) {
      const answerFrom = (request, how) => this.answerOrDraft(run, first, request, how);
      return [{ messages, place: "", answerFrom }];
    }
    const isDraft = (message) => this.isRefined() && betterOf(conversation.messages, message) !== undefined;
    const drafts = messages.filter(isDraft), others = messages.filter((message) => !isDraft(message));
    return [
      { messages: drafts, place: "device", answerFrom: answerHere },
      { messages: others, place: "hub", answerFrom: streamChat },
    ].filter((one) => one.messages.length > 0);
  }

  // Passes on an answer that this device computes.
  answerHere(request, how) {
    const { response_format, tools, grammar } = request;
    if (response_format || tools || grammar) {
      throw new ApiError(400, { code: "no_form", message: say("device_no_form") });
    }
    return this.device.answer(request, how);
  }

  wish(quality) {
    const { info, health, key } = this.facts();
    const limit = Number(this.panel.settings.max_tokens) || 0;
    return this.places.wish({ key, info, health, limit, quality });
  }

  // Passes on an answer that either place computes; the device chooses, as soon as it can.
  async answerFromEither(request, how) {
    const { response_format, tools, grammar, n = 1 } = request;
    const is_hubs = response_format || tools || grammar || n > 1 || !this.device.ready;
    const wish = this.wish(this.panel.settings.quality);
    let pages = "";      // the hub's name for what this device has read of the question
    const onPlace = (report) => {
      pages = report.sent_as ?? "";
      how.onPlace(report);
    };
    if (!is_hubs && await this.device.answer(request, { ...how, onPlace, wish })) return;
    how.onPlace({ placed: "hub" });
    await streamChat(withPages(request, pages), how);
  }

  // Passes on the answer `message` of this device: a draft, if route() says so. The hub's better answer is then begun
  // beside it. With little battery, or a question that is too long for this device, the answer is the hub's alone.
  async answerOrDraft(run, message, request, how) {
    let is_placed = false, is_draft = false, pages = "";
    // A draft that was lost and is computed once more is placed again, but the better answer is begun once.
    const onPlace = (report) => {
      is_placed = true;
      pages = report.sent_as ?? "";
      if (is_draft) return;
      is_draft = report.placed === "refined" || (report.placed === "here" && hasOtherModel(this.facts().info));
      if (is_draft) this.onDraft(run, message);
      how.onPlace(report);
    };
    try {
      if (await this.device.answer(request, { ...how, onPlace, wish: this.wish("draft_then_best") })) return;
    } catch (error) {
      if (is_placed || error.name === "AbortError") throw error;
      how.onPlace({ placed: "hub" });
    }
    // The better answer of a draft is on its way.
    if (is_draft) how.onChunk({ choices: [{ delta: {}, finish_reason: "stop" }] });
    else await streamChat(withPages(request, pages), how);
  }
}
