// One chat through hub and contributors on one machine: tokens per second, the grouped round as the hub sees it, bytes on the wire.
//   node bench/serving_bench.mjs [--model DIR | --shape NAME] [--workers native|tab|local] [--num N] [--prompt N] [--tokens N] [--repeats N] [--header]
// MOEX_BUILD: build folder [build]; MOEX_NPM: npm packages of the tests [build/npm], for tabs. NAME as in `moex-hub synth`.
// CSV: see `columns`. The prompt is N token ids of a fixed sequence; every run's prompt differs, so nothing is answered from memory.
// example: node bench/serving_bench.mjs --shape bench-moe --workers native --num 1
import { rmSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, build, run } = await import("../tests/browser/support/hub.mjs");

const options = { model: "static/models/demo", shape: "", workers: "native", num: "1", prompt: "128", tokens: "64", repeats: "3", timeout: "60000" };
let with_header = false;
for (let i = 2; i < process.argv.length; i += 1) {
  const name = process.argv[i].replace(/^--/, "");
  if (name === "header") with_header = true;
  else if (name in options && i + 1 < process.argv.length) options[name] = process.argv[i += 1];
  else {
    console.error(`serving_bench: unknown flag ${process.argv[i]}; see the head of bench/serving_bench.mjs`);
    process.exit(2);
  }
}
const columns = "model,workers,num,adapter,prompt_tokens,tokens,decode_tok_s_median,prefill_tok_s_median,round_p50_ms,round_p99_ms,wire_out_kb_per_token,wire_in_kb_per_token,frames_per_token,local_calls";
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

let made = "";
if (options.shape) {
  made = mkdtempSync(join(tmpdir(), "moex-serving-bench-"));
  options.model = join(made, options.shape);
  const synth = await run(join(build, "moex-hub"), ["synth", "--shape", options.shape, options.model]);
  if (synth.code !== 0) throw new Error(synth.stderr);
}
const local = options.workers === "local";
const hub = await Hub.start(["--model", options.model, "--local-fallback", local ? "on" : "off", "--replicas", options.num, "--timeout-ms", options.timeout,
  "--round-deadline-s", "300", ...(local ? [] : ["--deterministic"])]);
const workers = [];
let browser = null;
let adapter = "cpu";
try {
  for (let i = 0; i < Number(options.num) && !local; i += 1) {
    if (options.workers === "native") {
      workers.push(await NativeWorker.start(hub, ["--budget-mb", "4096"]));
      adapter = workers[0].adapter;
    } else {
      const { launch, openTab, serving } = await import("../tests/browser/support/tab.mjs");
      browser ??= await launch();
      const status = await serving(await openTab(await browser.newContext(), hub.join));
      adapter = `${status.adapter.vendor} ${status.adapter.architecture}`;
    }
  }
  await hub.until((status) => status.health === "ok", "every expert to have an answerer");
  const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
  const complete = async (seed, max_tokens) => {
    const prompt = Array.from({ length: Number(options.prompt) }, (_, i) => (i * 7919 + seed * 104729) % 4000 + 100);
    const response = await fetch(`${hub.url}/v1/completions`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ model, prompt, max_tokens, temperature: 0, stream: false }),
    });
    const body = await response.json();
    if (!response.ok) throw new Error(JSON.stringify(body));
    return body;
  };
  await complete(0, 8);                                       // warm
  const decode = [];
  const prefill = [];
  const wire = { out: 0, in: 0, frames: 0, tokens: 0 };
  let calls;
  for (let repeat = 1; repeat <= Number(options.repeats); repeat += 1) {
    const whole = await complete(repeat, Number(options.tokens));
    decode.push(whole.timings.predicted_per_second);
    prefill.push(whole.timings.prompt_per_second);
    // Decoding alone: the same prompt with one token taken away from the count.
    const before = (await hub.status()).calls;
    const prompt_only = await complete(repeat + 1000, 1);
    const between = (await hub.status()).calls;
    const both = await complete(repeat + 1000, Number(options.tokens));
    calls = (await hub.status()).calls;
    const tokens = both.usage.completion_tokens - prompt_only.usage.completion_tokens;
    wire.tokens += tokens;
    wire.out += calls.bytes_sent - between.bytes_sent - (between.bytes_sent - before.bytes_sent);
    wire.in += calls.bytes_received - between.bytes_received - (between.bytes_received - before.bytes_received);
    wire.frames += calls.frames_sent - between.frames_sent - (between.frames_sent - before.frames_sent);
  }
  const per_token = (value) => (value / Math.max(1, wire.tokens));
  if (with_header) console.log(columns);
  console.log([basename(options.model), options.workers, local ? 0 : options.num, `"${adapter}"`, options.prompt, options.tokens, median(decode).toFixed(1), median(prefill).toFixed(1),
    calls.p50_ms.toFixed(3), calls.p99_ms.toFixed(3), (per_token(wire.out) / 1e3).toFixed(2), (per_token(wire.in) / 1e3).toFixed(2), per_token(wire.frames).toFixed(1), calls.local].join(","));
} finally {
  await browser?.close();
  for (const worker of workers) await worker.stop();
  await hub.remove();
  if (made) rmSync(made, { recursive: true, force: true });
}
