// "Here at once, then by the hub": a question gets two answers, if hub/route chooses that for it. This device writes a
// draft with its small model, and the hub a better answer meanwhile, which is offered in the place of the draft. Both
// are versions of one answer;
// `refines` of the hub's is the id of the draft:
//   question A, draft {id: B, parent: A}, hub's answer {id: C, parent: A, refines: B}

// Makes a draft of the first of two answers.
export function pairUp([draft, better]) {
  better.refines = draft.id;
  return [draft, better];
}

// Returns the answer that is offered in the place of `message`; undefined if there is none.
export const betterOf = (messages, message) => messages.find(({ refines }) => refines && refines === message.id);

// Returns how far the better answer is: "coming", "ready", "failed", or "left" if its page was closed. `is_running`: it
// is being streamed by this page.
export function stateOf({ content, reasoning, end }, is_running) {
  if (is_running) return "coming";
  if (end?.reason === "failed" && !content) return "failed";
  return end && (content || reasoning) ? "ready" : "left";
}
