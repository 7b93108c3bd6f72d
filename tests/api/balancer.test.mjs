// A fleet behind a balancer: two hubs, two fronts and the snippets of the operator's manual as they are written.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:https';
import { test } from 'node:test';
import { Proxy, freePort, isInstalled } from '../browser/support/proxy.mjs';
import { makeKey, until } from './fleet_process.mjs';
import { startFront } from './front_process.mjs';
import { inFolder, runHub, startHub } from './hub_process.mjs';
import { postgresIsInstalled, startPostgres } from './postgres.mjs';
import { endless } from './streams.mjs';

// Sends a request to the proxy; resolves to { status, text }, and calls onData at each piece.
const send = (port, path, { method = 'GET', headers = {}, body, onData = () => {} } = {}) =>
  new Promise((resolve, reject) => {
    const call = request({ host: '127.0.0.1', port, path, method, headers, rejectUnauthorized: false }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (piece) => { text += piece; onData(text); })
        .on('end', () => resolve({ status: response.statusCode, text })).on('error', reject);
    });
    call.on('error', reject);
    call.end(body);
  });

const logOf = (folder, i) => readFileSync(`${folder}/log${i}`, 'utf8');

// Calls story({ port, fronts, hubs, ids, key, folder }).
const behind = (kind, story) => inFolder(async (folder) => {
  const running = [];
  const store = await startPostgres();
  try {
    for (const args of [['fleet', 'key', `${folder}/fleet.key`], ['cert', '--out', folder]])
      assert.equal((await runHub(args)).code, 0);
    writeFileSync(`${folder}/cert-and-key.pem`,
      readFileSync(`${folder}/cert.pem`, 'utf8') + readFileSync(`${folder}/key.pem`, 'utf8'));
    const shared = ['--store', store.url, '--fleet-key', `${folder}/fleet.key`, '--trusted-proxy', '127.0.0.1'];
    const { key } = await makeKey(store, 'ada');    // before the hubs, so that each knows it from the start
    const hubs = await Promise.all([0, 1].map((i) => startHub(['--state', `${folder}/hub${i}`, '--backend', 'local',
      '--threads', '1', '--access-log', `${folder}/log${i}`, ...shared])));
    running.push(...hubs);
    const fronts = await Promise.all([startFront(shared), startFront(shared)]);
    running.push(...fronts);
    const ids = [0, 1].map((i) => readFileSync(`${folder}/hub${i}/hub_id`, 'utf8').trim());
    const port = await freePort();
    const proxy = await Proxy.start(kind, { port, cert: folder, more: [
      ['127.0.0.1:8081', new URL(fronts[0].url).host], ['127.0.0.1:8082', new URL(fronts[1].url).host],
      ['127.0.0.1:8080', new URL(hubs[0].url).host], ['127.0.0.1:8090', new URL(hubs[1].url).host],
      ['11111111', ids[0]], ['22222222', ids[1]]] });
    running.push(proxy);
    await story({ port, fronts, hubs, ids, key, folder });
  } finally {
    for (const one of running.reverse()) await one.stop();
    await store.remove();
  }
});

const body = (tokens) => JSON.stringify({ prompt: 'The sea', max_tokens: tokens, stream: true, ...endless });

async function fleetWorks({ port, fronts, hubs, ids, key, folder }) {
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` };
  assert.equal((await send(port, '/join.html')).status, 200);
  // The client is not on this machine, although the balancer and the fronts are.
  const without = { method: 'POST', headers: { 'content-type': 'application/json', 'x-forwarded-for': '127.0.0.1' } };
  const remote = await send(port, '/v1/completions', { ...without, body: body(2) });
  assert.equal(remote.status, 401, remote.text);

  // A worker reaches the hub that it names. Without the headers of a WebSocket the hub refuses it, and logs that.
  for (const i of [0, 1, 1, 0]) {
    const before = [0, 1].map((at) => logOf(folder, at).split('target=/worker ').length);
    assert.equal((await send(port, `/worker?hub=${ids[i]}`)).status, 426);
    let after = before;
    await until(async () => {      // a hub logs a request behind its answer
      await new Promise((resolve) => { setImmediate(resolve); });
      after = [0, 1].map((at) => logOf(folder, at).split('target=/worker ').length);
      return after.join() !== before.join();
    });
    assert.deepEqual(after.map((count, at) => count - before[at]), i === 0 ? [1, 0] : [0, 1]);
  }

  // Neither the death of a hub nor that of a front is seen by a client that asks afterwards.
  const stream = await send(port, '/v1/completions', { method: 'POST', headers, body: body(300),
    onData: (text) => { if (text.length > 2000) hubs[0].signal('SIGKILL'); } });
  assert.ok(stream.status === 200 && stream.text.includes('[DONE]'), stream.text.slice(-300));
  await fronts[0].kill();
  for (let i = 0; i < 6; ++i) {
    const one = await send(port, '/v1/completions', { method: 'POST', headers, body: body(3) });
    assert.ok(one.status === 200 && one.text.includes('[DONE]'), `${one.status} ${one.text.slice(-300)}`);
  }
  assert.equal((await send(port, `/worker?hub=${ids[0]}`)).status, 426, 'a worker of the dead hub gets the other one');
}

for (const kind of ['haproxy fleet', 'nginx fleet']) {
  const skip = !isInstalled(kind) ? `SKIPPED: no ${kind.split(' ')[0]}`
    : postgresIsInstalled() ? false : 'SKIPPED: no postgresql-15';
  test(`${kind}: clients and workers reach a fleet`, { skip, timeout: 300_000 }, () => behind(kind, fleetWorks));
}
