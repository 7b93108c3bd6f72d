// Two hubs that share a PostgreSQL: keys, bans, use and the join token hold at both, a hub that is killed loses no more
// than its last second, and a store that is away stops no answer.
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { test } from 'node:test';
import {
  adminKeyOf, command, entered, health, hubsOf, knownAt, makeKey, until, usage, usageFrom,
} from './fleet_process.mjs';
import { inFolder, postJson, runHub, startHub } from './hub_process.mjs';
import { startFront } from './front_process.mjs';
import { postgresIsInstalled, startPostgres } from './postgres.mjs';
import { endless, readStream } from './streams.mjs';

const how = { skip: postgresIsInstalled() ? false : 'SKIPPED: no postgresql-15', timeout: 100_000 };
const story = (name, run) => test(name, how,
  (context) => inFolder(async (folder) => {
    const store = await startPostgres();
    try { await run({ folder, store, context }); } finally { await store.remove(); }
  }));

const serveWith = async (store, state, ...args) => entered(await startHub(
  ['--state', state, '--store', store.url, '--backend', 'local', '--threads', '1', '--require-key', ...args]));

const ask = (hub, key, max_tokens = 5) =>
  postJson(`${hub.api}/completions`, { prompt: 'The sea', max_tokens, ...endless }, key);

story('a key, its end and its use hold at both hubs', async ({ folder, store, context }) => {
  const one = await serveWith(store, `${folder}/one`);
  const two = await serveWith(store, `${folder}/two`);
  try {
    // Made by the operator's page at one hub, used at the other.
    const made = await postJson(`${one.url}/api/admin/keys`, { name: 'ada', role: 'api' }, adminKeyOf(one));
    assert.equal(made.status, 200);
    const { key, id } = await made.json();
    const made_at = Date.now();
    await until(async () => (await ask(two, key)).status === 200);
    context.diagnostic(`a new key is used at the other hub after ${Date.now() - made_at} ms`);

    const before = await usageFrom(store, id, 1, 5);
    for (const hub of [one, two, one]) assert.equal((await ask(hub, key, 7)).status, 200);
    await usageFrom(store, id, before.requests + 3, before.tokens + 21);

    // Revoked by a command: a stream at each hub ends, and `revoke` returns when both have seen it.
    const received = [[], []];
    const body = { prompt: 'The sea was', max_tokens: 100000, stream: true, logprobs: 1, ...endless };
    const streams = [one, two].map((hub, i) => readStream(`${hub.api}/completions`, body, received[i], key));
    await until(async () => {
      await new Promise((resolve) => setImmediate(resolve));
      return received.every((times) => times.length > 0);
    });
    await command(store, 'key', 'revoke', id);
    const revoked_at = Date.now();
    for (const hub of [one, two]) assert.equal((await ask(hub, key)).status, 401);
    await Promise.all(streams);
    const late = Math.max(...received.map((times) => times.at(-1) - revoked_at));
    context.diagnostic(`the last token of a revoked key came ${late} ms after \`revoke\` had returned`);

    // The use over the fleet is what the clients received.
    const tokens = received[0].length + received[1].length;
    const all = { requests: before.requests + 5, tokens: before.tokens + 21 + tokens };
    assert.deepEqual(await usageFrom(store, id, all.requests, all.tokens), all);

    const hubs = await hubsOf(store);
    assert.equal(hubs.length, 2);
    assert.deepEqual(new Set(hubs.map((hub) => hub.address)), new Set([one.url, two.url]));
    assert.ok(hubs.every((hub) => hub.lives));
  } finally {
    for (const hub of [one, two]) assert.equal(await hub.stop(), 0, hub.stderr());
  }
  assert.ok((await hubsOf(store)).every((hub) => !hub.lives), 'hubs that stopped are not listed as alive');
});

