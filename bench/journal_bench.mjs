// What a journal of streams costs: the tokens per second of one hub without a fleet (sqlite), with a shared store, and
// with a shared store and a fleet key, which makes it keep journals.
//   usage: node bench/journal_bench.mjs [--streams N] [--tokens N] [--rounds N]
//   example: MOEX_HUB=build/moex-hub node bench/journal_bench.mjs --rounds 5 > bench/results/journal.csv
// The bound is the first row of a round. A row: the round, the kind of hub, tokens per second of all streams, and the
// median and the 99th percentile of the gaps between two tokens of a stream.
import { performance } from 'node:perf_hooks';
import { request } from 'node:http';
import { parseArgs } from 'node:util';
import { inFolder, runHub, startHub } from '../tests/api/hub_process.mjs';
import { startPostgres } from '../tests/api/postgres.mjs';
import { endless } from '../tests/api/streams.mjs';

const { values } = parseArgs({ options: {
  streams: { type: 'string', default: '4' }, tokens: { type: 'string', default: '400' },
  rounds: { type: 'string', default: '3' },
} });
const [streams, tokens, rounds] = ['streams', 'tokens', 'rounds'].map((name) => Number(values[name]));

// Resolves to the times at which the pieces of a streamed answer arrived.
const times = (url, i) => new Promise((resolve, reject) => {
  const call = request(url, { method: 'POST', headers: { 'content-type': 'application/json' } }, (response) => {
    const seen = [];
    response.on('data', () => seen.push(performance.now())).on('end', () => resolve(seen)).on('error', reject);
  });
  call.on('error', reject);
  const body = { prompt: `The sea ${i}`, max_tokens: tokens, temperature: 0.8, seed: i, stream: true, ...endless };
  call.end(JSON.stringify(body));
});

async function measure(args) {
  const hub = await startHub(['--backend', 'local', '--threads', '1', ...args]);
  try {
    await times(`${hub.api}/completions`, 99);
    const began = performance.now();
    const all = await Promise.all(Array.from({ length: streams }, (_, i) => times(`${hub.api}/completions`, i)));
    const seconds = (performance.now() - began) / 1000;
    const gaps = all.flatMap((seen) => seen.slice(1).map((time, i) => time - seen[i])).sort((a, b) => a - b);
    const at = (share) => gaps[Math.floor(share * (gaps.length - 1))].toFixed(2);
    return [(streams * tokens / seconds).toFixed(1), at(0.5), at(0.99)];
  } finally { await hub.stop(); }
}

console.log('round,hub,tokens_per_s,gap_median_ms,gap_p99_ms');
await inFolder(async (folder) => {
  const store = await startPostgres();
  const key = `${folder}/key`;
  await runHub(['fleet', 'key', key]);
  try {
    for (let round = 0; round < rounds; ++round) {
      const kinds = [['sqlite', []], ['store', ['--store', store.url]],
        ['journal', ['--store', store.url, '--fleet-key', key]]];
      for (const [name, args] of kinds) console.log([round, name, ...await measure(args)].join(','));
    }
  } finally { await store.remove(); }
});
