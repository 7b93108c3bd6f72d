// Messages and answers for the tests of the chat page's modules.
import { Turn, newAnswer } from "../../static/js/chat/turn.js";

export const say = (content) => ({ choices: [{ index: 0, delta: { content } }] });
export const think = (reasoning_content) => ({ choices: [{ index: 0, delta: { reasoning_content } }] });
export const finish = (finish_reason) => ({ choices: [{ index: 0, delta: {}, finish_reason }] });

// Makes a complete answer, with one chunk per 100 ms.
export function answered(chunks, { message = newAnswer("a", 0), reason = "", ...how } = {}) {
  const turn = new Turn(message, { now_ms: 0, workers: how.workers ?? null });
  chunks.forEach((chunk, i) => turn.add(chunk, 100 * (i + 1)));
  turn.end(reason, { now_ms: 100 * (chunks.length + 1), ...how });
  return message;
}

export const question = (id, content) => ({ id, role: "user", content, at: 0, rev: 1 });
export const reply = (id, content, more = {}) => ({
  ...newAnswer(id, 0), content, rev: 1, end: { reason: "stop", words: "" }, ...more,
});
