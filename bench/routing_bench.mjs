// How much earlier the first token arrives if a front sends a prompt to the hub that has its beginning: three hubs
// behind one front, against the same hubs in turns (three fronts with one hub each, so that the way is as long).
//   usage: node bench/routing_bench.mjs [--rounds N] [--groups N] [--questions N] [--bytes N] [--at-once N]
//   example: MOEX_HUB=build/moex-hub node bench/routing_bench.mjs --rounds 3 > bench/results/routing.csv
// Traces: `shared` has groups of questions about one text each, in random order; `own` has as many questions, each with
// a text of its own. A row: the round, the trace, the way, requests, the median and mean time to the first token, and
// the share of the prompts' tokens that a hub had in its cache.
import { performance } from 'node:perf_hooks';
import { request } from 'node:http';
import { parseArgs } from 'node:util';
import { startFront } from '../tests/api/front_process.mjs';
import { inFolder, runHub, startHub } from '../tests/api/hub_process.mjs';
import { startPostgres } from '../tests/api/postgres.mjs';

const { values } = parseArgs({ options: {
  rounds: { type: 'string', default: '3' }, groups: { type: 'string', default: '6' },
  questions: { type: 'string', default: '8' }, bytes: { type: 'string', default: '3000' },
  'at-once': { type: 'string', default: '1' },
} });
const [rounds, groups, questions, bytes, atOnce] =
  ['rounds', 'groups', 'questions', 'bytes', 'at-once'].map((name) => Number(values[name]));

let random = 42;
const below = (count) => {
  random = (random * 1103515245 + 12345) % 2147483648;
  return Math.floor(random / 2147483648 * count);
};
const words = 'the sea a ship wind of harbour and light an old storm said captain to was far'.split(' ');
const textOf = (size) => {
  let text = '';
  while (text.length < size) text += `${words[below(words.length)]} `;
  return text;
};
const shuffled = (list) => {
  for (let i = list.length - 1; i > 0; --i) {
    const j = below(i + 1);
    [list[i], list[j]] = [list[j], list[i]];
  }
  return list;
};

// Resolves to { ms, prompt, cached }: the time to the first event, and the tokens of the prompt.
const ask = (url, prompt) => new Promise((resolve, reject) => {
  const began = performance.now();
  const body = { prompt, max_tokens: 2, temperature: 0, stream: true, stream_options: { include_usage: true } };
  const call = request(`${url}/v1/completions`,
    { method: 'POST', headers: { 'content-type': 'application/json' } }, (response) => {
      let ms = null, all = '';
      response.setEncoding('utf8').on('data', (piece) => {
        all += piece;
        if (ms === null && all.includes('data: ')) ms = performance.now() - began;
      }).on('error', reject).on('end', () => {
        const tokens = /"prompt_tokens":(\d+)/.exec(all);
        if (ms === null || !tokens) return reject(new Error(`${response.statusCode} ${all.slice(0, 300)}`));
        const cached = /"cached_tokens":(\d+)/.exec(all)?.[1] ?? '0';
        return resolve({ ms, prompt: Number(tokens[1]), cached: Number(cached) });
      });
    });
  call.on('error', reject);
  call.end(JSON.stringify(body));
});

// Sends the prompts in their order, `atOnce` at a time; request i goes to urls[i % urls.length].
async function run(urls, prompts) {
  const answers = [];
  let next = 0;
  await Promise.all(Array.from({ length: atOnce }, async () => {
    while (next < prompts.length) {
      const i = next++;
      answers[i] = await ask(urls[i % urls.length], prompts[i]);
    }
  }));
  const times = answers.map((one) => one.ms).sort((a, b) => a - b);
  const sum = (name) => answers.reduce((all, one) => all + one[name], 0);
  return [answers.length, times[Math.floor(times.length / 2)].toFixed(1), (sum('ms') / answers.length).toFixed(1),
    (sum('cached') / sum('prompt')).toFixed(3)];
}

const traces = {
  shared: () => shuffled(Array.from({ length: groups }, () => textOf(bytes))
    .flatMap((text) => Array.from({ length: questions }, (_, i) => `${text}\nQuestion ${i}: why?`))),
  own: () => Array.from({ length: groups * questions }, () => `${textOf(bytes)}\nQuestion: why?`),
};

console.log('round,trace,way,requests,first_token_median_ms,first_token_mean_ms,cached_share');
await inFolder(async (folder) => {
  const key = `${folder}/key`;
  await runHub(['fleet', 'key', key]);
  const store = await startPostgres();
  const running = [];
  try {
    const hubs = [];
    for (let i = 0; i < 3; ++i) {
      hubs.push(await startHub(['--backend', 'local', '--threads', '1', '--kv-disk-mb', '0', '--store', store.url,
        '--fleet-key', key]));
      running.push(hubs[i]);
    }
    const frontOf = async (some) => {
      const front = await startFront(['--fleet-key', key, ...some.flatMap((hub) => ['--hub', hub.url])]);
      running.push(front);
      return front.url;
    };
    const ways = { prefix: [await frontOf(hubs)], turns: [] };
    for (const hub of hubs) ways.turns.push(await frontOf([hub]));
    for (const urls of Object.values(ways)) await run(urls, Array.from({ length: 6 }, () => textOf(300)));
    for (let round = 0; round < rounds; ++round) {
      for (const [trace, make] of Object.entries(traces)) {
        const order = Object.entries(ways);
        if (round % 2 === 1) order.reverse();
        for (const [way, urls] of order) console.log([round, trace, way, ...await run(urls, make())].join(','));
      }
    }
  } finally {
    for (const one of running) await one.stop();
    await store.remove();
  }
});
