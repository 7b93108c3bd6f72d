#!/usr/bin/env node
// Measures a round trip from a page's worker to the browser's GPU process, for several kinds of requests and of
// keep-alive work, which makes that process look for finished work. This is the lower bound of a round in a tab,
// measured without any code of MoEx.
//   node bench/tab_trip_bench.mjs [--turns 2] [--cell-ms 1000] [--trips scope,map,copy,write,round,work,later]
//                                 [--keep-alive none,write:20+20,write:50+50,empty:50+50] [--browsers 1]
//                                 [--bytes 4096] [--header]
// CSV columns:
//   browser 1 to --browsers: these browsers, each with a GPU process of its own, measure at the same time. node: a
//           client in this process instead of a browser, for socket: what the server itself takes
//   trip    the request. scope: an error scope is pushed and popped, which needs no GPU work; map: 4 KB without a
//           pending write are mapped; copy: 4 KB are copied, then mapped; write: 4 KB are written, copied and mapped;
//           round: 4 KB are written, counted up by a dispatch, copied and mapped, as an expert round does; work: the
//           same with more work for the GPU; later, later_work: the buffer is mapped FIRST us after the submission;
//           socket: 4 KB to a WebSocket server on this machine and back; call: the same, then a round, as a call of
//           experts does. --bytes: instead of 4 KB
//   keep_alive  work that is sent during the round trip, as WHAT:FIRST+THEN: the first piece after FIRST us, the next
//           ones THEN us apart, and from the fourth piece on twice as far apart each time. WHAT is none; write: 4 bytes
//           to a buffer; commands: a command buffer without commands; empty: a submission without command buffers;
//           done: a request for the end of the submitted work; scope: an error scope pushed and popped
//   trips   number of round trips, one after another within --cell-ms; p10_us, p50_us, p90_us and p99_us are over the
//           last four fifths of them
// MOEX_CHROMIUM, MOEX_CHROMIUM_ARGS, MOEX_NPM: the browser and what it needs to find the GPU.
// example: node bench/tab_trip_bench.mjs --header
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

import { readFlags } from "./flags.mjs";

const options = { turns: "2", "cell-ms": "1000", trips: "scope,map,copy,write,round,work,later",
  "keep-alive": "none,write:20+20,write:50+50,empty:50+50", browsers: "1", bytes: "4096" };
const with_header = readFlags("tab_trip_bench", options);
const { launchQuiet } = await import("./bench_browser.mjs");

// Returns p10, p50, p90 and p99 of the last four fifths of `times`. It runs in the worker, too.
function figuresOf(times) {
  const sorted = times.slice(Math.floor(times.length / 5)).sort((a, b) => a - b);
  return [0.1, 0.5, 0.9, 0.99].map((share) => sorted[Math.floor(share * (sorted.length - 1))].toFixed(0));
}

