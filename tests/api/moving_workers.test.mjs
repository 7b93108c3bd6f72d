// A native worker that joins another hub of its fleet, and comes back: two hubs, one PostgreSQL, real workers. Its
// weights and the record of its answers go with it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { test } from 'node:test';
import { freePort, until } from './fleet_process.mjs';
import { cleanEnvironment, inFolder, postJson, startHub } from './hub_process.mjs';
import { postgresIsInstalled, startPostgres } from './postgres.mjs';
import { endless } from './streams.mjs';

const program = process.env.MOEX_NATIVE_WORKER ?? 'build/moex-worker';
const how = { skip: postgresIsInstalled() ? false : 'SKIPPED: no postgresql-15', timeout: 400_000 };

// Resolves once the worker serves, to { said, served, stop }. `served` are the lines of its standard output.
function startWorker(hubs, token, ...args) {
  const child = spawn(program,
    [...hubs.flatMap((hub) => ['--hub', hub]), '--backend', 'cpu', '--threads', '1', ...args],
    { env: cleanEnvironment({ MOEX_TOKEN: token }), stdio: ['ignore', 'pipe', 'pipe'] });
  let stdout = '', stderr = '';
  const ended = new Promise((resolve) => { child.on('close', (code) => resolve(code)); });
  child.stderr.setEncoding('utf8').on('data', (text) => { stderr += text; });
  return new Promise((resolve, reject) => {
    ended.then((code) => reject(new Error(`the worker ended with ${code}:\n${stderr}`)));
    child.stdout.setEncoding('utf8').on('data', (text) => {
      stdout += text;
      if (/serving units=[1-9]/.test(stdout))
        resolve({ downloaded: () => Number(/.*downloaded_bytes=(\d+)/s.exec(stdout)[1]), stderr: () => stderr, ended,
          stop: () => { child.kill('SIGTERM'); return ended; } });
    });
  });
}

const statusOf = async (hub) => (await fetch(`${hub.url}/api/status`)).json();
const workersOf = async (hub) => (await statusOf(hub)).workers.filter((one) => one.state === 'active');
// Resolves to the hub's worker once `fits` holds.
async function workerAt(hub, fits = () => true) {
  let found;
  await until(async () => {
    [found] = await workersOf(hub);
    return found && fits(found);
  }, () => JSON.stringify(found ?? 'no worker'));
  return found;
}
const ask = async (hub, tokens) => {
  const body_of = { prompt: 'The sea', max_tokens: tokens, temperature: 0, ...endless };
  const answer = await postJson(`${hub.api}/completions`, body_of);
  const body = await answer.json();
  assert.equal(answer.status, 200, JSON.stringify(body));
  return body;
};
const weightsSent = (log) => readFileSync(log, 'utf8').split('\n').filter((line) => line.includes('/weights/'));

// Calls story({ hubs, store, start, stop, log, idOf }). start(i) resolves to hub i, which has its own folder and port.
const ofTwoHubs = (story, more = []) => inFolder(async (folder) => {
  const store = await startPostgres();
  const hubs = [], ports = await Promise.all([freePort(), freePort()]);
  const log = (i) => `${folder}/log${i}`;
  const start = async (i) => {
    hubs[i] = await startHub(['--state', `${folder}/hub${i}`, '--listen', `127.0.0.1:${ports[i]}`, '--store', store.url,
      '--threads', '1', '--deterministic', '--kv-disk-mb', '0', '--access-log', log(i), ...more]);
    await hubs[i].logged('this hub has entered');
  };
  const stop = async (i) => { assert.equal(await hubs[i].stop(), 0, hubs[i].stderr()); };
  try {
    await start(0);
    await start(1);
    const idOf = (i) => readFileSync(`${folder}/hub${i}/hub_id`, 'utf8').trim();
    await story({ hubs, store, start, stop, log, idOf });
  } finally {
    for (const hub of hubs) { hub.signal('SIGKILL'); await hub.ended; }
    await store.remove();
  }
});

