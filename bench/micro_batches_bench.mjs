// Measures steps in micro-batches over links of several round trip times: tokens per second of a hub and one native
// worker on this machine, for each number of micro-batches (`moex-hub serve --micro-batches`).
//   node bench/micro_batches_bench.mjs [--model DIR | --shape NAME] [--rtt-ms 0,2,20] [--ways 1,2,auto]
//     [--users 1,16,64] [--prompt N] [--tokens N] [--prefill N] [--waves N] [--hub-args "..."] [--worker-args "..."]
//     [--header]
// NAME as in `moex-hub synth`. MOEX_BUILD: build folder [build]. For each round trip time there is a hub, a proxy and a
// worker per number of micro-batches. They run alternately, wave by wave, and only one works at a time. A round trip
// time of 2+2+20 means three workers, each behind its own proxy, that share the experts (--budget-mb of --worker-args
// keeps one worker from holding all experts).
// CSV: see `columns`. kind: decode, with `users` streams at once, or prefill, one prompt of --prefill tokens. tok_s:
// tokens per second of all users together, median of the waves. chosen: number of micro-batches of the last step; cut:
// share of steps with several micro-batches. echo_ms: p50 of the time that 4 KB take to the proxy's other side and
// back, while a single stream runs; bound_ms: echo_ms for each layer, plus 30 ms. Parts of a layer's time: hub_ms is
// the hub's own time between two rounds of uncut steps; group_ms the time from a group's frame to its answer, worker_ms
// its part inside the worker, gpu_ms the part of that on the GPU; all are means of the last 64 groups.
// example: node bench/micro_batches_bench.mjs --shape bench-moe --worker-args "--backend cpu"
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { farAway } from "./far_away.mjs";
import { readFlags } from "./flags.mjs";

process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, build, run } = await import("../tests/browser/support/hub.mjs");

const columns = "model,rtt_ms,kind,users,way,tok_s,ttft_ms,tpot_p50_ms,tpot_p99_ms,chosen,cut,echo_ms,bound_ms," +
  "hub_ms,group_ms,worker_ms,gpu_ms";
const options = {
  "model": "static/models/demo", "shape": "", "rtt-ms": "0,2,20", "ways": "1,2,auto", "users": "1,16,64",
  "prompt": "16", "tokens": "32", "prefill": "256", "waves": "5", "hub-args": "", "worker-args": "",
};
const with_header = readFlags("micro_batches_bench", options);
const list = (name) => options[name].split(",").filter(Boolean);
const words = (name) => options[name].split(" ").filter(Boolean);
const at = (values, share) => values.toSorted((a, b) => a - b)[Math.floor(values.length * share)] ?? NaN;
const median = (values) => at(values, 0.5);
const figure = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "");

// Streams one completion. Resolves to the arrival times of its tokens, counted from the request.
async function stream(hub, model, seed, prompt_tokens, tokens) {
  const prompt = Array.from({ length: prompt_tokens }, (_, i) => (i * 7919 + seed * 104729) % 4000 + 100);
  const began = performance.now();
  const response = await fetch(`${hub.url}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, prompt, max_tokens: tokens, temperature: 0, stream: true, ignore_eos: true }),
  });
  if (!response.ok) throw new Error(await response.text());
  const came = [];
  for await (const bytes of response.body.pipeThrough(new TextDecoderStream()))
    for (const line of bytes.split("\n"))
      if (line.startsWith("data: {")) came.push(performance.now() - began);
  return came;
}

// Measures the time that 4 KB take to the other side of a proxy and back, until `ended()`.
async function echoes(port, ended) {
  const socket = connect(port, "127.0.0.1");
  socket.setNoDelay(true);
  await new Promise((resolve) => socket.once("connect", resolve));
  const took = [];
  while (!ended()) {
    const began = performance.now();
    await new Promise((resolve) => {
      let missing = 4096;
      const hear = (bytes) => {
        missing -= bytes.length;
        if (missing > 0) return;
        socket.off("data", hear);
        resolve();
      };
      socket.on("data", hear);
      socket.write(Buffer.alloc(4096, 7));
    });
    took.push(performance.now() - began);
  }
  socket.destroy();
  return took;
}

async function open(rtt_ms, way) {
  const hub = await Hub.start([
    "--model", options.model, "--local-fallback", "off", "--replicas", "1", "--sequences-max", "64",
    "--timeout-ms", "60000", "--round-deadline-s", "300", "--micro-batches", way, ...words("hub-args"),
  ]);
  const lines = await Promise.all(rtt_ms.split("+").map((one) => farAway(hub.port, Number(one))));
  const workers = await Promise.all(lines.map((line) => NativeWorker.start(
    { url: `http://127.0.0.1:${line.address().port}`, join: hub.join },
    [...(options["worker-args"].includes("--budget-mb") ? [] : ["--budget-mb", "20000"]), ...words("worker-args")])));
  await hub.until((status) => status.health === "ok", "every expert to have an answerer");
  const model = (await (await fetch(`${hub.url}/v1/models`)).json()).data[0].id;
  return { way, hub, lines, workers, model, seed: 1 };
}

