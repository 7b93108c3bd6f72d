// The signed manifest: a hub makes a key and signs; native workers pin the key, refuse another one by name, and follow
// a lawful change; a hub pins the key of a package's publisher. The module of the tabs judges the same signatures.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';

import { OtherHub, blobsOf, checkHub, judgeSignature } from '../../web-worker/browser/hub_key.js';
import { cleanEnvironment, inFolder, modelFolder, runHub, startHub } from './hub_process.mjs';

const workerProgram = process.env.MOEX_NATIVE_WORKER ?? 'build/moex-worker';
const manifestSha = createHash('sha256').update(readFileSync(join(modelFolder, 'manifest.json'))).digest('hex');

const sign = async (...args) => {
  const { code, stdout, stderr } = await runHub(['sign', ...args]);
  assert.equal(code, 0, stderr);
  return { key: /^key {10}([0-9a-f]{64})$/m.exec(stdout)[1], stdout };
};
const signatureOf = async (hub) => (await fetch(`${hub.url}/api/signature`)).json();

// Runs a worker until it serves, tries again or ends. Resolves to {served, code, stderr}.
function runWorker(url, token, ...args) {
  const all = ['--hub', url.replace(/^http/, 'ws'), '--backend', 'cpu', '--threads', '1', ...args];
  const child = spawn(workerProgram, all,
    { env: cleanEnvironment({ MOEX_TOKEN: token }), stdio: ['ignore', 'pipe', 'pipe'] });
  let stderr = '', served = false, tries_again = false;
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.stdout.setEncoding('utf8').on('data', (text) => {
      if (!/serving units=[1-9]/.test(text) || served) return;
      served = true;
      child.kill('SIGTERM');
    });
    child.stderr.setEncoding('utf8').on('data', (text) => {
      stderr += text;
      if (stderr.includes('Trying again') && !tries_again) child.kill('SIGTERM');
      tries_again = stderr.includes('Trying again');
    });
    child.on('close', (code) => resolve({ served, code, stderr }));
  });
}
const tokenOf = (hub) => new URL(hub.join).hash.slice('#token='.length);

test('a hub signs manifest and pages, with a key that stays or changes lawfully', () => inFolder(async (state) => {
  let hub = await startHub(['--state', state]);
  const signature = await signatureOf(hub);
  assert.equal(signature.manifest.sha256, manifestSha);
  assert.equal(statSync(join(state, 'signing-key')).mode & 0o777, 0o600);
  assert.equal((await sign('--state', state)).key, signature.key);
  assert.match(hub.stderr(), new RegExp(`signs with its key.*${signature.fingerprint}`));

  const first = await judgeSignature(signature, '');
  assert.equal(first.state, 'first');
  assert.equal((await judgeSignature(signature, signature.key)).state, 'known');
  assert.equal((await checkHub(`${hub.url}/`, signature.key)).package_sha256, manifestSha);
  const blobs = await blobsOf(`${hub.url}/`, first);
  assert.equal(blobs.size, new Set(JSON.parse(readFileSync(join(modelFolder, 'manifest.json'))).experts.flat()).size);

  // The lines of the pages are the hashes of what the hub serves.
  const lines = new Map(signature.pages.lines.trim().split('\n').map((line) => line.split(' ')));
  for (const path of ['/index.html', '/join.html', '/js/join.js', '/service_worker.js']) {
    const bytes = Buffer.from(await (await fetch(hub.url + path)).arrayBuffer());
    assert.equal(lines.get(path), createHash('sha256').update(bytes).digest('hex'), path);
  }
  await hub.stop();

  const renewed = await sign('--renew', '--state', state);
  hub = await startHub(['--state', state]);
  const after = await signatureOf(hub);
  await hub.stop();
  assert.equal(after.key, renewed.key);
  assert.notEqual(after.key, signature.key);
  const judged = await judgeSignature(after, signature.key);
  assert.deepEqual([judged.state, judged.key], ['changed', renewed.key]);

  writeFileSync(join(state, 'signing-key'), 'damaged');
  const refused = await runHub(['serve', '--model', modelFolder, '--listen', '127.0.0.1:0', '--state', state]);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /signing-key: holds no Ed25519 key/);
}));

