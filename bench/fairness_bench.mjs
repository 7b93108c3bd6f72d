// Measures how much one client that stays just inside every limit slows the other clients. Measures ordinary chats of
// several users, alone and beside that client.
//   node bench/fairness_bench.mjs [--users N] [--seconds S] [--pause MS] [--model DIR] [--header]
// MOEX_HUB: the program [build/moex-hub]. The hub runs behind a proxy on loopback (--trusted-proxy), so that each
// client has an address of its own and the limits of remote clients. The greedy client sends one of five bodies of a
// megabyte as fast as the hub accepts it, and retries when Retry-After allows. It is a process of its own, which runs
// this file with `--press URL BODY SECONDS`. Users chat for 8 tokens, then pause.
// CSV: see `columns`. ratio: p99 beside the greedy client over p99 alone, both measured in this run; the goal is 2.
// example: node bench/fairness_bench.mjs --seconds 20 --header
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { request as httpRequest, Agent } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { readFlags } from './flags.mjs';

process.env.MOEX_HUB ??= 'build/moex-hub';
const options = { users: '3', seconds: '20', pause: '100', model: 'static/models/demo' };
const pressing = process.argv[2] === '--press' ? process.argv.slice(3) : null;
const withHeader = readFlags('fairness_bench', options, pressing ? [] : process.argv.slice(2));
process.env.MOEX_MODEL = options.model;
const { startHub } = await import('../tests/api/hub_process.mjs');

const key = 'bench-key-0123456789abcdef';
// The largest text that, with the JSON around it, stays within the hub's limit on bodies.
const megabyte = (1 << 20) - 4096;
const repeated = (part) => part.repeat(Math.floor(megabyte / Buffer.byteLength(part)));
const chat = (messages, more = {}) => JSON.stringify({ messages, max_tokens: 1, temperature: 0, ...more });
const user = (content) => ({ role: 'user', content });
const bodies = {
  'two-byte characters': ['/tokenize', JSON.stringify({ content: repeated('é') })],
  'one word': ['/tokenize', JSON.stringify({ content: repeated('a'), with_pieces: true })],
  'deep JSON': ['/v1/chat/completions', chat([user('Hi')], {
    metadata: JSON.parse('['.repeat(60) + '1' + ']'.repeat(60)),
    more: JSON.parse(`[${'[[1]],'.repeat(120_000)}1]`) })],
  'many messages': ['/v1/chat/completions', chat(Array.from({ length: 4096 }, () => user('Hello there. '.repeat(15))))],
  'many stop strings': ['/v1/chat/completions', chat([user('The sea was '.repeat(80_000))], {
    stop: ['a', 'b', 'c', 'd'].map((c) => c.repeat(1024)) })],
};

// Sends one POST as a client whose address is `address`. Resolves to { status, retry_s }.
const agent = new Agent({ keepAlive: true });
function post(url, address, path, body) {
  return new Promise((resolve, reject) => {
    const headers = {
      'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body),
      Authorization: `Bearer ${key}`, 'X-Forwarded-For': address,
    };
    const sent = httpRequest(url + path, { method: 'POST', agent, headers }, (answer) => {
      answer.resume();
      answer.on('end', () => {
        resolve({ status: answer.statusCode, retry_s: Number(answer.headers['retry-after'] ?? 0) });
      });
    });
    sent.on('error', reject);
    sent.end(body);
  });
}

async function chatUntil(hub, address, until, took) {
  const body = chat([user('Tell me a story about the sea')], { max_tokens: 8 });
  while (performance.now() < until) {
    const begun = performance.now();
    const { status } = await post(hub.url, address, '/v1/chat/completions', body);
    if (status !== 200) throw new Error(`a user's chat was answered ${status}`);
    took.push(performance.now() - begun);
    await sleep(Number(options.pause));
  }
}

// The loop of the greedy client. It keeps four requests in flight. After a 429 it waits exactly as long as Retry-After
// says.
async function pressUntil(url, [path, body], until) {
  const counts = { taken: 0, refused: 0 };
  const press = async () => {
    while (performance.now() < until) {
      const { status, retry_s } = await post(url, '203.0.113.66', path, body);
      counts[status === 429 || status === 503 ? 'refused' : 'taken'] += 1;
      const left = Math.max(0, until - performance.now());
      if (retry_s > 0) await sleep(Math.min(retry_s * 1000, left));
    }
  };
  await Promise.all([press(), press(), press(), press()]);
  return counts;
}

// Runs the greedy client in a process of its own, so that its traffic does not block the event loop of the users.
async function pressApart(url, name, seconds) {
  const child = spawn(process.execPath, [fileURLToPath(import.meta.url), '--press', url, name, String(seconds)],
    { stdio: ['ignore', 'pipe', 'inherit'] });
  let said = '';
  child.stdout.on('data', (piece) => { said += piece; });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the greedy client ended with ${code}`);
  return JSON.parse(said);
}

async function measure(hub, greedy) {
  const took = [], counts = { taken: 0, refused: 0 };
  const until = performance.now() + Number(options.seconds) * 1000;
  const users = Array.from({ length: Number(options.users) },
    (_, i) => chatUntil(hub, `198.51.100.${i + 1}`, until, took));
  if (greedy) {
    users.push(pressApart(hub.url, greedy, options.seconds).then((told) => Object.assign(counts, told)));
  }
  await Promise.all(users);
  took.sort((a, b) => a - b);
  const at = (share) => took[Math.min(took.length - 1, Math.floor(took.length * share))];
  return { chats: took.length, p50: at(0.5), p99: at(0.99), ...counts };
}

if (pressing) {
  const [url, name, seconds] = pressing;
  console.log(JSON.stringify(await pressUntil(url, bodies[name], performance.now() + Number(seconds) * 1000)));
  process.exit(0);
}

const columns = 'body,users,chats_alone,p50_alone_ms,p99_alone_ms,chats_beside,p50_beside_ms,p99_beside_ms,'
  + 'ratio_p50,ratio_p99,greedy_taken,greedy_refused';
if (withHeader) console.log(columns);
let worst = 0;
for (const name of Object.keys(bodies)) {
  const hub = await startHub(['--trusted-proxy', '127.0.0.1', '--backend', 'local', '--log-level', 'error'],
    { MOEX_API_KEY: key });
  try {
    await post(hub.url, '198.51.100.1', '/v1/chat/completions', chat([user('Hi')]));   // warm-up
    const alone = await measure(hub, null);
    const beside = await measure(hub, name);
    worst = Math.max(worst, beside.p99 / alone.p99);
    console.log([name, options.users, alone.chats, alone.p50.toFixed(1), alone.p99.toFixed(1),
      beside.chats, beside.p50.toFixed(1), beside.p99.toFixed(1), (beside.p50 / alone.p50).toFixed(2),
      (beside.p99 / alone.p99).toFixed(2), beside.taken, beside.refused].join(','));
  } finally {
    await hub.stop();
  }
}
console.error(`worst p99 ratio ${worst.toFixed(2)}; the goal is 2`);
