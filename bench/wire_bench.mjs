// Measures the dtype of rows on the wire: the perplexity of the demo's text, scored through a hub and one worker on the
// processor, and the bytes per token in each direction.
//   node bench/wire_bench.mjs [--model DIR] [--text FILE] [--windows N] [--arithmetic exact|int8] [--wire-dtype DTYPE]
//                             [--header]
// MOEX_BUILD: build folder [build]. Measures each dtype of x with answers in f16, without and with LZ4 (`serve --lz4`).
// --wire-dtype f32|bf16|int8: measures x and answers in this dtype instead, also without LZ4 and with it.
// CSV: see `columns`; `of_f16` is the perplexity divided by the perplexity with x in f16, empty where that was not
// measured; `us_per_token` is the time of scoring a token, hub and worker together on this machine.
// example: node bench/wire_bench.mjs --arithmetic exact --header
import { readFileSync } from "node:fs";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker } = await import("../tests/browser/support/hub.mjs");

const columns = "worker,x,y,lz4,windows,perplexity,of_f16,bytes_out_per_token,bytes_in_per_token,us_per_token";
const window_tokens = 512;
const options = {
  model: "static/models/demo", text: "tests/golden/demo/val_excerpt.txt", windows: "24", arithmetic: "int8",
  "wire-dtype": "f16",
};
const with_header = readFlags("wire_bench", options);

async function ask(hub, path, body) {
  const response = await fetch(`${hub.url}${path}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(JSON.stringify(answer));
  return answer;
}

async function measure(x, lz4) {
  const hub = await Hub.start(["--model", options.model, "--local-fallback", "off", "--replicas", "1",
    "--timeout-ms", "60000", "--round-deadline-s", "300", "--prefix-cache", "off", "--wire-x", x,
    "--wire-dtype", options["wire-dtype"], ...(lz4 ? ["--lz4"] : [])]);
  let worker = null;
  try {
    worker = await NativeWorker.start(hub, ["--backend", "cpu", "--arithmetic", options.arithmetic]);
    const begun = (await hub.until((status) => status.health === "ok", "the worker")).workers[0];
    const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
    const { tokens } = await ask(hub, "/tokenize", { content: readFileSync(options.text, "utf8") });

    let nll = 0;
    const started = performance.now();
    let count = 0;
    const num_windows = Math.min(Number(options.windows), Math.floor(tokens.length / window_tokens));
    for (let i = 0; i < num_windows; i += 1) {
      const prompt = tokens.slice(i * window_tokens, (i + 1) * window_tokens);
      const { choices } = await ask(hub, "/v1/completions", { model, prompt, max_tokens: 0, echo: true, logprobs: 0 });
      const scores = choices[0].logprobs.token_logprobs.filter((score) => score !== null);
      nll -= scores.reduce((sum, score) => sum + score, 0);
      count += scores.length;
    }
    const ended = performance.now();
    const { bytes_sent, bytes_received } = (await hub.status()).workers[0];
    const rows = num_windows * window_tokens;
    return {
      num_windows, perplexity: Math.exp(nll / count), out: (bytes_sent - begun.bytes_sent) / rows,
      in: (bytes_received - begun.bytes_received) / rows, us: 1000 * (ended - started) / rows,
    };
  } finally {
    await worker?.stop();
    await hub.remove();
  }
}

if (with_header) console.log(columns);
const dtype = options["wire-dtype"];
let of = 0;
for (const x of dtype === "f16" ? ["wire", "int8"] : ["wire"]) {
  for (const lz4 of [false, true]) {
    const found = await measure(x, lz4);
    of ||= found.perplexity;
    console.log([options.arithmetic, x === "wire" ? dtype : x, dtype, lz4 ? "on" : "off", found.num_windows,
      found.perplexity.toFixed(4), dtype === "f16" ? (found.perplexity / of).toFixed(5) : "", found.out.toFixed(0),
      found.in.toFixed(0), found.us.toFixed(0)].join(","));
  }
}