test('the module of the tabs refuses 1,000 mutations of a signature', () => inFolder(async (state) => {
  const { key: known } = await sign('--state', state);
  await sign('--renew', '--state', state);
  const hub = await startHub(['--state', state]);
  const { key, changes, manifest } = await signatureOf(hub);
  await hub.stop();
  const json = JSON.stringify({ key, changes, manifest });
  assert.equal((await judgeSignature(JSON.parse(json), known)).state, 'changed');

  let number = 36;                                   // the seed of a linear congruential generator
  const random = (below) => {
    number = (number * 1664525 + 1013904223) % 2 ** 32;
    return Math.floor(number / 2 ** 32 * below);
  };
  let judged = 0;
  for (let i = 0; i < 1000; i += 1) {
    const bytes = Buffer.from(json);
    bytes[random(bytes.length)] ^= 1 + random(127);
    let mutated = null;
    try { mutated = JSON.parse(bytes.toString()); } catch { continue; }
    judged += 1;
    await assert.rejects(judgeSignature(mutated, known), OtherHub, bytes.toString());
  }
  assert.ok(judged > 300, `${judged} mutations were JSON`);
}));

test('a worker pins the key, refuses another by name, and follows a lawful change', () => inFolder(async (folder) => {
  const [mine, theirs, cache] = ['mine', 'theirs', 'cache'].map((name) => join(folder, name));
  let hub = await startHub(['--state', mine]);
  const listen = `127.0.0.1:${new URL(hub.url).port}`;
  const first = await runWorker(hub.url, tokenOf(hub), '--cache', cache);
  assert.ok(first.served, first.stderr);
  const { key } = await sign('--state', mine);
  assert.match(first.stderr, new RegExp(`hub ${listen} has the key .*, which is pinned`));
  assert.ok(readFileSync(join(cache, 'known-hubs'), 'utf8').includes(`${listen} ${key}\n`));
  await hub.stop();

  // Another hub at the same address.
  hub = await startHub(['--state', theirs, '--listen', listen]);
  const other = (await sign('--state', theirs)).key;
  const shown = (one) => one.slice(0, 32).match(/.{4}/g).join(' ');
  const refused = await runWorker(hub.url, tokenOf(hub), '--cache', cache);
  assert.equal(refused.code, 1);
  assert.ok(refused.stderr.includes(`has the key ${shown(other)}, wanted the known key ${shown(key)}`), refused.stderr);
  assert.match(refused.stderr, /give it as --hub-key, or delete the line/);
  const accepted = await runWorker(hub.url, tokenOf(hub), '--cache', cache, '--hub-key', other);
  assert.ok(accepted.served, accepted.stderr);
  assert.ok((await runWorker(hub.url, tokenOf(hub), '--cache', cache)).served);
  await hub.stop();

  await sign('--renew', '--state', theirs);
  hub = await startHub(['--state', theirs, '--listen', listen]);
  const followed = await runWorker(hub.url, tokenOf(hub), '--cache', cache);
  assert.ok(followed.served, followed.stderr);
  assert.match(followed.stderr, /changed its key to .*, which its old key signed/);
  await hub.stop();

  const wrong = await runWorker('http://127.0.0.1:9', 'x', '--hub-key', 'abc');
  assert.equal(wrong.code, 2);
}));

