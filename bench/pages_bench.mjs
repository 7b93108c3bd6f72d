#!/usr/bin/env node
// Measures the pages in a real Chromium: frames while a long answer streams, the dashboard with many contributors, and
// the first paint over a slow connection.
//   usage: MOEX_BUILD=build MOEX_NPM=build/npm node bench/pages_bench.mjs [tokens] [workers]
// By default 10,000 tokens and 500 contributors; 0 leaves a part out.
// Prints CSV rows `what,figure,value`:
//   answer     number of tokens, seconds until the last token arrived, frames_per_s, and the times gap_p99_ms and
//              gap_max_ms between frames (16.7 ms is 60 Hz)
//   dashboard  number of workers, and ms of the page's thread for one update (one a second): script, layout, all
//   chat_line  a first visit at 1.6 Mbit/s and 150 ms of latency: first_paint_ms, ready_ms (a question can be typed and
//              the model is named), kilobytes transferred
import { Hub } from "../tests/browser/support/hub.mjs";
import { ScriptedHub, json } from "../tests/browser/support/scripted_hub.mjs";
import { launch } from "../tests/browser/support/tab.mjs";

const num_tokens = Number(process.argv[2] ?? 10000);
const num_workers = Number(process.argv[3] ?? 500);
const tokens_per_s = 400;
const line = { offline: false, downloadThroughput: 1.6e6 / 8, uploadThroughput: 0.75e6 / 8, latency: 150 };

const row = (what, figures) => {
  for (const [figure, value] of Object.entries(figures)) console.log(`${what},${figure},${value}`);
};
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// A hub's answer for the page: streams paragraphs, lists and code, one word at a time, at a steady rate.
async function stream(answer) {
  const sentence = (i) => `Some *words* of sentence ${i} with \`code\` in them. `;
  const block = (i) => `## Part ${i}\n\n${sentence(i).repeat(6)}\n\n- one\n- two\n\n`
    + `\`\`\`js\nlet x = ${i};\n\`\`\`\n\n`;
  const words = [];
  for (let i = 0; words.length < num_tokens; i += 1) words.push(...block(i).match(/\s*\S+\s?/g));
  const begun = performance.now();
  for (let sent = 0; sent < num_tokens;) {
    const due = Math.min(num_tokens, Math.ceil(((performance.now() - begun) / 1000) * tokens_per_s));
    for (; sent < due; sent += 1) answer.say(words[sent]);
    await pause(5);
  }
  answer.end();
}

async function measureAnswer(browser, hub) {
  const scripted = await ScriptedHub.start(hub, { answer: stream });
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  page.setDefaultTimeout(0);
  await page.goto(scripted.url);
  await page.waitForFunction(() => document.getElementById("model").textContent !== "");
  await page.evaluate(() => {
    window.frames_at = [];
    const count = (time) => {
      window.frames_at.push(time);
      requestAnimationFrame(count);
    };
    requestAnimationFrame(count);
  });
  await page.locator("#prompt").fill("At length, please.");
  await page.locator("#prompt").press("Enter");
  await page.locator("#stop").waitFor();
  const from = await page.evaluate(() => window.frames_at.length);
  await page.locator("#send").waitFor();
  const times = (await page.evaluate(() => window.frames_at)).slice(from);
  const gaps = times.slice(1).map((time, i) => time - times[i]).sort((a, b) => a - b);
  const seconds = (times.at(-1) - times[0]) / 1000;
  row("answer", {
    tokens: num_tokens, seconds: seconds.toFixed(1), frames_per_s: (gaps.length / seconds).toFixed(1),
    gap_p99_ms: gaps[Math.floor(gaps.length * 0.99)].toFixed(1), gap_max_ms: gaps.at(-1).toFixed(1),
  });
  await page.close();
  await scripted.stop();
}

async function measureDashboard(browser, hub) {
  const looks = 10;
  const status = await hub.status();
  const one = {
    state: "active", nickname: "", vendor: "nvidia", description: "NVIDIA GeForce RTX 4090", software: false,
    units_ready: 412, units_assigned: 412, ready_in: { store: 0, memory: 0, slot: 412 }, p50_ms: 4.2, p99_ms: 18,
    timeouts: 3, bytes_received: 4.5e9, bytes_sent: 7.8e9, connected_s: 5400, trust: "proven",
  };
  let asked = 0;
  const answer = (response) => {
    asked += 1;
    const workers = Array.from({ length: num_workers }, (_, i) => (
      { ...one, id: i + 1, pairs_answered: 1000 * asked + i }));
    json({ ...status, workers })(response);
  };
  const scripted = await ScriptedHub.start(hub, { routes: { "/api/status": answer } });
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  const client = await page.context().newCDPSession(page);
  await client.send("Performance.enable");
  const spent = async () => Object.fromEntries((await client.send("Performance.getMetrics")).metrics
    .map(({ name, value }) => [name, value]));
  await page.goto(`${scripted.url}/status.html`);
  await page.waitForFunction((rows) => document.querySelectorAll("#workers tr").length === rows, num_workers);
  const [from, before] = [asked, await spent()];
  while (asked < from + looks) await pause(50);
  const after = await spent();
  const each = (...names) => names
    .reduce((sum, name) => sum + ((after[name] - before[name]) * 1000) / (asked - from), 0).toFixed(1);
  row("dashboard", {
    workers: num_workers, script_ms: each("ScriptDuration"), layout_ms: each("LayoutDuration", "RecalcStyleDuration"),
    all_ms: each("TaskDuration"),
  });
  await page.close();
  await scripted.stop();
}

async function measureLine(browser, hub) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  const client = await page.context().newCDPSession(page);
  let received = 0;
  client.on("Network.loadingFinished", ({ encodedDataLength }) => { received += encodedDataLength; });
  await client.send("Network.enable");
  await client.send("Network.emulateNetworkConditions", line);
  await page.goto(hub.url);
  await page.waitForFunction(() => document.getElementById("model").textContent !== "");
  const { painted, ready } = await page.evaluate(() => ({
    painted: performance.getEntriesByName("first-contentful-paint")[0].startTime, ready: performance.now(),
  }));
  row("chat_line", {
    first_paint_ms: Math.round(painted), ready_ms: Math.round(ready), kilobytes: (received / 1000).toFixed(1),
  });
  await page.close();
}

const browser = await launch();
const hub = await Hub.start(["--backend", "local"]);
console.log("what,figure,value");
if (num_tokens > 0) await measureAnswer(browser, hub);
if (num_workers > 0) await measureDashboard(browser, hub);
await measureLine(browser, hub);
await browser.close();
await hub.remove();
