// Every state of every page, light and dark, wide and on a phone: nothing overflows, nothing covers anything else, and
// the sentence of the state is readable. The pictures are written to the build folder (pictures/), for people to look
// at; the test compares no pixels, which differ with every font.
//
// The join page's states are drawn from statuses in its worker's format; join_states.test.mjs produces the real states.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { table as chat_table } from "../../static/js/words/chat.js";
import { table as join_table } from "../../static/js/words/join.js";
import { Hub, build } from "./support/hub.mjs";
import { ScriptedHub, json } from "./support/scripted_hub.mjs";
import { launch, unlessBroken } from "./support/tab.mjs";

const folder = join(build, "pictures");
const looks = [
  { name: "light", colorScheme: "light", viewport: { width: 1280, height: 800 } },
  { name: "dark", colorScheme: "dark", viewport: { width: 1280, height: 800 } },
  { name: "phone", colorScheme: "light", viewport: { width: 390, height: 780 } },
  { name: "phone-dark", colorScheme: "dark", viewport: { width: 390, height: 780 } },
];
// Pages with a German version are also tested in German where there is least room, since its words are longer.
const german_looks = [
  { name: "phone-german", locale: "de-AT", colorScheme: "light", viewport: { width: 390, height: 780 } },
];
const languageOf = (look) => (look.endsWith("german") ? "de" : "en");

let browser;
let hub;
before(async () => {
  mkdirSync(folder, { recursive: true });
  browser = await launch();
  hub = await Hub.start(["--backend", "local"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// Returns the faults in the layout of a page as sentences; an empty list if the layout has no fault.
function faults() {
  const out = [];
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) out.push(`the page scrolls sideways: ${scrollWidth} > ${clientWidth}`);

  // Report text that is cut off: it neither wraps nor scrolls nor ends in an ellipsis.
  const visible = (node) => node.checkVisibility?.({ visibilityProperty: true }) ?? node.offsetParent !== null;
  const name = (node) => `${node.tagName}#${node.id}.${node.className} "${node.textContent.slice(0, 30)}"`;
  for (const node of document.querySelectorAll("p, h1, h2, span, button, a, dd, dt, td, label, .figure, .label")) {
    if (!visible(node) || node.closest(".visually-hidden, pre, .code-block")) continue;
    const style = getComputedStyle(node);
    if (style.display === "inline" || style.textOverflow === "ellipsis") continue;
    if (node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0) out.push(`cut: ${name(node)}`);
  }

  // A table must show its last column.
  for (const node of document.querySelectorAll(".scroll-x"))
    if (visible(node) && node.scrollWidth > node.clientWidth + 1)
      out.push(`scrolls: ${name(node)} ${node.scrollWidth} > ${node.clientWidth}`);

  // Controls must not cover each other.
  const controls = [...document.querySelectorAll("button, input, textarea, summary, nav a")].filter((node) => {
    const { width, height, right, bottom } = node.getBoundingClientRect();
    const is_there = visible(node) && width > 0 && height > 0 && right > 0 && bottom > 0;
    const is_under_modal = document.querySelector("dialog[open]") && !node.closest("dialog");
    return is_there && !is_under_modal && !node.closest(".visually-hidden, .side, #thread, #settings");
  });
  for (const [i, one] of controls.entries()) {
    const a = one.getBoundingClientRect();
    for (const other of controls.slice(i + 1)) {
      const b = other.getBoundingClientRect();
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 1) out.push(`${name(one)} lies over ${name(other)}`);
    }
  }
  return out;
}

// Returns texts with too little contrast to their background, by WCAG's formula.
function paleTexts() {
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const parse = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };

  const out = [];
  for (const node of document.querySelectorAll("body *")) {
    const has_text = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
    if (!has_text || !node.checkVisibility?.() || node.closest(".visually-hidden, :disabled")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const words = node.textContent.slice(0, 30);
    if (ratio < 4.5) out.push(`${ratio.toFixed(1)}:1 ${node.tagName}.${node.className} "${words}"`);
  }
  return out;
}

// The English sentences of the tables that differ from the German ones; a German page must not contain them.
const english = [join_table, chat_table].flatMap(({ en, de }) => Object.keys(en)
  .filter((key) => typeof en[key] === "string" && en[key] !== de[key]).map((key) => en[key]));
function englishLeft(known) {
  if (document.documentElement.lang !== "de") return [];
  const said = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) said.push(walker.currentNode.data.replace(/\s+/g, " ").trim());
  for (const node of document.querySelectorAll("[aria-label], [placeholder], [title]"))
    for (const name of ["aria-label", "placeholder", "title"]) said.push(node.getAttribute(name));
  return said.filter((words) => known.includes(words));
}

async function picture(page, name) {
  await page.evaluate(() => Promise.all(document.getAnimations().map((one) => one.finished.catch(() => {}))));
  await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true, caret: "initial" });
  assert.deepEqual(await page.evaluate(faults), [], name);
  assert.deepEqual(await page.evaluate(paleTexts), [], `${name}: contrast`);
  assert.deepEqual(await page.evaluate(englishLeft, english), [], `${name}: in English`);
}

