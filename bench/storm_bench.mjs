// Stops a hub with a thousand connected workers and starts it again. Measures the time until all workers are back, the
// hub's processor time for it, and the latency of users who chat meanwhile.
//   node bench/storm_bench.mjs [--workers N] [--users U] [--back-within S] [--header]
// MOEX_BUILD: where moex-hub and tests/support/lying_worker are [build]. The workers are connections of one process,
// each with a key of its own. They compute honestly and reconnect after a random delay of 0.5 to S [30] seconds, again
// and again, as tabs do. The hub serves the demo with a local backend. Users request 16 tokens one after the other,
// from the hub's ready line on.
// CSV: see the header. all_back_s: time from the hub's end, and from its ready line, to the last WELCOME; cpu_*: the
// hub's processor time in that period, in cores, and in a period of equal length with users alone; p99_ms of a user's
// answers in the storm and before it; failed: answers other than 200.
// exit: 1 when a goal is missed (all back in S + 5 s, less than one core for the storm, no failed answer)
// example: node bench/storm_bench.mjs --header
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { build, Hub } from '../tests/browser/support/hub.mjs';
import { readFlags } from './flags.mjs';

const options = { workers: '1000', users: '2', 'back-within': '30' };
const withHeader = readFlags('storm_bench', options);
const serve = ['--threads', '1', '--workers-per-address', options.workers, '--connections-per-address', '100000',
  '--log-level', 'error'];

// Returns the processor time that a process has used so far, in seconds.
function cpuSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

// Starts the workers. `allIn()` resolves when all workers have received WELCOME, to the time of the last WELCOME.
function startCrowd(hub) {
  const child = spawn(join(build, 'tests/support/lying_worker'), [hub.url, 'static/models/demo', 'none', '--key',
    'of-the-crowd', '--count', options.workers, '--back-within', options['back-within']], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, MOEX_TOKEN: new URL(hub.join).hash.split('token=')[1] },
  });
  let wake = () => {};
  child.stdout.setEncoding('utf8').on('data', (text) => { if (text.includes('welcomed')) wake(performance.now()); });
  return { child, allIn: () => new Promise((resolve) => { wake = resolve; }) };
}

// Runs users that chat until they are stopped. Records the time of each answer in ms and the number of failures.
function startUsers(hub) {
  const users = { took: [], failed: 0, running: true };
  const body = JSON.stringify({ prompt: 'Once upon a time', max_tokens: 16, temperature: 0 });
  const ask = async () => {
    while (users.running) {
      const begun = performance.now();
      const response = await fetch(`${hub.url}/v1/completions`,
        { method: 'POST', headers: { 'content-type': 'application/json' }, body }).catch(() => null);
      const answer = await response?.json().catch(() => null);
      if (response?.status === 200 && answer?.choices) users.took.push(performance.now() - begun);
      else ++users.failed;
    }
  };
  const asking = Array.from({ length: Number(options.users) }, ask);
  users.stop = async () => {
    users.running = false;
    await Promise.all(asking);
    users.took.sort((a, b) => a - b);
    return users;
  };
  return users;
}
const p99 = ({ took }) => took[Math.min(took.length - 1, Math.floor(took.length * 0.99))];

// Measures users and the hub's processor time until `end` resolves.
async function measure(hub, end) {
  const begun = performance.now(), cpu = cpuSeconds(hub.child.pid);
  const users = startUsers(hub);
  await end;
  const seconds = (performance.now() - begun) / 1000, cores = (cpuSeconds(hub.child.pid) - cpu) / seconds;
  return { ...await users.stop(), seconds, cores };
}

let hub = await Hub.start(serve);
const crowd = startCrowd(hub);
await crowd.allIn();
await sleep(2000);
const before = await measure(hub, sleep(10_000));

const all_back = crowd.allIn();
const stopped = performance.now();
hub = await hub.restart();
const ready = performance.now();
const storm = await measure(hub, all_back);
const back = await all_back;

const after = await measure(hub, sleep(10_000));
const { calls } = await hub.status();
crowd.child.kill();
await hub.remove();

const from_end_s = (back - stopped) / 1000, from_ready_s = (back - ready) / 1000;
const storm_cores = storm.cores - Math.min(before.cores, after.cores);
if (withHeader)
  console.log('workers,users,all_back_s,after_ready_s,cpu_storm,cpu_before,cpu_after,answers,failed,p99_storm_ms,' +
    'p99_before_ms,p99_after_ms,rounds_failed');
console.log([options.workers, options.users, from_end_s.toFixed(1), from_ready_s.toFixed(1), storm.cores.toFixed(2),
  before.cores.toFixed(2), after.cores.toFixed(2), storm.took.length, storm.failed, p99(storm).toFixed(0),
  p99(before).toFixed(0), p99(after).toFixed(0), calls.rounds_failed].join(','));
const holds = from_ready_s <= Number(options['back-within']) + 5 && storm_cores < 1 && storm.failed === 0;
process.exit(holds ? 0 : 1);
