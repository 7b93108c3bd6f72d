// Colours for finished code blocks. The library (highlight.js) is fetched when the first finished code block is shown.
import DOMPurify from "../../vendor/purify.es.mjs";

const text_max = 100_000;
const kept = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };

let loading = null;
function load() {
  loading ??= import("../../vendor/highlight.min.js").then((module) => module.default, () => null);
  return loading;
}

async function colour(block) {
  block.dataset.coloured = "";
  const code = block.querySelector("code");
  const text = code.textContent;
  if (text.length > text_max) return;

  const library = await load();
  const { language } = block.dataset;
  if (!library?.getLanguage(language) || code.textContent !== text) return;
  // Keep the block as it is while the user has selected text in it: new nodes would drop the selection.
  const selection = getSelection();
  if (!selection.isCollapsed && selection.containsNode(code, true)) return;
  const { value } = library.highlight(text, { language, ignoreIllegals: true });
  code.replaceChildren(DOMPurify.sanitize(value, kept));
}

// Colours the code blocks that are among `nodes` or inside them and have no colours yet.
export function colourCode(nodes) {
  const waiting = ".code-block[data-language]:not([data-coloured])";
  for (const node of nodes) {
    if (node.nodeType !== Node.ELEMENT_NODE) continue;
    if (node.matches(waiting)) colour(node);
    for (const block of node.querySelectorAll(waiting)) colour(block);
  }
}
