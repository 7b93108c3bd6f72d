// The plain modules of the join and status pages, the formats of figures, and the detection of finished blocks.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { test } from "node:test";

import { firstShape, msOfToken } from "../../static/js/bench/model_words.js";
import { numFinished } from "../../static/js/chat/blocks.js";
import { bytes, count, ms, span, when } from "../../static/js/format.js";
import { isPhone, lentMb } from "../../static/js/device_kind.js";
import { readLink } from "../../static/js/join/link.js";
import { capProblem, reasonToWait, rulesOf, usedOn } from "../../static/js/join/rules.js";
import { Arrival } from "../../static/js/join/arrival.js";
import {
  budgetWords, gpuWords, hubWords, keepWords, memoryWords, phases, progressWords, shareWords, speedWords, stageWords,
  storeWords, storedWords, wantsLink,
} from "../../static/js/join/words.js";
import { lendWords } from "../../static/js/join/work_words.js";
import { heatLayout, heatWords, holderKind, tellsTiers, tierKind, tierSentence } from "../../static/js/status/heat.js";
import { hostWords } from "../../static/js/status/host.js";
import { LastMinute, stepWords } from "../../static/js/status/split.js";

// Import the vendored library marked as text: Node 18 would treat a ".js" file as CommonJS.
const vendored = join(resolve(process.env.MOEX_BUILD ?? "build"), "web/vendor/marked.esm.js");
const { Lexer } = await import(`data:text/javascript;base64,${readFileSync(vendored, "base64")}`);

test("FiguresAreReadable", () => {
  const sizes = ["0 B", "999 B", "1.0 kB", "1.5 kB", "156 kB", "1.1 GB"];
  assert.deepEqual([0, 999, 1000, 1500, 156e3, 1.07e9].map(bytes), sizes);
  assert.deepEqual([0, 0.44, 12.3, 12345].map(ms), ["–", "0.4 ms", "12 ms", "12.3 s"]);
  assert.deepEqual([5, 600, 7200].map(span), ["5 s", "10 min", "2 h"]);
  assert.deepEqual([1, 2, 1200].map((n) => count(n, "expert")), ["1 expert", "2 experts", "1,200 experts"]);
  const noon = new Date(2026, 5, 15, 12).getTime();
  assert.equal(when(noon - 3600e3, noon), "11:00");
  assert.equal(when(noon - 86400e3, noon), "yesterday");
  assert.equal(when(noon - 7 * 86400e3, noon), "8 Jun");
});

