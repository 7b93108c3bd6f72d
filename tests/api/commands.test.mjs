// moex-hub's commands as a person or script runs them: exit codes, stdout, signals.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, copyFileSync, cpSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { test } from 'node:test';
import { cleanEnvironment, hubProgram, modelFolder, runHub, runProgram, startHub, temporaryFolder } from './hub_process.mjs';

test('generate writes the text alone, the same for the same seed', async () => {
  const args = ['generate', '--model', modelFolder, '--prompt', 'The sea was', '--max-tokens', '12', '--temperature', '1', '--seed', '5', '--deterministic'];
  const [first, again] = [await runHub(args), await runHub(args)];
  assert.equal(first.code, 0, first.stderr);
  assert.ok(first.stdout.length > 0);
  assert.equal(first.stdout, again.stdout);
  assert.equal(first.stderr, '');
});

test('generate that is interrupted flushes what it has and exits with 130', async () => {
  const child = spawn(hubProgram, ['generate', '--model', modelFolder, '--prompt', 'The sea was', '--max-tokens', '100000', '--temperature', '1', '--seed', '5'],
    { env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'pipe'] });
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

test('what --print-config prints, --config takes', async () => {
  const folder = temporaryFolder();
  try {
    for (const command of ['serve', 'generate', 'eval', 'inspect', 'pack', 'synth', 'cert', 'verify']) {
      const first = await runHub([command, '--print-config']);
      assert.equal(first.code, 0, first.stderr);
      writeFileSync(`${folder.path}/config.toml`, first.stdout);
      const again = await runHub([command, '--print-config', '--config', `${folder.path}/config.toml`]);
      assert.equal(again.code, 0, again.stderr);
      const values = (text) => text.split('\n').map((line) => line.replace(/ +# (default|file)$/, ''));
      assert.deepEqual(values(again.stdout), values(first.stdout));
    }
  } finally { folder.remove(); }
});

test('generate takes ids and prints margins to stderr', async () => {
  const folder = temporaryFolder();
  try {
    const file = `${folder.path}/ids`;
    writeFileSync(file, '[100, 200 300]\n');
    const run = await runHub(['generate', '--model', modelFolder, '--prompt-ids', file, '--max-tokens', '5', '--temperature', '0', '--margins']);
    assert.equal(run.code, 0, run.stderr);
    assert.match(run.stderr, /^margin_min=\d+\.\d+ tokens=5\n$/);
  } finally { folder.remove(); }
});

test('generate equals the API for the same request', async () => {
  const prompt = 'Tell me a story about a lighthouse';
  const run = await runHub(['generate', '--model', modelFolder, '--prompt', prompt, '--chat', '--max-tokens', '24', '--temperature', '0', '--deterministic']);
  assert.equal(run.code, 0, run.stderr);
  const hub = await startHub(['--backend', 'local', '--deterministic']);
  try {
    const response = await fetch(`${hub.api}/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'user', content: prompt }], max_tokens: 24, temperature: 0 }) });
    assert.equal((await response.json()).choices[0].message.content, run.stdout);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
});

test('wrong arguments exit with 2, failures with 1, each with a sentence', async () => {
  for (const args of [[], ['dance'], ['serve', '--replicas', '0'], ['generate'], ['serve', '--listen', '0.0.0.0:0'], ['synth', '--shape', 'cube', '/nowhere'], ['serve', '--tls-cert', 'x'],
    ['serve', '--backend', 'local', '--local-fallback', 'off']]) {
    const run = await runHub(args);
    assert.equal(run.code, 2, `${args}: ${run.stderr}`);
    assert.ok(run.stderr.length > 0 && run.stdout === '');
  }
  for (const args of [['inspect', '/nowhere'], ['verify', '/nowhere'], ['generate', '--model', '/nowhere', '--prompt', 'x'], ['pack', '/nowhere', '/tmp/moex-never']]) {
    const run = await runHub(args);
    assert.equal(run.code, 1, `${args}: ${run.stderr}`);
    assert.match(run.stderr, /moex-hub: .*\/nowhere/);
  }
});

test('names in a checkpoint cannot write to the terminal', async () => {
  const folder = temporaryFolder();
  try {
    cpSync(`${modelFolder}/../../../tests/golden/qwen3-tiny/config.json`, `${folder.path}/config.json`);
    const header = Buffer.from('{"a\\n\\u001b[31mb":3}'), length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(header.length));
    writeFileSync(`${folder.path}/model.safetensors`, Buffer.concat([length, header]));
    const run = await runHub(['pack', folder.path, `${folder.path}/out`]);
    assert.equal(run.code, 1);
    assert.match(run.stderr, /^moex-hub: .*tensor a\?\?\[31mb: found 3, wanted .*\n$/);
  } finally { folder.remove(); }
});

test('inspect speaks to people and to programs', async () => {
  const people = await runHub(['inspect', modelFolder]);
  assert.equal(people.code, 0, people.stderr);
  assert.match(people.stdout, /experts +16 per layer, 4 per token/);
  const json = JSON.parse((await runHub(['inspect', modelFolder, '--json'])).stdout);
  assert.equal(json.config.num_experts, 16);
  assert.equal(json.expert_blob_bytes, 156672);
});

test('synth makes a package that verify and generate take', async () => {
  const folder = temporaryFolder();
  try {
    const out = `${folder.path}/tiny`;
    const made = await runHub(['synth', '--shape', 'tiny', out, '--seed', '3']);
    assert.equal(made.code, 0, made.stderr);
    assert.equal((await runHub(['verify', out])).code, 0);
    writeFileSync(`${folder.path}/ids`, '1 2 3');
    const run = await runHub(['generate', '--model', out, '--prompt-ids', `${folder.path}/ids`, '--max-tokens', '3', '--temperature', '0']);
    assert.equal(run.code, 0, run.stderr);
    assert.match(run.stdout, /^\d+ \d+ \d+$/);
  } finally { folder.remove(); }
});

test('a package without its blobs is served, and what computes here says what is missing', async () => {
  const folder = temporaryFolder();
  try {
    const model = `${folder.path}/model`;
    cpSync(modelFolder, model, { recursive: true });
    const [first, ...others] = readdirSync(`${model}/weights`).sort();
    rmSync(`${model}/weights/${first}`);
    const missing = new RegExp(`model/weights: 1 of ${others.length + 1} expert blobs are missing, the first: ${first}`);
    for (const args of [['verify', model], ['generate', '--model', model, '--prompt', 'x'], ['serve', '--backend', 'local', '--model', model, '--listen', '127.0.0.1:0', '--state', folder.path]]) {
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
  } finally { folder.remove(); }
});

test('cert makes a key that only its owner reads', async () => {
  const folder = temporaryFolder();
  try {
    const made = await runHub(['cert', '--out', folder.path, '--host', 'hub.example']);
    assert.equal(made.code, 0, made.stderr);
    assert.match(made.stdout, /hub\.example/);
    assert.equal(statSync(`${folder.path}/key.pem`).mode & 0o777, 0o600);
    assert.match(readFileSync(`${folder.path}/cert.pem`, 'utf8'), /BEGIN CERTIFICATE/);
    assert.equal((await runHub(['cert', '--out', folder.path])).code, 1, 'an existing key is not replaced');
  } finally { folder.remove(); }
});

test('an open address makes its keys once and asks for them', async () => {
  const folder = temporaryFolder();
  try {
    const hub = await startHub(['--listen', '0.0.0.0:0', '--insecure-http', '--state', folder.path, '--backend', 'local']);
    assert.match(hub.stdout(), /API key, shown this once: +\S{20,}/);
    assert.equal(await hub.stop(), 0);
    const again = await startHub(['--listen', '0.0.0.0:0', '--insecure-http', '--state', folder.path, '--backend', 'local']);
    assert.doesNotMatch(again.stdout(), /shown this once/);
    assert.equal(await again.stop(), 0);
  } finally { folder.remove(); }
});

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

test('SIGTERM lets a stream end whole and exits with 0', async () => {
  const hub = await startHub(['--backend', 'local']);
  const response = await fetch(`${hub.api}/completions`, { method: 'POST', headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: 'The sea was', max_tokens: 64, temperature: 0, stream: true, logit_bias: { 8189: -100, 8191: -100 } }) });
  const reader = response.body.getReader();
  let text = new TextDecoder().decode((await reader.read()).value);
  hub.signal('SIGTERM');
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text += new TextDecoder().decode(value);
  }
  assert.match(text, /data: \[DONE\]/);
  assert.equal(await hub.ended, 0, hub.stderr());
});

test('--user without root is refused in a sentence', async () => {
  const folder = temporaryFolder();
  try {
    const program = `${folder.path}/moex-hub`;
    chmodSync(folder.path, 0o755);
    copyFileSync(hubProgram, program);
    chmodSync(program, 0o755);
    const nobody = process.getuid() === 0 ? { uid: 65534, gid: 65534 } : {};
    const run = await runProgram(program, ['serve', '--user', 'daemon', '--listen', '127.0.0.1:0'], nobody);
    assert.equal(run.code, 1, run.stderr);
    assert.match(run.stderr, /^moex-hub: --user daemon: only root can become somebody else; .*\n$/);
  } finally { folder.remove(); }
});

// Opens /worker as one of the hub's own pages and says HELLO with `token`. What the hub answers: "welcome", "closed" for all else,
// or the status of a refused upgrade.
function hello(hub, token, headers = {}) {
  const json = Buffer.from(JSON.stringify({ versions: [1, 1], token, device: { budget_bytes: 1e9 }, caps: ['group'] }));
  const frame = Buffer.alloc(16);
  frame.write('MoEx');
  frame.writeUInt16LE(1, 4);                                    // version
  frame.writeUInt16LE(16, 6);                                   // HELLO
  frame.writeUInt32LE(json.length, 8);
  const message = Buffer.concat([frame, json]);
  const length = message.length < 126 ? [message.length] : [126, message.length >> 8, message.length & 255];
  const head = Buffer.from([0x82, 0x80 | length[0], ...length.slice(1), 0, 0, 0, 0]);               // binary, masked with zeros

  return new Promise((resolve, reject) => request(`${hub.url}/worker`, {
    agent: false,
    headers: {
      Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': '13', Origin: hub.url,
      'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==', ...headers,
    },
  }, (response) => { response.resume(); resolve(response.statusCode); })
    .on('error', reject)
    .on('upgrade', (response, socket) => {
      let got = Buffer.alloc(0);
      socket.write(Buffer.concat([head, message]));
      socket.on('data', (piece) => {
        got = Buffer.concat([got, piece]);
        if (got.length < 12) return;
        const payload_at = got[1] < 126 ? 2 : 4;
        resolve(got.readUInt16LE(payload_at + 6) === 17 ? 'welcome' : 'closed');
        socket.destroy();
      }).on('error', reject).on('close', () => resolve('closed'));
    }).end());
}

test('what opens /worker as Bearer opens it in HELLO, and nothing else does', async () => {
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

const longStream = (hub, stream) => fetch(`${hub.api}/completions`, { method: 'POST', headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ prompt: 'The sea was', max_tokens: 2000, temperature: 0, stream, logit_bias: { 8189: -100, 8191: -100 } }) });

test('at the drain deadline a stream ends with an error event, a whole answer with 503, the hub with 0', async () => {
  const hub = await startHub(['--backend', 'local', '--drain-s', '0']);
  const stream = await longStream(hub, true);
  const reader = stream.body.getReader();
  let text = new TextDecoder().decode((await reader.read()).value);
  const whole = longStream(hub, false);
  while ((await (await fetch(`${hub.url}/api/status`)).json()).engine.running < 2);
  hub.signal('SIGTERM');
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text += new TextDecoder().decode(value);
  }
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
  const stream = await longStream(hub, true);
  await stream.body.getReader().read();
  hub.signal('SIGTERM');
  while (!hub.stderr().includes('once more stops at once')) await new Promise(setImmediate);   // the event of the first one
  hub.signal('SIGTERM');
  assert.equal(await hub.ended, 0, hub.stderr());
});

test('no key, token or prompt reaches the log, at any level', async () => {
  const keys = { MOEX_API_KEY: 'moex-api-one-two-three-four', MOEX_ADMIN_KEY: 'moex-admin-five-six-seven' };
  for (const flags of [[], ['--log-json']]) {
    const hub = await startHub(['--backend', 'local', '--require-key', '--log-level', 'debug', ...flags], keys);
    const token = new URL(hub.join).hash.slice('#token='.length);
    const secrets = [...Object.values(keys), token, 'moex-api-unknown-key', 'a secret lighthouse'];
    const ask = (path, key, body) => fetch(`${hub.url}${path}`, { method: body ? 'POST' : 'GET', headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: body && JSON.stringify(body) }).then((response) => response.status);
    const prompt = { prompt: 'a secret lighthouse', max_tokens: 2 };
    assert.equal(await ask('/v1/completions', keys.MOEX_API_KEY, prompt), 200);
    assert.equal(await ask('/v1/completions', keys.MOEX_ADMIN_KEY, { ...prompt, stream: true }), 200);
    assert.equal(await ask('/v1/completions', 'moex-api-unknown-key', prompt), 401);
    assert.equal(await ask('/v1/completions', token, prompt), 403);
    assert.equal(await ask(`/nowhere?key=${keys.MOEX_API_KEY}`, keys.MOEX_API_KEY), 404);
    assert.equal(await ask('/metrics', keys.MOEX_ADMIN_KEY), 200);
    const join = (key) => new Promise((resolve) => request(`${hub.url}/worker`, { agent: false, headers: { Authorization: `Bearer ${key}`, Connection: 'Upgrade', Upgrade: 'websocket',
      'Sec-WebSocket-Version': '13', 'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==' } }, (response) => { response.resume(); resolve(response.statusCode); })
      .on('upgrade', (response, socket) => {
        const hello = Buffer.from(JSON.stringify({ token: key, version_min: 1, version_max: 1 }));     // no frame of ours: it is refused, by what it says
        socket.write(Buffer.concat([Buffer.from([0x82, 0x80 | hello.length, 0, 0, 0, 0]), hello]));
        socket.resume().on('close', () => resolve(101));
      }).end());
    assert.equal(await join(token), 101);
    assert.equal(await join('moex-api-unknown-key'), 401);
    const shown = hub.stdout().replace(hub.join, '').replace(hub.join, '');                            // the join link is there to be shared
    assert.equal(await hub.stop(), 0, hub.stderr());
    assert.ok(hub.stderr().length > 0);
    for (const secret of secrets) assert.equal((hub.stderr() + shown).includes(secret), false, `${secret.slice(0, 10)}... in the log`);
  }
});
