// The facts of the chat page for the choice between this device and the hub (wasm/hand_off.js): the speed of the hub,
// the length of answers, and the state of the battery.

const answer_tokens_usual = 200;      // before this page has seen an answer
const measured_tokens_min = 16;       // a rate over fewer tokens says little
const low_battery = 0.2;

// True if this device loads another model than the one that the hub answers with. `info`: the reply of /api/info.
export const hasOtherModel = ({ model, device_model = model }) => device_model !== model;

// Learns from answers, and makes the wish for the next question.
export class Places {
  constructor() {
    this.hub = { prompt_tokens_per_s: 0, answer_tokens_per_s: 0 };
    this.answer_tokens = 0;
    this.battery = null;
    // Chromium has this function, other browsers report no battery.
    globalThis.navigator?.getBattery?.().then((battery) => { this.battery = battery; }, () => {});
  }

  // Learns from a chunk of an answer. `place`: where the answer is computed.
  learn({ timings, usage }, place) {
    if (usage?.completion_tokens > 0) this.answer_tokens = usage.completion_tokens;
    if (!timings || place !== "hub") return;
    // A short prompt is read at a lower rate, because each answer has a fixed cost.
    if (timings.prompt_n >= measured_tokens_min) {
      this.hub.prompt_tokens_per_s = Math.max(timings.prompt_per_second ?? 0, this.hub.prompt_tokens_per_s * 0.9);
    }
    if (timings.predicted_n >= measured_tokens_min) this.hub.answer_tokens_per_s = timings.predicted_per_second ?? 0;
  }

  // Returns the wish of a question that may be answered by either, or by both. `limit`: the most tokens of the answer,
  // or 0. `quality`: that of AnswerQuality in hub/route/route.h.
  wish({ key, info, health, limit, quality }) {
    const answer_tokens = this.answer_tokens || answer_tokens_usual;
    return {
      words: "to_hub", key, model: info.model, hub: this.hub, hub_answers: health?.status === "ok",
      hub_hands_off: !hasOtherModel(info),      // keys and values are of one model
      hub_is_better: hasOtherModel(info), quality,
      hub_context_tokens: info.context_tokens ?? 0,
      answer_tokens: limit > 0 ? Math.min(limit, answer_tokens) : answer_tokens,
      battery_is_low: this.battery !== null && !this.battery.charging && this.battery.level < low_battery,
    };
  }
}