test("StatusPageNamesAnEndingCertificateAndAFullDisk", () => {
  const state = (certificate_left_s, state_is_full = false) =>
    ({ certificate_left_s, state_is_full, state_free_bytes: 0 });
  const day = 86400;
  assert.equal(hostWords(undefined), "");
  assert.equal(hostWords(state(null)), "");
  assert.equal(hostWords(state(31 * day)), "");
  assert.equal(hostWords(state(30 * day)), "The certificate of this hub expires in 30 days.");
  assert.equal(hostWords(state(6.5 * day)), "The certificate of this hub expires in 6 days.");
  assert.match(hostWords(state(3600)), /within a day/);
  assert.match(hostWords(state(-1)), /has expired/);
  assert.match(hostWords(state(null, true)), /disk of the hub's state is full \(0 B free\)/);
  assert.match(hostWords(state(0, true)), /has expired.*is full/);
});

// ---- blocks

const text = `# A head

Some words
on two lines.

- one
- two

  still two
- three

\`\`\`js
let x = 1;

let y = 2;
\`\`\`

| a | b |
|---|---|
| 1 | 2 |

1. first

2. second

> quoted
lazily

The end.
`;

test("FinishedBlocksNeverChange", () => {
  const whole = new Lexer().lex(text).map((token) => token.raw);
  let settled = "";
  let most = 0;
  for (let size = 1; size <= text.length; size += 1) {
    const rest = text.slice(settled.length, size);
    const tokens = new Lexer().lex(rest);
    for (const token of tokens.slice(0, numFinished(tokens, rest))) settled += token.raw;
    // The finished part of the text must end where a block of the whole text ends.
    let at = 0;
    let blocks = 0;
    while (at < settled.length) at += whole[blocks++].length;
    assert.equal(at, settled.length, `after ${size} characters: ${JSON.stringify(settled.slice(-40))}`);
    most = blocks;
  }
  assert.ok(most >= whole.length - 4, `${most} of ${whole.length} blocks were finished before the end`);
});

test("PartialLineKeepsThePreviousBlockOpen", () => {
  const finished = (source) => numFinished(new Lexer().lex(source), source);
  assert.equal(finished("1. one\n\n2"), 0, "2 may become the list's next item");
  assert.equal(finished("1. one\n\nwords\n"), 2, "the list and the line behind it");
  assert.equal(finished("words"), 0);
});

// ---- the join page

const now = { is_online: true, now_ms: 0 };

test("EveryPhaseHasASentence", () => {
  for (const phase of phases) {
    const { state, detail } = stageWords({ phase, detail: "", retry_at: 0 }, now);
    assert.ok(state && detail.endsWith("."), phase);
    const said = stageWords({ phase, detail: "Because of this.", retry_at: 0 }, now);
    assert.equal(said.detail, "Because of this.");
  }
  const offline = (more, how = now) => stageWords({ phase: "offline", retry_at: 0, ...more }, how).detail;
  assert.equal(offline({ detail: "Gone.", retry_at: 4200 }), "Gone. Next try in 5 s.");
  assert.match(offline({}, { ...now, is_online: false }), /^This device has no network/);
  assert.equal(stageWords({ phase: "serving" }, { ...now, idle: true }).state, "ready");
  const reserve = stageWords({ phase: "serving" }, { ...now, idle: true, in_reserve: true });
  assert.equal(reserve.kind, "", "not green");
  assert.match(reserve.detail, /^In reserve: this hub is faster alone just now\./);
  assert.equal(stageWords({ phase: "offline", retry_at: 0 }, { ...now, in_reserve: true }).state, "offline");
  const adapter = { backend: "cpu", architecture: "SIMD128", description: "processor, 1 thread" };
  assert.match(stageWords({ phase: "serving", adapter }, now).detail, /computing on the processor, on one thread\.$/);
  assert.equal(gpuWords(adapter, "No WebGPU."), "none: computing on the processor (SIMD128). No WebGPU.");
  assert.match(memoryWords({ weights_bytes: 2e6, budget_bytes: 8e6 }), /^2(\.0)? MB of 8(\.0)? MB: /);
});

test("TabWorksOnlyWhenItsRulesAllow", () => {
  const facts = { on_mains: true, is_hidden: true, is_idle: null, hour: 12, bytes_today: 0 };
  const reason = (rules, more) => reasonToWait(rulesOf(rules), { ...facts, ...more });
  assert.equal(reason({}, { on_mains: false, is_hidden: false, bytes_today: 9e12 }), "", "nothing is forbidden");
  assert.match(reason({ mains: true }, { on_mains: false }), /battery/);
  assert.equal(reason({ mains: true }, { on_mains: null }), "", "a browser that does not tell");
  assert.match(reason({ hidden: true }, { is_hidden: false }), /in front of this page/);
  assert.equal(reason({ hidden: true }), "");
  const seen = { is_hidden: false };
  assert.match(reason({ idle: true }, { is_idle: false }), /nobody has used this computer/, "hidden is no idleness");
  assert.equal(reason({ idle: true }, { ...seen, is_idle: true }), "");
  assert.match(reason({ idle: true }), /may not report/);
  assert.match(reason({ hidden: true, idle: true }, { ...seen, is_idle: false }), /in front, or once nobody/);
  assert.equal(reason({ hidden: true, idle: true }, { is_idle: false }), "", "either will do");
  assert.equal(reason({ hidden: true, idle: true }, { ...seen, is_idle: true }), "");

  const at = (from, to, hour) => reason({ from, to }, { hour }) === "";
  assert.deepEqual([8, 9, 16, 17].map((hour) => at("9", "17", hour)), [false, true, true, false]);
  assert.deepEqual([21, 22, 23, 0, 5, 6].map((hour) => at("22", "6", hour)), [false, true, true, true, true, false]);
  assert.ok(at("7", "7", 3) && at("", "7", 12) && at("7", "", 3), "half a rule is none");

  assert.match(reason({ data_gb: "0.5" }, { bytes_today: 5e8 }), /^Today's 500 MB of data are used/);
  assert.equal(reason({ data_gb: "0.5" }, { bytes_today: 4.9e8 }), "");
  assert.equal(reason({ data_gb: "many" }, { bytes_today: 9e12 }), "", "said at the field");
  for (const bad of ["many", "-1", "0", "1e3", "1,5"]) assert.notEqual(capProblem(bad), "", bad);
  for (const kept of [null, 3, { mains: "yes", from: "24", data_gb: 7 }]) assert.deepEqual(rulesOf(kept), rulesOf({}));
});

test("DailyDataStartsAtZero", () => {
  assert.deepEqual(usedOn("2026-01-02", { day: "2026-01-02", bytes: 5 }, 3), { day: "2026-01-02", bytes: 8 });
  assert.deepEqual(usedOn("2026-01-03", { day: "2026-01-02", bytes: 5 }, 3), { day: "2026-01-03", bytes: 3 });
  assert.deepEqual(usedOn("2026-01-03", { day: "2026-01-03", bytes: "x" }, 3), { day: "2026-01-03", bytes: 3 });
});

test("join: the download has a speed and a time left once it has a pace", () => {
  const arrival = new Arrival();
  assert.equal(arrival.pace(1e9), null);
  arrival.add(0, 0);
  arrival.add(500, 50e6);
  assert.equal(arrival.pace(1e9), null, "half a second says nothing yet");
  arrival.add(2000, 200e6);
  assert.deepEqual(arrival.pace(1e9), { bytes_per_s: 100e6, seconds_left: 8 });
  for (let second = 3; second <= 20; second += 1) arrival.add(1000 * second, 200e6 + 10e6 * (second - 2));
  assert.deepEqual(arrival.pace(1e9), { bytes_per_s: 10e6, seconds_left: 62 }, "the newest ten seconds count");
  for (let second = 21; second <= 31; second += 1) arrival.add(1000 * second, 380e6);
  assert.equal(arrival.pace(1e9), null, "nothing arrives");
  arrival.add(32000, 0);
  arrival.add(34000, 8e6);
  assert.equal(arrival.pace(8e6).seconds_left, 0, "the worker has started again");

  const status = { bytes_fetched: 200e6, bytes_to_fetch: 1e9, units_ready: 5, units_assigned: 25 };
  assert.equal(progressWords(status, null), "200 MB of 1.0 GB, 5 of 25 experts ready");
  assert.equal(progressWords(status, { bytes_per_s: 100e6, seconds_left: 8 }),
    "200 MB of 1.0 GB, 5 of 25 experts ready, 100 MB/s, about 8 s left");
});

test("PageShowsTheExpertsThatFitAMemoryLimit", () => {
  const status = { units_ready: 32, weights_bytes: 32e6 };
  assert.equal(budgetWords(status, 64e6, 128), "Room for about 64 experts of 128.");
  assert.equal(budgetWords(status, 640e6, 128), "Room for the whole model.");
  assert.match(budgetWords(null, 64e6, 128), /^More memory holds more/);
  assert.equal(budgetWords({ ...status, units_ready: 64, units_resident: 32 }, 64e6, 128),
    "Room for about 64 experts of 128.");
  assert.equal(keepWords(status, 0, 0), "Experts that do not fit into memory are left to others.");
  assert.match(keepWords({ units_ready: 64, units_resident: 64 }, 1e9, 2e9), /do not fit into memory are kept on disk/);
  assert.equal(keepWords({ units_ready: 64, units_resident: 32, bytes_in_memory: 5e6 }, 1e9, 2e9),
    "Keeps 64 experts on disk, 32 on the GPU, 5.0 MB in this computer's memory.");
  assert.equal(keepWords(status, 2e9, 1e9),
    "This browser gives the site 1.0 GB; the rest is downloaded again when it is needed.");
  assert.equal(storedWords(null), "unknown");
  assert.equal(storedWords({ usage: 2e7, quota: 12e9 }), "20 MB of 12 GB that this browser gives the site");
  assert.equal(shareWords(status, 128), "This tab holds 32 of the model's 128 experts: 25 %.");
  assert.equal(shareWords({ units_ready: 0 }, 128), "");
});

test("StorageProblemsAreReported", () => {
  const store = { unkept: 0, is_full: false, device_bytes: 0, made_room: 0, damaged: 0, gone: 0, failed: "" };
  assert.equal(storeWords(undefined, null), "");
  assert.equal(storeWords(store, true), "The browser keeps the stored experts until you delete them.");
  assert.match(storeWords(store, false), /may delete .* its disk runs low\.$/);
  assert.equal(storeWords({ ...store, unkept: 3, is_full: true, device_bytes: 34e6, made_room: 1 }, null),
    "There is no more room on the disk: 3 experts are not stored, but downloaded again when needed. The model for "
    + "“this device” uses 34 MB of the disk and stays. 1 stored expert was deleted to make room for others.");
  assert.equal(storeWords({ ...store, damaged: 1, gone: 2, failed: "no disk." }, null),
    "1 stored expert was damaged and downloaded again; damaged experts are never used. 2 stored experts were missing "
    + "on the disk and downloaded again. Experts could not be stored (no disk): the next visit downloads them again.");
});

test("HubIsDescribedBeforeStart", () => {
  const info = { model: "moex-demo" };
  assert.equal(hubWords(info, { workers: 0, units: 128, covered: 128 }),
    "This hub serves moex-demo. Nobody lends it a GPU yet.");
  assert.equal(hubWords(info, { workers: 1, units: 128, covered: 127 }),
    "This hub serves moex-demo. 1 contributor is here, and 1 expert has no holder.");
  assert.equal(hubWords(null, null), "");
});

// ---- the parts of a step's time

test("StepPartsAreMeansOfTheLastMinuteOrOfAll", () => {
  const told = (steps, each_s) => (
    { steps, layers_s: each_s * steps, waiting_s: 2 * each_s * steps, head_s: 0.5 * each_s * steps, drawing_s: 0 });
  const minute = new LastMinute();
  assert.equal(minute.add(0, told(0, 0.001)), null);
  assert.equal(stepWords(null, told(0, 0.001)), "");
  assert.match(stepWords(null, told(10, 0.01)), /^Of a step's 35 ms, as the mean of all 10 so far: 10 ms in the lay/);
  assert.equal(minute.add(30, told(4, 0.001)).steps, 4);
  assert.equal(minute.add(61, told(6, 0.001)).steps, 2, "what is older than a minute does not count");
  assert.match(stepWords(minute.add(62, told(7, 0.001)), told(7, 0.001)), /the last minute's 3: .* waiting for expe/);
  assert.equal(minute.add(63, told(1, 0.001)), null, "a restarted hub");
  const gpu = { ...told(2, 0.001), head_s: 0 };
  assert.match(stepWords(null, gpu), /in the layers and over the vocabulary, 2\.0 ms waiting for experts\.$/);
});

// ---- the map of holders

test("MapShowsTiersWhenTheHubReportsThem", () => {
  assert.equal(tellsTiers(["ss-s", ""]), false);
  assert.equal(tellsTiers(["ssms", ""]), true);
  assert.deepEqual([..."smd-"].map((letter) => tierKind(letter, true)), ["slot", "memory", "disk", "hub"]);
  assert.equal(tierKind("-", false), "none");
  assert.match(tierSentence(["ssmd-", "d"]), /^When their holders became ready, 2 were .* 1 in memory and 2 on disk;/);
});

test("HeatMapCellsAreWideEnoughToDistinguish", () => {
  for (const width of [300, 350, 700, 1010]) {
    for (const experts of [8, 60, 64, 128, 256, 512]) {
      const { columns, rows, cell_px } = heatLayout(width, experts);
      assert.ok(columns * rows >= experts, `${experts} in ${width}`);
      assert.ok(columns * cell_px <= width + 0.01, `${experts} in ${width}`);
      assert.ok(cell_px >= 7 || rows === 1 && experts * 7 > width, `${experts} in ${width}: ${cell_px}`);
    }
  }
});

test("ExpertOfTheHubIsNotShownAsMissing", () => {
  assert.equal(holderKind(0, true), "hub");
  assert.equal(holderKind(0, false), "none");
  assert.match(heatWords([[0, 0], []], true), /the hub computes all experts itself/);
  assert.match(heatWords([[0, 0]], false), /^No expert has a holder/);
  assert.equal(heatWords([[1, 0], [2, 1]], true),
    "Contributors hold 3 of 4 experts, the hub computes the rest itself.");
});

// ---- defaults and links of the join page

test("PhonesLendLessMemoryByDefault", () => {
  const iphone = { userAgent: "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) AppleWebKit/605.1.15" };
  const ipad = { userAgent: "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15", maxTouchPoints: 5 };
  const android = { userAgentData: { mobile: true }, userAgent: "", deviceMemory: 8 };
  for (const phone of [iphone, ipad, android]) assert.deepEqual([isPhone(phone), lentMb(phone)], [true, 256]);
  const mac = { userAgent: ipad.userAgent, maxTouchPoints: 0 };
  assert.equal(lentMb(mac), 1024);
  assert.equal(lentMb({ userAgent: "Mozilla/5.0 (X11; Linux x86_64)", deviceMemory: 8 }), 1024);
  assert.equal(lentMb({ userAgent: "Mozilla/5.0 (X11; Linux x86_64)", deviceMemory: 4 }), 512);
  assert.equal(lentMb({ userAgent: "Mozilla/5.0 (X11; CrOS x86_64)", deviceMemory: 2 }), 256);
});

test("BenchPageOffersAModelThatTheDeviceCanHold", () => {
  const iphone = { userAgent: "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) AppleWebKit/605.1.15" };
  assert.equal(firstShape(iphone), "smollm-135m");
  assert.equal(firstShape({ userAgentData: { mobile: true }, userAgent: "", deviceMemory: 8 }), "smollm-135m");
  assert.equal(firstShape({ userAgent: "Mozilla/5.0 (X11; CrOS x86_64)", deviceMemory: 4 }), "qwen2-0.5b");
  assert.equal(firstShape({ userAgent: "Mozilla/5.0 (X11; Linux x86_64)", deviceMemory: 8 }), "qwen2-1.5b");
});

test("PastedJoinLinkGivesTokenAndAddress", () => {
  const token = "moex-join-0123456789abcdef";
  assert.deepEqual(readLink(` https://hub.example/moex/join.html#token=${token} `),
    { token, url: `https://hub.example/moex/join.html#token=${token}` });
  assert.deepEqual(readLink(token), { token, url: "" });
  for (const bad of ["", "https://hub.example/join.html", "hello", "https://hub.example/#token="]) {
    assert.equal(readLink(bad), null, bad);
  }
});

test("RefusedTokenWantsAnotherLink", () => {
  const detail = "The hub refused this worker: join token. Ask the host for a fresh join link.";
  assert.equal(wantsLink({ phase: "refused", detail }), true);
  assert.equal(wantsLink({ phase: "refused", detail: "The hub refused this worker: banned." }), false);
  assert.equal(wantsLink({ phase: "serving", detail }), false);
});

test("SpeedOfALenderIsAFigureOfItsOwn", () => {
  assert.equal(speedWords({ expert_ns: 250000 }), "One expert takes 250 µs here: at most about 4,000 calls a second.");
  assert.equal(speedWords({ expert_ns: 0 }), "–");
});

test("CompleteHubLacksFurtherCopiesOnly", () => {
  const lend = { units: 128, held: 128, expert_blob_bytes: 156000, computes_itself: true, scarce: [{ layer: 0 }] };
  assert.match(lendWords(lend)[0], /^Every expert is held by a contributor; a further copy is needed most in layer 0/);
  assert.match(lendWords({ ...lend, held: 120 })[0], /^8 experts are held by no contributor; help is needed most/);
});

// ---- addresses and storage

// Returns [name, address] of each file of the pages and of each script of their workers.
function filesOfPages() {
  const folder = new URL("../../static/", import.meta.url);
  const files = readdirSync(folder, { recursive: true }).filter((name) => /\.(js|html|css)$/.test(name));
  const worker = new URL("../../web-worker/browser/", import.meta.url);
  const texts = [...files.map((name) => [name, new URL(name, folder)]),
    ...readdirSync(worker).filter((name) => name.endsWith(".js")).map((name) => [name, new URL(name, worker)])];
  assert.ok(texts.length > 50);
  return texts;
}

// Storage that throws or never answers is handled in one module (js/storage.js, wasm/storage.js). A service worker
// runs where storage works.
test("OneModuleReachesTheBrowsersStorage", () => {
  const names = "indexedDB|localStorage|sessionStorage|BroadcastChannel|caches";
  const storage = new RegExp(`\\b(?:${names}|navigator\\.(?:storage|locks|serviceWorker))\\b`);
  const isScript = (name) => name.endsWith(".js") && !/(^|\/)(storage|service_worker)\.js$/.test(name);
  const wrong = filesOfPages().filter(([name]) => isScript(name) && !name.includes("vendor"))
    .flatMap(([name, file]) => readFileSync(file, "utf8").split("\n")
      .filter((line) => !/^\s*(\/\/|\*)/.test(line) && storage.test(line.replace(/\/\/ .*$/, "")))
      .map((line) => `${name}: ${line.trim()}`));
  assert.deepEqual(wrong, []);
});

test("NoPageNamesAPathFromTheRootOfItsOrigin", () => {
  const folders = "js|css|wasm|vendor|api|v1|health|weights|worker|join|status|admin|bench|favicon|service_worker";
  const absolute = new RegExp(`["'\`(=]/(?:${folders})\\b`);
  const wrong = filesOfPages().flatMap(([name, file]) => readFileSync(file, "utf8").split("\n")
    .filter((line) => !/^\s*(\/\/|\*)/.test(line) && absolute.test(line.replace(/\/\/ .*$/, "")))
    .map((line) => `${name}: ${line.trim()}`));
  assert.deepEqual(wrong, []);
});

test("the bench page shows the time of a kernel per token", () => {
  assert.equal(msOfToken({ what: "both", ms_token: 4, exec_ms: 3, tokens: 8 }), 4);
  assert.equal(msOfToken({ what: "kernel route", ms_token: 0, exec_ms: 3, tokens: 0 }), 3);
  assert.equal(msOfToken({ what: "prompt kernel route", ms_token: 0, exec_ms: 32, tokens: 64 }), 0.5);
});
