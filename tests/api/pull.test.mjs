// Tests of moex-hub pull, models and rm, against an endpoint on this machine that redirects, breaks and lies.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync, mkdirSync, readFileSync, readdirSync, statSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { cleanEnvironment, hubProgram, inFolder, postJson, runHub, startHub } from './hub_process.mjs';
import { randomBytes, randomOf, sha256, startEndpoint } from './model_endpoint.mjs';

const name = 'someone/tiny-moe';
const secret = 'hf_the_secret_token';

// A repository with the names of a checkpoint. Its weights are random bytes, which pull does not interpret.
function repository(seed = 1, shardBytes = 300_000) {
  const random = randomOf(seed);
  const shards = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'];
  const weightMap = Object.fromEntries(shards.map((shard, i) => [`tensor.${i}`, shard]));
  return {
    'config.json': Buffer.from('{"architectures": ["Qwen3MoeForCausalLM"]}'),
    'README.md': Buffer.from('# not chosen'),
    'pytorch_model.bin': Buffer.from('a pickle, never chosen'),
    'generation_config.json': Buffer.from('{}'),
    'merges.txt': Buffer.alloc(0),
    'model.safetensors.index.json': Buffer.from(JSON.stringify({ weight_map: weightMap })),
    'other.safetensors': Buffer.from('not in the index'),
    'tokenizer.json': randomBytes(random, 70_000),
    ...Object.fromEntries(shards.map((shard) => [shard, randomBytes(random, shardBytes)])),
  };
}
const chosen = (files) => Object.keys(files)
  .filter((path) => !['README.md', 'pytorch_model.bin', 'other.safetensors'].includes(path)).sort();

const pulling = (endpoint, folder, ...more) => ['pull', name, '--endpoint', endpoint.url, '--models-dir', folder,
  '--range-kb', '64', ...more];
const pull = (endpoint, folder, ...more) => runHub(pulling(endpoint, folder, ...more), { HF_TOKEN: '' });

// Asserts that the folder has the chosen files of the repository, with the right bytes, and nothing else.
function assertWhole(folder, files, at = name) {
  const place = join(folder, at);
  assert.deepEqual(readdirSync(place).sort(), [...chosen(files), 'moex-pull.json'].sort());
  for (const path of chosen(files)) assert.ok(readFileSync(join(place, path)).equals(files[path]), path);
  const record = JSON.parse(readFileSync(join(place, 'moex-pull.json'), 'utf8'));
  assert.equal(record.complete, true);
  for (const { path, sha256: hash } of record.files) assert.equal(hash, sha256(files[path]), path);
}

async function withEndpoint(story, options = {}, files = repository()) {
  const endpoint = await startEndpoint(name, files, options);
  try { await inFolder((folder) => story(endpoint, folder, files)); } finally { await endpoint.stop(); }
}

test('pull fetches the chosen files alone, over pages and redirects', () => withEndpoint(
  async (endpoint, folder, files) => {
  const run = await pull(endpoint, folder);
  assert.equal(run.code, 0, run.stderr);
  assert.match(run.stdout, new RegExp(`7 files, .* every hash is right, commit ${endpoint.commit}`));
  assertWhole(folder, files);
  const asked = endpoint.seen.map(({ path }) => path);
  for (const path of ['README.md', 'pytorch_model.bin', 'other.safetensors']) assert.ok(!asked.includes(path), path);
  assert.ok(endpoint.seen.filter(({ route }) => route === 'storage').length >= 10, 'ranges of 64 kB');

  const before = endpoint.seen.filter(({ route }) => route === 'storage').length;
  const again = await pull(endpoint, folder);
  assert.equal(again.code, 0, again.stderr);
  assert.equal(endpoint.seen.filter(({ route }) => route === 'storage').length, before, 'nothing is fetched twice');
}, { pageSize: 3 }));

