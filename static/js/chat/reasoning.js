// Finds reasoning in an answer's text, for servers that leave the tags in: "<think>…</think>" before the
// answer. A tag that has arrived only in part belongs to neither the reasoning nor the answer, so it is never shown.
// The module is pure.

const begin_tag = "<think>";
const end_tag = "</think>";

// Returns the number of characters at the end of `text` that may be the beginning of `tag`.
function partOf(tag, text) {
  for (let size = Math.min(tag.length - 1, text.length); size > 0; size -= 1) {
    if (text.endsWith(tag.slice(0, size))) return size;
  }
  return 0;
}

// Splits `text` into {reasoning, answer, thinking}; `thinking` is true until the end tag has arrived. `inside`: the
// text begins in the middle of the reasoning.
export function splitReasoning(text, inside = false) {
  let at = 0;
  if (!inside) {
    const start = text.search(/\S/);
    if (start < 0) return { reasoning: "", answer: "", thinking: false };
    if (!text.startsWith(begin_tag, start)) {
      const is_part = begin_tag.startsWith(text.slice(start));
      return { reasoning: "", answer: is_part ? "" : text, thinking: false };
    }
    at = start + begin_tag.length;
  }

  const end = text.indexOf(end_tag, at);
  if (end < 0) {
    const reasoning = text.slice(at, text.length - partOf(end_tag, text));
    return { reasoning: inside ? reasoning : reasoning.trimStart(), answer: "", thinking: true };
  }
  const reasoning = text.slice(at, end).trimEnd();
  return {
    reasoning: inside ? reasoning : reasoning.trimStart(),
    answer: text.slice(end + end_tag.length).trimStart(),
    thinking: false,
  };
}