// This function runs in the worker. It measures the round trips that a message names, and answers with rows.
async function measure({ turns, cell_ms, trips: asked, keep_alive, size, echo }) {
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("this browser has no GPU");
  const device = await adapter.requestDevice();
  const { queue } = device;
  const { STORAGE, COPY_DST, COPY_SRC, MAP_READ } = GPUBufferUsage;
  const values = device.createBuffer({ size, usage: STORAGE | COPY_DST | COPY_SRC });
  const answer = device.createBuffer({ size, usage: MAP_READ | COPY_DST });
  const scratch = device.createBuffer({ size: 4, usage: COPY_DST });
  const word = new Uint32Array(1);
  const x = new Uint8Array(size);
  const nothing = [];
  const code = `@group(0) @binding(0) var<storage, read_write> values: array<u32>;
    override times: u32;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
      var value = values[id.x];
      for (var i = 0u; i < times; i++) { value = value * 1664525u + 1013904223u; }
      values[id.x] = value;
    }`;
  const module = device.createShaderModule({ code });
  const kernel = async (times) => {
    const compute = { module, entryPoint: "main", constants: { times } };
    const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute });
    const entries = [{ binding: 0, resource: { buffer: values } }];
    return { pipeline, group: device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }) };
  };
  const [counted, worked] = [await kernel(1), await kernel(6000)];

  const submitCopy = (made) => {
    const encoder = device.createCommandEncoder();
    if (made) {
      const pass = encoder.beginComputePass();
      pass.setPipeline(made.pipeline);
      pass.setBindGroup(0, made.group);
      pass.dispatchWorkgroups(size / 256);
      pass.end();
    }
    encoder.copyBufferToBuffer(values, 0, answer, 0, size);
    queue.submit([encoder.finish()]);
  };
  const map = () => answer.mapAsync(GPUMapMode.READ);
  let ask = null;                                   // called FIRST us behind the submission, for `later`
  const mapLater = () => new Promise((resolve, reject) => { ask = () => map().then(resolve, reject); });
  const unmap = () => { answer.getMappedRange(); answer.unmap(); };
  const socket = new WebSocket(echo);
  socket.binaryType = "arraybuffer";
  await new Promise((resolve, reject) => { [socket.onopen, socket.onerror] = [resolve, reject]; });
  const sendAndHear = () => new Promise((resolve) => {
    socket.onmessage = ({ data }) => resolve(data);
    socket.send(x);
  });
  const call = async () => {
    queue.writeBuffer(values, 0, await sendAndHear());
    submitCopy(counted);
    await map();
  };
  const trips = {
    scope: [() => { device.pushErrorScope("validation"); return device.popErrorScope(); }, () => {}],
    map: [map, unmap],
    copy: [() => { submitCopy(); return map(); }, unmap],
    write: [() => { queue.writeBuffer(values, 0, x); submitCopy(); return map(); }, unmap],
    round: [() => { queue.writeBuffer(values, 0, x); submitCopy(counted); return map(); }, unmap],
    work: [() => { queue.writeBuffer(values, 0, x); submitCopy(worked); return map(); }, unmap],
    later: [() => { queue.writeBuffer(values, 0, x); submitCopy(counted); return mapLater(); }, unmap],
    socket: [sendAndHear, () => {}],
    call: [call, unmap],
    later_work: [() => { queue.writeBuffer(values, 0, x); submitCopy(worked); return mapLater(); }, unmap],
  };
  const ways = {
    none: () => {},
    write: () => queue.writeBuffer(scratch, 0, word),
    commands: () => queue.submit([device.createCommandEncoder().finish()]),
    empty: () => queue.submit(nothing),
    done: () => queue.onSubmittedWorkDone(),
    scope: () => { device.pushErrorScope("validation"); device.popErrorScope(); },
  };

  const channel = new MessageChannel();
  let keepAlive = ways.none, first_ms = 0, then_ms = 0;
  let waits = false, looks = false, next_write = 0, given = 0, given_before = 0;
  channel.port1.onmessage = () => {
    looks = waits;
    if (!waits) return;
    const now = performance.now();
    if (now >= next_write) {
      next_write = now + then_ms * 2 ** Math.max(0, given - 2);
      const due = ask ?? keepAlive;
      if (!ask) given += 1;
      ask = null;
      due();
    }
    channel.port2.postMessage(0);
  };
  const rows = [];
  const partsOf = (way) => /^(\w+)(?::(\d+)\+(\d+))?$/.exec(way) ?? [];
  const unknown = asked.find((trip) => !(trip in trips)) ?? keep_alive.find((way) => !(partsOf(way)[1] in ways));
  if (unknown) throw new Error(`unknown trip or keep-alive work "${unknown}"; see the head of tab_trip_bench.mjs`);
  const cell = async (turn, trip, way) => {
    const [, what, first, then] = partsOf(way);
    [keepAlive, first_ms, then_ms, given_before] = [ways[what], (first ?? 20) / 1000, (then ?? 20) / 1000, 0];
    const [go, finish] = trips[trip];
    const times = [];
    for (const until = performance.now() + cell_ms; performance.now() < until;) {
      const began = performance.now();
      const answered = go();
      [waits, given, next_write] = [true, 0, performance.now() + first_ms];
      if (!looks) channel.port2.postMessage(0);
      looks = true;
      await answered;
      waits = false;
      times.push(1000 * (performance.now() - began));
      given_before += given;
      finish();
    }
    rows.push([turn, trip, way, times.length, ...figuresOf(times), (given_before / times.length).toFixed(2)]);
  };
  for (let turn = 1; turn <= turns; turn += 1)
    for (const trip of asked) for (const way of keep_alive) await cell(turn, trip, way);
  return { adapter: `${adapter.info.vendor} ${adapter.info.description}`.trim(), isolated: crossOriginIsolated, rows };
}