// Opens a page in each look (a colour scheme and a window size), and calls run(page, name of the look).
async function inEveryLook(server, run, prepare = () => {}, more_looks = []) {
  for (const { name, ...options } of [...looks, ...more_looks]) {
    const context = await browser.newContext({ ...options, reducedMotion: "reduce" });
    context.setDefaultTimeout(0);
    try {
      const page = await context.newPage();
      await unlessBroken(page, async () => {
        await prepare(page);
        await run(page, name);
      });
    } finally {
      await context.close();
    }
  }
}

// ---- the join page

const base = {
  detail: "", bytes_to_fetch: 0, bytes_fetched: 0, units_ready: 0, units_assigned: 0, pairs_answered: 0,
  round_ms_p50: 0, bytes_received: 0, bytes_sent: 0, bytes_downloaded: 0, weights_bytes: 0,
  budget_bytes: 1073741824, worker_id: 0,
  model_name: "", device: { buffer_bytes: 0 }, retry_at: 0,
  adapter: { vendor: "nvidia", architecture: "ada-lovelace", description: "NVIDIA GeForce RTX 4090 with a long name" },
};
const loaded = {
  ...base, model_name: "qwen3-30b-a3b-instruct-2507-int4", worker_id: 123456, units_ready: 412, units_assigned: 412,
  weights_bytes: 1.03e9, device: { buffer_bytes: 1.07e9 }, bytes_downloaded: 1.03e9, pairs_answered: 123456789,
  bytes_received: 4.56e12, bytes_sent: 789e9, round_ms_p50: 12.345,
};
const states = {
  starting: { ...base, phase: "starting" },
  connecting: { ...base, phase: "connecting" },
  downloading: {
    ...loaded, phase: "downloading", units_ready: 97, bytes_to_fetch: 1.03e9, bytes_fetched: 243e6, pairs_answered: 0,
  },
  checking: { ...loaded, phase: "warming", pairs_answered: 0 },
  serving: { ...loaded, phase: "serving", is_busy: true },
  ready: { ...loaded, phase: "serving" },
  store_full: {
    ...loaded, phase: "serving",
    store: {
      kept: 97, unkept: 1234, is_full: true, device_bytes: 18.4e9, made_room: 5678, damaged: 1, gone: 12,
      failed: "no disk",
    },
  },
  paused: { ...loaded, phase: "paused" },
  offline: { ...loaded, phase: "offline", detail: "The hub is not there. Trying again.", retry_at: Date.now() + 9e9 },
  gpu_lost: { ...loaded, phase: "gpu_lost" },
  refused: {
    ...base, phase: "refused",
    detail: "The hub refused this worker: the join token is not right; open the join link again. Ask the host for a "
      + "fresh join link.",
  },
  failed: {
    ...base, phase: "failed",
    detail: "The memory limit of 150 kB has no room for one expert of this model, which takes 156 kB. "
      + "Raise the limit, then start again.",
  },
  stopped: { ...loaded, phase: "stopped" },
};
const pool = { status: "uncovered", units: 6144, covered: 6001, workers: 12 };
const lend = {
  model: "qwen3", workers: 12, units: 6144, held: 6001, replicas: 2, expert_blob_bytes: 2506752, computes_itself: false,
  scarce: [17, 23, 41].map((layer) => ({ layer, missing: 40, copies: 90 })),
};
const today_s = 86400 * Math.floor(Date.now() / 86400e3);
const contributors = {
  now_s: today_s + 3600, contributors: 1234, verifies: true, today: { pairs: 98765432, verified: 5e7 },
  board: [["Grace", 9e9], ["", 8e9], ["Ada with a name of 24 let", 7e9, true], ["", 6e9]].map(
    ([nickname, pairs, mine = false], i) => ({ rank: i + 1, nickname, pairs, verified: 0, mine })),
  mine: {
    pairs: 7e9, verified: 5e9, nickname: "Ada", rank: 3, first_seen_s: 0, streak_days: 123,
    today: { pairs: 12345678, verified: 0 },
    days: Array.from({ length: 30 }, (_, i) => ({ day_s: today_s - (29 - i) * 86400, pairs: (i * 37) % 100 })),
  },
  challenge: "0",
};