test('the token goes to the endpoint alone and is in no argument', () => withEndpoint(
  async (endpoint, folder, files) => {
  const without = await pull(endpoint, folder);
  assert.equal(without.code, 1);
  assert.match(without.stderr, /answers 401 \(Access to this repository is restricted\).*HF_TOKEN/);
  assert.ok(!existsSync(join(folder, name)));

  const run = await runHub(pulling(endpoint, folder), { HF_TOKEN: secret });
  assert.equal(run.code, 0, run.stderr);
  assertWhole(folder, files);
  const storage = endpoint.seen.filter(({ route }) => route === 'storage');
  assert.ok(storage.length > 0);
  for (const { headers } of storage) assert.equal(headers.authorization, undefined);
  for (const path of readdirSync(join(folder, name)))
    assert.ok(!readFileSync(join(folder, name, path)).includes(secret), path);
  assert.ok(!`${run.stdout}${run.stderr}`.includes(secret));

  const broken = await runHub(pulling(endpoint, folder), { HF_TOKEN: 'a\r\nHost: b' });
  assert.equal(broken.code, 2);
  assert.match(broken.stderr, /HF_TOKEN holds a blank, a line break/);
}, { token: secret }));

test('bad listings are refused by name', () => withEndpoint(async (endpoint, folder) => {
  const first = (change) => (entries) => [{ ...entries[0], ...change }, ...entries.slice(1)];
  const lies = [
    [first({ path: '../evil.json' }), /"\.\.\/evil\.json" is refused/],
    [first({ path: '/etc/passwd' }), /absolute/],
    [first({ path: 'a//b' }), /is empty/],
    [first({ path: 'a\\b' }), /backslash/],
    [first({ path: 'a\u0007' }), /control character/],
    [first({ path: `${'x'.repeat(201)}` }), /longer than 200/],
    [first({ type: 'symlink' }), /is a "symlink", wanted files and folders/],
    [first({ size: -1 }), /has the size -1/],
    [first({ size: 2 ** 50 }), /has the size/],
    [first({ oid: 'xyz' }), /wanted 40 hexadecimal digits/],
    [(entries) => [...entries, entries[0]], /is listed twice/],
    [(entries) => entries.filter(({ path }) => path !== 'model-00002-of-00002.safetensors'), /is not listed/],
    [(entries) => entries.filter(({ path }) => path !== 'config.json'), /has no config\.json/],
    [(entries) => entries.map((entry) => (entry.lfs ? { ...entry, lfs: { ...entry.lfs, size: 3 } } : entry)),
      /and lfs\.size 3, wanted equal sizes/],
    [(entries) => entries.map((entry) => (entry.lfs ? { ...entry, lfs: { oid: 'zz' } } : entry)), /64 hexadecimal/],
    [() => ({ error: 'no list' }), /wanted an array|slice/],
  ];
  for (const [edit, sentence] of lies.slice(0, -1)) {
    endpoint.edit = edit;
    const run = await pull(endpoint, folder);
    assert.equal(run.code, 1, run.stderr);
    assert.match(run.stderr, sentence);
    assert.deepEqual(readdirSync(folder), []);
  }
}));

test('a wrong name, endpoint or file is refused before any connection', () => inFolder(async (folder) => {
  const cases = [
    [['pull', '../x'], 2, /wanted OWNER\/NAME/],
    [['pull', 'a/b/c'], 2, /wanted OWNER\/NAME/],
    [['pull', 'a/b@../../x'], 2, /wanted OWNER\/NAME/],
    [['pull', 'a/b', '--endpoint', 'http://example.invalid'], 2, /plain http is for this machine alone/],
    [['pull', 'a/b', '--endpoint', 'ftp://example.invalid'], 2, /wanted https/],
    [['pull', 'a/b', '--endpoint', 'https://me:secret@example.invalid'], 2, /password inside an address/],
    [['pull', 'a/b', '--endpoint', 'http://127.0.0.1:1'], 1, /127\.0\.0\.1:1/],
  ];
  for (const [args, code, sentence] of cases) {
    const run = await runHub([...args, '--models-dir', folder]);
    assert.equal(run.code, code, run.stderr);
    assert.match(run.stderr, sentence);
    assert.ok(!run.stderr.includes('secret@'));
  }
}));

