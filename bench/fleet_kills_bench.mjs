// Answers through fronts while hubs and fronts are killed: three hubs, two fronts, a balancer with the snippet of the
// operator's manual, PostgreSQL, and workers. Every `--every` seconds one hub is killed with SIGKILL and started again,
// and once a front. It compares each text with that of an undisturbed run.
//   usage: node bench/fleet_kills_bench.mjs [--seconds N] [--every N] [--streams N] [--tokens N] [--workers N]
//                                           [--prompt-bytes N] [--halvings N] [--context N] [--questions N]
//                                           [--threads N] [--old PROGRAM]
//   example: MOEX_HUB=build/moex-hub MOEX_NATIVE_WORKER=build/moex-worker node bench/fleet_kills_bench.mjs \
//              --seconds 300 --workers 6 > bench/results/fleet_kills.csv
// The lengths of the prompts are --prompt-bytes, halved up to --halvings times. --context: the hubs serve a tiny model
// with so many tokens of context in place of the demo, whose context is 1,024 tokens; a token then has about 1.5 bytes.
// --threads: compute threads of each hub [1]. A pause lasts until another hub has computed the prompts.
// --old: another version of the hub. The kills then are a rolling upgrade: each hub begins as that program, and starts
// again as $MOEX_HUB; the last one stays the old one, so that both versions serve to the end.
// Prints one row: seconds, hubs killed, fronts killed, answers, failed ones, ones with another text, ones that broke
// with their front, streams that moved, the median, 99th percentile and maximum of the longest pause of each answer in
// ms, the most memory of a front and of a hub in MB, and the most bytes of journals in the store in MB. The last three
// are read once a second. exit: 1 if an answer through a front failed or had another text.
import { spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { request as plain } from 'node:http';
import { request as secure } from 'node:https';
import { performance } from 'node:perf_hooks';
import { parseArgs } from 'node:util';
import { packFamily } from '../tests/api/family_package.mjs';
import { Proxy, freePort } from '../tests/browser/support/proxy.mjs';
import { startFront } from '../tests/api/front_process.mjs';
import { cleanEnvironment, hubProgram, inFolder, runHub, startHub } from '../tests/api/hub_process.mjs';
import { startPostgres } from '../tests/api/postgres.mjs';
import { endless } from '../tests/api/streams.mjs';

const number = (value) => ({ type: 'string', default: String(value) });
const { values } = parseArgs({ options: {
  seconds: number(300), every: number(10), streams: number(12), tokens: number(120), workers: number(0),
  'prompt-bytes': number(4000), halvings: number(7), context: number(0), questions: number(24), threads: number(1),
  old: { type: 'string' },
} });
const of = (name) => Number(values[name]);
const hubs_num = 3;

const words = ['wind', 'tide', 'harbour', 'mother', 'island', 'keeper', 'season', 'another', 'letter', 'stone'];
const questions = Array.from({ length: of('questions') }, (_, i) => {
  const size = Math.max(40, of('prompt-bytes') >> (i % (of('halvings') + 1)));
  const pieces = [`Question ${i} about the sea.`];
  let drawn = i + 1, length = pieces[0].length;
  while (length < size) {
    drawn = (drawn * 48271) % 2147483647;
    const word = words[drawn % words.length];
    pieces.push(word);
    length += word.length + 1;
  }
  return pieces.join(' ').slice(0, size);
});

let until_its_length = endless;   // an answer of the demo ends by its length alone; of another model, see below

// Resolves to { text, whole, pause, failed } of the streamed answer to question `i`.
const ask = (url, key, i) => new Promise((resolve) => {
  const out = { text: '', whole: false, pause: 0, failed: '' };
  const body = JSON.stringify({ prompt: questions[i], max_tokens: of('tokens'), temperature: 0.8, seed: 1000 + i,
    stream: true, ...until_its_length });
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` };
  let last = performance.now();
  const call = (url.startsWith('https') ? secure : plain)(`${url}/v1/completions`,
    { method: 'POST', headers, rejectUnauthorized: false }, (response) => {
      let held = '';
      response.setEncoding('utf8').on('data', (piece) => {
        const now = performance.now();
        out.pause = Math.max(out.pause, now - last);
        last = now;
        held += piece;
        for (let end = held.indexOf('\n\n'); end >= 0; end = held.indexOf('\n\n')) {
          const data = held.slice(0, end).split('\n').find((line) => line.startsWith('data: '))?.slice(6);
          held = held.slice(end + 2);
          if (data === undefined) continue;
          if (data === '[DONE]') { out.whole = true; continue; }
          const event = JSON.parse(data);
          if (event.error) out.failed = JSON.stringify(event.error);
          out.text += event.choices?.[0]?.text ?? '';
        }
      });
      response.on('error', (error) => { out.failed ||= String(error); }).on('close', () => {
        if (!out.whole) out.failed ||= `status ${response.statusCode}, ${held.slice(0, 200)}`;
        resolve(out);
      });
    });
  call.on('error', (error) => { out.failed ||= String(error); resolve(out); });
  call.end(body);
});

const sleep = (seconds) => new Promise((resolve) => { setTimeout(resolve, seconds * 1000); });

async function measure(folder, store, running) {
  for (const args of [['fleet', 'key', `${folder}/fleet.key`], ['cert', '--out', folder]]) await runHub(args);
  writeFileSync(`${folder}/cert-and-key.pem`,
    readFileSync(`${folder}/cert.pem`, 'utf8') + readFileSync(`${folder}/key.pem`, 'utf8'));
  const shared = ['--store', store.url, '--fleet-key', `${folder}/fleet.key`, '--trusted-proxy', '127.0.0.1'];
  const ports = [], hubs = [], fronts = [];
  for (let i = 0; i < hubs_num; ++i) ports.push(await freePort());
  const workers = of('workers') > 0;
  let model;
  if (of('context') > 0) {
    const tiny = await packFamily(folder, 'mixtral', runHub, [], { max_position_embeddings: of('context') });
    model = tiny.model;
    until_its_length = { logit_bias: { [tiny.ids['<|return|>']]: -100 } };
  }
  const serve = async (i, program) => {
    hubs[i] = await startHub(['--state', `${folder}/hub${i}`, '--listen', `127.0.0.1:${ports[i]}`,
      '--threads', values.threads, '--deterministic', '--kv-disk-mb', '0',
      ...(workers ? [] : ['--backend', 'local']), ...shared], {}, model,
    program);
  };
  running.push({ stop: () => Promise.all(hubs.map((hub) => { hub.signal('SIGKILL'); return hub.ended; })) });
  for (let i = 0; i < hubs_num; ++i) await serve(i, values.old ?? hubProgram);
  for (let i = 0; i < of('workers'); ++i) {
    const hub = hubs[i % hubs_num];
    const child = spawn(process.env.MOEX_NATIVE_WORKER, ['--hub', hub.join, '--backend', 'cpu', '--threads', '1'],
      { env: cleanEnvironment(), stdio: 'ignore' });
    const ended = new Promise((resolve) => { child.on('close', resolve); });
    running.push({ stop: () => { child.kill('SIGTERM'); return ended; } });
  }
  const key = (await runHub(['key', 'add', 'bench', '--store', store.url])).stdout.trim();
  for (let i = 0; i < 2; ++i) fronts.push(await startFront(shared));
  running.push({ stop: () => Promise.all(fronts.map((front) => front.stop())) });

  const port = await freePort();
  // The manual's balancer has two hubs; requests for answers go to the fronts alone.
  running.push(await Proxy.start('haproxy fleet', { port, cert: folder, more: [
    ['127.0.0.1:8081', new URL(fronts[0].url).host], ['127.0.0.1:8082', new URL(fronts[1].url).host],
    ['127.0.0.1:8080', new URL(hubs[0].url).host], ['127.0.0.1:8090', new URL(hubs[1].url).host]] }));
  const url = `https://127.0.0.1:${port}`;

  const alone = [];
  for (let i = 0; i < questions.length; i += hubs_num)
    alone.push(...await Promise.all(questions.slice(i, i + hubs_num).map((_, at) => ask(hubs[at].url, key, i + at))));
  const wrong = alone.find((one) => !one.whole);
  if (wrong) throw new Error(`an undisturbed answer failed: ${wrong.failed}`);

  const until = performance.now() + of('seconds') * 1000;
  const goes = () => performance.now() < until;
  const answers = [];
  let front_dies = false, asked = 0, hubs_killed = 0, fronts_killed = 0, broken = 0, moved = 0;
  const movesOf = (front) => (front.stderr().match(/goes on at another hub/g) ?? []).length;
  const killer = async () => {
    for (let i = 0; goes(); ++i) {
      await sleep(of('every'));
      if (!goes()) return;
      const at = i % hubs_num;
      if (values.old && i >= hubs_num - 1) continue;
      hubs[at].signal('SIGKILL');
      await hubs[at].ended;
      ++hubs_killed;
      await serve(at, hubProgram);
    }
  };
  const frontKiller = async () => {
    await sleep(of('seconds') / 2);
    moved += movesOf(fronts[1]);
    const { port: old } = new URL(fronts[1].url);
    // The connections of this front end with it, so its clients ask again.
    front_dies = true;
    await fronts[1].kill();
    ++fronts_killed;
    fronts[1] = await startFront([...shared, '--listen', `127.0.0.1:${old}`]);
    await sleep(1);
    front_dies = false;
  };
  const most = { front_mb: 0, hub_mb: 0, journal_mb: 0 };
  const raise = (name, bytes) => { most[name] = Math.max(most[name], Math.round(bytes / 1e5) / 10); };
  const residentBytes = ({ pid }) => {
    try {
      return 1024 * Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]);
    } catch { return 0; }   // it is being killed
  };
  const sizes = ['sum(length(head)) FROM streams', 'sum(length(records)) FROM stream_pieces']
    .map((from) => `coalesce((SELECT ${from}), 0)`).join(' + ');
  const watcher = async () => {
    while (goes()) {
      for (const front of fronts) raise('front_mb', residentBytes(front));
      for (const hub of hubs) raise('hub_mb', residentBytes(hub));
      raise('journal_mb', Number(await store.query(`SELECT ${sizes}`)));
      await sleep(1);
    }
  };
  const client = async () => {
    while (goes()) {
      const i = asked++ % questions.length;
      let one = await ask(url, key, i);
      if (one.failed && front_dies) {
        ++broken;
        one = await ask(url, key, i);
      }
      if (one.failed || one.text !== alone[i].text) process.stderr.write(`question ${i}: ${one.failed || 'text'}\n`);
      answers.push({ ...one, differs: !one.failed && one.text !== alone[i].text });
    }
  };
  await Promise.all([killer(), frontKiller(), watcher(), ...Array.from({ length: of('streams') }, client)]);
  for (const front of fronts) moved += movesOf(front);
  const pauses = answers.map((one) => one.pause).sort((a, b) => a - b);
  const at = (share) => Math.round(pauses[Math.floor(share * (pauses.length - 1))]);
  const failed = answers.filter((one) => one.failed).length, differ = answers.filter((one) => one.differs).length;
  console.log([of('seconds'), hubs_killed, fronts_killed, answers.length, failed, differ, broken, moved,
    at(0.5), at(0.99), at(1), most.front_mb, most.hub_mb, most.journal_mb].join(','));
  return failed + differ === 0;
}

console.log('seconds,hubs_killed,fronts_killed,answers,failed,other_text,broken_by_a_front,moves,pause_median_ms,'
  + 'pause_p99_ms,pause_max_ms,front_mb,hub_mb,journal_mb');
await inFolder(async (folder) => {
  const store = await startPostgres();
  const running = [];
  try {
    process.exitCode = await measure(folder, store, running) ? 0 : 1;
  } finally {
    for (const one of running.reverse()) await one.stop();
    await store.remove();
  }
});
