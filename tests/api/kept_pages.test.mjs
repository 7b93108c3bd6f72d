// Pages of keys and values that a hub keeps on disk: after kill -9 in the middle of an answer the text goes on with the
// same bits, and what cannot be kept or must not be kept is not, while answers go on.
import assert from 'node:assert/strict';
import { chmodSync, existsSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { inFolder, modelFolder, postJson, runHub, startHub } from './hub_process.mjs';

const pageTokens = 16;
const serve = (state, ...args) => startHub(['--backend', 'local', '--threads', '1', '--state', state, ...args]);
// A prompt of `count` tokens: every token is an id below 1,000.
const promptOf = (count, seed = 1) => Array.from({ length: count }, (_, i) => 20 + (i * 37 + seed * 101) % 900);

async function complete(hub, prompt, max_tokens, extra = {}, key = undefined) {
  const answer = await postJson(`${hub.url}/v1/completions`,
    { prompt, max_tokens, temperature: 0, logprobs: 0, ...extra }, key);
  const body = await answer.json();
  assert.equal(answer.status, 200, JSON.stringify(body));
  return {
    text: body.choices[0].text, logprobs: body.choices[0].logprobs.token_logprobs,
    cached: body.usage.prompt_tokens_details.cached_tokens,
    fromDisk: body.usage.prompt_tokens_details.cached_tokens_disk,
  };
}

async function status(hub, key = '') {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  return (await (await fetch(`${hub.url}/api/status`, { headers })).json()).engine.kv_disk;
}
// Asks for the hub's status until `isThere` is true of its pages on disk, and returns these numbers.
async function diskOnce(hub, isThere, key = '') {
  for (;;) {
    const disk = await status(hub, key);
    if (isThere(disk)) return disk;
    await new Promise((done) => setTimeout(done, 20));
  }
}
// Starts a hub and waits until it knows what is on the disk: before that it keeps and finds nothing.
async function serveListed(...args) {
  const hub = await serve(...args);
  await diskOnce(hub, ({ listed }) => listed);
  return hub;
}
const written = (hub, count) => diskOnce(hub, (disk) => disk.pages_written >= count);

function pageFiles(state) {
  const folder = join(state, 'kv-pages');
  if (!existsSync(folder)) return [];
  return readdirSync(folder).filter((client) => statSync(join(folder, client)).isDirectory())
    .flatMap((client) => readdirSync(join(folder, client)).map((file) => join(folder, client, file)));
}

async function killed(hub) {
  hub.signal('SIGKILL');
  assert.equal(await hub.ended, 'SIGKILL');
}

// Begins a streamed answer, and kills the hub once `count` events with text have arrived and a page of the answer is on
// disk. Returns these events with their times, and the time of the end.
async function killInMidAnswer(hub, prompt, count) {
  const answer = await postJson(`${hub.url}/v1/completions`,
    { prompt, max_tokens: 1000 - prompt.length, temperature: 0, stream: true });
  const arrivals = [];
  let rest = '', end = 0;
  try {
    for await (const bytes of answer.body) {
      rest += Buffer.from(bytes).toString();
      const events = rest.split('\n\n');
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith('data: {')) continue;
        const choice = JSON.parse(event.slice(6)).choices?.[0];
        if (choice?.text) arrivals.push({ text: choice.text, at: performance.now() });
      }
      if (arrivals.length < count || end) continue;
      if ((await status(hub)).pages_written <= prompt.length / pageTokens) continue;
      end = performance.now();
      hub.signal('SIGKILL');
    }
  } catch {
    // The connection ends with the process.
  }
  assert.ok(end, 'the answer ended before a page of it was on disk');
  assert.equal(await hub.ended, 'SIGKILL', 'the hub was killed while it answered');
  return { arrivals, end };
}

