// Measures what pages on disk save and cost: the first token of a long text after kill -9, and the tokens of one user
// while texts that were evicted from memory return.
//   node bench/restart_bench.mjs [--tokens N] [--rounds R] [--seconds S] [--threads T] [--hub-args ARGS]
//     [--header]
// --hub-args: further arguments of every hub, separated by spaces; with --gpu the experts are on the hub's GPU.
// MOEX_HUB: the program [build/moex-hub]. MOEX_MODEL: the package that the hub computes itself [the demo]; a package
// without a tokenizer is asked with token ids, and its prompt has all but 100 of the N tokens.
// restart: in each round a hub reads a prompt, and is killed while it writes the answer, when the text has N [900]
// tokens. Then the text so far is sent to a hub that keeps nothing (cold), and to one with the state of the killed hub
// (disk). The text is encoded again, as the history of a chat is, so that its last tokens may be others.
// load: one user gets long answers, while another sends one of eight texts of 400 tokens every 200 ms, or later if the
// last one is not answered. The hub's memory holds four of them. Hubs without and with pages on disk run in turns.
// Nothing is drafted, so that each event is one step.
// CSV: see the header. cached_tokens, cached_tokens_disk: of the measured text; first_token_ms: median over the rounds
// (restart), or over the returning texts (load; --seconds 0 leaves it out); gap_*_ms: between the tokens of the long
// answers; tokens_per_s: tokens of both users a second, prompts included; *_of_base: by the value of the row above.
// exit: 1 when a goal is missed (first token after a restart 0.2 of cold; under load gap_p99_ms 1.2, tokens_per_s 0.97)
// example: node bench/restart_bench.mjs --header
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { readFlags } from './flags.mjs';

const options = { tokens: '900', rounds: '5', seconds: '12', threads: '1', 'hub-args': '' };
const withHeader = readFlags('restart_bench', options);
process.env.MOEX_HUB ??= 'build/moex-hub';
const { modelFolder, startHub, temporaryFolder } = await import('../tests/api/hub_process.mjs');

const folder = temporaryFolder();
const hubArgs = options['hub-args'].split(' ').filter(Boolean);
const start = async (state, ...args) => {
  const hub = await startHub(['--backend', 'local', '--threads', options.threads, '--state', join(folder.path, state),
    ...hubArgs, ...args]);
  if (!hubArgs.includes('--gpu')) await hub.logged('experts packed');
  await ask(hub, textOf(40, 999), 8);   // the first step of a process is slower
  return hub;
};
// Returns a text of `count` words, most of which are one token.
const words = 'the old house by sea where a man and his dog had lived for many years with little to say'.split(' ');
const wordOf = (i, seed) => words[(i * 7 + i * i * seed + seed) % words.length];
const hasWords = existsSync(join(modelFolder, 'tokenizer.json'));
const textOf = (count, seed) => (hasWords
  ? Array.from({ length: count }, (_, i) => wordOf(i, seed)).join(' ')
  : Array.from({ length: count }, (_, i) => (i * 7 + i * i * seed + seed) % 251));
// Returns a prompt with an answer behind it. Without a tokenizer the text of an answer is its ids in decimal.
const joined = (prompt, text) => (hasWords ? prompt + text : [...prompt, ...text.trim().split(/\s+/).map(Number)]);

// Streams an answer. `on_token` is called with the number of tokens so far. Resolves to { first_ms, gaps, text, count,
// usage }.
async function ask(hub, prompt, max_tokens, on_token = () => {}) {
  const begun = performance.now();
  const answer = await fetch(`${hub.url}/v1/completions`, { method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt, max_tokens, temperature: 0, stream: true, logprobs: 0,
      stream_options: { include_usage: true } }) });
  if (answer.status !== 200) throw new Error(`${answer.status}: ${await answer.text()}`);
  const found = { first_ms: 0, gaps: [], text: '', count: 0, usage: null };
  let last = 0, rest = '';
  try {
    for await (const bytes of answer.body) {
      rest += Buffer.from(bytes).toString();
      const events = rest.split('\n\n');
      rest = events.pop();
      for (const event of events.filter((one) => one.startsWith('data: {'))) {
        const body = JSON.parse(event.slice(6)), choice = body.choices?.[0];
        found.usage = body.usage ?? found.usage;
        if (!choice?.logprobs?.tokens?.length) continue;
        const now = performance.now();
        if (last === 0) found.first_ms = now - begun; else found.gaps.push(now - last);
        last = now;
        found.text += choice.text;
        found.count += choice.logprobs.tokens.length;
        on_token(found.count);
      }
    }
  } catch (error) {
    if (found.count === 0) throw error;   // the hub was killed while this stream ran
  }
  return found;
}

const at = (values, share) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
};
const row = (...cells) => console.log(cells.map((cell) =>
  (typeof cell === 'number' && !Number.isInteger(cell) ? cell.toFixed(cell < 10 ? 2 : 1) : cell)).join(','));