test("the join page in every state", async () => {
  const scripted = await ScriptedHub.start(hub, { routes: {
    "/health": json(pool, 503), "/api/lend": json(lend), "/api/contributors": json(contributors),
  } });
  const prepare = (page) => page.addInitScript(() => {
    window.Worker = class {
      constructor() { window.stand_in = this; }
      postMessage() {}
      terminate() {}
    };
    // Define navigator.gpu in case this Chromium has no WebGPU: the page only checks that it exists.
    if (!navigator.gpu) Object.defineProperty(Navigator.prototype, "gpu", { value: {} });
  });
  await inEveryLook(scripted, async (page, look) => {
    const said = join_table[languageOf(look)];
    await page.goto(`${scripted.url}/join.html#token=x`);
    await page.locator("#hub-words", { hasText: said.hub("qwen3", 12, 0).split(". ")[1] }).waitFor();
    await page.locator("#lend-words", { hasText: said.gap(143, false) }).waitFor({ state: "attached" });
    assert.equal(await page.evaluate(() => document.documentElement.lang), languageOf(look));
    await picture(page, `join-not-started-${look}`);
    await page.locator("#more > summary").click();
    await picture(page, `join-more-${look}`);
    await page.getByRole("button", { name: said.keep_count }).click();
    await page.locator("#work-mine").waitFor();
    await picture(page, `join-work-${look}`);
    await page.getByRole("button", { name: said.take_along }).click();
    await picture(page, `join-passphrase-${look}`);
    await page.locator("#work-dialog-no").click();
    await page.getByRole("button", { name: said.start, exact: true }).click();
    await page.waitForFunction(() => window.stand_in?.onmessage);

    for (const [name, { is_busy = false, ...status }] of Object.entries(states)) {
      const seen = await page.evaluate(async ([one, busy]) => {
        const tell = (more) => window.stand_in.onmessage({ data: { type: "status", status: { ...one, ...more } } });
        tell({});
        if (busy) tell({ pairs_answered: one.pairs_answered + 1 });
        await new Promise(requestAnimationFrame);
        const [state, detail] = ["state", "detail"].map((id) => document.getElementById(id));
        return { state: state.textContent, detail: detail.textContent, is_visible: detail.checkVisibility() };
      }, [status, is_busy]);
      assert.ok(seen.is_visible && seen.state && seen.detail.endsWith("."), `${name}: "${seen.detail}"`);
      if (status.detail) assert.equal(seen.detail.startsWith(status.detail), said === join_table.en, seen.detail);
      await picture(page, `join-${name}-${look}`);
    }
    await page.locator("#hidden").check();
    await page.locator("#data_gb").fill("many");
    await page.evaluate((one) => {
      window.stand_in.onmessage({ data: { type: "status", status: one } });
    }, { ...loaded, phase: "paused" });
    await page.locator("#state", { hasText: said.waiting }).waitFor();
    await picture(page, `join-waiting-${look}`);
    await page.locator("#forget").click();
    await picture(page, `join-forget-${look}`);
  }, prepare, german_looks);
  await scripted.stop();
});

// ---- the chat page

const answer = `# The lighthouse

The keeper had *not slept* for two nights, and \`the lamp\` was [low](https://example.org).

- wind
- rain
  - cold rain
- [x] light

\`\`\`python
def light(on):
    return "on" if on else "off"      # a comment that goes on beyond the edge of every phone there is
\`\`\`

| what | how much |
|---|---:|
| oil | 3 |
| a very long word: ${"x".repeat(60)} | 12 |

The lamp is seen from $d \\approx 3.6\\sqrt{h}$ km:

$$ \\int_0^h \\frac{dx}{\\sqrt{x}} = 2\\sqrt{h} $$

> And the sea answered.
`;

