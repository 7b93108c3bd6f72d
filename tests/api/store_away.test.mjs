// A fleet whose store is away: a real PostgreSQL is stopped under running streams and started again, or loses its
// tables. MOEX_STORE_AWAY_S=60 makes the stop as long as an operator's; a test run stops it for some seconds.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { test } from 'node:test';
import {
  adminKeyOf, health, hubsOf, knownAt, makeKey, question, startFleet, stream, until, usage, usageFrom,
} from './fleet_process.mjs';
import { startFront } from './front_process.mjs';
import { inFolder, postJson, runHub } from './hub_process.mjs';
import { postgresIsInstalled } from './postgres.mjs';

const how = { skip: postgresIsInstalled() ? false : 'SKIPPED: no postgresql-15', timeout: 400_000 };
const away_s = Number(process.env.MOEX_STORE_AWAY_S ?? 3), tokens = 120, questions = 4;

// Asks the same questions again and again until `isOver()`, and returns the answers.
async function client(url, headers, alone, first, isOver) {
  const answers = [];
  for (let i = first; !isOver(); i = (i + 1) % questions) {
    const one = await stream(`${url}/v1/chat/completions`, { headers, body: question(i, tokens) });
    assert.ok(one.whole, `${one.status} ${JSON.stringify(one.error)}`);
    assert.equal(one.text, alone[i].text, `question ${i}`);
    answers.push(one);
  }
  return answers;
}

async function refusesAdmin(hub, admin) {
  const made = await postJson(`${hub.url}/api/admin/keys`, { name: 'bob', role: 'api' }, admin);
  assert.equal(made.status, 503);
  const list = await fetch(`${hub.url}/api/admin/keys`, { headers: { authorization: `Bearer ${admin}` } });
  assert.equal(list.status, 503);
}

test(`a store that is away for ${away_s} s hurts no stream and loses no count`, how,
  (context) => inFolder(async (folder) => {
    const fleet = await startFleet(folder, 3, ['--require-key']);
    let front;
    try {
      front = await startFront(['--store', fleet.store.url, '--fleet-key', fleet.key]);
      const { key, id } = await makeKey(fleet.store, 'ada');
      const headers = { authorization: `Bearer ${key}` }, admin = adminKeyOf(...fleet.hubs);
      await knownAt(fleet.hubs, key);
      const alone = [];
      for (let i = 0; i < questions; ++i) {
        const { url } = fleet.hubs[i % 3];
        alone.push(await stream(`${url}/v1/chat/completions`, { headers, body: question(i, tokens) }));
      }

      let over = false;
      const urls = [front.url, front.url, front.url, ...fleet.hubs.map((hub) => hub.url)];
      const clients = Promise.all(urls.map((url, i) => client(url, headers, alone, i % questions, () => over)));
      clients.catch(() => { over = true; });
      await until(async () => (await usage(fleet.store, id)).requests >= 2 * questions);

      await fleet.store.stop();
      const stopped = Date.now();
      for (const hub of fleet.hubs) {
        await until(async () => (await health(hub)).status === 'degraded');
        assert.equal((await health(hub)).code, 200, 'a balancer must not take the hub out');
        await refusesAdmin(hub, admin);
        const stranger = await postJson(`${hub.url}/v1/completions`, { prompt: 'x', max_tokens: 1 }, 'no key');
        assert.equal(stranger.status, 401);
      }
      await sleep(Math.max(0, away_s * 1000 - (Date.now() - stopped)));
      for (const hub of fleet.hubs) assert.equal((await health(hub)).status, 'degraded');
      await fleet.store.start();
      for (const hub of fleet.hubs) await until(async () => (await health(hub)).status === 'ok');
      over = true;
      const answers = (await clients).flat();
      context.diagnostic(`${answers.length} answers, the store was away for ${Date.now() - stopped} ms`);

      // What the clients received is counted, once.
      const all = { requests: questions + answers.length, tokens: (questions + answers.length) * tokens };
      assert.deepEqual(await usageFrom(fleet.store, id, all.requests, all.tokens), all);
      await until(async () => (await hubsOf(fleet.store)).every((hub) => hub.lives));
      const made = await postJson(`${fleet.hubs[0].url}/api/admin/keys`, { name: 'bob', role: 'api' }, admin);
      assert.equal(made.status, 200);

      // The journals go on, too: a stream of a hub that is killed now goes on at another one.
      let killed = null;
      const one = await stream(`${front.url}/v1/chat/completions`, {
        headers, body: question(0, tokens),
        onEvent: (out) => {
          if (killed || out.events < 30) return;
          const at = out.headers['x-moex-stream'].slice(0, 8);
          killed = hubsOf(fleet.store).then((hubs) => {
            const { address } = hubs.find((hub) => hub.hub === at);
            return fleet.kill(fleet.hubs.findIndex((hub) => hub.url === address));
          });
        },
      });
      await killed;
      assert.ok(one.whole, JSON.stringify(one.error));
      assert.equal(one.text, alone[0].text);
    } finally {
      await front?.stop();
      await fleet.end();
    }
  }));

