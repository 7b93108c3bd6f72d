// Tests of an operator's tasks around `serve`: SIGHUP, doctor, completion, the access log as JSON.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { once } from 'node:events';
import { test } from 'node:test';
import { inFolder, modelFolder, postJson, runHub, runProgram, startHub } from './hub_process.mjs';

const first = 'the first key of this host', second = 'the second key of this host';

const hangUp = 'SIGHUP reads keys and settings again; a bad file changes nothing and says which line';
test(hangUp, () => inFolder(async (folder) => {
  const config = `${folder}/config.toml`, keyFile = `${folder}/key`;
  const write = (...lines) => writeFileSync(config, lines.join('\n'));
  writeFileSync(keyFile, `${first}\n`);
  write(`api_key_file = "${keyFile}"`, 'require_key = true');
  const hub = await startHub(['--config', config, '--backend', 'local', '--threads', '1']);
  const asked = async (key, origin) => {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` };
    if (origin) headers.origin = origin;
    const answer = await fetch(`${hub.url}/tokenize`, { method: 'POST', headers, body: '{"content": "x"}' });
    return answer.status;
  };
  // The hub logs each SIGHUP after it has been carried out.
  const heard = (words, times) => new Promise((resolve) => {
    const look = () => {
      if (hub.stderr().split(words).length > times) resolve();
      else setTimeout(look, 20);
    };
    look();
  });
  try {
    assert.equal(await asked(first), 200);
    assert.equal(await asked(first, 'https://app.example'), 403);

    writeFileSync(keyFile, `${second}\n`);
    write(`api_key_file = "${keyFile}"`, 'require_key = true', 'cors_origin = ["https://app.example"]',
      'queue_max = 5');
    hub.signal('SIGHUP');
    await heard('keys and settings read again', 1);
    assert.match(hub.stderr(), /keys and settings read again changed=cors-origin\n/);
    await heard('these settings wait for a restart', 1);
    assert.equal(await asked(first), 401);
    assert.equal(await asked(second, 'https://app.example'), 200);

    writeFileSync(keyFile, `${first}\n`);
    write(`api_key_file = "${keyFile}"`, 'require_key = true', 'cors_origin = []', 'drain_s = "soon"');
    hub.signal('SIGHUP');
    await heard('SIGHUP changed no setting and no key', 1);
    assert.ok(hub.stderr().includes('config.toml') && hub.stderr().includes('drain'), hub.stderr());
    write(`api_key_file = "${keyFile}"`, 'require_key = true', 'cors_origin = [', 'drain_s = 5');
    hub.signal('SIGHUP');
    await heard('SIGHUP changed no setting and no key', 2);
    assert.match(hub.stderr(), /config\.toml:\d+: /);
    assert.equal(await asked(second, 'https://app.example'), 200);
    assert.equal(await asked(first), 401);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

test('doctor grades what serve rests on, each fault with a fix', () => inFolder(async (state) => {
  const doctor = (...args) => runHub(['doctor', '--model', modelFolder, '--state', state, ...args]);
  const well = await doctor('--listen', '127.0.0.1:0');
  assert.equal(well.code, 0, well.stdout);
  const things = ['settings', 'model', 'port', 'TLS', 'processor', 'memory', 'GPU', 'state', 'descriptors', 'clock'];
  for (const thing of things)
    assert.match(well.stdout, new RegExp(`^(ok|note) +${thing} `, 'm'));
  const lines = well.stdout.split('\n');
  lines.forEach((line, i) => { if (line.startsWith('note')) assert.match(lines[i + 1], /^ +fix: ./); });

  const again = createServer().listen(0, '127.0.0.1');
  await once(again, 'listening');
  const busy = await doctor('--listen', `127.0.0.1:${again.address().port}`, '--tls-cert', '/nowhere/cert.pem',
    '--tls-key', '/nowhere/key.pem');
  again.close();
  assert.equal(busy.code, 1);
  assert.match(busy.stdout, /^wrong +port +.*cannot be bound.*\n +fix: .*--listen/m);
  assert.match(busy.stdout, /^wrong +TLS +\/nowhere\/cert\.pem.*\n +fix: .*moex-hub cert/m);
  assert.match(busy.stdout, /serve would fail/);
}));

test('bash completes commands, options and their values', () => inFolder(async (folder) => {
  const script = await runHub(['completion', 'bash']);
  assert.equal(script.code, 0, script.stderr);
  writeFileSync(`${folder}/completion`, script.stdout);

  const completed = async (...words) => {
    const line = words.map((word) => `'${word}'`).join(' ');
    const run = await runProgram('bash', ['-c', `set -eu; . "${folder}/completion"
      COMP_WORDS=(moex-hub ${line}); COMP_CWORD=${words.length}; _moex_hub; printf '%s\\n' "\${COMPREPLY[@]-}"`]);
    assert.equal(run.code, 0, run.stderr);
    return run.stdout.trim().split('\n');
  };
  assert.deepEqual(await completed('se'), ['serve']);
  assert.deepEqual(await completed('serve', '--hed'), ['--hedge']);
  assert.deepEqual(await completed('serve', '--backend', ''), ['swarm', 'local']);
  assert.deepEqual(await completed('serve', '--local-fallback', 'of'), ['off']);
  assert.deepEqual(await completed('key', 're'), ['revoke']);
  assert.deepEqual(await completed('key', 'add', 'ada', '--role', ''), ['api', 'join', 'admin']);
  assert.deepEqual(await completed('inspect', '/et'), ['/etc']);
  assert.equal((await runHub(['completion', 'fish'])).code, 2);
}));

test('with --log-json every line is an object, in the access log with an id', () => inFolder(async (folder) => {
  const file = `${folder}/access.log`;
  const hub = await startHub(['--backend', 'local', '--threads', '1', '--log-json', '--access-log', file]);
  const answer = await postJson(`${hub.url}/tokenize`, { content: 'x' });
  const id = answer.headers.get('x-request-id');
  await answer.text();
  assert.equal(await hub.stop(), 0, hub.stderr());

  const lines = readFileSync(file, 'utf8').trim().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(lines.filter((line) => line.id === id).map((line) => [line.method, line.target, line.status]),
    [['POST', '/tokenize', 200]]);
  for (const line of hub.stderr().trim().split('\n')) assert.equal(typeof JSON.parse(line).event, 'string');
}));
