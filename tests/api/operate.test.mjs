// Tests of an operator's tasks around `serve`: SIGHUP, doctor, completion, the access log as JSON.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { get as plainGet } from 'node:http';
import { get } from 'node:https';
import { connect, createServer } from 'node:net';
import { once } from 'node:events';
import { test } from 'node:test';
import {
  cleanEnvironment, hubProgram, inFolder, modelFolder, postJson, runHub, runProgram, startHub,
} from './hub_process.mjs';

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

test('doctor and `serve --check` have one verdict on state, model and certificate', () => inFolder(async (folder) => {
  const verdicts = async (name, ...args) => {
    const all = ['--listen', '127.0.0.1:0', '--model', modelFolder, '--state', `${folder}/state`, ...args];
    const doctor = await runProgram(hubProgram, ['doctor', ...all], { env: cleanEnvironment(), cwd: folder });
    const check = await runProgram(hubProgram, ['serve', '--check', ...all], { env: cleanEnvironment(), cwd: folder });
    const row = new RegExp(`^(ok|note|wrong) +${name} +(.*)$`, 'm').exec(doctor.stdout);
    assert.equal(check.code !== 0, row[1] === 'wrong', doctor.stdout + check.stderr);
    // A day may end between the two commands.
    const undated = (text) => text.replace(/\d+ days/, 'days');
    if (row[1] !== 'ok') assert.ok(undated(check.stderr).includes(undated(row[2])), `${row[2]}: ${check.stderr}`);
    return `${row[1]}: ${row[2]}`;
  };
  assert.match(await verdicts('state', '--state', 'fresh'), /^ok: fresh, /);
  assert.ok(!existsSync(`${folder}/fresh`), 'a check makes nothing');

  mkdirSync(`${folder}/open`, { mode: 0o755 });
  writeFileSync(`${folder}/open/a file of others`, '');
  assert.match(await verdicts('state', '--state', `${folder}/open`), /^wrong: .*open to other users/);

  cpSync(modelFolder, `${folder}/model`, { recursive: true, dereference: true });
  const blob = readdirSync(`${folder}/model/weights`)[3];
  assert.match(await verdicts('model', '--model', `${folder}/model`), /^ok: .*with the right bytes/);
  writeFileSync(`${folder}/model/weights/${blob}`, 'damaged', { flag: 'r+' });
  assert.match(await verdicts('model', '--model', `${folder}/model`), new RegExp(`^wrong: .*${blob}: its SHA-256`));

  const cert = ['--tls-cert', `${folder}/cert.pem`, '--tls-key', `${folder}/key.pem`];
  await runHub(['cert', '--out', folder]);
  assert.match(await verdicts('TLS', ...cert), /^ok: .*holds for 36\d days/);
  chmodSync(`${folder}/key.pem`, 0o644);
  assert.match(await verdicts('TLS', ...cert), /^note: .*key\.pem: other users may read the private key/);
  await runHub(['cert', '--out', folder, '--force', '--days', '5']);
  assert.match(await verdicts('TLS', ...cert), /^note: .*expires in [45] days/);
  assert.match(await verdicts('settings', '--listen', '0.0.0.0:0'), /^wrong: .*--insecure-http/);
}));

// Resolves once `look()` returns true.
async function until(look) {
  while (!await look()) await new Promise((resolve) => setTimeout(resolve, 20));
}

test('a certificate that ends soon is logged, a metric and in the status, until it is renewed', () => inFolder(
  async (folder) => {
    const renew = async (days) => {
      const made = await runHub(['cert', '--out', folder, '--force', '--days', days]);
      assert.equal(made.code, 0, made.stderr);
    };
    await renew('5');
    const hub = await startHub(['--backend', 'local', '--threads', '1', '--tls-cert', `${folder}/cert.pem`,
      '--tls-key', `${folder}/key.pem`]);
    const ask = (path) => new Promise((resolve, reject) => {
      get(`${hub.url}${path}`, { rejectUnauthorized: false, agent: false }, (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (piece) => { text += piece; });
        response.on('end', () => resolve(text));
      }).on('error', reject);
    });
    const daysLeft = async () => JSON.parse(await ask('/api/status')).host.certificate_left_s / 86400;
    try {
      await hub.logged('the TLS certificate expires soon; renew it, then send SIGHUP hours=1');
      assert.equal(Math.round(await daysLeft()), 5);
      const metric = /^moex_certificate_end_timestamp_seconds (\S+)$/m.exec(await ask('/metrics'));
      assert.equal(Math.round((Number(metric[1]) - Date.now() / 1000) / 86400), 5);

      await renew('400');
      hub.signal('SIGHUP');
      await until(async () => Math.round(await daysLeft()) === 400);
      assert.equal(hub.stderr().split('certificate expires').length, 2, 'one line for one stage');
    } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
  }));