// Runs waves of `users` streams, one wave for each number of micro-batches in turn.
async function measure(sides, users, prompt, tokens) {
  for (const side of sides) Object.assign(side, { tok_s: [], ttft: [], gaps: [], before: await side.hub.status() });
  for (let wave = 0; wave < Number(options.waves); wave += 1)
    for (const side of sides) {
      const began = performance.now();
      const streams = await Promise.all(Array.from({ length: users },
        () => stream(side.hub, side.model, side.seed += 1, prompt, tokens)));
      const took_s = (performance.now() - began) / 1e3;
      const count = tokens === 1 ? prompt : streams.reduce((sum, came) => sum + came.length, 0);
      side.tok_s.push(count / took_s);
      side.ttft.push(median(streams.map((came) => came[0])));
      for (const came of streams) for (let i = 1; i < came.length; i += 1) side.gaps.push(came[i] - came[i - 1]);
    }
  for (const side of sides) side.after = await side.hub.status();
}

function row(side, rtt_ms, kind, users, echo_ms) {
  const { engine: after, ...status } = side.after, before = side.before.engine;
  const steps = after.steps - before.steps, { num_layers } = status.model, { split } = status.calls;
  const cut = (after.steps_micro_batched - before.steps_micro_batched) / steps;
  const own_s = after.steps_s - before.steps_s - (after.experts_waited_s - before.experts_waited_s);
  return [
    basename(options.model), rtt_ms, kind, users, side.way, figure(median(side.tok_s), 1), figure(median(side.ttft), 1),
    figure(median(side.gaps), 2), figure(at(side.gaps, 0.99), 2), after.micro_batches, figure(cut, 2),
    figure(echo_ms, 3), figure(num_layers * echo_ms + 30, 1),
    figure(cut === 0 ? 1e3 * own_s / steps / num_layers : NaN, 3),
    figure(split.group_ms, 3), figure(split.worker_ms, 3), figure(split.gpu_ms, 3),
  ].join(",");
}

const folder = options.shape ? mkdtempSync(join(tmpdir(), "moex-micro-batches-bench-")) : null;
if (folder) {
  options.model = join(folder, options.shape);
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", options.shape, options.model]);
  if (made.code !== 0) throw new Error(made.stderr);
}
const echo = createServer((socket) => socket.setNoDelay(true).on("error", () => {}).pipe(socket));
await new Promise((resolve) => echo.listen(0, "127.0.0.1", resolve));
if (with_header) console.log(columns);
try {
  for (const rtt_ms of list("rtt-ms")) {
    const sides = [], echo_line = await farAway(echo.address().port, Number(rtt_ms.split("+")[0]));
    try {
      for (const way of list("ways")) sides.push(await open(rtt_ms, way));
      for (const side of sides) await stream(side.hub, side.model, 0, Number(options.prompt), 8);   // warm-up
      for (const users of list("users").map(Number)) {
        let ended = false;
        const beside = users === 1 ? echoes(echo_line.address().port, () => ended) : [];
        await measure(sides, users, Number(options.prompt), Number(options.tokens));
        ended = true;
        const echo_ms = median(await beside);
        for (const side of sides) console.log(row(side, rtt_ms, "decode", users, echo_ms));
      }
      if (Number(options.prefill) === 0) continue;
      await measure(sides, 1, Number(options.prefill), 1);
      for (const side of sides) console.log(row(side, rtt_ms, "prefill", 1, NaN));
    } finally {
      for (const side of sides) {
        await Promise.all(side.workers.map((worker) => worker.stop()));
        for (const line of side.lines) line.close();
        await side.hub.remove();
      }
      echo_line.close();
    }
  }
} finally {
  echo.close();
  if (folder) rmSync(folder, { recursive: true, force: true });
}
process.exit(0);