// Listens on a port; `choose(request)` gives the hub for the first bytes of a connection, or an answer as a string.
async function startFront(choose) {
  const sockets = new Set();
  const server = createServer((socket) => {
    sockets.add(socket.on('error', () => socket.destroy()));
    socket.once('data', (bytes) => {
      const chosen = choose(bytes.toString('latin1'));
      if (typeof chosen === 'string') return socket.end(chosen);
      const target = connect(new URL(chosen.url).port, '127.0.0.1', () => {
        target.write(bytes);
        socket.pipe(target).pipe(socket);
      });
      sockets.add(target.on('error', () => socket.destroy()));
    });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return { url: `http://127.0.0.1:${server.address().port}`,
    stop: () => { server.close(); for (const one of sockets) one.destroy(); } };
}

test('a mirror with other weights and a hub behind a stolen signature are refused', () => inFolder(async (folder) => {
  const tiny = join(folder, 'tiny');
  assert.equal((await runHub(['synth', '--shape', 'tiny', tiny])).code, 0);
  const honest = await startHub(['--state', join(folder, 'a')]);
  const other = await startHub(['--state', join(folder, 'b')], {}, tiny);

  const token = tokenOf(other);
  const thief = await startFront((request) => (request.startsWith('GET /worker') ? other : honest));
  const stolen = await runWorker(thief.url, token);
  assert.ok(!stolen.served);
  assert.match(stolen.stderr, /the hub's model is not the one that it signed/);
  thief.stop();

  // One answer a connection, so that the next request is chosen anew.
  const answer = (body) => `HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`;
  const signature = JSON.stringify(await signatureOf(honest));
  const mirror = await startFront((request) => (request.startsWith('GET /api/signature') ? answer(signature)
    : request.startsWith('GET /api/manifest') ? answer('{"experts": []}') : honest));
  const altered = await runWorker(mirror.url, tokenOf(honest));
  assert.ok(!altered.served);
  assert.match(altered.stderr, /the manifest [0-9a-f]{12} from the hub does not match its hash/);
  mirror.stop();
  await Promise.all([honest.stop(), other.stop()]);
}));

test('a hub pins a publisher\'s key, and refuses other keys and altered packages', () => inFolder(async (folder) => {
  const [state, model, publisher] = ['state', 'model', 'publisher.pem'].map((name) => join(folder, name));
  assert.equal((await runHub(['synth', '--shape', 'tiny', model])).code, 0);
  const { key } = await sign(model, '--key', publisher);
  const signature = join(model, 'signature.json');
  const whole = readFileSync(signature, 'utf8');
  assert.equal(JSON.parse(whole).key, key);

  const tried = () => runHub(['serve', '--model', model, '--listen', '127.0.0.1:0', '--state', state]);
  const hub = await startHub(['--state', state], {}, model);
  await hub.stop();
  const pinned = join(state, 'known-publishers');
  assert.ok(readFileSync(pinned, 'utf8').includes(` ${key}\n`));

  // Altered, missing, by another key.
  const manifest = readFileSync(join(model, 'manifest.json'), 'utf8');
  writeFileSync(join(model, 'manifest.json'), `${manifest}\n`);
  assert.match((await tried()).stderr, /signature\.json: signs a manifest with SHA-256/);
  writeFileSync(join(model, 'manifest.json'), manifest);
  rmSync(signature);
  assert.match((await tried()).stderr, /sent no signature, wanted one by the known key/);
  const stranger = await sign(model, '--key', join(folder, 'stranger.pem'));
  const refused = await tried();
  assert.equal(refused.code, 1);
  assert.ok(refused.stderr.includes(`has the key ${stranger.key.slice(0, 4)}`), refused.stderr);
  assert.match(refused.stderr, /to accept this package, delete the line/);

  // A lawful change, and a person who accepts another key.
  await sign(model, '--renew', '--key', publisher);
  const followed = await startHub(['--state', state], {}, model);
  assert.match(followed.stderr(), /key of a publisher has changed lawfully/);
  await followed.stop();
  await sign(model, '--key', join(folder, 'stranger.pem'));
  rmSync(pinned);
  await (await startHub(['--state', state], {}, model)).stop();

  // What does not verify is not signed.
  cpSync(model, join(folder, 'damaged'), { recursive: true });
  const hubFile = join(folder, 'damaged', 'hub.safetensors'), bytes = readFileSync(hubFile);
  bytes[bytes.length - 1] ^= 1;
  writeFileSync(hubFile, bytes);
  assert.equal((await runHub(['sign', join(folder, 'damaged'), '--key', publisher])).code, 1);
}));
