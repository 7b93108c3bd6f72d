// Runs real workers that return wrong rows to a real hub and counts the texts that change. The hub computes experts
// only to judge answers.
//   node bench/lies_bench.mjs [--tokens N] [--share P] [--threads T] [--model DIR] [--header]
// MOEX_HUB, MOEX_LYING_WORKER: the programs [build/moex-hub, build/tests/support/lying_worker]. The hub runs with
// --deterministic, without a local backend, with two honest workers and one liar at a time, and three replicas of each
// expert. Its texts are compared with those of a hub that computes alone. The honest workers have a record before the
// first liar joins. Each liar has a key of its own, and the kinds follow each other: first liars that always lie, then
// liars that lie in a share P [0.02] of their answers and therefore serve longer. A token is counted from a liar's join
// until its ban if that liar answered at least a twentieth of the calls; the bench ends after N [10000] counted tokens.
// CSV: see `columns`, a row for each kind and mode of liars. liars: number of liars; share_least, share: the share of
// calls that liars answered, smallest and overall; tokens_few: tokens during the service of liars that answered less
// than a twentieth of the calls; changed: answers with a changed text.
// exit: 1 when a text changed, a liar returned more than three wrong answers, or an honest worker was banned
// example: nice node bench/lies_bench.mjs --header > bench/results/lies.MACHINE.csv
import { spawn } from 'node:child_process';

import { readFlags } from './flags.mjs';

const options = { tokens: '10000', share: '0.02', threads: '1', model: 'static/models/demo' };
const withHeader = readFlags('lies_bench', options);
process.env.MOEX_HUB ??= 'build/moex-hub';
process.env.MOEX_MODEL = options.model;
const program = process.env.MOEX_LYING_WORKER ?? 'build/tests/support/lying_worker';
const { cleanEnvironment, startHub } = await import('../tests/api/hub_process.mjs');

const kinds = ['x1.05', 'x1.5', 'x10', 'x1000', 'zero', 'negated', 'noise10', 'noise100', 'other-expert', 'previous',
  'constant'];
const ways = [
  ...kinds.map((kind) => ({ kind, way: 'always', args: [] })),
  ...kinds.map((kind) => ({ kind, way: `share ${options.share}`, args: ['--share', options.share] })),
  { kind: 'x1.5', way: 'after 100 answers', args: ['--honest-first', '100'] },
];
const prompts = ['Tell me a story about a garden.', 'Write a story about a ship.', 'Once upon a time',
  'Tell me a story about a key and a garden.'];
const max_tokens = 48;

// Starts a worker. `served` resolves to true when the worker has units, or to false if it is closed before that.
// `closed` resolves to the number of calls that it answered.
function startWorker(hub, args, key) {
  const child = spawn(program, [hub.join, options.model, ...args, '--key', key],
    { env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'inherit'] });
  let printed = '';
  const worker = { isClosed: false, stop: () => child.kill() };
  worker.ended = new Promise((resolve) => child.once('close', resolve));
  worker.closed = new Promise((resolve) => child.stdout.setEncoding('utf8').on('data', (piece) => {
    printed += piece;
    const answered = /^answered (\d+)\nclosed /m.exec(printed);
    if (answered) worker.isClosed = true, resolve(Number(answered[1]));
  }));
  const serves = new Promise((resolve) => child.stdout.on('data', () => {
    if (printed.includes('serving')) resolve(true);
  }));
  worker.served = Promise.race([serves, worker.closed.then(() => false)]);
  return worker;
}

// Streams one completion. Resolves to its whole text; calls `onToken` at each token.
async function stream(hub, prompt, onToken = () => {}) {
  const response = await fetch(`${hub.url}/v1/completions`, { method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt, temperature: 0, max_tokens, stream: true }) });
  if (!response.ok) throw new Error(await response.text());

  let text = '', held = '';
  for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
    held += bytes;
    for (let at; (at = held.indexOf('\n\n')) >= 0; held = held.slice(at + 2)) {
      const line = held.slice(0, at);
      if (!line.startsWith('data: {')) continue;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw new Error(JSON.stringify(chunk.error));
      if (!chunk.choices?.[0]?.text) continue;
      text += chunk.choices[0].text;
      onToken();
    }
  }
  return text;
}