test('a worker joins another hub and comes back, with weights and record', how,
  (context) => ofTwoHubs(async ({ hubs, start, stop, log }) => {
    const token = new URL(hubs[0].join).hash.slice('#token='.length);
    // It is given the first hub alone; WELCOME lists the other one, once that has entered.
    await until(async () => (await statusOf(hubs[0])).fleet.filter((hub) => hub.lives).length === 2);
    const worker = await startWorker([hubs[0].join], token);
    try {
      const { coverage: { units } } = await statusOf(hubs[0]);
      const first = await workerAt(hubs[0], (one) => one.units_ready === units);
      const bytes = worker.downloaded();
      assert.ok(bytes > 0);
      const alone = await ask(hubs[0], 40);
      while ((await workerAt(hubs[0])).trust !== 'proven') await ask(hubs[0], 100);
      const { check_rate } = await workerAt(hubs[0]);
      assert.ok(check_rate < 1, `${check_rate}`);
      const sent = weightsSent(log(0)).length;

      await stop(0);
      const second = await workerAt(hubs[1], (one) => one.trust === 'proven' && one.units_ready > 0);
      assert.equal(second.units_ready, first.units_ready);
      assert.ok(second.check_rate < 1, 'the record came along');
      assert.equal((await ask(hubs[1], 40)).choices[0].text, alone.choices[0].text);
      assert.ok((await workerAt(hubs[1])).groups_answered > 0, 'it computes for the other hub');

      const knowsOthers = (number) => until(async () => {
        await new Promise((resolve) => { setImmediate(resolve); });
        return [...hubs[0].stderr().matchAll(/workers know the other hubs hubs=(\d+)/g)].at(-1)?.[1] === number;
      }, hubs[0].stderr);
      await start(0);
      await knowsOthers('1');
      await stop(1);
      const back = await workerAt(hubs[0], (one) => one.trust === 'proven');
      assert.equal(back.units_ready, first.units_ready);
      assert.ok(back.check_rate < 1, 'the record came back');
      assert.equal((await ask(hubs[0], 40)).choices[0].text, alone.choices[0].text);

      // A hub that is killed says nothing: the worker knows the other one from HUBS.
      await knowsOthers('0');
      await start(1);
      await knowsOthers('1');
      hubs[0].signal('SIGKILL');
      await hubs[0].ended;
      const third = await workerAt(hubs[1], (one) => one.trust === 'proven');
      assert.equal(third.units_ready, first.units_ready);

      assert.equal(worker.downloaded(), bytes, 'fetched again');
      assert.deepEqual(weightsSent(log(1)), []);
      assert.equal(weightsSent(log(0)).length, sent, 'requests for weights');
      context.diagnostic(`${first.units_ready} experts, ${bytes} bytes fetched once, 0 again; check rates `
        + `${check_rate}, ${second.check_rate}, ${back.check_rate}`);
      assert.equal(await worker.stop(), 0, worker.stderr());
    } finally { await worker.stop(); }
  }));

const tokenOf = ({ join }) => new URL(join).hash.slice('#token='.length);
const asksIn = (hub) => [...hub.stderr().matchAll(/a worker is asked to join a hub that needs it more/g)].length;
// Ends the workers, and checks that none fetched weights again and that hub 1 has sent none.
async function endMoved(workers, bytes, log) {
  const now = workers.map((one) => one.downloaded());
  for (const one of workers) assert.equal(await one.stop(), 0, one.stderr());
  assert.deepEqual(now, bytes);
  assert.deepEqual(weightsSent(log(1)), []);
}

test('a hub without workers is sent one by the hub that has two', how,
  (context) => ofTwoHubs(async ({ hubs, start, stop, log }) => {
    await stop(1);   // the workers would choose the needier hub by themselves
    const workers = [];
    try {
      for (let i = 0; i < 2; ++i) workers.push(await startWorker([hubs[0].join], tokenOf(hubs[0])));
      const bytes = workers.map((one) => one.downloaded());
      await start(1);
      const begun = Date.now();
      await workerAt(hubs[1]);
      await until(async () => (await workersOf(hubs[0])).length === 1);
      context.diagnostic(`moved ${Date.now() - begun} ms after the hub was there`);
      assert.equal(asksIn(hubs[0]), 1);
      await ask(hubs[1], 40);
      assert.ok((await workerAt(hubs[1])).groups_answered > 0);
      await endMoved(workers, bytes, log);
    } finally { for (const one of workers) await one.stop(); }
  }));

// Six workers, each with memory for all experts, are at one hub. The two hubs look once in ten seconds. A worker that
// moves holds its part of the experts, and fetches others at the hub that lacks them.
test('workers settle after as many moves as there are workers to move', how,
  (context) => ofTwoHubs(async ({ hubs, start, stop }) => {
    await stop(1);
    const workers = [];
    try {
      for (let i = 0; i < 6; ++i) workers.push(await startWorker([hubs[0].join], tokenOf(hubs[0])));
      await until(async () => (await workersOf(hubs[0])).length === 6);
      await start(1);
      const counts = () => Promise.all(hubs.map(async (hub) => (await workersOf(hub)).length));
      // Each move has a limit of its own.
      for (const moved of [1, 2, 3]) await until(async () => (await counts())[1] >= moved);
      await until(async () => (await counts()).join() === '3,3', () => 'they are not three each');
      await sleep(25_000);   // two further looks of both hubs
      assert.deepEqual(await counts(), [3, 3]);
      assert.deepEqual(hubs.map(asksIn), [3, 0]);
      context.diagnostic('6 workers at one hub: 3 moves, then none');
    } finally { for (const one of workers) assert.equal(await one.stop(), 0, one.stderr()); }
  }));

