// Sends a hub more requests than it can answer, and measures its goodput and the latency of its refusals.
//   node bench/overload_bench.mjs [--times X] [--seconds S] [--queue-max N] [--threads T] [--header]
// MOEX_HUB: the program [build/moex-hub]. The hub computes the demo itself. First it serves as many users as it runs at
// once, plus half of its queue; each user sends its next request when its answer is complete. This rate is the peak.
// Then requests arrive at X [5] times that rate, whatever the hub returns. Then the peak is measured again, and the
// larger of the two peaks counts. Each request is for 16 tokens behind a prompt of its own.
// CSV: see the header. peak, goodput: complete answers a second, at the peak and in the overload; refused: number of
// replies 429; refusal_*_ms: time until the client, which shares the processors with the hub, received the refusal;
// hub_p99_ms: the p99 of this time in the hub's own log; without_retry_after: refusals without a Retry-After header;
// other: replies that were neither an answer nor 429; waiting_most: the longest queue, from ten samples a second;
// rss_mb: the hub's memory at the end of the peak, halfway through the overload and at its end; hub_cores_*: the hub's
// processor time a second at the peak and in the overload; cpu_ms_*: that time per answer, including refusals. If
// goodput and the hub's cores fall together, other processes took the processors. If the time per answer grows, the
// refusals are the cost.
// exit: 1 when a goal is missed (goodput 0.9 of the peak; refusals' p99 under 50 ms, each with Retry-After; the queue
// within N; no other answers; memory at the end within 5 % of halfway)
// example: node bench/overload_bench.mjs --header
import { readFileSync } from 'node:fs';
import { Agent, request as httpRequest } from 'node:http';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { readFlags } from './flags.mjs';

const options = { times: '5', seconds: '20', 'queue-max': '32', threads: '1' };
const withHeader = readFlags('overload_bench', options);
process.env.MOEX_HUB ??= 'build/moex-hub';
const { startHub, temporaryFolder } = await import('../tests/api/hub_process.mjs');

const running_max = 8, num_users = running_max + (Number(options['queue-max']) >> 1);
const folder = temporaryFolder(), log = join(folder.path, 'access.log');
const hub = await startHub(['--backend', 'local', '--threads', options.threads, '--sequences-max', String(running_max),
  '--queue-max', options['queue-max'], '--connections-per-address', '100000', '--access-log', log,
  '--log-level', 'error']);
const agent = new Agent({ keepAlive: true, maxSockets: Infinity });
const rssMb = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${hub.pid}/status`, 'utf8'))[1]) / 1024;

// Returns the processor time that the hub has used so far, in seconds.
function cpuSeconds() {
  const fields = readFileSync(`/proc/${hub.pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

let num_asked = 0;
// Sends one request. Resolves to { status, retry_after, ms }.
function ask() {
  const body = JSON.stringify({ prompt: `Story ${++num_asked}: once upon a time`, max_tokens: 16, temperature: 0,
    ignore_eos: true });
  const begun = performance.now();
  return new Promise((resolve) => {
    const lost = () => resolve({ status: 0, ms: performance.now() - begun });
    const sent = httpRequest(`${hub.url}/v1/completions`, { method: 'POST', agent,
      headers: { 'content-type': 'application/json', 'content-length': body.length } }, (answer) => {
      const ms = performance.now() - begun;
      answer.resume().on('error', lost).on('end', () => {
        resolve({ status: answer.statusCode, retry_after: answer.headers['retry-after'], ms });
      });
    });
    sent.on('error', lost);
    sent.end(body);
  });
}

async function peak(seconds) {
  const until = performance.now() + seconds * 1000, cpu_before = cpuSeconds();
  let done = 0;
  const user = async () => {
    while (performance.now() < until) {
      const { status } = await ask();
      if (status !== 200) throw new Error(`answered ${status} at the peak`);
      done += performance.now() < until;
    }
  };
  await Promise.all(Array.from({ length: num_users }, user));
  return { rate: done / seconds, cores: (cpuSeconds() - cpu_before) / seconds };
}

async function overload(rate, seconds) {
  const found = { done: 0, refused: [], lacking: 0, other: 0, waiting_most: 0, rss_half: 0 };
  const begun = performance.now(), until = begun + seconds * 1000, cpu_before = cpuSeconds();
  const open = new Set();
  const one = async () => {
    const { status, retry_after, ms } = await ask();
    if (status === 429) {
      found.refused.push(ms);
      found.lacking += !(Number(retry_after) > 0);
    } else if (status === 200) {
      found.done += performance.now() < until;
    } else {
      ++found.other;
    }
  };
  const look = async () => {
    while (performance.now() < until) {
      const { engine } = await (await fetch(`${hub.url}/api/status`)).json();
      found.waiting_most = Math.max(found.waiting_most, engine.waiting);
      if (found.rss_half === 0 && performance.now() > (begun + until) / 2) found.rss_half = rssMb();
      await sleep(100);
    }
  };
  const looking = look();
  for (let sent = 0; performance.now() < until; await sleep(2))
    for (; sent < rate * (performance.now() - begun) / 1000; ++sent) {
      const asked = one().finally(() => open.delete(asked));
      open.add(asked);
    }
  found.rss_end = rssMb();
  found.cores = (cpuSeconds() - cpu_before) / seconds;
  await looking;
  await Promise.all(open);
  found.refused.sort((a, b) => a - b);
  return { ...found, goodput: found.done / seconds };
}

const seconds = Number(options.seconds);
await peak(3);                                                 // warm-up
const before = await peak(seconds), rss_peak = rssMb();
const over = await overload(before.rate * Number(options.times), seconds);
const after = await peak(seconds), best_of = after.rate > before.rate ? after : before, best = best_of.rate;
await hub.stop();
const by_hub = [...readFileSync(log, 'utf8').matchAll(/status=429 .*?ms=([0-9.]+)/g)].map(([, ms]) => Number(ms));
folder.remove();

const of = (values, share) => values[Math.min(values.length - 1, Math.floor(values.length * share))] ?? 0;
const at = (share) => of(over.refused, share);
by_hub.sort((a, b) => a - b);
if (withHeader)
  console.log('times,peak,goodput,of_peak,refused,refusal_p50_ms,refusal_p99_ms,refusal_max_ms,hub_p99_ms,' +
    'without_retry_after,other,queue_max,waiting_most,rss_peak_mb,rss_half_mb,rss_end_mb,' +
    'hub_cores_peak,hub_cores_over,cpu_ms_peak,cpu_ms_over');
const refusals = [at(0.5), at(0.99), at(1), of(by_hub, 0.99)].map((ms) => ms.toFixed(1));
const memory = [rss_peak, over.rss_half, over.rss_end].map((mb) => mb.toFixed(0));
const cpu = [best_of.cores.toFixed(2), over.cores.toFixed(2), (1000 * best_of.cores / best).toFixed(2),
  (1000 * over.cores / over.goodput).toFixed(2)];
console.log([options.times, best.toFixed(1), over.goodput.toFixed(1), (over.goodput / best).toFixed(3),
  over.refused.length, ...refusals, over.lacking, over.other, options['queue-max'], over.waiting_most,
  ...memory, ...cpu].join(','));
const holds = over.goodput >= 0.9 * best && at(0.99) < 50 && over.lacking === 0 && over.other === 0 &&
  over.waiting_most <= Number(options['queue-max']) && over.rss_end <= 1.05 * over.rss_half;
process.exit(holds ? 0 : 1);
