// Reasoning in an answer's text, for servers that leave the tags in: "<think>…</think>" before the answer. Pure.
// A tag that has arrived in part belongs to neither side, so nothing of it is ever seen.

const begin_tag = "<think>";
const end_tag = "</think>";

// How many characters at the end of `text` may be the beginning of `tag`.
function partOf(tag, text) {
  for (let size = Math.min(tag.length - 1, text.length); size > 0; size -= 1) {
    if (text.endsWith(tag.slice(0, size))) return size;
  }
  return 0;
}

// {reasoning, answer, thinking}: `thinking` while the end tag has not come. `inside` is for a text that begins in
// mid-thought.
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
