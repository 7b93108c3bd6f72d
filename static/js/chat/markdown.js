// Converts Markdown of a model's answer to sanitised DOM. Nothing in an answer can run, load or style anything. A
// streaming answer is painted by MarkdownView: finished blocks stay as they are, only the tail is created again.
import { Lexer, Marked } from "../../vendor/marked.esm.js";
import DOMPurify from "../../vendor/purify.es.mjs";
import { make } from "../dom.js";
import { numFinished } from "./blocks.js";
import { colourCode } from "./colours.js";
import { makeFormula, mathTokens } from "./math.js";
import { say } from "../words/chat.js";

const escape = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);
const marked = new Marked({
  gfm: true, breaks: false, async: false, extensions: mathTokens(escape),
  renderer: {
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    code: ({ text, lang }) => `<pre data-lang="${escape(languageOf(lang))}"><code>${escape(text)}</code></pre>\n`,
  },
});

const allowed = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "em", "strong", "del", "code", "pre", "blockquote", "ul", "ol", "li",
    "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "a", "span",
  ],
  ALLOWED_ATTR: ["href", "title", "start", "align", "data-lang", "data-math"],
  ALLOW_DATA_ATTR: false,
  // These attributes never hold addresses, so ALLOWED_URI_REGEXP does not apply to their values.
  ADD_URI_SAFE_ATTR: ["start", "align", "data-lang", "data-math"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
  RETURN_DOM_FRAGMENT: true,
};
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

