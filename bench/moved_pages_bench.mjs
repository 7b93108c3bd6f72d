// Time to the first token of a hub that computes a whole prompt, and of one that takes the prompt's keys and values
// from a client (POST /v1/pages), behind a line with a round trip and a bandwidth. The client sends pages of a second
// hub as a device would have them, in requests of 4 MB; hand_off_bench.mjs --turns adds the time of a GPU's reading.
//   node bench/moved_pages_bench.mjs [--model DIR] [--lines 20:50,1:1000] [--prompts 128,512,900] [--rows f16,u8]
//     [--repeat 3] [--hub-args "ARGS"] [--header]
// A line is RTT in ms : Mbit/s, a prompt its number of tokens. Every prompt is new. MOEX_BUILD: build folder. CSV: see
// `columns`; medians over the repeats.
//   way        hub: it computes all tokens; moved: it takes the pages
//   sent_ms    from the question, what the hub knows, to its last "taken"; 0 with `hub`
//   same       greedy answers of 12 tokens that equal those of a hub that computed all, of all
// example: node bench/moved_pages_bench.mjs --header
import { basename } from "node:path";

import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub } = await import("../tests/browser/support/hub.mjs");
const { devicePages } = await import("../tests/browser/support/kv_pages.mjs");
const { slowLine } = await import("./slow_line.mjs");

const columns = "model,rtt_ms,mbit_per_s,prompt_tokens,way,rows,sent_ms,first_token_ms,bytes,cached_tokens,same";
const options = {
  model: "static/models/demo", lines: "20:50,1:1000", prompts: "128,512,900", rows: "f16,u8", repeat: "3",
  "hub-args": "",
};
const with_header = readFlags("moved_pages_bench", options);
const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];
const sent_bytes_wanted = 2 ** 22;

const args = ["--model", options.model, "--backend", "local", "--speculative", "off",
  ...options["hub-args"].split(" ").filter(Boolean)];
const hub = await Hub.start(args), device = await Hub.start(args);
const line = await slowLine(hub.port);
const near = `http://127.0.0.1:${line.port}`;

async function post(at, path, body, type = "application/json") {
  const response = await fetch(`${at}${path}`, { method: "POST", headers: { "Content-Type": type }, body });
  if (!response.ok) throw new Error(await response.text());
  return response;
}

// Sends the pages that the hub lacks. Resolves to {name, bytes}.
async function send(prompt, pages) {
  const { pages: name, tokens } = await (await post(near, "/v1/pages", JSON.stringify({ prompt }))).json();
  let bytes = 0;
  for (let page = Math.floor(tokens / 128); page < pages.length;) {
    const parts = [];
    for (let size = 0; page < pages.length && size < sent_bytes_wanted; page += 1) {
      const length = Buffer.alloc(4);
      length.writeUInt32LE(pages[page].length);
      parts.push(length, pages[page]);
      size += pages[page].length;
    }
    const body = Buffer.concat(parts);
    await post(near, `/v1/pages/${name}`, body, "application/octet-stream");
    bytes += body.length;
  }
  return { name, bytes };
}

// Asks for an answer as a stream. Resolves to {first_at, text, cached_tokens}.
async function answer(at, prompt, name) {
  const response = await post(at, "/v1/completions", JSON.stringify({
    prompt, max_tokens: 12, temperature: 0, ignore_eos: true, stream: true, stream_options: { include_usage: true },
    moex: name ? { pages: name } : {},
  }));
  let first_at = 0, text = "", rest = "", usage = null;
  for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + part).split("\n");
    rest = lines.pop();
    for (const one of lines) {
      if (!one.startsWith("data: {")) continue;
      const event = JSON.parse(one.slice(6)), fresh = event.choices?.[0]?.text ?? "";
      if (fresh) first_at ||= performance.now();
      text += fresh;
      usage = event.usage ?? usage;
    }
  }
  return { first_at, text, cached_tokens: usage.prompt_tokens_details.cached_tokens };
}

let seed = 0;
async function measure(num_tokens, rows) {
  seed += 1;
  const prompt = Array.from({ length: num_tokens }, (_, i) => (seed * 211 + i * 37) % 4000);
  const pages = rows ? await devicePages(device, prompt, rows) : null;
  const began = performance.now();
  const sent = pages ? await send(prompt, pages) : { bytes: 0 };
  const sent_ms = pages ? performance.now() - began : 0;
  const { first_at, text, cached_tokens } = await answer(near, prompt, sent.name);
  const is_same = text === (await answer(device.url, prompt)).text;
  return { sent_ms, first_ms: first_at - began, bytes: sent.bytes, cached_tokens, is_same };
}

try {
  if (with_header) console.log(columns);
  for (const text of options.lines.split(",")) {
    const [rtt_ms, mbit_per_s] = text.split(":").map(Number);
    line.set({ rtt_ms, mbit_per_s });
    await measure(64, "");      // the first answer of a process is slower
    for (const num_tokens of options.prompts.split(",").map(Number))
      for (const rows of ["", ...options.rows.split(",")]) {
        const found = [];
        for (let i = 0; i < Number(options.repeat); i += 1) found.push(await measure(num_tokens, rows));
        const of = (read) => median(found.map(read));
        console.log([basename(options.model), rtt_ms, mbit_per_s, num_tokens, rows ? "moved" : "hub", rows,
          of(({ sent_ms }) => sent_ms).toFixed(0), of(({ first_ms }) => first_ms).toFixed(0),
          of(({ bytes }) => bytes), of(({ cached_tokens }) => cached_tokens),
          `${found.filter(({ is_same }) => is_same).length}/${found.length}`].join(","));
      }
  }
} finally {
  line.close();
  await hub.remove();
  await device.remove();
}
