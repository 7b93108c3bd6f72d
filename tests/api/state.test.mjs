// Tests of the state folder from the outside: where it is, one hub for each, keys that end at once, and backups.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync, closeSync, copyFileSync, existsSync, ftruncateSync, mkdirSync, openSync, readdirSync, statSync, writeSync,
} from 'node:fs';
import { test } from 'node:test';
import {
  cleanEnvironment, hubProgram, inFolder, modelFolder, postJson, runHub, runProgram, startHub,
} from './hub_process.mjs';

const serveIn = (state, ...args) => startHub(['--state', state, '--backend', 'local', '--threads', '1', ...args]);
const serveArgs = (state) => ['serve', '--model', modelFolder, '--listen', '127.0.0.1:0', '--state', state];

test('without HOME, XDG_STATE_HOME and --state a command says what to choose', () => inFolder(async (folder) => {
  const run = (env, ...args) => runProgram(hubProgram, args, { env: { PATH: process.env.PATH, MOEX_CONFIG: '/dev/null',
    ...env } });
  const serve = ['serve', '--model', modelFolder, '--listen', '127.0.0.1:0'];
  for (const args of [serve, ['key', 'list'], ['key', 'add', 'ada'], ['ban', 'list'], ['cert'], ['backup', 'x']]) {
    const homeless = await run({}, ...args);
    assert.equal(homeless.code, 1, `${args}: ${homeless.stderr}`);
    assert.match(homeless.stderr, /neither XDG_STATE_HOME nor HOME names a folder; choose .* --state DIR/);

    const nowhere = await run({ HOME: `${folder}/nowhere` }, ...args);
    assert.equal(nowhere.code, 1, `${args}: ${nowhere.stderr}`);
    assert.match(nowhere.stderr, /HOME is .*nowhere, which is not a folder; choose .* --state DIR/);
  }
  assert.ok(!existsSync(`${folder}/nowhere`));
  const made = await run({ HOME: folder }, 'key', 'add', 'ada');
  assert.equal(made.code, 0, made.stderr);
  assert.ok(existsSync(`${folder}/.local/state/moex/moex.sqlite`));
}));

