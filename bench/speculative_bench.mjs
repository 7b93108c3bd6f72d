// Measures speculative decoding over links of several round trip times: tokens per second with drafts of several kinds
// by those without, for a hub and one worker on this machine: a native one, or with --tab a tab of Chromium.
//   node bench/speculative_bench.mjs [--model DIR | --shape NAME] [--drafts off,ngram,DIR] [--speculative auto|N]
//     [--rtt-ms 2,5,20] [--users 1,16] [--text FILE] [--prompts N] [--words N] [--ids N] [--tokens N]
//     [--temperature T] [--top-p P] [--hub-args "..."] [--worker-args "..."] [--tab] [--late-share P --late-ms X]
//     [--header]
// off: `serve --speculative off`, the base of all ratios; ngram: --speculative as given; DIR: also with --draft DIR;
// replay@P or replay@P+MS: answers that were given before, each token of them right with the probability P and charged
// with MS milliseconds (replay_hub), for models with random weights. Each prompt is then sent to every hub beforehand.
// A share P [0] of the frames on each line is late by X ms [200] more, and what follows it waits. The line gets its
// round trip time once the worker has loaded its weights and the answers to be drafted have been given.
// Prompts are --words words of FILE each, from --prompts places of it; with --ids, N token ids each, for a package
// without a tokenizer. MOEX_BUILD: build folder [build]. There is a hub, a proxy and a worker per kind of draft, for
// all round trip times. They run alternately, and only one works at a time.
// CSV: see `columns`. tok_s: tokens per second of all users together, from the first token to the last, median of all
// prompts. ratio: median over prompts of tok_s by that of off. tokens_per_step: of all answers. acceptance: accepted by
// drafted tokens. at_N: of drafts that were right before position N, the share that is right there. share: ratio by
// tokens_per_step, which is the ratio if a step took as long with drafts as without. gap_p99_ms: time between two
// tokens that arrive apart. changed: answers whose text is not that of off.
// example: node bench/speculative_bench.mjs --drafts off,ngram,/tmp/int3 --worker-args "--backend cpu" --header
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { farAway } from "./far_away.mjs";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, build, run } = await import("../tests/browser/support/hub.mjs");
const late = () => ({ share: Number(options["late-share"]), ms: Number(options["late-ms"]) });

const columns = "model,rtt_ms,users,draft,tok_s,ratio,tokens_per_step,acceptance,at_0,at_1,at_2,at_3,share," +
  "gap_p99_ms,answers,changed";
const options = {
  "model": "static/models/demo", "shape": "", "drafts": "off,ngram", "speculative": "auto", "rtt-ms": "2,5,20",
  "users": "1", "text": "tests/golden/demo/val_excerpt.txt", "prompts": "20", "words": "40", "ids": "", "tokens": "64",
  "temperature": "0.8", "top-p": "0.95", "hub-args": "", "worker-args": "", "late-share": "0", "late-ms": "200",
};
const in_tab = process.argv.includes("--tab");
if (in_tab) process.argv.splice(process.argv.indexOf("--tab"), 1);
const with_header = readFlags("speculative_bench", options);
const list = (name) => options[name].split(",").filter(Boolean);
const words = (name) => options[name].split(" ").filter(Boolean);
const at = (values, share) => values.toSorted((a, b) => a - b)[Math.floor(values.length * share)] ?? NaN;
const median = (values) => at(values, 0.5);
const figure = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "");

const source = readFileSync(options.text, "utf8").split(/(?<=\s)/);
// As many as the most users that ask at once; fewer users get --prompts of them.
const num_prompts = Number(options.prompts), users_max = Math.max(...list("users").map(Number));
const prompts = Array.from({ length: Math.max(num_prompts, users_max) }, (_, i) => {
  if (options.ids) return Array.from({ length: Number(options.ids) }, (_, k) => (k * 7919 + i * 104729) % 250);
  const first = Math.floor((i * (source.length - Number(options.words))) / Math.max(num_prompts, users_max));
  return source.slice(first, first + Number(options.words)).join("").trimEnd();
});

