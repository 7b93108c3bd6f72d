// Formulas in an answer: $…$, $$…$$, \(…\) and \[…\] as tokens of Marked, painted as MathML. The library that reads TeX
// (KaTeX) is fetched when the first formula is shown. Until then, and for formulas that KaTeX cannot read, the source
// is shown.
const source_max = 4000;

const texOf = (match) => (match ? match.slice(1).find((part) => part !== undefined).trim() : "");

// Do not take a sum of money for a formula: the opening $ has no blank after it; the closing sign has no blank before
// and no digit after it.
const inline_forms = [
  [/^\$\$([^$\n]+?)\$\$/, true],
  [/^\$((?![\s$])(?:\\.|[^$\\\n])*?(?:\\.|[^$\\\n\s]))\$(?!\d)/, false],
  [/^\\\(([^\n]+?)\\\)/, false],
  [/^\\\[([^\n]+?)\\\]/, true],
];
const block_form = /^ {0,3}(?:\$\$([^$]+?)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n|$)/;

// The extensions by which Marked finds formulas. `escape(text)` makes text safe inside an HTML element.
export const mathTokens = (escape) => {
  const renderer = ({ text, is_display }) => (
    `<code data-math="${is_display ? "display" : "inline"}">${escape(text)}</code>`);
  return [
    {
      name: "mathBlock", level: "block",
      start: (source) => source.match(/^ {0,3}(?:\$\$|\\\[)/m)?.index,
      tokenizer(source) {
        const match = block_form.exec(source.slice(0, source_max));
        const text = texOf(match);
        if (text && !text.includes("\n\n")) return { type: "mathBlock", raw: match[0], text, is_display: true };
        return undefined;
      },
      renderer: (token) => `<p>${renderer(token)}</p>\n`,
    },
    {
      name: "math", level: "inline",
      start: (source) => source.match(/\$|\\[([]/)?.index,
      tokenizer(source) {
        for (const [form, is_display] of inline_forms) {
          const match = form.exec(source.slice(0, source_max));
          const text = texOf(match);
          if (text) return { type: "math", raw: match[0], text, is_display };
        }
        return undefined;
      },
      renderer,
    },
  ];
};

let katex = null;
let loading = null;
function load() {
  loading ??= import("../../vendor/katex.min.js").then(() => { katex = globalThis.katex; }, () => {});
  return loading;
}

// Fills the element `place` with a formula, now or when the library KaTeX has loaded. `sanitize(markup)` returns MathML
// without active content.
export function makeFormula(place, tex, is_display, sanitize) {
  place.className = is_display ? "math display" : "math";
  place.textContent = tex;
  const paint = () => {
    if (!katex) return;
    const markup = katex.renderToString(tex, {
      displayMode: is_display, output: "mathml", throwOnError: false, strict: "ignore", trust: false, maxExpand: 200,
      maxSize: 20,
    });
    // Remove the annotation of the markup, which repeats the TeX source for programs.
    const math = sanitize(markup.replace(/<annotation[^>]*>[^<]*<\/annotation>/g, ""));
    if (math.querySelector("math")) place.replaceChildren(math);
  };
  if (katex) paint();
  else load().then(paint);
}