test('a state folder has one hub, whose lock names it; other commands work beside it', () => inFolder(async (state) => {
  const hub = await serveIn(state);
  try {
    const second = await runHub(serveArgs(state));
    assert.equal(second.code, 1);
    const named = `uses this state folder: process ${hub.pid}, started 20`;
    assert.ok(second.stderr.includes(named), second.stderr);
    assert.match(second.stderr, /UTC; stop it, or give this one a folder of its own with --state DIR/);

    for (const args of [['key', 'add', 'ada'], ['key', 'list'], ['ban', 'list'], ['backup', `${state}/copy`]]) {
      const beside = await runHub([...args, '--state', state]);
      assert.equal(beside.code, 0, `${args}: ${beside.stderr}`);
    }
    assert.equal((await fetch(`${hub.url}/health`)).status, 200);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

test('a hub that was killed leaves no lock behind', () => inFolder(async (state) => {
  const killed = await serveIn(state);
  killed.signal('SIGKILL');
  await killed.ended;
  mkdirSync(state, { recursive: true });
  const next = await serveIn(state);
  assert.equal(await next.stop(), 0, next.stderr());
}));

test('when `key revoke` returns, the key opens nothing', () => inFolder(async (state) => {
  const hub = await serveIn(state, '--require-key');
  try {
    for (let i = 0; i < 8; ++i) {
      const made = await runHub(['key', 'add', `person ${i}`, '--state', state]);
      const key = made.stdout.trim();
      const ask = async () => (await postJson(`${hub.url}/tokenize`, { content: 'x' }, key)).status;
      let status = await ask();
      while (status === 401) status = await ask();      // the hub sees a new key within 250 ms
      assert.equal(status, 200);

      const revoked = await runHub(['key', 'revoke', `person ${i}`, '--state', state]);
      assert.equal(revoked.code, 0, revoked.stderr);
      assert.equal(await ask(), 401);
    }
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

const deaf = '`key revoke` says when the hub that serves does not react, and the key stays revoked';
test(deaf, () => inFolder(async (state) => {
  await runHub(['key', 'add', 'ada', '--state', state]);
  const hub = await serveIn(state);
  hub.signal('SIGSTOP');
  const run = await runHub(['key', 'revoke', 'ada', '--state', state]);
  hub.signal('SIGCONT');
  assert.equal(run.code, 1);
  assert.match(run.stderr, /is revoked, but a hub that serves with these keys has not seen it within 10 seconds/);
  assert.match((await runHub(['key', 'list', '--state', state])).stdout, /api +revoked/);
  assert.equal(await hub.stop(), 0, hub.stderr());
}));

// A disk of its own for the state folder, in a mount namespace that ends with the hub. Only root can make one.
const noDisk = process.getuid() === 0
  && spawnSync('unshare', ['-m', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt']).status === 0 ? false : 'needs root';
test('a full disk is a metric, in the status and one log line; the hub serves on', { skip: noDisk }, () => inFolder(
  async (state) => {
    const script = 'mount -t tmpfs -o size=80m tmpfs "$1"; shift; exec "$@"';
    const child = spawn('unshare', ['-m', 'bash', '-c', script, 'bash', state, hubProgram, ...serveArgs(state),
      '--backend', 'local', '--threads', '1'], { env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'pipe'] });
    let log = '', out = '';
    const ended = once(child, 'close');
    child.stderr.setEncoding('utf8').on('data', (text) => { log += text; });
    child.stdout.setEncoding('utf8').on('data', (text) => { out += text; });
    const until = async (look) => {
      while (!await look()) {
        assert.equal(child.exitCode, null, log);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    };
    await until(() => out.includes('ready:'));
    const url = /^ready: url=(\S+)/m.exec(out)[1];
    const host = async () => (await (await fetch(`${url}/api/status`)).json()).host;
    const complete = () => postJson(`${url}/v1/completions`, { prompt: 'The sea', max_tokens: 2 });
    assert.equal((await host()).state_is_full, false);

    const filler = openSync(`/proc/${child.pid}/root${state}/filler`, 'w');
    assert.throws(() => { for (;;) writeSync(filler, Buffer.alloc(1 << 16)); }, /ENOSPC/);
    await until(async () => (await host()).state_is_full);
    for (let i = 0; i < 5; ++i) assert.equal((await complete()).status, 200);
    // The disk counts as full before it is, and the hub looks at it every few seconds.
    await until(async () => /^moex_state_free_bytes 0$/m.test(await (await fetch(`${url}/metrics`)).text()));
    await until(() => log.includes('the disk of the state folder is full'));
    await until(async () => /^moex_state_writes_fail 1$/m.test(await (await fetch(`${url}/metrics`)).text()));
    assert.equal(log.split('the disk of the state folder is full').length, 2, log);
    assert.equal(log.split('the state cannot be written').length, 2, log);

    ftruncateSync(filler, 0);
    closeSync(filler);
    await until(async () => !(await host()).state_is_full);
    child.kill('SIGTERM');
    assert.equal((await ended)[0], 0, log);
  }));

test('a backup of a serving hub restores keys, use and the join token', () => inFolder(async (folder) => {
  const state = `${folder}/state`, copy = `${folder}/copy.sqlite`, restored = `${folder}/restored`;
  const hub = await serveIn(state, '--require-key');
  const key = (await runHub(['key', 'add', 'ada', '--state', state])).stdout.trim();
  const body = { prompt: 'The sea', max_tokens: 2 };
  const ask = async (url) => (await postJson(`${url}/v1/completions`, body, key)).status;
  let status = await ask(hub.url);
  while (status === 401) status = await ask(hub.url);
  const usage = async (of) => (await runHub(['key', 'usage', '--csv', '--state', of])).stdout;
  while (!/ada,\d/.test(await usage(state))) await ask(hub.url);

  const made = await runHub(['backup', copy, '--state', state]);
  assert.equal(made.code, 0, made.stderr);
  assert.match(made.stdout, /hashes of keys, counts, bans and the join token; keep it secret/);
  assert.equal(statSync(copy).mode & 0o777, 0o600);
  assert.deepEqual(readdirSync(folder).sort(), ['copy.sqlite', 'state']);
  const again = await runHub(['backup', copy, '--state', state]);
  assert.equal(again.code, 1);
  assert.match(again.stderr, /copy\.sqlite: exists already; name a new file/);
  assert.equal(await hub.stop(), 0, hub.stderr());

  mkdirSync(restored, { mode: 0o700 });
  copyFileSync(copy, `${restored}/moex.sqlite`);
  chmodSync(`${restored}/moex.sqlite`, 0o600);
  const next = await serveIn(restored, '--require-key');
  assert.equal(await ask(next.url), 200);
  const token = (link) => /token=(\S+)/.exec(link)[1];
  assert.equal(token(next.join), token(hub.join));
  assert.match(await usage(restored), /ada,\d/);
  assert.equal(await next.stop(), 0, next.stderr());
}));

test('backup reports its errors in a sentence and leaves no part', () => inFolder(async (folder) => {
  const nowhere = await runHub(['backup', `${folder}/copy`, '--state', `${folder}/none`]);
  assert.equal(nowhere.code, 1);
  assert.match(nowhere.stderr, /none: no hub keeps its state here/);
  await runHub(['key', 'add', 'ada', '--state', `${folder}/state`]);
  const unwritable = await runHub(['backup', `${folder}/none/copy`, '--state', `${folder}/state`]);
  assert.equal(unwritable.code, 1);
  assert.match(unwritable.stderr, /copy\.part: No such file or directory/);
  assert.equal((await runHub(['backup', '--state', `${folder}/state`])).code, 2);
  assert.deepEqual(readdirSync(folder), ['state']);
}));