test('after kill -9 in mid-answer the text goes on with the same bits', () => inFolder(async (state) => {
  // Pages are written one after the other. There are so few that a slow disk has them before the answer ends.
  const prompt = promptOf(100);
  const first = await serveListed(state);
  const { arrivals, end } = await killInMidAnswer(first, prompt, 300);
  const pages = pageFiles(state).filter((file) => !file.endsWith('.tmp')).length;

  // The same question, to a hub that keeps nothing and to one that comes back.
  const plain = await serve(join(state, 'other'), '--kv-disk-mb', '0');
  const wanted = await complete(plain, prompt, 100);
  assert.equal(wanted.fromDisk, 0);
  assert.equal((await status(plain)).on, false);
  await plain.stop();

  const again = await serveListed(state);
  const disk = await status(again);
  assert.equal(disk.pages, pages);
  const answer = await complete(again, prompt, 100);
  assert.deepEqual(answer.logprobs, wanted.logprobs);
  assert.equal(answer.text, wanted.text);
  assert.ok(answer.text.startsWith(arrivals.slice(0, 20).map((one) => one.text).join('')));
  assert.equal(answer.fromDisk, 96, 'the 6 full pages before the last token');

  // All pages that were full a second before the end are there; tokens of the answer, too.
  const old = arrivals.filter((one) => one.at < end - 1000).length;
  assert.ok(pages >= Math.floor((prompt.length + old) / pageTokens), `${pages} pages, ${old} old tokens`);
  assert.ok(pages > prompt.length / pageTokens, 'pages of the running answer were kept');
  await again.stop();
}));

test('a request can forbid it, and forget deletes what there is', () => inFolder(async (state) => {
  let hub = await serveListed(state);
  await complete(hub, promptOf(100), 20, { moex: { store: false } });
  assert.equal((await status(hub)).pages, 0);
  await complete(hub, promptOf(100, 2), 20);
  await written(hub, 7);
  const refused = await postJson(`${hub.url}/v1/completions`, { prompt: 'a', moex: { store: 'no' } });
  assert.equal(refused.status, 400);
  assert.match((await refused.json()).error.message, /moex\.store.*true or false/);

  const forgotten = await runHub(['forget', '--state', state]);
  assert.equal(forgotten.code, 0, forgotten.stderr);
  assert.equal(forgotten.stdout, '7 pages of prompts and answers deleted\n');
  assert.equal(pageFiles(state).length, 0);
  await complete(hub, promptOf(100, 3), 4);
  await hub.stop();
  hub = await serveListed(state);
  assert.equal((await complete(hub, promptOf(100, 2), 4)).fromDisk, 0);
  assert.equal((await complete(hub, promptOf(100, 3), 4)).fromDisk, 96);
  await hub.stop();

  const nowhere = await runHub(['forget', '--state', join(state, 'nowhere')]);
  assert.equal(nowhere.code, 1);
  assert.match(nowhere.stderr, /no hub keeps its state here/);
}));

test('damaged pages, another key and a lost folder are told once, and answers go on', () => inFolder(async (state) => {
  const prompt = promptOf(200);
  let hub = await serveListed(state);
  const wanted = await complete(hub, prompt, 10);
  await written(hub, 12);
  await hub.stop();

  // Damage every page.
  for (const file of pageFiles(state)) {
    const bytes = readFileSync(file);
    bytes[bytes.length >> 1] ^= 1;
    writeFileSync(file, bytes);
  }
  hub = await serveListed(state);
  assert.deepEqual((await complete(hub, prompt, 10)).logprobs, wanted.logprobs);
  assert.equal((await status(hub)).pages_refused, 1, 'the pages behind the first cannot be found any more');
  assert.match(hub.stderr(), /a page was refused and deleted, and answers go on.*damaged/);
  const metrics = await (await fetch(`${hub.url}/metrics`)).text();
  assert.match(metrics, /^moex_kv_disk_pages_refused_total 1$/m);
  await written(hub, 12);

  // A folder that is gone and cannot be made: a file has its name.
  rmSync(join(state, 'kv-pages'), { recursive: true });
  writeFileSync(join(state, 'kv-pages'), '');
  const other = await complete(hub, promptOf(200, 2), 10);
  await hub.logged('pages are not written, and answers go on');
  await complete(hub, promptOf(200, 3), 10);
  assert.equal(hub.stderr().split('pages are not written').length, 2, 'it is told once');
  assert.ok((await status(hub)).writes_failed >= 1);
  await hub.stop();

  // A hub that starts with the broken folder keeps no pages either.
  hub = await serve(state);
  assert.match(hub.stderr(), /no page of a prompt is kept on disk/);
  assert.deepEqual((await complete(hub, promptOf(200, 2), 10)).logprobs, other.logprobs);
  await hub.stop();
  rmSync(join(state, 'kv-pages'));

  // Another key.
  hub = await serveListed(state);
  await complete(hub, prompt, 10);
  await written(hub, 12);
  await hub.stop();
  const key = join(state, 'own-key');
  writeFileSync(key, `${'5a'.repeat(32)}\n`);
  chmodSync(key, 0o600);
  hub = await serve(state, '--kv-key-file', key);
  assert.match(hub.stderr(), /the pages on disk are of another key, and were deleted.* pages=1[234]/);
  assert.equal((await complete(hub, prompt, 10)).fromDisk, 0);
  await hub.stop();

  writeFileSync(key, 'short\n');
  const refused = await runHub(['serve', '--model', modelFolder, '--listen', '127.0.0.1:0', '--state', state,
    '--kv-key-file', key]);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /--kv-key-file: .*own-key: the first line has 5 characters, wanted 64 hexadecimal/);
}));