test("the chat page in every state", async () => {
  let health = { status: "ok", units: 128, covered: 128, workers: 12 };
  const scripted = await ScriptedHub.start(hub, {
    routes: { "/health": (response) => json(health, health.status === "ok" ? 200 : 503)(response) },
    answer: (stream) => {
      const words = stream.body.messages.at(-1).content;
      if (words.startsWith("Fail")) return stream.refuse(503, { message: "no worker holds it", code: "unavailable" });
      if (words.startsWith("Which")) {
        stream.say("Both.");
        const given = { town: "A town whose name is longer than others", days: [1, { of: null }] };
        stream.call(0, JSON.stringify(given), "rain");
        return stream.end("tool_calls");
      }
      stream.think("A keeper, a *storm*, a lamp.\n\nThree parts will do.");
      stream.say(answer);
      if (words.startsWith("Endless")) return undefined;
      return stream.end("length", {
        usage: { completion_tokens: 99, total_tokens: 99 }, timings: { predicted_per_second: 31.4 },
        moex: { workers: 12, calls_local: 3 },
      });
    },
  });
  await inEveryLook(scripted, async (page, look) => {
    const is_phone = look.startsWith("phone");
    const said = chat_table[languageOf(look)];
    const shown = (words) => page.locator("#pool-text", { hasText: words }).waitFor({ state: "attached" });
    const ask = async (words) => {
      await page.locator("#prompt").fill(words);
      await page.locator("#prompt").press("Enter");
    };
    for (const [name, seen, words] of [
      ["empty", { status: "ok", units: 128, covered: 128, workers: 0 }, said.hub_only],
      ["nobody", { status: "uncovered", units: 128, covered: 3, workers: 0 }, said.nobody_here],
      ["welcome", { status: "ok", units: 128, covered: 128, workers: 12 }, said.contributors(12)],
    ]) {
      health = seen;
      await page.goto(scripted.url);
      await shown(words);
      await picture(page, `chat-${name}-${look}`);
    }

    await page.locator("#open-settings").click();
    await page.locator("#max_tokens").fill("99");
    await page.locator("#seed").fill("99999999999999999999");
    await picture(page, `chat-settings-${look}`);
    await page.locator("summary", { hasText: said.more }).click();
    await page.locator("#repetition_penalty").scrollIntoViewIfNeeded();
    await picture(page, `chat-sampling-${look}`);
    await page.locator("summary", { hasText: said.form }).click();
    await page.locator("#tools").fill("[");
    await page.locator("#schema").fill("{}");
    await page.locator("#tool_choice").scrollIntoViewIfNeeded();
    await picture(page, `chat-form-${look}`);
    await page.locator("#tools").fill("");
    await page.locator("#schema").fill("");
    await page.locator("#seed").fill("");
    await page.locator("#forget").click();
    await picture(page, `chat-forget-${look}`);
    await page.locator("#forget-no").click();
    await page.locator("#close-settings").click();

    await ask("Tell me of a lighthouse and a storm, and do not leave out the rain.");
    await page.locator(".ended").waitFor();
    await page.locator(".thoughts summary").click();
    await page.locator(".math.display math").waitFor();
    await page.locator(".hljs-keyword").first().waitFor();
    await picture(page, `chat-answer-${look}`);
    await page.locator(".message.assistant").getByRole("button", { name: said.again }).click();
    await page.locator(".pager").waitFor();
    await page.locator(".ended").waitFor();
    await picture(page, `chat-versions-${look}`);
    await page.locator(".message.user").hover();
    await page.locator(".message.user").getByRole("button", { name: said.edit }).click();
    await picture(page, `chat-edit-${look}`);
    await page.keyboard.press("Escape");

    await ask("Which weather?");
    await page.locator(".results textarea").waitFor();
    await picture(page, `chat-call-${look}`);
    await ask("Fail, please.");
    await page.locator(".ended.bad").waitFor();
    await picture(page, `chat-failed-${look}`);
    await ask("Endless, please.");
    await page.locator("#stop").waitFor();
    await page.waitForFunction(() => [...document.querySelectorAll(".message.assistant blockquote")].length === 2);
    await picture(page, `chat-running-${look}`);
    await page.locator("#stop").click();

    if (is_phone) await page.locator("#open-side").click();
    await page.locator("#new-chat").click();
    await ask("A second conversation with a rather long first question in it");
    await page.locator(".ended").waitFor();
    if (is_phone) await page.locator("#open-side").click();
    await page.locator(".conversation").nth(1).hover();
    await picture(page, `chat-side-${look}`);
    await page.locator(".conversation").nth(1).getByRole("button", { name: said.delete }).click();
    await page.locator("#toast").waitFor();
    await picture(page, `chat-deleted-${look}`);
  }, () => {}, german_looks);
  await scripted.stop();
});

