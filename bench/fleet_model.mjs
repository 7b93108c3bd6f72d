// What a large fleet asks of its store, by simulation: requests arrive at random, run for as long as their tokens take,
// and every hub writes, renews and sweeps on the clocks of the code.
//   usage: node bench/fleet_model.mjs [--hubs N] [--tabs N] [--requests N] [--seconds N] [--rate N] [--tokens N]
//                                     [--prompt-bytes N] [--stay-minutes N] [--tab-mb N]
//   example: node bench/fleet_model.mjs > bench/results/fleet.simulated.csv
// --requests are of a second over the fleet, --rate tokens per second of a stream. Prints CSV: quantity, per second
// over the fleet, most in one second, per hub. hub/net/fleet/README.md discusses the result.
import { parseArgs } from 'node:util';

const number = (value) => ({ type: 'string', default: String(value) });
const { values } = parseArgs({ options: {
  hubs: number(100), tabs: number(10_000), requests: number(1000), seconds: number(120), rate: number(30),
  tokens: number(200), 'prompt-bytes': number(4000), 'stay-minutes': number(20), 'tab-mb': number(500),
} });
const of = (name) => Number(values[name]);
const hubs = of('hubs'), seconds = of('seconds');

const tick = 0.05;                  // s: StreamJournalOptions::write_every
const token_bytes = 16;             // a record: length, choice, id, logprob
const seal_bytes = 1 + 16 + 8 + 16;  // version, salt, counter and tag (hub/registry/fleet_key.cpp)
const row_bytes = 24 + 42 + 8 + 4;  // a row of stream_pieces besides its records: header, id, position, pointer
const renew_every = 15, sweep_every = 5, lease_every = 3, life_after_end = 50, look_every = 0.25;
const fronts = Math.max(2, Math.round(hubs / 5));

let random = 1;
const uniform = () => {
  random = (random * 48271) % 2147483647;
  return random / 2147483647;
};
const exponential = (mean) => -mean * Math.log(1 - uniform());

const names = ['statements', 'rows_written', 'rows_deleted', 'journal_bytes', 'head_bytes', 'rows_read', 'joins',
  'weight_megabytes', 'heartbeats'];
const counts = Object.fromEntries(names.map((name) => [name, new Float64Array(seconds)]));
const add = (name, at, amount) => { if (at >= 0 && at < seconds) counts[name][Math.floor(at)] += amount; };

// Streams: { hub, end } and their tokens in each tick, at a steady pace from a random phase.
const running = Array.from({ length: hubs }, () => []);
const pieces = new Map();           // rows that are deleted in a second
let next = 0, most = 0;
for (let at = 0; at < seconds; at += tick) {
  while (next < at + tick) {
    const tokens = 1 + Math.floor(exponential(of('tokens')));
    running[Math.floor(uniform() * hubs)].push({ began: next, left: tokens, owed: uniform(), rows: 0 });
    add('head_bytes', next, of('prompt-bytes') * (0.5 + uniform()) + 300);
    add('rows_written', next, 1);
    add('statements', next, 1);
    next += exponential(1 / of('requests'));
  }
  let total = 0;
  for (let hub = 0; hub < hubs; ++hub) {
    let rows = 0, bytes = 0, ends = 0;
    running[hub] = running[hub].filter((stream) => {
      stream.owed += of('rate') * tick;
      const now = Math.min(stream.left, Math.floor(stream.owed));
      stream.owed -= now;
      stream.left -= now;
      if (now > 0) {
        ++rows;
        ++stream.rows;
        bytes += now * token_bytes + seal_bytes + row_bytes;
      }
      if (stream.left > 0) return true;
      ++ends;
      const gone = Math.floor(at + life_after_end + sweep_every / 2);
      pieces.set(gone, (pieces.get(gone) ?? 0) + stream.rows + 1);
      return false;
    });
    total += running[hub].length;
    // One statement appends 200 pieces at most, one finds the streams that are lost, one ends each stream.
    if (rows > 0) add('statements', at, Math.ceil(rows / 200) + 1);
    add('statements', at, ends);
    add('rows_written', at, rows + ends);
    add('journal_bytes', at, bytes);
    const due = (every) => Math.floor((at + hub / hubs) / every) !== Math.floor((at + tick + hub / hubs) / every);
    if (due(renew_every)) { add('rows_written', at, running[hub].length); add('statements', at, 1); }
    if (due(sweep_every)) add('statements', at, 1);
    // A hub that renews its lease reads the members, too: its workers may join them.
    if (due(lease_every)) { add('rows_written', at, 1); add('statements', at, 2); add('rows_read', at, hubs); }
    if (due(1)) add('statements', at, 1);      // PostgresStore::look() on a quiet connection
  }
  most = Math.max(most, total);
  // Fronts read the members.
  add('statements', at, fronts * tick / look_every);
  add('rows_read', at, fronts * hubs * tick / look_every);
}
for (const [at, rows] of pieces) add('rows_deleted', at, rows);

// Tabs: as many join as leave. A tab fetches what it holds; it is told of its units, and sends a heartbeat every 2 s.
const joins = of('tabs') / (of('stay-minutes') * 60);
for (let at = exponential(1 / joins); at < seconds; at += exponential(1 / joins)) {
  add('joins', at, 1);
  add('weight_megabytes', at, of('tab-mb'));
}
for (let at = 0; at < seconds; ++at) add('heartbeats', at, of('tabs') / 2);

// The first seconds fill the fleet: count from the time on when rows are deleted as fast as they are written.
const from = Math.min(seconds - 1, life_after_end + sweep_every + 20);
console.log('quantity,per_second,most_in_a_second,per_hub_and_second');
console.log(`streams,${most},${most},${(most / hubs).toFixed(1)}`);
for (const name of names) {
  const later = counts[name].slice(from);
  const mean = later.reduce((sum, one) => sum + one, 0) / later.length;
  console.log([name, mean.toFixed(0), Math.max(...later).toFixed(0), (mean / hubs).toFixed(2)].join(','));
}