test('a limit of open files below --connections-max is said at start', () => inFolder(async (state) => {
  const child = spawn('bash', ['-c', 'ulimit -n 100; exec "$@"', 'bash', hubProgram, 'serve', '--model', modelFolder,
    '--listen', '127.0.0.1:0', '--state', state, '--backend', 'local', '--threads', '1'],
  { env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'pipe'] });
  let log = '', out = '';
  const ended = once(child, 'close');
  child.stderr.setEncoding('utf8').on('data', (text) => { log += text; });
  child.stdout.setEncoding('utf8').on('data', (text) => { out += text; });
  await until(() => out.includes('ready:') || child.exitCode !== null);
  assert.match(log, /open files admits fewer connections than --connections-max open_files=100 connections=36/);
  const port = Number(/ready: url=http:\/\/[\d.]+:(\d+)/.exec(out)[1]);
  const held = Array.from({ length: 60 }, () => connect(port, '127.0.0.1').on('error', () => {}));
  await Promise.all(held.map((socket) => once(socket, 'connect')));
  await until(() => held.filter((socket) => socket.closed || socket.destroyed).length >= 24);
  assert.ok(!log.includes('accept failed'), log);
  for (const socket of held) socket.destroy();
  child.kill('SIGTERM');
  assert.equal((await ended)[0], 0, log);
}));

test('without descriptors one line a minute says so, and the hub recovers', async () => {
  const hub = await startHub(['--backend', 'local', '--threads', '1']);
  const limit = async (...args) => {
    const run = await runProgram('prlimit', ['--pid', String(hub.pid), ...args]);
    assert.equal(run.code, 0, run.stderr);
    return run.stdout.trim();
  };
  const before = await limit('--nofile', '--output', 'SOFT', '--noheadings');
  await limit('--nofile=5:');
  const socket = connect(Number(new URL(hub.url).port), '127.0.0.1').on('error', () => {});
  await hub.logged('http: accept failed');
  await new Promise((resolve) => setTimeout(resolve, 1000));    // about ten more accepts fail in this second
  assert.equal(hub.stderr().split('accept failed').length, 2, hub.stderr());
  await limit(`--nofile=${before}:`);
  socket.destroy();
  assert.equal((await fetch(`${hub.url}/health`)).status, 200);
  assert.equal(await hub.stop(), 0, hub.stderr());
});

test('when one address holds all connections that it may, another of this machine gets in', async () => {
  const hub = await startHub(['--backend', 'local', '--threads', '1', '--connections-max', '16']);
  const port = Number(new URL(hub.url).port);
  const from = (localAddress) => new Promise((resolve) => {
    const socket = connect({ port, host: '127.0.0.1', localAddress });
    socket.setEncoding('utf8').on('error', () => resolve('closed')).on('close', () => resolve('closed'));
    socket.on('data', (text) => resolve(text.slice(0, 12)));
    socket.write('GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n');
  });
  const held = Array.from({ length: 14 }, () => connect(port, '127.0.0.1').on('error', () => {}));
  await Promise.all(held.map((socket) => once(socket, 'connect')));
  await until(async () => await from('127.0.0.1') === 'closed');
  assert.equal(await from('127.0.0.2'), 'HTTP/1.1 200');
  for (const socket of held) socket.destroy();
  assert.equal(await hub.stop(), 0, hub.stderr());
});

test('a Host with a trailing dot is that host', async () => {
  const hub = await startHub(['--backend', 'local', '--threads', '1', '--host', 'hub.example']);
  const statusOf = (host) => new Promise((resolve, reject) => {
    const answered = (response) => resolve(response.resume().statusCode);
    plainGet(`${hub.url}/`, { headers: { host } }, answered).on('error', reject);
  });
  for (const host of ['localhost.', 'hub.example.', 'hub.example.:80']) assert.equal(await statusOf(host), 200, host);
  for (const host of ['evil.example.', 'hub.example..']) assert.equal(await statusOf(host), 403, host);
  assert.equal(await hub.stop(), 0, hub.stderr());
});

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