const statusOf = async (hub) => (await fetch(`${hub.url}/api/status`)).json();
const answeredBy = ({ workers }) => new Map(workers.map((worker) => [worker.id, worker.groups_answered]));

// Runs one worker that lies, from its first call until its ban.
async function meet(hub, texts, { args, kind }, key, asked) {
  const liar = startWorker(hub, [kind, ...args], key);
  if (!await liar.served) throw new Error(`${key} was not let in`);
  const before = await statusOf(hub);

  const met = { tokens: 0, changed: 0 };
  let after = null;
  liar.closed.then(async () => { after = await statusOf(hub); });
  for (; !liar.isClosed; ++asked.turn) {
    const of = asked.turn % prompts.length;
    const text = await stream(hub, prompts[of], () => { if (!liar.isClosed) ++met.tokens; });
    met.changed += text !== texts[of];
  }

  const of_liar = await liar.closed;
  await liar.ended;
  while (!after) await new Promise((resolve) => setTimeout(resolve, 1));
  const was = answeredBy(before);
  const calls = [...answeredBy(after)].reduce((sum, [id, groups]) => sum + groups - (was.get(id) ?? 0), of_liar);
  const share = of_liar / Math.max(1, calls);
  return { ...met, calls, of_liar, share, counted: share >= 0.05 ? met.tokens : 0,
    lies: after.calls.bad_answers - before.calls.bad_answers, bans: after.calls.bans - before.calls.bans };
}

const threads = ['--threads', options.threads];
const alone = await startHub(['--deterministic', '--backend', 'local', ...threads]);
const texts = [];
for (const prompt of prompts) texts.push(await stream(alone, prompt));
await alone.stop();

const hub = await startHub(['--deterministic', '--local-fallback', 'off', '--replicas', '3', '--timeout-ms', '60000',
  '--round-deadline-s', '120', ...threads]);
const honest = ['honest-1', 'honest-2'].map((key) => startWorker(hub, ['none'], key));
for (const worker of honest) await worker.served;
while ((await statusOf(hub)).workers.some(({ trust }) => trust !== 'proven')) await stream(hub, prompts[0]);

const names = ['tokens', 'counted', 'calls', 'of_liar', 'lies', 'changed', 'bans'];
const nothing = Object.fromEntries(names.map((name) => [name, 0]));
const rows = ways.map(() => ({ liars: 0, least: 1, lies_most: 0, ...nothing }));
const sum = { counted: 0, changed: 0, liars: 0 };
const asked = { turn: 0 };
for (let turn = 0; sum.counted < Number(options.tokens); ++turn) {
  for (const [i, way] of ways.entries()) {
    if (way.way === 'always' && turn > 0) continue;
    const met = await meet(hub, texts, way, `liar-${way.kind}-${++sum.liars}`, asked);
    const row = rows[i];
    ++row.liars;
    for (const name of names) row[name] += met[name];
    row.least = Math.min(row.least, met.share);
    row.lies_most = Math.max(row.lies_most, met.lies);
    sum.counted += met.counted;
    sum.changed += met.changed;
  }
  process.stderr.write(`${sum.counted} tokens, ${sum.liars} liars, ${sum.changed} texts changed\n`);
}

const { calls, workers } = await statusOf(hub);
for (const worker of honest) worker.stop();
await Promise.all(honest.map((worker) => worker.ended));
await hub.stop();

const columns = 'kind,way,liars,tokens,tokens_few,calls,share_least,share,lies,lies_most,bans,changed';
if (withHeader) console.log(columns);
for (const [i, { kind, way }] of ways.entries()) {
  const row = rows[i];
  console.log([kind, way, row.liars, row.counted, row.tokens - row.counted, row.calls, row.least.toFixed(3),
    (row.of_liar / Math.max(1, row.calls)).toFixed(3), row.lies, row.lies_most, row.bans, row.changed].join(','));
}
console.log(`# in sum: ${sum.counted} tokens, ${sum.liars} liars, ${sum.changed} texts changed; ` +
  `${calls.rows_checked} rows computed again, largest honest residual ${calls.residual_max.toFixed(3)} of what is ` +
  `tolerated; ${workers.length} of 2 honest workers left`);
const is_right = sum.changed === 0 && workers.length === 2 &&
  rows.every((row) => row.bans === row.liars && row.lies_most <= 3);
process.exit(is_right ? 0 : 1);