// ---- the status page

const worker = (id, more) => ({
  id, state: "active", nickname: "", vendor: "nvidia", description: "NVIDIA GeForce RTX 4090", software: false,
  units_ready: 412, units_assigned: 412, pairs_answered: 1234567, p50_ms: 4.2, p99_ms: 18, timeouts: 3,
  bytes_received: 4.5e9, bytes_sent: 7.8e9, connected_s: 5400, trust: "unproven",
  ready_in: { store: 0, memory: 0, slot: 412 }, ...more,
});
const crowd = [
  worker(1, { nickname: "a contributor's long nickname", ready_in: { store: 112, memory: 200, slot: 100 } }),
  worker(2, { state: "loading", units_ready: 12 }),
  worker(3, { state: "unhealthy", software: true, description: "SwiftShader Device (Subzero) (0x0000C0DE) and more" }),
];
const grid = (layers, experts, holders) => Array.from({ length: layers },
  (_, layer) => Array.from({ length: experts }, (__, expert) => holders(layer, expert)));

test("the status page in every state", async () => {
  const real = await hub.status();
  const many = { ...real.model, name: "qwen3-30b-a3b-instruct-2507-int4", num_moe_layers: 48, num_experts: 128 };
  const swarm = {
    ...real, model: many, workers: crowd, options: { ...real.options, local_fallback: false }, health: "uncovered",
    coverage: { ...real.coverage, units: 6144, covered: 6001 },
    calls: { ...real.calls, on_demand: { ...real.calls.on_demand, asked: 98765, hits: 87654, misses: 11111, late: 432,
      foreseen: 76543, lead_ms: 1.8, expired: 21, wasted_bytes: 4.2e9, loads: 1234, load_ms: 2.5 },
      load_window: { ...real.calls.load_window, groups: 4, most_ms: 3.4 } },
    engine: { ...real.engine, split: { steps: 3210, layers_s: 31.2, waiting_s: 58.7, head_s: 4.1, drawing_s: 0.4 } },
    replicas: grid(48, 128, (layer, expert) => (layer * 7 + expert * 13) % 43 % 4 % 3),
    tiers: grid(48, 128, (layer, expert) => (
      (layer * 7 + expert * 13) % 43 % 4 % 3 === 0 ? "-" : "smdd"[(layer + expert) % 4])).map((row) => row.join("")),
  };
  const mixed = { ...swarm, options: real.options, health: "ok", coverage: { units: 6144, covered: 6144 } };
  const pages = {
    "hub-only": [real, "the hub computes all experts itself"],
    swarm: [swarm, "the rest has no holder"],
    mixed: [mixed, "the hub computes the rest"],
  };
  let status = real;
  const scripted = await ScriptedHub.start(hub, { routes: { "/api/status": (response) => json(status)(response) } });
  await inEveryLook(scripted, async (page, look) => {
    for (const [name, [body, words]] of Object.entries(pages)) {
      status = body;
      await page.goto(`${scripted.url}/status.html`);
      await page.locator("#heat-words", { hasText: words }).waitFor();
      await page.waitForFunction(() => document.querySelectorAll(".u-wrap").length === 6);
      await picture(page, `status-${name}-${look}`);
      if (look === "light" && name === "swarm") {
        await page.setViewportSize({ width: 1440, height: 900 });
        await picture(page, `status-${name}-wide`);
        await page.setViewportSize(looks[0].viewport);
      }
      const tells_tiers = await page.locator("#heat-choice").isVisible();
      assert.equal(tells_tiers, name !== "hub-only");
      if (tells_tiers) {
        await page.locator("#heat-choice button[data-heat=tiers]").click();
        await page.locator("#legend-disk").waitFor();
        await picture(page, `status-${name}-tiers-${look}`);
        await page.locator("#heat-choice button[data-heat=holders]").click();
        await page.locator("#legend-more").waitFor();
      }
      assert.equal(await page.locator("#step-split").isVisible(), name !== "hub-only");
      const has_red = await page.locator("#legend-none").isVisible();
      assert.equal(has_red, name === "swarm", "what the hub computes is not red");
    }
  });
  await scripted.stop();
});