test('a store that was wiped is told, and a restart begins anew', how, () => inFolder(async (folder) => {
  const fleet = await startFleet(folder, 2, ['--require-key']);
  try {
    const { key } = await makeKey(fleet.store, 'ada');
    const headers = { authorization: `Bearer ${key}` }, hub = fleet.hubs[0], admin = adminKeyOf(...fleet.hubs);
    await knownAt(fleet.hubs, key);
    const ask = (at) => stream(`${at.url}/v1/chat/completions`, { headers, body: question(0, tokens) });
    const alone = await ask(hub);
    let wiped = false;
    const one = await stream(`${hub.url}/v1/chat/completions`, {
      headers, body: question(0, tokens),
      onEvent: (out) => {
        if (wiped || out.events < 30) return;
        wiped = true;
        // With the lock that each transaction of a hub takes first, since each of the two could wait for the other.
        const wipe = 'SELECT pg_advisory_xact_lock(x\'6d6f6578\'::bigint); DROP SCHEMA public CASCADE; '
          + 'CREATE SCHEMA public';
        execFileSync('psql', ['-q', '-c', wipe, fleet.store.url], { stdio: ['ignore', 'ignore', 'pipe'] });
      },
    });
    assert.ok(wiped && one.whole, JSON.stringify(one.error));
    assert.equal(one.text, alone.text);

    const isTold = async (at) => {
      await at.logged('the store was wiped');
      await until(async () => /was wiped/.test((await health(at)).reason));
      assert.equal((await health(at)).status, 'degraded');
      assert.equal((await health(at)).code, 200);
    };
    for (const at of fleet.hubs) await isTold(at);
    await refusesAdmin(hub, admin);
    assert.equal((await ask(hub)).text, alone.text, 'keys that were read last stay good for a while');

    // A hub that starts makes the tables anew; for the one that runs on this is another store.
    assert.equal(await fleet.hubs[1].stop(), 0, fleet.hubs[1].stderr());
    await fleet.start(1);
    assert.equal((await health(fleet.hubs[1])).status, 'ok');
    assert.equal((await ask(fleet.hubs[1])).status, 401, 'the keys are gone with the store');
    await isTold(hub);
    await refusesAdmin(hub, admin);
    assert.equal(await hub.stop(), 0, hub.stderr());
    await fleet.start(0);
    assert.equal((await health(fleet.hubs[0])).status, 'ok');
    await until(async () => (await hubsOf(fleet.store)).filter((one) => one.lives).length === 2);
  } finally { await fleet.end(); }
}));

test('a hub does not start without its store, and says so', how, () => inFolder(async (folder) => {
  const run = await runHub(['serve', '--state', `${folder}/one`, '--store', 'postgresql://moex@127.0.0.1:9/none',
    '--listen', '127.0.0.1:0', '--model', process.env.MOEX_MODEL ?? 'static/models/demo']);
  assert.equal(run.code, 1);
  assert.match(run.stderr, /the store 127\.0\.0\.1\/none: cannot connect/);
}));
