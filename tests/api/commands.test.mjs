// Tests of moex-hub's commands as a person or a script runs them: exit codes, stdout, signals.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync, copyFileSync, cpSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync,
} from 'node:fs';
import { request } from 'node:http';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import {
  cleanEnvironment, hubProgram, inFolder, modelFolder, postJson, runHub, runProgram, startHub,
} from './hub_process.mjs';

// Runs a bench program that is in the same folder as moex-hub.
const runBench = (name, args) => runProgram(join(dirname(hubProgram), name), args);

const generating = (...args) => ['generate', '--model', modelFolder, ...args];

test('generate writes the text alone, the same for the same seed', async () => {
  const args = generating('--prompt', 'The sea was', '--max-tokens', '12', '--temperature', '1', '--seed', '5',
    '--deterministic');
  const [first, again] = [await runHub(args), await runHub(args)];
  assert.equal(first.code, 0, first.stderr);
  assert.ok(first.stdout.length > 0);
  assert.equal(first.stdout, again.stdout);
  assert.equal(first.stderr, '');
});

test('generate that is interrupted flushes what it has and exits with 130', async () => {
  const args = generating('--prompt', 'The sea was', '--max-tokens', '100000', '--temperature', '1', '--seed', '5');
  const child = spawn(hubProgram, args, { env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = once(child, 'close');
  let text = '';
  child.stdout.setEncoding('utf8').on('data', (piece) => {
    if (!text) child.kill('SIGINT');
    text += piece;
  });

  const [code] = await ended;
  assert.equal(code, 130);
  assert.ok(text.length > 0);
});

test('--config takes the output of --print-config', () => inFolder(async (folder) => {
  const commands = ['serve', 'generate', 'eval', 'train-estimator', 'inspect', 'pack', 'synth', 'cert', 'verify',
    'backup', 'pull', 'models', 'rm', 'chat'];
  for (const command of commands) {
    const first = await runHub([command, '--print-config']);
    assert.equal(first.code, 0, first.stderr);

    writeFileSync(`${folder}/config.toml`, first.stdout);
    const again = await runHub([command, '--print-config', '--config', `${folder}/config.toml`]);
    assert.equal(again.code, 0, again.stderr);
    const values = (text) => text.split('\n').map((line) => line.replace(/ +# (default|file)$/, ''));
    assert.deepEqual(values(again.stdout), values(first.stdout));
  }
}));

// The hub computes a dense model completely, without a worker and with any value of --backend.
test('dense checkpoints are packed, and write what their goldens say', () => inFolder(async (folder) => {
  for (const name of ['qwen2', 'qwen3', 'llama']) {
    const golden = new URL(`../golden/dense/${name}/`, import.meta.url).pathname;
    const packed = `${folder}/${name}`;
    const pack = await runHub(['pack', golden, packed, '--expert-dtype', 'f32']);
    assert.equal(pack.code, 0, pack.stderr);
    assert.match((await runHub(['inspect', packed])).stdout, /none: a dense model, intermediate 96/);

    for (const { ids, greedy } of JSON.parse(readFileSync(`${golden}golden.json`, 'utf8'))) {
      writeFileSync(`${folder}/ids`, ids.join(' '));
      const run = await runHub(['generate', '--model', packed, '--prompt-ids', `${folder}/ids`, '--max-tokens', '24',
        '--temperature', '0']);
      assert.equal(run.code, 0, run.stderr);
      assert.equal(run.stdout, greedy.join(' '));
    }
  }

  const hub = await startHub(['--local-fallback', 'off'], {}, `${folder}/llama`);
  try {
    const body = { model: 'llama', prompt: [3, 1, 4], max_tokens: 5, temperature: 0 };
    const response = await postJson(`${hub.api}/completions`, body);
    assert.equal(response.status, 200, await response.clone().text());
    assert.equal((await response.json()).usage.completion_tokens, 5);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

test('generate takes ids and prints margins to stderr', () => inFolder(async (folder) => {
  const file = `${folder}/ids`;
  writeFileSync(file, '[100, 200 300]\n');
  const run = await runHub(generating('--prompt-ids', file, '--max-tokens', '5', '--temperature', '0', '--margins'));
  assert.equal(run.code, 0, run.stderr);
  assert.match(run.stderr, /^margin_min=\d+\.\d+ tokens=5\n$/);
}));

test('generate equals the API for the same request', async () => {
  const prompt = 'Tell me a story about a lighthouse';
  const run = await runHub(generating('--prompt', prompt, '--chat', '--max-tokens', '24', '--temperature', '0',
    '--deterministic'));
  assert.equal(run.code, 0, run.stderr);

  const hub = await startHub(['--backend', 'local', '--deterministic']);
  try {
    const messages = [{ role: 'user', content: prompt }];
    const response = await postJson(`${hub.api}/chat/completions`, { messages, max_tokens: 24, temperature: 0 });
    assert.equal((await response.json()).choices[0].message.content, run.stdout);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
});

test('wrong arguments exit with 2, failures with 1, each with a sentence', async () => {
  const wrong = [
    [], ['dance'], ['generate'], ['synth', '--shape', 'cube', '/nowhere'], ['serve', '--replicas', '0'],
    ['serve', '--listen', '0.0.0.0:0'], ['serve', '--tls-cert', 'x'],
    ['serve', '--backend', 'local', '--local-fallback', 'off'],
  ];
  for (const args of wrong) {
    const run = await runHub(args);
    assert.equal(run.code, 2, `${args}: ${run.stderr}`);
    assert.ok(run.stderr.length > 0 && run.stdout === '');
  }

  const failing = [
    ['inspect', '/nowhere'], ['verify', '/nowhere'], ['pack', '/nowhere', '/tmp/moex-never'],
    ['generate', '--model', '/nowhere', '--prompt', 'x'],
  ];
  for (const args of failing) {
    const run = await runHub(args);
    assert.equal(run.code, 1, `${args}: ${run.stderr}`);
    assert.match(run.stderr, /moex-hub: .*\/nowhere/);
  }
});

test('INT4 experts are multiplied in integers unless exact arithmetic is asked for', async () => {
  const text = `${modelFolder}/../../../tests/golden/demo/val_excerpt.txt`;
  const score = async (...args) => {
    const run = await runHub(['eval', '--model', modelFolder, '--text', text, '--window', '64', '--windows', '1',
      ...args]);
    assert.equal(run.code, 0, run.stderr);
    return run.stdout;
  };
  const exact = await score('--arithmetic', 'exact'), integers = await score('--arithmetic', 'int8');
  assert.notEqual(exact, integers);
  assert.equal(await score(), integers);

  const refused = await runHub(['eval', '--model', modelFolder, '--text', text, '--deterministic', '--arithmetic',
    'int8']);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /--deterministic fixes sums/);
});

// The demo's checkpoint in full precision; too large for the repository.
const demo = process.env.MOEX_DEMO_CHECKPOINT;
test('pack --calibrate quantises for a text, at the same size', { skip: !demo }, () => inFolder(async (folder) => {
  const text = `${folder}/text.txt`, out = `${folder}/calibrated`;
  writeFileSync(text, readFileSync(`${modelFolder}/../../../tests/golden/demo/val_excerpt.txt`).subarray(0, 20_000));
  const run = await runHub(['pack', demo, out, '--name', 'demo', '--calibrate', text, '--calibrate-tokens', '512']);
  assert.equal(run.code, 0, run.stderr);
  assert.deepEqual(readdirSync(folder).sort(), ['calibrated', 'text.txt']);

  const [, before, after] = /of outputs ([\d.e-]+) before, ([\d.e-]+) after/.exec(run.stdout).map(Number);
  assert.ok(after < 0.7 * before, run.stdout);
  assert.match(run.stdout, /^before: perplexity [\d.]+, 1\.\d+x of the checkpoint's/m);
  assert.match(run.stdout, /^after: .*the same likeliest token at \d+\.\d+ % of 511 positions/m);
  assert.equal((await runHub(['verify', out])).code, 0);
  const names = readdirSync(`${out}/weights`);
  assert.equal(names.length, 128);
  for (const name of names) assert.equal(statSync(`${out}/weights/${name}`).size, 156_672);

  const compared = await runHub(['eval', '--model', out, '--reference', modelFolder, '--text', text, '--window', '64',
    '--windows', '1']);
  assert.equal(compared.code, 0, compared.stderr);
  assert.match(compared.stdout,
    /^perplexity [\d.]+ {2}reference [\d.]+ {2}ratio [\d.]+ {2}kl 0\.\d+ {2}same_likeliest/);
}));

test('foresight_bench reports the recall of each predictor, as tables and plots', () => inFolder(async (folder) => {
  const text = `${modelFolder}/../../../tests/golden/demo/val_excerpt.txt`;
  const args = ['--model', modelFolder, '--text', text, '--window', '32', '--windows', '2'];
  const all = await runBench('foresight_bench',
    [...args, '--calibrate', text, '--calibrate-tokens', '64', '--out', `${folder}/out`]);
  assert.equal(all.code, 0, all.stderr);
  assert.match(all.stdout, /^moex-demo: 2 windows of 32 tokens, 4 of 16 experts in 8 MoE layers\n/);
  for (const name of ['random', 'previous-token', 'lru', 'lfu', 'popularity', 'request-popularity', 'next-gate',
    'next-gate \\+4', 'quasi-hidden', 'quasi-hidden \\+4', 'linear', 'estimator'])
    assert.match(all.stdout, new RegExp(`\\d  ${name} +0\\.\\d{3} ± 0\\.\\d{3}`));

  const rows = readFileSync(`${folder}/out/predictors.csv`, 'utf8').trim().split('\n').slice(1);
  assert.equal(rows[0], 'predictor,lead,measure,of,mean,deviation,windows');
  const value = (start) => Number(rows.find((row) => row.startsWith(start)).split(',')[4]);
  assert.ok(value('next-gate,1,recall,4,') > value('random,0,recall,4,') + 0.2);
  assert.equal(readFileSync(`${folder}/out/layers.csv`, 'utf8').match(/^next-gate,1,/gm).length, 7);
  assert.equal(readFileSync(`${folder}/out/tokens.csv`, 'utf8').match(/^random,0,/gm).length, 32);
  const [columns, first, ...later] = readFileSync(`${folder}/out/tokens.csv`, 'utf8').trim().split('\n').slice(1);
  assert.match(columns, /^predictor,lead,token,recall,recall_deviation,rank_1_hit,.*,cosine,cosine_deviation$/);
  assert.equal(first.split(',').length, columns.split(',').length);
  assert.ok(Number(later.find((row) => row.startsWith('next-gate,1,9,')).split(',').at(-2)) > 0.1, 'its cosine');
  for (const name of ['layers.svg', 'tokens.svg'])
    assert.equal(readFileSync(`${folder}/out/${name}`, 'utf8').match(/<polyline /g).length, 16);

  const plain = await runBench('foresight_bench', args);
  assert.equal(plain.code, 0, plain.stderr);
  for (const name of ['next-gate', 'quasi-hidden', 'estimator'])  // predictors that work with the demo package
    assert.match(plain.stdout, new RegExp(`\\d  ${name} `));
  assert.match(plain.stdout, /\nno linear: it is fitted to --calibrate TEXT\n/);

  for (const [wrong, sentence] of [[['--text', `${folder}/none`], /none: cannot be read/],
    [['--text', text, '--windows', '100000'], /whole windows of/],
    [['--text', text, '--calibrate', `${folder}/none`], /none: cannot be read/]]) {
    const refused = await runBench('foresight_bench', ['--model', modelFolder, ...wrong]);
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, sentence);
  }
}));

test('eval measures the served lossy modes and records them', () => inFolder(async (folder) => {
  const text = `${modelFolder}/../../../tests/golden/demo/val_excerpt.txt`, model = `${folder}/demo`;
  cpSync(modelFolder, model, { recursive: true });
  const args = ['eval', '--model', model, '--text', text, '--window', '64', '--windows', '2'];
  const measured = await runHub(
    [...args, '--experts', 'speculative,estimator', '--record', '--out', `${folder}/x.csv`]);
  assert.equal(measured.code, 0, measured.stderr);
  for (const mode of ['exact', 'early:1', 'estimator'])
    assert.match(measured.stdout, new RegExp(`^${mode} +\\d+\\.\\d{3}`, 'm'));
  assert.match(readFileSync(`${folder}/x.csv`, 'utf8'), /^experts,perplexity,excess,windows\nexact,.*,0.00000,2\n/);
  const record = JSON.parse(readFileSync(`${model}/losses.json`, 'utf8'));
  assert.deepEqual(Object.keys(record.perplexity).sort(), ['early:1', 'estimator', 'exact']);

  const unserved = await runHub([...args, '--experts', 'router-free']);
  assert.equal(unserved.code, 1);
  assert.match(unserved.stderr, /router-free.*wanted speculative or estimator.*lossy_bench/);
  const trial = await runBench('lossy_bench', [...args.slice(1), '--experts', 'router-free,early:1,lost:5']);
  assert.equal(trial.code, 0, trial.stderr);
  assert.match(trial.stdout, /^router-free +\d/m);
}));

test('a package learns default vectors and an estimator that predictors read', () => inFolder(async (folder) => {
  const text = `${modelFolder}/../../../tests/golden/demo/val_excerpt.txt`, model = `${folder}/demo`;
  cpSync(modelFolder, model, { recursive: true });
  const manifest = JSON.parse(readFileSync(`${model}/manifest.json`, 'utf8'));
  writeFileSync(`${model}/manifest.json`, JSON.stringify({ ...manifest, default_vectors: null, estimator: null }));
  const trained = await runHub(['train-estimator', '--model', model, '--text', text, '--windows', '16',
    '--window', '256', '--calibrate-tokens', '1024']);
  assert.equal(trained.code, 0, trained.stderr);
  const [, parameters, first, last] = trained.stdout.match(
    /estimator of (\d+) parameters, 4096 tokens, loss (\S+) to (\S+) nats/);
  assert.ok(Number(parameters) <= 250000);
  assert.ok(Number(last) < Number(first));
  assert.equal((await runHub(['verify', model])).code, 0);
  assert.match((await runHub(['inspect', model])).stdout, /foresight +default vectors, estimator/);

  const said = await runBench('foresight_bench',
    ['--model', model, '--text', text, '--window', '32', '--windows', '2']);
  assert.equal(said.code, 0, said.stderr);
  for (const name of ['popularity', 'quasi-hidden', 'estimator'])
    assert.match(said.stdout, new RegExp(`\\d  ${name} +0\\.\\d{3} ± 0\\.\\d{3}`));
}));

test('a shadow in fewer bits follows the model with the reported recall', () => inFolder(async (folder) => {
  const text = `${modelFolder}/../../../tests/golden/demo/val_excerpt.txt`, shadow = `${folder}/int3`;
  const packed = await runHub(['pack', '--shadow', 'int3', modelFolder, shadow]);
  assert.equal(packed.code, 0, packed.stderr);
  assert.deepEqual(readdirSync(shadow).length, 9);  // one file for each of the eight layers, and one description file

  const args = ['--text', text, '--window', '24', '--windows', '2', '--out', `${folder}/out`];
  const said = await runBench('foresight_bench', [...args, '--shadow', `${shadow},served:2,${shadow}:3`]);
  assert.equal(said.code, 0, said.stderr);
  for (const fewer of ['served:2 +1\\.000', 'int3:3 +0\\.76\\d'])
    assert.match(said.stdout, new RegExp(`  ${fewer}  text +1 +- +0\\.\\d{3} ±`));
  const recallOf = (row) => Number(said.stdout.match(new RegExp(`  int3 +0\\.76\\d  ${row} +(\\d\\.\\d{3}) ±`))[1]);
  assert.ok(recallOf('text +1 +-') > 0.85);
  assert.ok(recallOf('text +1 +1') > 0.85);
  assert.ok(recallOf('answers +1 +1') >= recallOf('answers +- +-'));
  assert.match(readFileSync(`${folder}/out/shadows.csv`, 'utf8'), /^int3,\d+,0\.76\d\d,text,1,16,all,4,/m);

  const times = readFileSync(`${folder}/out/shadow_times.csv`, 'utf8').trim().split('\n').slice(1);
  assert.equal(times[0], 'shadow,bytes,share_of_served,on,token_period,kv_period,served_ms,shadow_ms,align_ms');
  assert.equal(times.length, 1 + 3 * 32);  // 1 header row, and one row for each alignment of the answers

  const wrong = await runBench('foresight_bench', [...args, '--shadow', modelFolder]);
  assert.equal(wrong.code, 1);
  assert.match(wrong.stderr, /shadow\.json/);
  for (const [extra, sentence] of [[['--shadow', 'int5'], /wanted int2, int3, nf4 or int8/],
    [['--shadow', 'int2', '--calibrate', text], /--shadow makes none/]]) {
    const refused = await runHub(['pack', ...extra, modelFolder, `${folder}/none`]);
    assert.notEqual(refused.code, 0);
    assert.match(refused.stderr, sentence);
  }
}));

test('names in a checkpoint cannot write to the terminal', () => inFolder(async (folder) => {
  cpSync(`${modelFolder}/../../../tests/golden/qwen3-tiny/config.json`, `${folder}/config.json`);
  const header = Buffer.from('{"a\\n\\u001b[31mb":3}'), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(`${folder}/model.safetensors`, Buffer.concat([length, header]));

  const run = await runHub(['pack', folder, `${folder}/out`]);
  assert.equal(run.code, 1);
  assert.match(run.stderr, /^moex-hub: .*tensor a\?\?\[31mb: found 3, wanted .*\n$/);
}));

test('inspect speaks to people and to programs', async () => {
  const people = await runHub(['inspect', modelFolder]);
  assert.equal(people.code, 0, people.stderr);
  assert.match(people.stdout, /experts +16 per layer, 4 per token/);

  const json = JSON.parse((await runHub(['inspect', modelFolder, '--json'])).stdout);
  assert.equal(json.config.num_experts, 16);
  assert.equal(json.expert_blob_bytes, 156672);
});

test('synth makes a package that verify and generate take', () => inFolder(async (folder) => {
  const out = `${folder}/tiny`;
  const made = await runHub(['synth', '--shape', 'tiny', out, '--seed', '3']);
  assert.equal(made.code, 0, made.stderr);
  assert.equal((await runHub(['verify', out])).code, 0);

  writeFileSync(`${folder}/ids`, '1 2 3');
  const run = await runHub(['generate', '--model', out, '--prompt-ids', `${folder}/ids`, '--max-tokens', '3',
    '--temperature', '0']);
  assert.equal(run.code, 0, run.stderr);
  assert.match(run.stdout, /^\d+ \d+ \d+$/);
}));

test('a hub in codes is told by inspect, and --hub-dtype says what it does with it', () => inFolder(async (folder) => {
  writeFileSync(`${folder}/ids`, '1 2 3');
  for (const dtype of ['int8', 'int4']) {
    const out = `${folder}/${dtype}`;
    const made = await runHub(['synth', '--shape', 'tiny', out, '--hub-dtype', dtype]);
    assert.equal(made.code, 0, made.stderr);
    assert.equal((await runHub(['verify', out])).code, 0);
    assert.match((await runHub(['inspect', out])).stdout, new RegExp(`hub +\\d.*, matrices in ${dtype}\\n`));
    assert.equal(JSON.parse((await runHub(['inspect', out, '--json'])).stdout).hub_dtype, dtype);

    const write = (...args) => runHub(['generate', '--model', out, '--prompt-ids', `${folder}/ids`, '--max-tokens', '3',
      '--temperature', '0', ...args]);
    const plain = await write();
    assert.equal(plain.code, 0, plain.stderr);
    assert.equal(plain.stderr, '');

    const other = await write('--hub-dtype', dtype === 'int8' ? 'int4' : 'int8');
    assert.equal(other.code, 0, other.stderr);
    assert.match(other.stderr, dtype === 'int8' ? /rounded again to 4/ : /in 4 bits, and they stay so/);
    const six = await write('--hub-dtype', 'int6');
    assert.equal(six.code, 0, six.stderr);
    assert.match(six.stderr, dtype === 'int8' ? /rounded again to 6/ : /in 4 bits, and they stay so/);
    const refused = await write('--hub-dtype', 'bf16');
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, /--hub-dtype bf16 is for pack and synth/);
  }
  const six = await runHub(['synth', '--shape', 'tiny', `${folder}/int6`, '--hub-dtype', 'int6']);
  assert.equal(six.code, 1);
  assert.match(six.stderr, /a package has bf16, int8 or int4/);
}));

test('a package without its blobs is served, and what computes here says what is missing', () =>
  inFolder(async (folder) => {
    const model = `${folder}/model`;
    cpSync(modelFolder, model, { recursive: true });
    const [first, ...others] = readdirSync(`${model}/weights`).sort();
    rmSync(`${model}/weights/${first}`);

    const total = others.length + 1;
    const missing = new RegExp(`model/weights: 1 of ${total} expert blobs are missing, the first: ${first}`);
    const local = ['serve', '--backend', 'local', '--model', model, '--listen', '127.0.0.1:0', '--state', folder];
    for (const args of [['verify', model], ['generate', '--model', model, '--prompt', 'x'], local]) {
      const run = await runHub(args);
      assert.equal(run.code, 1, `${args}: ${run.stderr}`);
      assert.match(run.stderr, missing);
    }
    assert.equal(JSON.parse((await runHub(['inspect', model, '--json'])).stdout).blobs_missing, 1);

    const hub = await startHub([], {}, model);
    try {
      assert.equal((await fetch(`${hub.url}/weights/${first}`)).status, 404);
      assert.equal((await fetch(`${hub.url}/weights/${others[0]}`)).status, 200);
      assert.match(hub.stderr(), /expert blobs are missing.* missing=1 blobs=/);
    } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
  }));

test('cert makes a key that only its owner reads', () => inFolder(async (folder) => {
  const made = await runHub(['cert', '--out', folder, '--host', 'hub.example']);
  assert.equal(made.code, 0, made.stderr);
  assert.match(made.stdout, /hub\.example/);
  assert.equal(statSync(`${folder}/key.pem`).mode & 0o777, 0o600);
  assert.match(readFileSync(`${folder}/cert.pem`, 'utf8'), /BEGIN CERTIFICATE/);
  assert.equal((await runHub(['cert', '--out', folder])).code, 1, 'an existing key is not replaced');
}));

test('an open address makes its keys once and asks for them', () => inFolder(async (folder) => {
  const open = ['--listen', '0.0.0.0:0', '--insecure-http', '--state', folder, '--backend', 'local'];
  const hub = await startHub(open);
  assert.match(hub.stdout(), /API key, shown this once: +\S{20,}/);
  assert.equal(await hub.stop(), 0);

  const again = await startHub(open);
  assert.doesNotMatch(again.stdout(), /shown this once/);
  assert.equal(await again.stop(), 0);
}));

test('behind a trusted proxy the hub asks for keys and names the proxy in its links', async () => {
  const hub = await startHub(['--backend', 'local', '--trusted-proxy', '127.0.0.1', '--host', 'hub.example']);
  const port = /hub: listens .*port=(\d+)/.exec(hub.stderr())?.[1];
  assert.match(hub.stdout(), /API key, shown this once: +\S{20,}/);
  assert.equal(hub.url, 'https://hub.example');
  assert.match(hub.join, /^https:\/\/hub\.example\/join\.html#token=/);
  assert.ok(port, hub.stderr());

  assert.equal((await fetch(`http://127.0.0.1:${port}/api/status`)).status, 401);
  assert.equal(await hub.stop(), 0, hub.stderr());
});

test('--user without root is refused in a sentence', () => inFolder(async (folder) => {
  const program = `${folder}/moex-hub`;
  chmodSync(folder, 0o755);
  copyFileSync(hubProgram, program);
  chmodSync(program, 0o755);

  const nobody = process.getuid() === 0 ? { uid: 65534, gid: 65534 } : {};
  const run = await runProgram(program, ['serve', '--user', 'daemon', '--listen', '127.0.0.1:0'], nobody);
  assert.equal(run.code, 1, run.stderr);
  assert.match(run.stderr, /^moex-hub: --user daemon: only root can become another user; .*\n$/);
}));

// Requests an upgrade of /worker. Resolves with the status of a refusal, or with the result of `talk(socket, resolve)`.
const upgrade = (hub, headers, talk) => new Promise((resolve, reject) => {
  const asked = request(`${hub.url}/worker`, {
    agent: false,
    headers: {
      Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': '13',
      'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==', ...headers,
    },
  });
  asked.on('response', (response) => { response.resume(); resolve(response.statusCode); });
  asked.on('upgrade', (response, socket) => talk(socket.on('error', reject), resolve));
  asked.on('error', reject).end();
});

// Makes a binary WebSocket message of a client, masked with a key of zeros.
function message(bytes) {
  const length = bytes.length < 126 ? [bytes.length] : [126, bytes.length >> 8, bytes.length & 255];
  return Buffer.concat([Buffer.from([0x82, 0x80 | length[0], ...length.slice(1), 0, 0, 0, 0]), bytes]);
}

// Sends HELLO with `token`, as the hub's own pages do. Resolves with "welcome", or with "closed" for any other answer.
const hello = (hub, token, headers = {}) => upgrade(hub, { Origin: hub.url, ...headers }, (socket, resolve) => {
  const json = Buffer.from(JSON.stringify({
    versions: [1, 1], token, device: { budget_bytes: 1e9 }, caps: ['group'],
  }));
  const header = Buffer.alloc(16);
  header.write('MoEx');
  header.writeUInt16LE(1, 4);       // version
  header.writeUInt16LE(16, 6);      // HELLO
  header.writeUInt32LE(json.length, 8);
  socket.write(message(Buffer.concat([header, json])));

  let got = Buffer.alloc(0);
  socket.on('close', () => resolve('closed')).on('data', (piece) => {
    got = Buffer.concat([got, piece]);
    if (got.length < 12) return;

    const payload_at = got[1] < 126 ? 2 : 4;
    resolve(got.readUInt16LE(payload_at + 6) === 17 ? 'welcome' : 'closed');
    socket.destroy();
  });
});

test('a key opens /worker in HELLO if it does as Bearer, and only then', async () => {
  const keys = { MOEX_API_KEY: 'moex-api-one-two-three-four', MOEX_ADMIN_KEY: 'moex-admin-five-six-seven' };
  const hub = await startHub(['--require-key'], keys);
  try {
    const token = new URL(hub.join).hash.slice('#token='.length);
    for (const key of [token, keys.MOEX_ADMIN_KEY]) {
      assert.equal(await hello(hub, key), 'welcome');
      assert.equal(await hello(hub, '', { Authorization: `Bearer ${key}` }), 'welcome');
    }
    for (const key of [keys.MOEX_API_KEY, 'moex-nobody-knows-this-key']) {
      assert.equal(await hello(hub, key), 'closed');
      assert.equal(await hello(hub, '', { Authorization: `Bearer ${key}` }), 401);
    }
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
});

// Requests an answer that ends only at `max_tokens`: a bias forbids the end tokens.
const longAnswer = (hub, max_tokens, stream) => postJson(`${hub.api}/completions`, {
  prompt: 'The sea was', max_tokens, temperature: 0, stream, logit_bias: { 8189: -100, 8191: -100 },
});

// Reads the rest of a stream as text.
async function drain(reader, text) {
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text;
    text += new TextDecoder().decode(value);
  }
}

test('SIGTERM lets a stream end whole and exits with 0', async () => {
  const hub = await startHub(['--backend', 'local']);
  const reader = (await longAnswer(hub, 64, true)).body.getReader();
  const first = new TextDecoder().decode((await reader.read()).value);
  hub.signal('SIGTERM');
  assert.match(await drain(reader, first), /data: \[DONE\]/);
  assert.equal(await hub.ended, 0, hub.stderr());
});

test('at the drain deadline a stream ends with an error event, a whole answer with 503, the hub with 0', async () => {
  const hub = await startHub(['--backend', 'local', '--drain-s', '0']);
  const reader = (await longAnswer(hub, 2000, true)).body.getReader();
  const first = new TextDecoder().decode((await reader.read()).value);
  const whole = longAnswer(hub, 2000, false);
  const deadline = Date.now() + 60_000;
  while ((await (await fetch(`${hub.url}/api/status`)).json()).engine.running < 2) assert.ok(Date.now() < deadline);

  hub.signal('SIGTERM');
  const text = await drain(reader, first);
  const last = JSON.parse(text.trimEnd().split('\n').at(-1).replace('data: ', ''));
  assert.equal(last.error.code, 'shutting_down');

  const refused = await whole;
  assert.equal(refused.status, 503);
  assert.ok(refused.headers.get('retry-after'));
  assert.equal((await refused.json()).error.type, 'unavailable_error');
  assert.equal(await hub.ended, 0, hub.stderr());
});

test('a second SIGTERM does not wait for streams', async () => {
  const hub = await startHub(['--backend', 'local', '--drain-s', '3600']);
  await (await longAnswer(hub, 2000, true)).body.getReader().read();
  hub.signal('SIGTERM');
  await hub.logged('a second signal stops at once');
  hub.signal('SIGTERM');
  assert.equal(await hub.ended, 0, hub.stderr());
});

test('no key, token or prompt reaches the log, at any level', async () => {
  const keys = { MOEX_API_KEY: 'moex-api-one-two-three-four', MOEX_ADMIN_KEY: 'moex-admin-five-six-seven' };
  const { MOEX_API_KEY: api, MOEX_ADMIN_KEY: admin } = keys;
  const unknown = 'moex-api-unknown-key', prompt = { prompt: 'a secret lighthouse', max_tokens: 2 };

  for (const flags of [[], ['--log-json']]) {
    const hub = await startHub(['--backend', 'local', '--require-key', '--log-level', 'debug', ...flags], keys);
    const token = new URL(hub.join).hash.slice('#token='.length);
    const get = async (path, key) =>
      (await fetch(`${hub.url}${path}`, { headers: { authorization: `Bearer ${key}` } })).status;
    const complete = async (key, body) => {
      const response = await postJson(`${hub.api}/completions`, body, key);
      await response.text();
      return response.status;
    };
    assert.equal(await complete(api, prompt), 200);
    assert.equal(await complete(admin, { ...prompt, stream: true }), 200);
    assert.equal(await complete(unknown, prompt), 401);
    assert.equal(await complete(token, prompt), 403);
    assert.equal(await get(`/nowhere?key=${api}`, api), 404);
    assert.equal(await get('/metrics', admin), 200);

    // Send a WebSocket message that is not a frame of the protocol: the hub accepts the Bearer and refuses the message.
    const join = (key) => upgrade(hub, { Authorization: `Bearer ${key}` }, (socket, resolve) => {
      socket.write(message(Buffer.from(JSON.stringify({ token: key, version_min: 1, version_max: 1 }))));
      socket.resume().on('close', () => resolve(101));
    });
    assert.equal(await join(token), 101);
    assert.equal(await join(unknown), 401);

    // Leave the join link out of the check, because the hub prints this link to be shared.
    const shown = hub.stdout().replace(hub.join, '').replace(hub.join, '');
    assert.equal(await hub.stop(), 0, hub.stderr());
    assert.ok(hub.stderr().length > 0);
    for (const secret of [api, admin, token, unknown, prompt.prompt]) {
      const found = (hub.stderr() + shown).includes(secret);
      assert.equal(found, false, `${secret.slice(0, 10)}... in the log`);
    }
  }
});
