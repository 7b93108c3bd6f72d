// Measures one chat through hub and contributors on one machine: tokens per second, the grouped round as the hub sees
// it, bytes on the wire.
//   node bench/serving_bench.mjs [--model DIR | --shape NAME] [--workers native|tab|local] [--num N]
//                                [--prompt N] [--tokens N] [--repeats N] [--header]
// NAME as in `moex-hub synth`. MOEX_BUILD: build folder [build]; MOEX_NPM: npm packages of the tests [build/npm],
// for tabs.
// CSV: see `columns`; tok/s are medians; p50_ms and p99_ms are times of a round; out_kb, in_kb and frames are per
// token. The prompt is N token ids of a fixed sequence. Every run's prompt differs, so that no prefix cache has it.
// example: node bench/serving_bench.mjs --shape bench-moe --workers native --num 1
import { rmSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, build, run } = await import("../tests/browser/support/hub.mjs");

const columns = "model,workers,num,adapter,prompt,tokens,decode_tok_s,prefill_tok_s,p50_ms,p99_ms,out_kb,in_kb," +
  "frames,local_calls";
const options = {
  model: "static/models/demo", shape: "", workers: "native", num: "1", prompt: "128", tokens: "64", repeats: "3",
  timeout: "60000",
};
const with_header = readFlags("serving_bench", options);

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

// Makes a package of random weights in a folder of its own.
async function synth(shape) {
  const folder = mkdtempSync(join(tmpdir(), "moex-serving-bench-"));
  const model = join(folder, shape);
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", shape, model]);
  if (made.code !== 0) throw new Error(made.stderr);
  return { folder, model };
}

function completer(hub, model) {
  return async (seed, max_tokens) => {
    const prompt = Array.from({ length: Number(options.prompt) },
      (_, i) => (i * 7919 + seed * 104729) % 4000 + 100);
    const response = await fetch(`${hub.url}/v1/completions`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model, prompt, max_tokens, temperature: 0, stream: false }),
    });
    const body = await response.json();
    if (!response.ok) throw new Error(JSON.stringify(body));
    return body;
  };
}

// Measures the speed of every repeat, and the network traffic of decoding without that of the prompt.
async function measure(hub, complete) {
  await complete(0, 8);                                         // warm-up

  const speeds = { decode: [], prefill: [] };
  const wire = { out: 0, in: 0, frames: 0, tokens: 0 };
  let calls;
  for (let repeat = 1; repeat <= Number(options.repeats); repeat += 1) {
    const whole = await complete(repeat, Number(options.tokens));
    speeds.decode.push(whole.timings.predicted_per_second);
    speeds.prefill.push(whole.timings.prompt_per_second);

    // Measure the network traffic of decoding without that of the prompt: the same prompt runs twice, once for its
    // first token only, and the traffic of that run is subtracted.
    const before = (await hub.status()).calls;
    const prompt_only = await complete(repeat + 1000, 1);
    const between = (await hub.status()).calls;
    const both = await complete(repeat + 1000, Number(options.tokens));
    calls = (await hub.status()).calls;

    const decoded = (name) => calls[name] - between[name] - (between[name] - before[name]);
    wire.tokens += both.usage.completion_tokens - prompt_only.usage.completion_tokens;
    wire.out += decoded("bytes_sent");
    wire.in += decoded("bytes_received");
    wire.frames += decoded("frames_sent");
  }
  return { speeds, wire, calls };
}

function row({ speeds, wire, calls }, adapter, num) {
  const per_token = (value) => value / Math.max(1, wire.tokens);
  return [
    basename(options.model), options.workers, num, `"${adapter}"`, options.prompt, options.tokens,
    median(speeds.decode).toFixed(1), median(speeds.prefill).toFixed(1),
    calls.p50_ms.toFixed(3), calls.p99_ms.toFixed(3),
    (per_token(wire.out) / 1e3).toFixed(2), (per_token(wire.in) / 1e3).toFixed(2), per_token(wire.frames).toFixed(1),
    calls.local,
  ].join(",");
}

const made = options.shape ? await synth(options.shape) : null;
if (made) options.model = made.model;
const local = options.workers === "local";
const hub = await Hub.start([
  "--model", options.model, "--local-fallback", local ? "on" : "off", "--replicas", options.num,
  "--timeout-ms", options.timeout, "--round-deadline-s", "300", ...(local ? [] : ["--deterministic"]),
]);
const workers = [];
let browser = null;
let adapter = "cpu";
try {
  for (let i = 0; i < Number(options.num) && !local; i += 1) {
    if (options.workers === "native") {
      workers.push(await NativeWorker.start(hub, ["--budget-mb", "4096"]));
      adapter = workers[0].adapter;
    } else {
      const { startTab } = await import("./bench_tab.mjs");
      browser ??= await (await import("./bench_browser.mjs")).launchQuiet();
      const status = await (await startTab(hub, { browser })).status();
      adapter = `${status.adapter.vendor} ${status.adapter.architecture}`;
    }
  }
  await hub.until((status) => status.health === "ok", "every expert to have an answerer");

  const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
  const measured = await measure(hub, completer(hub, model));
  if (with_header) console.log(columns);
  console.log(row(measured, adapter, local ? 0 : options.num));
} finally {
  await browser?.close();
  for (const worker of workers) await worker.stop();
  await hub.remove();
  if (made) rmSync(made.folder, { recursive: true, force: true });
}