test('--file fetches a GGUF file with its parts, and no pickle', () => withEndpoint(async (endpoint, folder, files) => {
  const refused = [['none.gguf', /has no file "none\.gguf"; it has 3 GGUF files/], ['pytorch_model.bin', /never read/],
    ['.hidden.gguf', /hidden file/]];
  for (const [file, sentence] of refused) {
    const run = await pull(endpoint, folder, '--file', file);
    assert.equal(run.code, 1, run.stderr);
    assert.match(run.stderr, sentence);
  }
  const none = await pull(endpoint, folder);
  assert.equal(none.code, 1);
  assert.match(none.stderr, /has 3 GGUF files, choose one with --file: Q4\/m-00001-of-00002\.gguf/);

  const run = await pull(endpoint, folder, '--file', 'Q4/m-00002-of-00002.gguf');
  assert.equal(run.code, 0, run.stderr);
  assert.deepEqual(readdirSync(join(folder, name, 'Q4')).sort(), ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf']);
  for (const path of ['Q4/m-00001-of-00002.gguf', 'Q4/m-00002-of-00002.gguf'])
    assert.ok(readFileSync(join(folder, name, path)).equals(files[path]));
}, {}, {
  'README.md': Buffer.from('x'), 'm-Q8.gguf': Buffer.alloc(10, 1), 'pytorch_model.bin': Buffer.from('x'),
  'Q4/m-00001-of-00002.gguf': Buffer.alloc(100_000, 2), 'Q4/m-00002-of-00002.gguf': Buffer.alloc(90_000, 3),
}));

test('a folder, a link or a file in the way is refused and stays', () => withEndpoint(async (endpoint, folder) => {
  const place = join(folder, name);
  mkdirSync(place, { recursive: true });
  writeFileSync(join(place, 'config.json'), 'my own file');
  const own = await pull(endpoint, folder);
  assert.equal(own.code, 1);
  assert.match(own.stderr, /config\.json is there already and is not the repository's file/);
  assert.equal(readFileSync(join(place, 'config.json'), 'utf8'), 'my own file');
  assert.deepEqual(readdirSync(place), ['config.json']);

  const other = join(folder, 'other');
  mkdirSync(other);
  symlinkSync('/etc/hostname', join(other, 'config.json'));
  const link = await pull(endpoint, folder, other);
  assert.equal(link.code, 1);
  assert.match(link.stderr, /config\.json is a link, which is refused/);
}));

test('a file that no disk can hold is refused before anything is fetched', () => withEndpoint(
  async (endpoint, folder) => {
  endpoint.edit = (entries) => entries.map((entry) => (
    entry.path.startsWith('model-00001') ? { ...entry, size: 2 ** 42, lfs: { ...entry.lfs, size: 2 ** 42 } } : entry));
  const run = await pull(endpoint, folder);
  assert.equal(run.code, 1);
  assert.match(run.stderr, /4398\.\d\d GB are to be fetched, and the disk has [\d.]+ GB free/);
  assert.ok(!endpoint.seen.some(({ route }) => route === 'storage'));
  assert.deepEqual(readdirSync(join(folder, 'someone')), []);
}));

// Each fault is of a kind that real servers, proxies and disks have shown.
const faults = (random) => {
  const share = random(), pick = Math.floor(random() * 17);
  return [
    { kind: 'cut', share }, { kind: 'cut', share: 0 }, { kind: 'short', share }, { kind: 'more' },
    { kind: 'wrongRange' }, { kind: 'wrongLength' }, { kind: 'ignoreRange' }, { kind: 'refuse' }, { kind: 'garbage' },
    { flip: Math.floor(random() * 1e9) }, { kind: 'status', status: 416 },
    { kind: 'status', status: 429, headers: { 'retry-after': '0' } },
    { kind: 'status', status: 503, headers: { 'retry-after': new Date(Date.now() + 400).toUTCString() } },
    { kind: 'status', status: 500 }, { kind: 'status', status: 403 }, { kind: 'status', status: 404 },
    { kind: 'cut', share: 0.99 },
  ][pick];
};

test('under 200 and more faults a pull is whole, or refused and resumable', async () => {
  let numFaults = 0, numRefused = 0;
  const kinds = new Set();
  const one = async (seed) => {
    const random = randomOf(seed), files = repository(seed);
    await withEndpoint(async (endpoint, folder) => {
      const rate = 0.05 + 0.35 * random();
      endpoint.fault = () => {
        if (random() > rate) return null;
        const fault = faults(random);
        ++numFaults;
        kinds.add(fault.kind === 'status' ? fault.status : fault.kind ?? 'flip');
        return fault;
      };
      const run = await pull(endpoint, folder);
      if (run.code !== 0) {
        ++numRefused;
        assert.equal(run.code, 1, `seed ${seed}: ${run.stderr}`);
        assert.match(run.stderr, /^moex-hub: .+$/m);
        const place = join(folder, name);
        for (const path of existsSync(place) ? readdirSync(place) : []) {
          if (path in files) assert.ok(readFileSync(join(place, path)).equals(files[path]), `seed ${seed}: ${path}`);
          else assert.ok(['.pull', 'moex-pull.json'].includes(path), `seed ${seed}: ${path}`);
        }
      }
      endpoint.fault = () => null;
      const last = await pull(endpoint, folder);
      assert.equal(last.code, 0, `seed ${seed}: ${last.stderr}`);
      assertWhole(folder, files);
    }, { pageSize: 4 }, files);
  };
  const seeds = Array.from({ length: 60 }, (_, i) => i + 1);
  await Promise.all([0, 1, 2, 3].map(async () => { while (seeds.length) await one(seeds.shift()); }));
  console.log(`${numFaults} faults of ${kinds.size} kinds, ${numRefused} of 60 pulls refused`);
  assert.ok(numFaults >= 200, `${numFaults} faults`);
  assert.ok(kinds.size >= 14, [...kinds].join(' '));
});

test('an interrupted pull goes on from its bytes', async () => {
  for (const [signal, code] of [['SIGINT', 130], ['SIGKILL', 'SIGKILL']]) {
    await withEndpoint(async (endpoint, folder, files) => {
      const child = spawn(hubProgram, pulling(endpoint, folder, '--range-kb', '1024'), {
        env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'pipe'],
      });
      const ended = once(child, 'close');
      // The second shard stalls behind its half, so that the signal meets a download in progress.
      endpoint.fault = ({ path, route }) => (
        route === 'storage' && path.startsWith('model-00002') ? { kind: 'stall', share: 0.5 } : null);
      const state = join(folder, name, '.pull', 'state.json');
      const saved = () => existsSync(state) && readFileSync(state, 'utf8').includes('model-00002');
      while (!saved()) await new Promise((resolve) => setImmediate(resolve));
      child.kill(signal);
      assert.equal((await ended).find((value) => value !== null), code);

      endpoint.fault = () => null;
      endpoint.seen.length = 0;
      const run = await pull(endpoint, folder);
      assert.equal(run.code, 0, run.stderr);
      assertWhole(folder, files);
      const ranges = endpoint.seen.filter(({ route }) => route === 'storage').map(({ headers }) => headers.range);
      assert.ok(ranges.length >= 1 && ranges.every((range) => !range.startsWith('bytes=0-')), ranges.join(' '));
    });
  }
});

test('a server without ranges, or with other bytes, is handled', () => inFolder(async (folder) => {
  await withEndpoint(async (endpoint, place, files) => {
    const run = await pull(endpoint, place);
    assert.equal(run.code, 0, run.stderr);
    assertWhole(place, files);
  }, { ignoresRange: true });

  // The bytes changed behind the listing: their hash is wrong each time.
  const files = repository();
  const endpoint = await startEndpoint(name, files);
  const hashes = Object.fromEntries(Object.entries(files).map(([path, bytes]) => [path, sha256(bytes)]));
  endpoint.edit = (entries) => entries.map((entry) => (
    entry.lfs ? { ...entry, lfs: { ...entry.lfs, oid: hashes[entry.path] } } : entry));
  files['model-00001-of-00002.safetensors'] = randomBytes(randomOf(9), 300_000);
  try {
    const run = await pull(endpoint, folder);
    assert.equal(run.code, 1);
    assert.match(run.stderr, /has the SHA-256 [0-9a-f]{64}, the repository lists [0-9a-f]{64}; it was fetched 3 times/);
    assert.ok(!existsSync(join(folder, name, 'model-00001-of-00002.safetensors')));
  } finally { await endpoint.stop(); }
}));

test('redirects that leave the machine in clear text, or never end, are refused', () => withEndpoint(
  async (endpoint, folder) => {
  const loop = `${endpoint.url}/${name}/resolve/main/config.json`;
  for (const [location, sentence] of [['http://example.invalid/x', /plain http is for this machine alone/],
    ['file:///etc/passwd', /is no URL|wanted https/], [loop, /redirects more than 8 times/]]) {
    endpoint.fault = ({ route }) => (route === 'resolve' ? { kind: 'redirect', location } : null);
    const run = await pull(endpoint, folder);
    assert.equal(run.code, 1, run.stderr);
    assert.match(run.stderr, sentence);
  }
}));

test('a stalled connection is tried again, and a long Retry-After ends the pull', () => withEndpoint(
  async (endpoint, folder, files) => {
  let stalls = 0;
  endpoint.fault = ({ route }) => (route === 'storage' && stalls++ < 2 ? { kind: 'stall', share: 0.5 } : null);
  const run = await pull(endpoint, folder, '--stall-s', '1');
  assert.equal(run.code, 0, run.stderr);
  assertWhole(folder, files);
  assert.ok(stalls > 2);

  endpoint.fault = ({ route }) => (
    route === 'storage' ? { kind: 'status', status: 429, headers: { 'retry-after': '4000' } } : null);
  const refused = await pull(endpoint, folder, `${folder}/again`);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /answers 429; it asks to wait 4000 s/);

  // A pull obeys Retry-After also while it requests the list of files.
  let asked = 0, firstAt = 0, waited = 0;
  endpoint.fault = ({ route }) => {
    if (route !== 'tree') return null;
    if (++asked === 1) firstAt = performance.now();
    if (asked === 2) waited = performance.now() - firstAt;
    return asked === 1 ? { kind: 'status', status: 429, headers: { 'retry-after': '1' } } : null;
  };
  assert.equal((await pull(endpoint, folder, `${folder}/later`)).code, 0);
  assert.ok(waited >= 990, `${waited} ms`);

  // A file without a listed hash is known by its size alone, which is said; such a file of a person stays.
  endpoint.fault = () => null;
  endpoint.edit = (entries) => entries.map(({ oid, ...entry }) => (entry.lfs ? { ...entry, oid } : entry));
  const unchecked = await pull(endpoint, folder, `${folder}/unchecked`);
  assert.equal(unchecked.code, 0, unchecked.stderr);
  assert.match(unchecked.stderr, /config\.json: the endpoint lists no hash, so its size alone is checked/);
  mkdirSync(`${folder}/own`);
  writeFileSync(`${folder}/own/config.json`, Buffer.alloc(files['config.json'].length, 'x'));
  const own = await pull(endpoint, folder, `${folder}/own`);
  assert.match(own.stderr, /is not the repository's file \(no hash is listed\)/);
  assert.equal(readFileSync(`${folder}/own/config.json`, 'utf8')[0], 'x');
}));

test('one folder has one pull, and models and rm know what is there', () => withEndpoint(
  async (endpoint, folder, files) => {
  endpoint.fault = ({ route }) => (route === 'storage' ? { kind: 'stall', share: 0.1 } : null);
  const child = spawn(hubProgram, pulling(endpoint, folder), { env: cleanEnvironment(), stdio: 'ignore' });
  const ended = once(child, 'close');
  while (!endpoint.seen.some(({ route }) => route === 'storage')) await new Promise((resolve) => setImmediate(resolve));
  const second = await pull(endpoint, folder);
  assert.equal(second.code, 1);
  assert.match(second.stderr, /another pull writes into this folder/);
  const busy = await runHub(['rm', name, '--yes', '--models-dir', folder]);
  assert.match(busy.stderr, /another pull writes/);
  child.kill('SIGINT');
  await ended;

  const listed = async () => JSON.parse((await runHub(['models', '--json', '--models-dir', folder])).stdout);
  assert.equal((await listed())[0].kind, 'unfinished checkpoint');
  endpoint.fault = () => null;
  assert.equal((await pull(endpoint, folder)).code, 0);
  assertWhole(folder, files);
  const [model] = await listed();
  assert.deepEqual({ name: model.name, kind: model.kind, commit: model.commit },
    { name, kind: 'checkpoint', commit: endpoint.commit });
  assert.ok(model.size_bytes >= 670_000);

  const unasked = await runHub(['rm', name, '--models-dir', folder]);
  assert.equal(unasked.code, 2);
  assert.match(unasked.stderr, /asks before it removes/);
  assert.match((await runHub(['rm', '../x', '--yes', '--models-dir', folder])).stderr, /holds no model "\.\.\/x"/);
  const removed = await runHub(['rm', name, '--yes', '--models-dir', folder]);
  assert.equal(removed.code, 0, removed.stderr);
  assert.deepEqual(readdirSync(folder), []);
  assert.match((await runHub(['models', '--models-dir', folder])).stdout, /holds no models; moex-hub pull/);
}));

test('TLS is checked, and a redirect never leaves it', () => inFolder(async (folder) => {
  assert.equal((await runHub(['cert', '--out', folder, '--host', '127.0.0.1'])).code, 0);
  const tls = { cert: readFileSync(`${folder}/cert.pem`), key: readFileSync(`${folder}/key.pem`) };
  await withEndpoint(async (endpoint, place, files) => {
    const unknown = await pull(endpoint, place);
    assert.equal(unknown.code, 1);
    assert.match(unknown.stderr, /certificate/);
    assert.equal(endpoint.seen.length, 0);

    const run = await runHub(pulling(endpoint, place), { HF_TOKEN: secret, SSL_CERT_FILE: `${folder}/cert.pem` });
    assert.equal(run.code, 0, run.stderr);
    assertWhole(place, files);

    endpoint.storageUrl = 'http://127.0.0.1:1';
    const down = await runHub(pulling(endpoint, place, `${place}/again`), { SSL_CERT_FILE: `${folder}/cert.pem` });
    assert.equal(down.code, 1);
    assert.match(down.stderr, /redirects to "http:.*plain http; such a redirect is refused/);
  }, { tls });
}));

test('rm asks on a terminal, and only yes removes', () => withEndpoint(async (endpoint, folder, files) => {
  assert.equal((await pull(endpoint, folder)).code, 0);
  for (const [typed, stays] of [['n\n', true], ['\n', true], ['y\n', false]]) {
    const words = `'${hubProgram}' rm '${name}' --models-dir '${folder}'`;
    const child = spawn('script', ['-qfec', words, '/dev/null'], { env: cleanEnvironment({ TERM: 'dumb' }) });
    let screen = '';
    child.stdout.setEncoding('utf8').on('data', (text) => {
      if (!screen.includes('[y/N]') && (screen + text).includes('[y/N]')) child.stdin.write(typed);
      screen += text;
    });
    const [code] = await once(child, 'close');
    assert.equal(code, 0, screen);
    assert.match(screen, /Remove the checkpoint someone\/tiny-moe \([\d.]+ kB, /);
    if (stays) assertWhole(folder, files);
  }
  assert.deepEqual(readdirSync(folder), []);
}));

// The demo's checkpoint in full precision; too large for the repository.
const demo = process.env.MOEX_DEMO_CHECKPOINT;
const demo_story = 'packed, served and asked in a chat';
for (const more of [[], ['--stream']]) test(`the demo is pulled (${more}), ${demo_story}`, { skip: !demo },
  () => inFolder(async (folder) => {
  const files = Object.fromEntries(readdirSync(demo).filter((path) => /\.(json|safetensors)$/.test(path))
    .map((path) => [path, readFileSync(join(demo, path))]));
  const endpoint = await startEndpoint('moex/demo', files, { pageSize: 5 });
  // A part is renamed once it is whole, also between the list of a folder and a look at a file.
  const bytesOnDisk = (path) => (statSync(path, { throwIfNoEntry: false })?.blocks ?? 0) * 512;
  // The most disk space that the checkpoint takes when a shard is asked for, by its size.
  let shareMost = 0;
  const total = Object.values(files).reduce((sum, bytes) => sum + bytes.length, 0);
  endpoint.fault = ({ route }) => {
    const at = `${folder}/moex/demo`;
    if (route === 'storage' && existsSync(at))
      shareMost = Math.max(shareMost, readdirSync(at, { recursive: true })
        .reduce((sum, path) => sum + bytesOnDisk(join(at, path)), 0) / total);
    return null;
  };
  try {
    const run = await runHub(['pull', 'moex/demo', '--endpoint', endpoint.url, '--models-dir', folder, '--pack',
      '--name', 'moex-demo', '--range-kb', '4096', ...more]);
    assert.equal(run.code, 0, run.stderr);
  } finally { await endpoint.stop(); }

  if (more.length) assert.ok(shareMost < 0.75, `${shareMost} of the checkpoint was on the disk`);

  // The package is that of the original folder, to the last bit.
  const direct = await runHub(['pack', demo, `${folder}/direct`, '--name', 'moex-demo']);
  assert.equal(direct.code, 0, direct.stderr);
  const manifest = (path) => readFileSync(`${folder}/${path}/manifest.json`, 'utf8');
  assert.equal(manifest('moex/demo.moex'), manifest('direct'));

  const hub = await startHub(['--backend', 'local'], {}, `${folder}/moex/demo.moex`);
  try {
    const child = spawn(hubProgram, ['chat', '--url', hub.url, '--max-tokens', '8'], { env: cleanEnvironment() });
    let stdout = '';
    child.stdout.setEncoding('utf8').on('data', (text) => { stdout += text; });
    child.stdin.end('Tell me a story.\n');
    assert.equal((await once(child, 'close'))[0], 0);
    assert.ok(stdout.trim().length > 0);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

// Splits a checkpoint's model.safetensors into shards of so many tensors, with an index.
function sharded(files, tensorsPerShard) {
  const whole = files['model.safetensors'];
  const headerBytes = Number(whole.readBigUInt64LE(0));
  const { __metadata__: ignored, ...tensors } = JSON.parse(whole.subarray(8, 8 + headerBytes).toString());
  const names = Object.keys(tensors).sort((a, b) => tensors[a].data_offsets[0] - tensors[b].data_offsets[0]);
  const { 'model.safetensors': left, ...out } = files, weightMap = {};
  const count = Math.ceil(names.length / tensorsPerShard);
  for (let shard = 0; shard < count; ++shard) {
    const file = `model-${String(shard + 1).padStart(5, '0')}-of-${String(count).padStart(5, '0')}.safetensors`;
    const header = {}, parts = [];
    let at = 0;
    for (const tensor of names.slice(shard * tensorsPerShard, (shard + 1) * tensorsPerShard)) {
      const [begin, end] = tensors[tensor].data_offsets;
      header[tensor] = { ...tensors[tensor], data_offsets: [at, at + end - begin] };
      parts.push(whole.subarray(8 + headerBytes + begin, 8 + headerBytes + end));
      at += end - begin;
      weightMap[tensor] = file;
    }
    const text = Buffer.from(JSON.stringify(header).padEnd(Math.ceil(JSON.stringify(header).length / 8) * 8));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    out[file] = Buffer.concat([length, text, ...parts]);
  }
  out['model.safetensors.index.json'] = Buffer.from(JSON.stringify({ metadata: {}, weight_map: weightMap }));
  return out;
}

const tiny = new URL('../golden/qwen3-tiny/', import.meta.url).pathname;
const tinyFiles = () => sharded(Object.fromEntries(readdirSync(tiny)
  .filter((path) => /^(config|generation_config|model)\.(json|safetensors)$/.test(path))
  .map((path) => [path, readFileSync(join(tiny, path))])), 9);
const streaming = (endpoint, folder) => runHub(['pull', 'golden/tiny', '--endpoint', endpoint.url,
  '--models-dir', folder, '--pack', '--stream', '--range-kb', '64', '--expert-dtype', 'f32', '--name', 'tiny']);

test('a streamed checkpoint is packed, served, and leaves no shard', () => inFolder(async (folder) => {
  const direct = await runHub(['pack', tiny, `${folder}/direct`, '--expert-dtype', 'f32', '--name', 'tiny']);
  assert.equal(direct.code, 0, direct.stderr);
  const endpoint = await startEndpoint('golden/tiny', tinyFiles());
  try {
    const run = await streaming(endpoint, folder);
    assert.equal(run.code, 0, run.stderr);
    assert.match(run.stdout, /serve it: moex-hub serve --model .*golden\/tiny\.moex/);
  } finally { await endpoint.stop(); }
  assert.deepEqual(readdirSync(`${folder}/golden`), ['tiny.moex']);
  assert.equal(readFileSync(`${folder}/golden/tiny.moex/manifest.json`, 'utf8'),
    readFileSync(`${folder}/direct/manifest.json`, 'utf8'));

  const hub = await startHub(['--backend', 'local'], {}, `${folder}/golden/tiny.moex`);
  try {
    const answer = await postJson(`${hub.api}/completions`, { model: 'tiny', prompt: [1, 2, 3], max_tokens: 4 });
    assert.equal(answer.status, 200, await answer.clone().text());
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

test('a stream that breaks anywhere goes on from what is here', () => inFolder(async (folder) => {
  const direct = await runHub(['pack', tiny, `${folder}/direct`, '--expert-dtype', 'f32', '--name', 'tiny']);
  assert.equal(direct.code, 0, direct.stderr);
  const endpoint = await startEndpoint('golden/tiny', tinyFiles());
  const shards = Object.keys(endpoint.files).filter((path) => path.endsWith('.safetensors'));
  assert.ok(shards.length > 2);
  // Two requests read a shard's header, the later ones its bytes. Each run loses one shard, the first that no run
  // before has lost: it is missing, or its last byte is wrong however often it is asked for.
  const lost = new Set();
  let asked = new Map(), victim;
  endpoint.fault = ({ route, path }) => {
    if (route !== 'storage') return null;
    asked.set(path, (asked.get(path) ?? 0) + 1);
    if (asked.get(path) < 3 || lost.has(path) || (victim ??= path) !== path) return null;
    return lost.size % 2 ? { flip: endpoint.files[path].length - 1 } : { kind: 'status', status: 404 };
  };
  try {
    for (const ignored of shards) {
      [asked, victim] = [new Map(), undefined];
      const run = await streaming(endpoint, folder);
      assert.equal(run.code, 1, `${[...lost]}, ${victim}: ${run.stdout}`);
      assert.match(run.stderr, /the same command goes on/);
      lost.add(victim);
    }
    assert.equal(lost.size, shards.length);
    [asked, victim] = [new Map(), undefined];
    const run = await streaming(endpoint, folder);
    assert.equal(run.code, 0, run.stderr);
    assert.equal(asked.size, 1, 'shards that have arrived are not asked for again');
  } finally { await endpoint.stop(); }
  assert.deepEqual(readdirSync(`${folder}/golden`), ['tiny.moex']);
  assert.equal(readFileSync(`${folder}/golden/tiny.moex/manifest.json`, 'utf8'),
    readFileSync(`${folder}/direct/manifest.json`, 'utf8'));
}));

// The story of a user: pull, pack, serve, ask.
test('a checkpoint is pulled, packed and served', () => inFolder(async (folder) => {
  const golden = new URL('../golden/dense/llama/', import.meta.url).pathname;
  const files = Object.fromEntries(readdirSync(golden)
    .filter((path) => /^(config|generation_config|tokenizer.*|model.*)\.(json|safetensors)$/.test(path))
    .map((path) => [path, readFileSync(join(golden, path))]));
  const endpoint = await startEndpoint('golden/llama', files);
  try {
    const run = await runHub(['pull', 'golden/llama', '--endpoint', endpoint.url, '--models-dir', folder, '--pack',
      '--expert-dtype', 'f32']);
    assert.equal(run.code, 0, run.stderr);
    assert.match(run.stdout, /serve it: moex-hub serve --model .*golden\/llama\.moex/);
  } finally { await endpoint.stop(); }

  const [{ ids, greedy }] = JSON.parse(readFileSync(`${golden}golden.json`, 'utf8'));
  const hub = await startHub(['--local-fallback', 'off'], {}, `${folder}/golden/llama.moex`);
  try {
    const answer = await postJson(`${hub.api}/completions`,
      { model: 'llama', prompt: ids, max_tokens: greedy.length, temperature: 0 });
    assert.equal(answer.status, 200, await answer.clone().text());
    assert.equal((await answer.json()).usage.completion_tokens, greedy.length);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));
