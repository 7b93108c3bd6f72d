// Serves for an hour under chats, joins, leaves and damaged requests, and measures whether the hub grows or slows down.
//   node bench/soak.mjs [--minutes M] [--warm-up-minutes W] [--chats N] [--kv-disk-mb MB] [--seed S] [--header]
// MOEX_HUB, MOEX_WORKER: the programs [build/moex-hub, build/moex-worker]. The hub serves the demo. N [4] users chat
// without a pause, each with prompts of its own; one worker on the processor joins, serves for a few seconds and
// leaves, again and again; one client sends damaged requests: bytes of a valid one changed, cut or repeated.
// The hub keeps MB [256] of pages of prompts on disk. Its index of them takes about 350 bytes of memory a page, 66 kB
// of the demo's, so that its memory grows until the limit is reached: here within the warm-up; with the 8 GB that
// `serve` keeps by default on loopback, after a quarter of an hour and 40 MB.
// CSV, one row a minute: minute; rss_mb, descriptors: of the hub at the end of the minute; chats; chat_p50_ms,
// chat_p99_ms: time of a whole answer of 16 tokens; joins; damaged: damaged requests that were answered or closed.
// After the rows, on stderr: the slope of the memory after the warm-up [5 minutes], by least squares; the largest
// change of descriptors; the drift of the p99 from the first to the second half.
// exit: 1 when a goal is missed: slope under 1 MB an hour, descriptors flat within 16, drift under 5 %, no answer of
// the hub's own fault (5xx other than 501, 503 and 505), and the hub still serves. Times are of a machine without
// other load.
// example: node bench/soak.mjs --header --minutes 60
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { readFlags } from './flags.mjs';

const options = { minutes: '60', 'warm-up-minutes': '5', chats: '4', 'kv-disk-mb': '256', seed: '1' };
const withHeader = readFlags('soak', options);
process.env.MOEX_HUB ??= 'build/moex-hub';
const worker = process.env.MOEX_WORKER ?? 'build/moex-worker';
const { cleanEnvironment, postJson, startHub } = await import('../tests/api/hub_process.mjs');

const minutes = Number(options.minutes), warm_up = Number(options['warm-up-minutes']);
const hub = await startHub(['--threads', '1', '--log-level', 'error',
  '--kv-disk-mb', options['kv-disk-mb']]);
const port = Number(new URL(hub.url).port);
const faults = [];
let stopping = false;