story('each hub shows all hubs, and that the store is away', async ({ folder, store }) => {
  const one = await serveWith(store, `${folder}/one`), two = await serveWith(store, `${folder}/two`);
  let stopped = false;
  try {
    const headers = { authorization: `Bearer ${adminKeyOf(one, two)}` };
    const get = (hub, path) => fetch(`${hub.url}${path}`, { headers });
    const fleetAt = async (hub) => (await (await get(hub, '/api/status')).json()).fleet;
    const metric = async (hub, name) => {
      const text = await (await get(hub, '/metrics')).text();
      return Number(text.split('\n').find((line) => line.startsWith(`${name} `)).split(' ')[1]);
    };
    for (const hub of [one, two]) {
      await until(async () => (await fleetAt(hub)).filter(({ lives }) => lives).length === 2);
      const shown = await fleetAt(hub);
      assert.deepEqual(shown.filter(({ is_this }) => is_this).map(({ address }) => address), [hub.url]);
      assert.deepEqual(shown.map(({ address }) => address).sort(), [one.url, two.url].sort());
      assert.ok(shown.every(({ same_package }) => same_package));
      assert.equal(await metric(hub, 'moex_fleet_hubs{state="living"}'), 2);
      assert.equal(await metric(hub, 'moex_store_away'), 0);
    }
    assert.equal(await two.stop(), 0, two.stderr());
    stopped = true;
    await until(async () => await metric(one, 'moex_fleet_hubs{state="gone"}') === 1);
    assert.deepEqual((await fleetAt(one)).filter(({ lives }) => lives).map(({ address }) => address), [one.url]);

    await store.stop();
    await until(async () => await metric(one, 'moex_store_away') === 1);
    assert.equal((await fleetAt(one)).length, 2, 'as they were seen last');
    await store.start();
    await until(async () => await metric(one, 'moex_store_away') === 0);
  } finally { for (const hub of stopped ? [one] : [one, two]) assert.equal(await hub.stop(), 0, hub.stderr()); }
});

story('a killed hub loses its last second at most, and comes back as itself', async ({ folder, store, context }) => {
  // Each hub has a key of its own: so what the hub that lives has yet to write is never taken for the other's.
  const [ada, bob] = [await makeKey(store, 'ada'), await makeKey(store, 'bob')];
  const one = await serveWith(store, `${folder}/one`);
  let two = await serveWith(store, `${folder}/two`);
  try {
    const first = (await hubsOf(store)).find((hub) => hub.address === two.url);
    const tokens = 1000;
    let counted = 0;
    for (let life = 0; life < Number(process.env.MOEX_LIVES ?? 2); ++life) {
      const received = [];
      const body = { prompt: 'The sea was', max_tokens: tokens, stream: true, logprobs: 1, ...endless };
      const streams = [
        readStream(`${one.api}/completions`, body, [], ada.key),
        readStream(`${two.api}/completions`, body, received, bob.key),
      ];
      await until(async () => {
        await new Promise((resolve) => setImmediate(resolve));
        return Date.now() - received[0] >= 1200;
      });
      const killed = Date.now();
      two.signal('SIGKILL');
      await two.ended;
      await Promise.all(streams);
      two = await serveWith(store, `${folder}/two`);
      assert.equal((await usageFrom(store, ada.id, life + 1, (life + 1) * tokens)).tokens, (life + 1) * tokens);
      const used = (await usage(store, bob.id)).tokens - counted;
      counted += used;
      const lost = received.length - used;
      const lastSecond = received.filter((time) => time > killed - 1000).length;
      context.diagnostic(`${received.length} received, ${lost} not counted, ${lastSecond} in the last second`);
      assert.ok(lost >= 0, `${-lost} tokens counted that nobody got`);
      assert.ok(lost <= lastSecond, `${lost} lost, ${lastSecond} received in the last second`);
    }
    const again = (await hubsOf(store)).find((hub) => hub.hub === first.hub);
    assert.ok(again.lives);
    assert.ok(again.incarnation > first.incarnation);
    assert.equal((await hubsOf(store)).length, 2);
  } finally {
    for (const hub of [one, two]) assert.equal(await hub.stop(), 0, hub.stderr());
  }
});

story('a limit of tokens holds over both hubs', async ({ folder, store, context }) => {
  const per_minute = 3000, hubs = [await serveWith(store, `${folder}/one`), await serveWith(store, `${folder}/two`)];
  try {
    const { key } = await makeKey(store, 'ada', '--limit', String(per_minute));
    await knownAt(hubs, key);
    const begun = Date.now();
    // Two clients at each hub ask until each has been refused three times.
    const received = await Promise.all([0, 1, 0, 1].map(async (at) => {
      let tokens = 0, refused = 0;
      for (let asked = 0; refused < 3; ++asked) {
        assert.ok(asked < 1000, 'no limit is seen');
        const answer = await ask(hubs[at], key, 90);
        const body = await answer.json();
        if (answer.status === 200) tokens += body.usage.total_tokens;
        else {
          assert.equal(answer.status, 429, JSON.stringify(body));
          assert.ok(Number(answer.headers.get('retry-after')) > 0);
          ++refused;
        }
      }
      return tokens;
    }));
    const seconds = (Date.now() - begun) / 1000, tokens = received.reduce((sum, one) => sum + one);
    context.diagnostic(`${tokens} tokens in ${seconds.toFixed(1)} s, ${per_minute} a minute are allowed`);
    assert.ok(received.every((one) => one > 0), 'each client was served');
    assert.ok(tokens > 0.8 * per_minute, `${tokens}`);
    // The bucket, what flowed into it, and the rate of one second for each hub.
    assert.ok(tokens <= per_minute * (1 + (seconds + hubs.length) / 60), `${tokens} in ${seconds} s`);
  } finally { for (const hub of hubs) assert.equal(await hub.stop(), 0, hub.stderr()); }
});