test('the key is a file of its own, private, or a credential', () => inFolder(async (state) => {
  let hub = await serveListed(state);
  await complete(hub, promptOf(64), 4);
  await written(hub, 4);
  await killed(hub);
  assert.equal(statSync(join(state, 'kv-key')).mode & 0o777, 0o600);
  assert.equal(statSync(join(state, 'kv-pages')).mode & 0o777, 0o700);
  for (const file of pageFiles(state)) assert.equal(statSync(file).mode & 0o777, 0o600);

  const credentials = join(state, 'credentials');
  const { mkdirSync } = await import('node:fs');
  mkdirSync(credentials);
  renameSync(join(state, 'kv-key'), join(credentials, 'moex-kv-key'));
  hub = await startHub(['--backend', 'local', '--state', state], { CREDENTIALS_DIRECTORY: credentials });
  await diskOnce(hub, ({ listed }) => listed);
  assert.equal((await complete(hub, promptOf(64), 4)).fromDisk, 48);
  assert.equal(existsSync(join(state, 'kv-key')), false);
  await hub.stop();
}));

test('beyond loopback nothing is kept until the operator says so, and not for a revoked key', () =>
  inFolder(async (state) => {
    const open = ['--listen', '0.0.0.0:0', '--insecure-http'];
    let hub = await serve(state, ...open);
    assert.equal((await status(hub).catch(() => null))?.on ?? false, false);
    assert.equal(existsSync(join(state, 'kv-pages')), false);
    await hub.stop();

    const addKey = async (name) => {
      const made = await runHub(['key', 'add', name, '--state', state]);
      const key = /mx-[\w-]+|moex-[\w-]+|[\w-]{40,}/.exec(made.stdout)?.[0];
      assert.ok(key, made.stdout);
      return key;
    };
    const ada = await addKey('ada'), ben = await addKey('ben');
    const serveKept = async () => {
      hub = await serve(state, ...open, '--kv-disk-mb', '100');
      const local = { url: `http://127.0.0.1:${new URL(hub.url).port}` };
      await diskOnce(local, ({ listed }) => listed, ben);
      return local;
    };
    const local = await serveKept();
    await complete(local, promptOf(100), 4, {}, ada);
    await complete(local, promptOf(64), 4, {}, ben);
    await hub.stop();
    assert.equal(pageFiles(state).length, 6 + 4);

    const revoked = await runHub(['key', 'revoke', 'ada', '--state', state]);
    assert.equal(revoked.code, 0, revoked.stderr);
    const again = await serveKept();
    assert.match(hub.stderr(), /keeps pages of prompts on disk.* pages=4 /);
    assert.equal(pageFiles(state).length, 4, 'the pages of the key that is valid stay');
    assert.equal((await complete(again, promptOf(64), 4, {}, ben)).fromDisk, 48);
    await hub.stop();
  }));