// A generator of pseudo-random numbers in [0, 1): mulberry32.
let seed = Number(options.seed);
function random() {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
const below = (n) => Math.floor(random() * n);

const rssMb = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${hub.pid}/status`, 'utf8'))[1]) / 1024;
const descriptors = () => readdirSync(`/proc/${hub.pid}/fd`).length;
let minute = { chats: [], joins: 0, damaged: 0 };

async function chat(user) {
  for (let turn = 0; !stopping; turn += 1) {
    const begun = performance.now();
    const answer = await postJson(`${hub.api}/chat/completions`, {
      messages: [{ role: 'user', content: `User ${user}, turn ${turn}: ${'tell me a story '.repeat(1 + below(8))}` }],
      max_tokens: 16, ignore_eos: true,
    }).catch(() => null);
    await answer?.text().catch(() => null);
    if (answer?.status === 200) minute.chats.push(performance.now() - begun);
    else if (!stopping) faults.push(`a chat was answered ${answer?.status}`);
  }
}

async function joinAndLeave() {
  while (!stopping) {
    const child = spawn(worker, ['--hub', hub.join, '--backend', 'cpu', '--threads', '1'],
      { env: cleanEnvironment(), stdio: 'ignore' });
    const ended = once(child, 'close');
    await Promise.race([ended, sleep(2000 + below(4000))]);
    child.kill(random() < 0.5 ? 'SIGTERM' : 'SIGKILL');
    await ended;
    minute.joins += 1;
  }
}

const bodies = [
  ['/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }], max_tokens: 1 }],
  ['/v1/completions', { prompt: [1, 2, 3], max_tokens: 1, stop: ['a'], logprobs: 2 }],
  ['/v1/messages', { messages: [{ role: 'user', content: [{ type: 'text', text: 'x' }] }], max_tokens: 1 }],
  ['/api/chat', { messages: [{ role: 'user', content: 'x' }], stream: false, options: { num_predict: 1 } }],
  ['/tokenize', { content: 'The old man' }],
];
function damagedRequest() {
  const [path, body] = bodies[below(bodies.length)];
  let text = JSON.stringify(body);
  for (let changes = 1 + below(3); changes > 0; changes -= 1) {
    const at = below(text.length);
    const middle = [String.fromCharCode(32 + below(95)), '', text.slice(at, at + below(20)).repeat(3)][below(3)];
    text = text.slice(0, at) + middle + text.slice(at + 1);
  }
  const length = Buffer.byteLength(text) + (random() < 0.1 ? below(9) - 4 : 0);
  const request = `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n`
    + `Content-Length: ${Math.max(0, length)}\r\n\r\n${text}`;
  return random() < 0.1 ? request.slice(0, below(request.length)) : request;
}

// Sends one damaged request. Resolves when the hub has closed the connection, or after a second.
function damage() {
  return new Promise((resolve) => {
    let head = '';
    const socket = connect(port, '127.0.0.1', () => socket.write(damagedRequest()));
    const give_up = setTimeout(() => socket.destroy(), 1000);
    socket.setEncoding('latin1').on('data', (text) => { head ||= text.slice(0, 20); }).on('error', () => {});
    socket.on('close', () => {
      clearTimeout(give_up);
      const status = Number(/^HTTP\/1\.1 (\d+)/.exec(head)?.[1] ?? 0);
      if (status >= 500 && ![501, 503, 505].includes(status)) faults.push(`a damaged request was answered ${status}`);
      resolve();
    });
  });
}
async function damageForEver() {
  while (!stopping) {
    await damage();
    minute.damaged += 1;
    await sleep(5);
  }
}

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] ?? NaN;
// Returns the slope of `ys` over their index, by least squares.
function slopeOf(ys) {
  const mean = (list) => list.reduce((sum, one) => sum + one, 0) / list.length;
  const xs = ys.map((_, i) => i), x_mean = mean(xs), y_mean = mean(ys);
  const over = xs.reduce((sum, x, i) => sum + (x - x_mean) * (ys[i] - y_mean), 0);
  return over / xs.reduce((sum, x) => sum + (x - x_mean) ** 2, 0);
}

if (withHeader) console.log('minute,rss_mb,descriptors,chats,chat_p50_ms,chat_p99_ms,joins,damaged');
const users = [joinAndLeave(), damageForEver(), ...Array.from({ length: Number(options.chats) }, (_, i) => chat(i))];
const rows = [];
for (let i = 1; i <= minutes; i += 1) {
  minute = { chats: [], joins: 0, damaged: 0 };
  await Promise.race([sleep(60_000), hub.ended.then((code) => { throw new Error(`hub: ${code}\n${hub.stderr()}`); })]);
  const times = minute.chats.sort((a, b) => a - b);
  const row = { rss: rssMb(), descriptors: descriptors(), p99: quantile(times, 0.99) };
  rows.push(row);
  console.log([i, row.rss.toFixed(1), row.descriptors, times.length, quantile(times, 0.5).toFixed(1),
    row.p99.toFixed(1), minute.joins, minute.damaged].join(','));
}
stopping = true;
await Promise.all(users);
const code = await hub.stop();

const warm = rows.slice(warm_up), half = warm.length >> 1;
const median = (list) => quantile(list.map(({ p99 }) => p99).sort((a, b) => a - b), 0.5);
const slope = slopeOf(warm.map(({ rss }) => rss)) * 60;
const fds = warm.map((row) => row.descriptors), spread = Math.max(...fds) - Math.min(...fds);
const drift = 100 * (median(warm.slice(half)) / median(warm.slice(0, half)) - 1);
console.error(`memory ${slope.toFixed(2)} MB an hour, descriptors within ${spread}, p99 drift ${drift.toFixed(1)} %, `
  + `${faults.length} faults${faults.length ? `, the first: ${faults[0]}` : ''}, exit ${code}`);
process.exitCode = slope < 1 && spread <= 16 && drift < 5 && faults.length === 0 && code === 0 ? 0 : 1;
