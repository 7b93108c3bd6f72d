// Markdown of a model's answer to DOM, sanitised. Nothing in an answer can run, load or style anything.
import { marked } from "/vendor/marked.esm.js";
import DOMPurify from "/vendor/purify.es.mjs";

const allowed = {
  ALLOWED_TAGS: ["p", "br", "hr", "em", "strong", "del", "code", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6",
    "table", "thead", "tbody", "tr", "th", "td", "a", "span"],
  ALLOWED_ATTR: ["href", "title", "start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
  RETURN_DOM_FRAGMENT: true,
};
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

// Replaces the children of `element` with the rendered `text`.
export function renderMarkdown(element, text) {
  const fragment = DOMPurify.sanitize(marked.parse(text, { gfm: true, breaks: false, async: false }), allowed);
  for (const block of fragment.querySelectorAll("pre")) {
    const button = document.createElement("button");
    button.className = "button quiet small copy-code";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", () => copyText(block.querySelector("code")?.textContent ?? "", button));
    block.before(button);
  }
  element.replaceChildren(fragment);
}

// Copies, and says so on the button for a moment.
export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying is not allowed here";
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}