const worker = `${figuresOf}
const measure = ${measure};
onmessage = ({ data }) => measure(data).then((said) => postMessage(said), (error) => postMessage(\`\${error}\`));`;
const files = { "/": ["text/html", "<title>trips</title>"], "/worker.js": ["text/javascript", worker] };
const headers = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

// A server of the page, which sends each message of a WebSocket back.
const require = createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json"));
const { WebSocket: Client, WebSocketServer } = require("ws");
const server = createServer(({ url }, response) => {
  const [type, body] = files[url] ?? ["text/plain", ""];
  response.writeHead(200, { ...headers, "Content-Type": type }).end(body);
});
new WebSocketServer({ server, perMessageDeflate: false })
  .on("connection", (socket) => socket.on("message", (bytes) => socket.send(bytes)));
await new Promise((go) => { server.listen(0, "127.0.0.1", go); });
const origin = `http://127.0.0.1:${server.address().port}`, echo = origin.replace("http", "ws");
const list = (text) => text.split(",").filter(Boolean);
const asked = {
  turns: Number(options.turns), cell_ms: Number(options["cell-ms"]), trips: list(options.trips),
  keep_alive: list(options["keep-alive"]), size: Number(options.bytes), echo,
};

async function measureInBrowser(browser) {
  const page = await browser.newPage();
  page.setDefaultTimeout(0);
  await page.goto(`${origin}/`);
  return page.evaluate((what) => new Promise((done, fail) => {
    const started = new Worker("/worker.js");
    started.onerror = ({ message }) => fail(new Error(message));
    started.onmessage = ({ data }) => (typeof data === "string" ? fail(new Error(data)) : done(data));
    started.postMessage(what);
  }), asked);
}

async function measureHere() {
  const client = new Client(echo, { perMessageDeflate: false });
  await new Promise((go) => { client.on("open", go); });
  const bytes = new Uint8Array(asked.size), times = [];
  for (const until = performance.now() + asked.cell_ms; performance.now() < until;) {
    const began = performance.now();
    const heard = new Promise((go) => { client.once("message", go); });
    client.send(bytes);
    await heard;
    times.push(1000 * (performance.now() - began));
  }
  client.terminate();
  return [1, "socket", "none", times.length, ...figuresOf(times), "0.00"];
}

const browsers = await Promise.all(Array.from({ length: Number(options.browsers) }, () => launchQuiet()));
try {
  const said = await Promise.all(browsers.map(measureInBrowser));
  const [{ adapter, isolated }] = said;
  console.log(`# ${await browsers[0].version()}, ${adapter}${isolated ? "" : "; its clock is coarse"}`);
  if (with_header) console.log("browser,turn,trip,keep_alive,trips,p10_us,p50_us,p90_us,p99_us,keep_alive_per_trip");
  for (const [at, { rows }] of said.entries()) for (const row of rows) console.log([at + 1, ...row].join());
  if (asked.trips.includes("socket")) console.log(["node", ...await measureHere()].join());
} finally {
  await Promise.all(browsers.map((browser) => browser.close()));
  server.close();
  server.closeAllConnections();
}