// Returns null if the model ended its answer before the text had N tokens.
async function restart(round) {
  const tokens = Number(options.tokens), prompt = textOf(hasWords ? tokens * 2 / 3 | 0 : tokens - 100, round + 1);
  let hub = await start(`killed-${round}`);
  const { usage: { prompt_tokens } } = await ask(hub, prompt, 1);
  const part = await ask(hub, prompt, hasWords ? 1020 - prompt_tokens : 200, (count) => {
    if (prompt_tokens + count >= tokens) hub.signal('SIGKILL');
  });
  if (prompt_tokens + part.count < tokens) return hub.stop().then(() => null);
  await hub.ended;
  const measure = async (state, ...args) => {
    hub = await start(state, ...args);
    const { first_ms, usage, text } = await ask(hub, joined(prompt, part.text), 16);
    await hub.stop();
    return { first_ms, text, ...usage.prompt_tokens_details, tokens: usage.prompt_tokens };
  };
  const cold = await measure(`cold-${round}`, '--kv-disk-mb', '0'), disk = await measure(`killed-${round}`);
  if (cold.text !== disk.text) throw new Error('the texts differ');
  return { cold, disk };
}

async function load(megabytes, turn) {
  const hub = await start(`load-${megabytes}-${turn}`, '--kv-mb', '8', '--speculative', 'off',
    '--kv-disk-mb', megabytes);
  const texts = Array.from({ length: 8 }, (_, i) => textOf(400, 50 + i));
  for (const text of texts) await ask(hub, text, 1);
  const begun = performance.now(), until = begun + 1000 * Number(options.seconds);
  const gaps = [], first = [];
  let tokens = 0, cached = 0, from_disk = 0;
  const writer = async () => {
    while (performance.now() < until) {
      const { gaps: some, usage } = await ask(hub, textOf(20, 7), 400);
      gaps.push(...some);
      tokens += usage.total_tokens;
    }
  };
  const returning = async () => {
    for (let i = 0; performance.now() < until; ++i) {
      await sleep(Math.max(0, begun + 200 * i - performance.now()));
      const { first_ms, usage } = await ask(hub, texts[i % texts.length], 4);
      first.push(first_ms);
      tokens += usage.total_tokens;
      cached += usage.prompt_tokens_details.cached_tokens;
      from_disk += usage.prompt_tokens_details.cached_tokens_disk;
    }
  };
  await Promise.all([writer(), returning()]);
  const seconds = (performance.now() - begun) / 1000;
  await hub.stop();
  return { gaps, first, rate: tokens / seconds, cached: cached / first.length, from_disk: from_disk / first.length };
}

if (withHeader)
  console.log('what,kept,text_tokens,cached_tokens,cached_tokens_disk,first_token_ms,gap_p50_ms,gap_p99_ms,' +
    'tokens_per_s,first_of_base,gap_p99_of_base,tokens_of_base');
const rounds = [];
for (let round = 0; rounds.length < Number(options.rounds); ++round) {
  const found = await restart(round);
  if (found) rounds.push(found);
}
const firstOf = (name) => at(rounds.map((one) => one[name].first_ms), 0.5);
const restart_ratio = firstOf('disk') / firstOf('cold');
for (const name of ['cold', 'disk']) {
  const one = rounds.at(-1)[name];
  row('restart', name, one.tokens, one.cached_tokens, one.cached_tokens_disk, firstOf(name), '', '', '',
    name === 'cold' ? 1 : restart_ratio, '', '');
}
const runs = { 0: [], 200: [] };
const turns = Number(options.seconds) > 0 ? 2 : 0;
for (let turn = 0; turn < turns; ++turn)
  for (const megabytes of ['0', '200']) runs[megabytes].push(await load(megabytes, turn));
let holds = restart_ratio <= 0.2;
if (turns > 0) {
  const sums = Object.fromEntries(Object.entries(runs).map(([megabytes, some]) => [megabytes, {
    first: at(some.flatMap((one) => one.first), 0.5), p50: at(some.flatMap((one) => one.gaps), 0.5),
    p99: at(some.flatMap((one) => one.gaps), 0.99), rate: some.reduce((sum, one) => sum + one.rate, 0) / some.length,
    cached: Math.round(some[0].cached), from_disk: Math.round(some[0].from_disk) }]));
  for (const [megabytes, one] of Object.entries(sums))
    row('load', megabytes === '0' ? 'memory' : 'disk', 400, one.cached, one.from_disk, one.first, one.p50, one.p99,
      one.rate, one.first / sums[0].first, one.p99 / sums[0].p99, one.rate / sums[0].rate);
  holds &&= sums[200].p99 <= 1.2 * sums[0].p99 && sums[200].rate >= 0.97 * sums[0].rate;
}
folder.remove();
process.exit(holds ? 0 : 1);
