#!/usr/bin/env node
// Measures one repaint of a streaming answer in a real Chromium: the page once rendered the whole answer at each frame,
// and now renders only its tail; both are measured. Each row is an answer size; times are medians over repaints that
// add one word each.
//   usage: MOEX_BUILD=build MOEX_NPM=build/npm node bench/chat_render_bench.mjs [repaints]      default 60
// Prints one CSV row per size: answer_kb, whole_ms, whole_p90_ms, tail_ms, tail_p90_ms.
import { Hub } from "../tests/browser/support/hub.mjs";
import { launch } from "../tests/browser/support/tab.mjs";

const repaints = Number(process.argv[2] ?? 60);
const sizes_kb = [4, 20, 40, 80];

// This function runs in the page. The measured time includes style and layout, since a repaint ends on the screen.
async function measure([size_kb, count]) {
  const { MarkdownView, renderMarkdown } = await import("/js/chat/markdown.js");
  const sentence = (i) => `Sentence ${i} with *some* words, \`code\` and a [link](https://example.org/${i}). `;
  const code = (i) => `\`\`\`js\nlet x = ${i};\n\`\`\``;
  const block = (i) => `## Part ${i}\n\n${sentence(i).repeat(6)}\n\n- one\n- two ${i}\n\n${code(i)}\n\n`;
  let text = "";
  for (let i = 0; text.length < size_kb * 1000; i += 1) text += block(i);

  const box = document.createElement("div");
  box.className = "message assistant";
  document.getElementById("messages").replaceChildren(box);
  const time = (paint) => {
    const begin = performance.now();
    paint();
    box.getBoundingClientRect();
    return performance.now() - begin;
  };
  const word = (i) => `${text}The end comes nearer ${"and nearer ".repeat(i)}`;
  const of = (times) => {
    times.sort((a, b) => a - b);
    return [times[Math.floor(times.length / 2)], times[Math.floor(times.length * 0.9)]];
  };

  const whole = [];
  for (let i = 0; i < count; i += 1) whole.push(time(() => renderMarkdown(box, word(i))));
  box.replaceChildren();
  const view = new MarkdownView(box);
  view.update(text);
  const tail = [];
  for (let i = 0; i < count; i += 1) tail.push(time(() => view.update(word(i))));
  return [...of(whole), ...of(tail)];
}

const hub = await Hub.start(["--backend", "local"]);
const browser = await launch();
try {
  const page = await browser.newPage();
  await page.goto(hub.url);
  console.log("answer_kb,whole_ms,whole_p90_ms,tail_ms,tail_p90_ms");
  for (const size_kb of sizes_kb) {
    const figures = await page.evaluate(measure, [size_kb, repaints]);
    console.log([size_kb, ...figures.map((value) => value.toFixed(2))].join(","));
  }
} finally {
  await browser.close();
  await hub.remove();
}
