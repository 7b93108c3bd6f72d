// Tokens per second with a round trip a layer (experts) and with one round trip for several layers (spans), behind
// delay lines. Two native workers hold the demo's experts, the hub computes none (--local-fallback off).
//   usage: node bench/span_bench.mjs [--rtt 0,5,20,50] [--tokens 48] [--repeat 3]
//   needs build/{moex-hub,moex-worker,delay_line}, or those of the folder in MOEX_BUILD
// Prints a CSV row for each delay: both rates, their ratio, and what the trips alone would take. Both hubs serve at the
// same time, and are asked in turns, so that a busy machine slows both.
import { parseArgs } from "node:util";

import { Hub, NativeWorker, chat } from "../tests/browser/support/hub.mjs";
import { farAway } from "./far_away.mjs";

const { values } = parseArgs({ options: {
  rtt: { type: "string", default: "0,5,20,50" }, tokens: { type: "string", default: "48" },
  repeat: { type: "string", default: "3" },
} });
const tokens = Number(values.tokens);
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

async function swarm(rtt_ms, spans) {
  const hub = await Hub.start(["--local-fallback", "off", "--spans", spans, "--speculative", "off",
    "--timeout-ms", "60000", "--round-deadline-s", "300"]);
  const line = rtt_ms > 0 ? await farAway(hub.port, rtt_ms) : null;
  const near = { url: line ? `http://127.0.0.1:${line.address().port}` : hub.url, join: hub.join };
  const workers = [];
  for (let i = 0; i < 2; ++i) workers.push(await NativeWorker.start(near));
  await hub.until((status) => status.coverage.covered === status.coverage.units, "the experts");
  const ask = async (prompt) => {
    let first = 0, last = 0, count = 0;
    const answer = await chat(hub, { model: "moex-demo", messages: [{ role: "user", content: prompt }],
      temperature: 0, max_tokens: tokens, ignore_eos: true }, () => {
      last = performance.now();
      if (count++ === 0) first = last;
    });
    if (answer.error) throw new Error(JSON.stringify(answer.error));
    return (count - 1) / ((last - first) / 1e3);
  };
  const end = async () => {
    for (const worker of workers) await worker.stop("SIGKILL");
    line?.close();
    await hub.remove();
  };
  return { hub, ask, end };
}

console.log("rtt_ms,experts_tok_s,spans_tok_s,ratio,trips,checks,late,here_ms,away_ms");
for (const rtt_ms of values.rtt.split(",").map(Number)) {
  const plain = await swarm(rtt_ms, "off"), spans = await swarm(rtt_ms, "auto");
  // Let the spans be loaded, checked and measured.
  for (let i = 0; i < 200; ++i) {
    const { spans: { held } } = await spans.hub.status();
    if (held.some(({ proven, away_ms, here_ms }) => proven && away_ms > 0 && here_ms > 0)) break;
    await spans.ask(`Tell me about tree ${i}.`);
  }
  const rates = { plain: [], spans: [] };
  for (let i = 0; i < Number(values.repeat); ++i) {
    const prompt = `Tell me a story about garden number ${i}.`;
    rates.plain.push(await plain.ask(prompt));
    rates.spans.push(await spans.ask(prompt));
  }
  const { spans: counts } = await spans.hub.status();
  const used = counts.held.find(({ used }) => used) ?? counts.held[0] ?? {};
  const [a, b] = [median(rates.plain), median(rates.spans)];
  console.log([rtt_ms, a.toFixed(2), b.toFixed(2), (b / a).toFixed(2), counts.trips, counts.checks, counts.late,
    used.here_ms?.toFixed(2), used.away_ms?.toFixed(2)].join(","));
  await plain.end();
  await spans.end();
}