function languageOf(info) {
  const word = (info ?? "").trim().split(/\s+/)[0];
  return /^[\w+#.-]{1,24}$/.test(word) ? word : "";
}

// A code block with its head: the language, and a copy button (copyCodeOf handles its click).
function codeBlock(pre, language) {
  const block = make("div", "code-block", "", language ? { "data-language": language.toLowerCase() } : {});
  const head = make("div", "code-head");
  const copy = make("button", "button quiet small copy-code", say("copy"), { type: "button" });
  head.append(make("span", "", language), copy);
  block.append(head, pre);
  return block;
}

// Returns the text of the code block if its copy button was clicked, or null for other clicks.
export function copyCodeOf(event) {
  const button = event.target.closest?.(".copy-code");
  return button ? { button, text: button.closest(".code-block").querySelector("code")?.textContent ?? "" } : null;
}

const cleanMath = (markup) => DOMPurify.sanitize(markup, {
  USE_PROFILES: { mathMl: true }, ADD_TAGS: ["semantics"], FORBID_ATTR: ["style", "href"], RETURN_DOM_FRAGMENT: true,
});

function clean(html) {
  const fragment = DOMPurify.sanitize(html, allowed);
  for (const pre of fragment.querySelectorAll("pre")) {
    const place = document.createComment("");
    pre.replaceWith(place);
    const language = pre.dataset.lang ?? "";
    pre.removeAttribute("data-lang");
    place.replaceWith(codeBlock(pre, language));
  }
  for (const code of fragment.querySelectorAll("code[data-math]")) {
    const place = make("span");
    code.replaceWith(place);
    makeFormula(place, code.textContent, code.dataset.math === "display", cleanMath);
  }
  return [...fragment.childNodes].filter((node) => node.nodeType !== Node.TEXT_NODE || node.data.trim() !== "");
}

function lex(text, links) {
  const lexer = new Lexer(marked.defaults);
  Object.assign(lexer.tokens.links, links);
  return lexer.lex(text);
}

// Returns a text that describes how a block looks. Two blocks with equal texts have equal nodes.
function looks(token) {
  if (token.type === "space" || token.type === "def") return "";
  return token.type === "code" ? `\0${languageOf(token.lang)}\0${token.text}` : marked.parser([token]);
}
function nodesOf(token, look = looks(token)) {
  if (look === "") return [];
  if (token.type !== "code") return clean(look);

  // Set the code as plain text, which needs no sanitising: a long block need not be parsed again at each repaint.
  const pre = make("pre");
  pre.append(make("code", "", token.text));
  return [codeBlock(pre, languageOf(token.lang))];
}

const sameAttributes = (one, other) => one.attributes.length === other.attributes.length
  && [...one.attributes].every(({ name, value }) => other.getAttribute(name) === value);

// Makes the DOM node `live` equal to `wanted` and keeps as many of its nodes as possible. Returns the node that is in
// the document afterwards: `live` or `wanted`.
function morph(live, wanted) {
  if (live.isEqualNode(wanted)) return live;
  if (live.nodeType === Node.TEXT_NODE && wanted.nodeType === Node.TEXT_NODE) {
    if (wanted.data.startsWith(live.data)) live.appendData(wanted.data.slice(live.data.length));
    else live.data = wanted.data;
    return live;
  }
  if (live.nodeType === Node.ELEMENT_NODE && live.nodeName === wanted.nodeName && sameAttributes(live, wanted)) {
    // A copy button shows "Copied" for a moment, so its text is left alone.
    if (!live.classList.contains("copy-code")) morphList(live, [...live.childNodes], [...wanted.childNodes]);
    return live;
  }
  live.replaceWith(wanted);
  return wanted;
}

// Makes the siblings `live` in `parent` equal to `wanted`, with morph(). Returns the nodes that are in the document
// afterwards.
function morphList(parent, live, wanted) {
  const after = live.at(-1)?.nextSibling ?? null;
  const out = wanted.map((node, i) => (i < live.length ? morph(live[i], node) : parent.insertBefore(node, after)));
  for (const node of live.slice(wanted.length)) node.remove();
  return out;
}

// Paints a growing Markdown text and repaints only its tail.
export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.reset();
  }

  reset() {
    this.root.replaceChildren();
    this.blocks = [];      // the finished blocks as {look, nodes}: text of the look, DOM nodes
    this.settled = "";     // Markdown text of the finished blocks
    this.links = {};       // link reference definitions in the finished blocks
    this.tail = [];        // DOM nodes of the unfinished blocks
  }

  // Paints `text`, which begins with the text of the previous call.
  update(text) {
    const source = text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text;
    if (!source.startsWith(this.settled)) this.reset();
    const rest = source.slice(this.settled.length);
    const tokens = lex(rest, this.links);
    const finished = numFinished(tokens, rest);

    const made = tokens.map((token) => {
      const look = looks(token);
      return { look, nodes: nodesOf(token, look) };
    });
    const nodes = morphList(this.root, this.tail, made.flatMap((one) => one.nodes));
    let at = 0;
    made.forEach((one, i) => {
      one.nodes = nodes.slice(at, at + one.nodes.length);
      at += one.nodes.length;
      if (i >= finished) return;
      this.blocks.push(one);
      this.settled += tokens[i].raw;
    });
    this.tail = made.slice(finished).flatMap((one) => one.nodes);
    for (const one of made.slice(0, finished)) colourCode(one.nodes);
    Object.assign(this.links, tokens.links);
  }

  // Paints the complete text. Corrects finished blocks that a later line has changed (a link reference, a continued
  // list).
  finish(text) {
    const source = text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text;
    const tokens = lex(source, {});
    const live = [...this.blocks.map((one) => one.nodes), this.tail];
    const wanted = [];
    tokens.forEach((token, i) => {
      const look = looks(token);
      const known = this.blocks[i];
      const is_known = known?.look === look;
      wanted.push({ look, nodes: is_known ? known.nodes : nodesOf(token, look), is_known });
    });

    const kept = new Set(wanted.filter((one) => one.is_known).flatMap((one) => one.nodes));
    const old = live.flat().filter((node) => !kept.has(node));
    this.place(wanted, old);

    // Keep the last block unfinished, because an answer may be continued in the middle of a word.
    let last = tokens.length - 1;
    while (last > 0 && tokens[last].type === "space") last -= 1;
    this.blocks = wanted.slice(0, Math.max(0, last)).map(({ look, nodes }) => ({ look, nodes }));
    this.settled = tokens.slice(0, Math.max(0, last)).map((token) => token.raw).join("");
    this.links = { ...tokens.links };
    this.tail = wanted.slice(Math.max(0, last)).flatMap((one) => one.nodes);
    colourCode([this.root]);
  }

  // Puts the nodes of the blocks `wanted` into the document in order. Where possible, a node of `old`, which is no
  // longer wanted, is changed into the new node.
  place(wanted, old) {
    let cursor = this.root.firstChild;
    for (const one of wanted) {
      one.nodes = one.nodes.map((node) => {
        if (one.is_known) {
          while (cursor && cursor !== node) cursor = cursor.nextSibling;
          cursor = cursor?.nextSibling ?? null;
          return node;
        }
        const reuse = old.length > 0 && cursor === old[0] ? old.shift() : null;
        if (reuse) {
          cursor = reuse.nextSibling;
          return morph(reuse, node);
        }
        return this.root.insertBefore(node, cursor);
      });
    }
    for (const node of old) node.remove();
  }
}

// Replaces the children of `root` with the rendered `text`.
export function renderMarkdown(root, text) {
  root.replaceChildren(...clean(marked.parse(text)));
  colourCode([root]);
}