// A new worker learns from WELCOME what the hubs need, and loads nothing at the hub that needs it less.
test('a new worker joins the hub that needs it most', how, () => ofTwoHubs(async ({ hubs }) => {
  const workers = [];
  try {
    workers.push(await startWorker([hubs[0].join], tokenOf(hubs[0])));
    await workerAt(hubs[0]);
    // A hub says that it has 0 units until it has counted them for the first time.
    await until(async () => {
      const { fleet } = await statusOf(hubs[0]);
      const needOf = (is_this) => fleet.find((one) => one.is_this === is_this && one.units > 0);
      return needOf(true)?.units_missing === 0 && needOf(false)?.units_missing > 0;
    });
    workers.push(await startWorker([hubs[0].join], tokenOf(hubs[0])));
    await workerAt(hubs[1]);
    assert.equal((await workersOf(hubs[0])).length, 1);
    assert.deepEqual(hubs.map(asksIn), [0, 0], 'no hub asked it');
  } finally { for (const one of workers) assert.equal(await one.stop(), 0, one.stderr()); }
}));

const giver = 'a hub whose experts have one holder each gives no worker away';
test(giver, how, () => ofTwoHubs(async ({ hubs, start, stop }) => {
  await stop(1);   // the second worker would choose it
  const token = new URL(hubs[0].join).hash.slice('#token='.length);
  const workers = [];
  try {
    for (let i = 0; i < 2; ++i) workers.push(await startWorker([hubs[0].join], token));
    await start(1);
    await until(async () => {
      await new Promise((resolve) => { setImmediate(resolve); });
      return /is asked to join a hub|without a holder here/.test(hubs[0].stderr());
    }, hubs[0].stderr);
    assert.doesNotMatch(hubs[0].stderr(), /a worker is asked to join a hub that needs it more/);
    assert.equal((await workersOf(hubs[0])).length, 2);
    assert.deepEqual(await workersOf(hubs[1]), []);
    await ask(hubs[0], 40);
  } finally { for (const one of workers) assert.equal(await one.stop(), 0, one.stderr()); }
}, ['--local-fallback', 'off', '--replicas', '1']));

// Members of a store that is away stay as they were read last: a hub that acted on them would send worker after worker.
test('no worker moves while the store is away', how, () => ofTwoHubs(async ({ hubs, store }) => {
  const token = new URL(hubs[0].join).hash.slice('#token='.length);
  const workers = [];
  try {
    await until(async () => (await statusOf(hubs[0])).fleet.filter((hub) => hub.lives).length === 2);
    await store.stop();
    await hubs[0].logged('the store is away');
    for (let i = 0; i < 2; ++i) workers.push(await startWorker([hubs[0].join], token));
    await sleep(12_000);   // a hub looks every ten seconds whether it has a worker to give
    assert.doesNotMatch(hubs[0].stderr(), /a worker is asked to join a hub that needs it more/);
    assert.equal((await workersOf(hubs[0])).length, 2);
    await store.start();
    await hubs[0].logged('a worker is asked to join a hub that needs it more');
    await workerAt(hubs[1]);
  } finally { for (const one of workers) assert.equal(await one.stop(), 0, one.stderr()); }
}));

// The status of the answer to an upgrade request.
const upgrade = (hub, query, token = tokenOf(hub)) => new Promise((resolve, reject) => {
  const { hostname, port } = new URL(hub.url), socket = connect(Number(port), hostname);
  socket.on('error', reject).on('data', (bytes) => {
    socket.destroy();
    resolve(Number(bytes.toString('latin1').split(' ')[1]));
  });
  socket.write(['GET /worker' + query + ' HTTP/1.1', `Host: ${hostname}:${port}`, 'Upgrade: websocket',
    'Connection: Upgrade', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
    `Authorization: Bearer ${token}`, '', ''].join('\r\n'));
});

test('a worker that names a hub that is gone may stay, and wrong names are refused', how,
  () => ofTwoHubs(async ({ hubs, idOf }) => {
    assert.equal(await upgrade(hubs[0], ''), 101);
    assert.equal(await upgrade(hubs[0], `?hub=${idOf(0)}`), 101);
    assert.equal(await upgrade(hubs[0], `?hub=${idOf(1)}`, 'unknown'), 401);
    assert.doesNotMatch(hubs[0].stderr(), /wanted another hub/);
    assert.equal(await upgrade(hubs[0], `?hub=${idOf(1)}`), 101);
    await hubs[0].logged('a worker that wanted another hub is here');
    const lines = hubs[0].stderr().match(/wanted another hub/g);
    assert.equal(lines.length, 1, 'a refused worker writes no line');
    for (const wrong of ['', '0a1b2c3', '0a1b2c3d4', '0A1B2C3D', '..%2f..%2f..'])
      assert.equal(await upgrade(hubs[0], `?hub=${wrong}`), 400, wrong);
  }));