story('a store that is away stops no answer and loses no count', async ({ folder, store }) => {
  const hub = await serveWith(store, `${folder}/one`);
  try {
    const admin = adminKeyOf(hub);
    const { key, id } = await makeKey(store, 'ada');
    await until(async () => (await ask(hub, key)).status === 200);
    const before = await usageFrom(store, id, 1, 5);

    const received = [];
    const body = { prompt: 'The sea was', max_tokens: 600, stream: true, logprobs: 1, ...endless };
    const stream = readStream(`${hub.api}/completions`, body, received, key);
    await until(async () => { await new Promise((resolve) => setImmediate(resolve)); return received.length > 10; });
    await store.stop();
    await until(async () => (await health(hub)).status === 'degraded');
    assert.equal((await health(hub)).code, 200, 'a balancer must not take the hub out');
    assert.equal((await ask(hub, key)).status, 200);
    await stream;
    assert.equal(received.length, 600);

    const refused = await postJson(`${hub.url}/api/admin/keys`, { name: 'bob', role: 'api' }, admin);
    assert.equal(refused.status, 503);
    const list = await fetch(`${hub.url}/api/admin/keys`, { headers: { authorization: `Bearer ${admin}` } });
    assert.equal(list.status, 503);

    await store.start();
    await until(async () => (await health(hub)).status === 'ok');
    const all = { requests: before.requests + 2, tokens: before.tokens + 605 };
    assert.deepEqual(await usageFrom(store, id, all.requests, all.tokens), all);
    assert.equal((await postJson(`${hub.url}/api/admin/keys`, { name: 'bob', role: 'api' }, admin)).status, 200);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
});

test('a password in the address of the store is refused by name', async () => {
  const run = await runHub(['key', 'list', '--store', 'postgresql://moex:secret@db.example/moex']);
  assert.equal(run.code, 2, run.stderr);
  assert.match(run.stderr, /--store.*password.*PGPASSFILE/);
  assert.ok(!run.stderr.includes('secret'));
});

// A front looks at no key, so that no client needs one here. It has 4 MiB for bodies, and each client sends all of its
// body but the last byte.
async function fillFront(folder) {
  const key = `${folder}/fleet.key`;
  assert.equal((await runHub(['fleet', 'key', key])).code, 0);
  const front = await startFront(['--fleet-key', key, '--hub', 'http://127.0.0.1:9', '--request-memory-mb', '4']);
  const { hostname, port } = new URL(front.url), sockets = [];
  const head = (bytes) => `POST /v1/completions HTTP/1.1\r\nHost: ${hostname}:${port}\r\n`
    + `Content-Type: application/json\r\nContent-Length: ${bytes}\r\n\r\n`;
  // Resolves to the status of the answer; `sent` resolves once the system has taken the body.
  const open = (body, bytes = body.length) => {
    const socket = connect(Number(port), hostname);
    sockets.push(socket);
    const answered = new Promise((resolve) => {
      socket.on('error', () => resolve(0)).on('close', () => resolve(0));
      socket.once('data', (data) => resolve(Number(data.toString('latin1').split(' ')[1])));
    });
    const sent = new Promise((resolve) => { socket.write(head(bytes) + body, resolve); });
    return { socket, sent, answered };
  };
  try {
    const half = 1 << 19;
    const deep = open(`{"prompt":${'['.repeat(half - 8)}${']'.repeat(half - 8)}}`);
    await deep.sent;
    const held = Array.from({ length: 8 }, () => open('x'.repeat(999_999), 1_000_000));
    const refused = await Promise.race(held.map(async ({ answered }) => answered));
    assert.equal(refused, 503);
    for (const { socket } of held) socket.destroy();
    // Once they are gone, their memory is free: a request is read whole again, and waits for a hub.
    await until(async () => {
      const next = open('x'.repeat(999_999), 1_000_000);
      await next.sent;
      const status = await Promise.race([next.answered, new Promise((resolve) => { setTimeout(resolve, 200); })]);
      next.socket.destroy();
      return status === undefined;
    });
    assert.equal(await Promise.race([front.ended, 'runs']), 'runs');
  } finally {
    for (const socket of sockets) socket.destroy();
    await front.kill();
  }
}
test('clients fill neither the memory nor the stack of a front', { timeout: 100_000 }, () => inFolder(fillFront));