// Streams one completion. Resolves to its text, and to the arrival times of its events with the tokens of each.
async function stream(side, prompt, seed, max_tokens = Number(options.tokens)) {
  const response = await fetch(`${side.hub.url}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      model: side.model, prompt, seed, max_tokens, temperature: Number(options.temperature),
      top_p: Number(options["top-p"]), stream: true, stream_options: { include_usage: true }, ignore_eos: true,
    }),
  });
  if (!response.ok) throw new Error(await response.text());
  const answer = { text: "", came: [], tokens: 0, moex: null };
  let rest = "";
  for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + bytes).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: {")) continue;
      const event = JSON.parse(line.slice(6));
      answer.moex = event.moex ?? answer.moex;
      answer.tokens = event.usage?.completion_tokens ?? answer.tokens;
      if (!event.choices?.length) continue;
      answer.text += event.choices[0].text;
      answer.came.push(performance.now());
    }
  }
  return answer;
}

async function open(draft) {
  const speculative = draft === "off" ? "off" : options.speculative;
  const [, acceptance, ms = "0"] = /^replay@([\d.]+)(?:\+([\d.]+))?$/.exec(draft) ?? [];
  const program = acceptance ? ["replay_hub", acceptance, ms] : ["moex-hub"];
  const hub = await Hub.start([
    "--model", options.model, "--local-fallback", "off", "--replicas", "1", "--sequences-max", "64",
    "--timeout-ms", "60000", "--round-deadline-s", "300", "--speculative", speculative,
    ...(draft === "off" || draft === "ngram" || acceptance ? [] : ["--draft", draft]), ...words("hub-args"),
  ], { program });
  const line = await farAway(hub.port, 0, late());
  const far = { url: `http://127.0.0.1:${line.address().port}`, join: hub.join };
  const worker = in_tab ? await (await import("./bench_tab.mjs")).startTab(far)
    : await NativeWorker.start(far, ["--budget-mb", "20000", ...words("worker-args")]);
  await hub.until((status) => status.health === "ok", "every expert to have an answerer");
  const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
  return { draft, hub, line, worker, model, learns: Boolean(acceptance) };
}

async function close(side) {
  await side.worker.stop();
  side.line.close();
  await side.hub.remove();
}

async function acceptedAt(side) {
  const text = await (await fetch(`${side.hub.url}/metrics`)).text();
  const value = (name) => Number(text.match(new RegExp(`^${name} (\\S+)$`, "m"))?.[1] ?? 0);
  return {
    drafts: value("moex_spec_decode_num_drafts_total"), drafted: value("moex_spec_decode_num_draft_tokens_total"),
    accepted: value("moex_spec_decode_num_accepted_tokens_total"),
    at: [0, 1, 2, 3].map((i) => value(`moex_spec_decode_num_accepted_tokens_per_pos_total{position="${i}"}`)),
  };
}

// Runs the prompts, `users` at once, on each side in turn.
async function measure(sides, users) {
  for (const side of sides) {
    Object.assign(side, { tok_s: [], gaps: [], texts: [], tokens: 0, steps: 0 });
    side.before = await acceptedAt(side);
  }
  for (let first = 0; first < Math.max(users, num_prompts); first += users)
    for (const side of sides) {
      const answers = await Promise.all(Array.from({ length: users },
        (_, i) => stream(side, prompts[(first + i) % prompts.length], first + i)));
      const begin = Math.min(...answers.map((one) => one.came[0]));
      const end = Math.max(...answers.map((one) => one.came.at(-1)));
      const count = answers.reduce((sum, one) => sum + one.tokens - 1, 0);
      side.tok_s.push((1e3 * count) / (end - begin));
      for (const one of answers) {
        side.texts.push(one.text);
        side.tokens += one.tokens;
        side.steps += one.tokens / (one.moex?.speculative?.tokens_per_step ?? 1);
        for (let i = 1; i < one.came.length; i += 1)
          if (one.came[i] - one.came[i - 1] > 0.5) side.gaps.push(one.came[i] - one.came[i - 1]);
      }
    }
  for (const side of sides) side.after = await acceptedAt(side);
}

function row(side, base, rtt_ms, users) {
  const since = (name) => side.after[name] - side.before[name];
  const right = [since("drafts"), ...side.after.at.map((value, i) => value - side.before.at[i])];
  const ratio = median(side.tok_s.map((value, i) => value / base.tok_s[i]));
  const tokens_per_step = side.tokens / side.steps;
  const draft = side.draft === "off" ? "off" : `${basename(side.draft)} ${options.speculative}`;
  return [
    basename(options.model), rtt_ms, users, draft,
    figure(median(side.tok_s), 2), figure(ratio, 2), figure(tokens_per_step, 2),
    figure(since("accepted") / since("drafted"), 3), ...[0, 1, 2, 3].map((i) => figure(right[i + 1] / right[i], 3)),
    figure(ratio / tokens_per_step, 2), figure(at(side.gaps, 0.99), 1), side.texts.length,
    side.texts.filter((text, i) => text !== base.texts[i]).length,
  ].join(",");
}

const folder = options.shape ? mkdtempSync(join(tmpdir(), "moex-speculative-bench-")) : null;
if (folder) {
  options.model = join(folder, options.shape);
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", options.shape, options.model]);
  if (made.code !== 0) throw new Error(made.stderr);
}
if (with_header) console.log(columns);
const sides = [];
try {
  const opened = await Promise.allSettled(list("drafts").map(open));
  sides.push(...opened.flatMap(({ value }) => value ?? []));
  for (const { reason } of opened) if (reason) throw reason;
  // All sides are asked, so that each has the same prompts in its cache.
  for (const side of sides.some(({ learns }) => learns) ? sides : [])
    await Promise.all(prompts.map((prompt, i) => stream(side, prompt, i)));
  for (const rtt_ms of list("rtt-ms")) {
    for (const side of sides) {
      side.line.set(Number(rtt_ms));
      await stream(side, prompts[0], 0, 8);   // warm-up
    }
    for (const users of list("users").map(Number)) {
      await measure(sides, users);
      for (const side of sides) console.log(row(side, sides[0], rtt_ms, users));
    }
  }
} finally {
  for (const side of sides) await close(side);
  if (folder) rmSync(folder, { recursive: true, force: true });
}
process.exit(0);
