// Networks that are cut in two: hubs and fronts whose line to the store is slow or silent, while all other lines hold.
// Stopped processes are in journal.test.mjs ("a hub that hangs"), stopped stores in store_away.test.mjs.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { health, hubsOf, knownAt, makeKey, question, startFleet, stream, until, usageFrom } from './fleet_process.mjs';
import { startFront } from './front_process.mjs';
import { inFolder } from './hub_process.mjs';
import { postgresIsInstalled, startPostgres } from './postgres.mjs';
import { startLine } from './store_line.mjs';

const how = { skip: postgresIsInstalled() ? false : 'SKIPPED: no postgresql-15', timeout: 300_000 };
const tokens = 200;

// Calls story({ store, line, folder }) with a store and a line to it.
const withLine = (delay_ms, story) => inFolder(async (folder) => {
  const store = await startPostgres();
  const line = await startLine(store, delay_ms);
  try { await story({ store, line, folder }); } finally {
    await line.remove();
    await store.remove();
  }
});
const chat = (url, i, more = {}) => stream(`${url}/v1/chat/completions`, { body: question(i, tokens), ...more });
const hubOf = (answer) => answer.headers['x-moex-stream'].slice(0, 8);
const idOf = (folder, i) => readFileSync(`${folder}/hub${i}/hub_id`, 'utf8').trim();

test('a store that is 100 ms away hurts no stream, and its journals are there', how,
  (context) => withLine(100, async ({ store, line, folder }) => {
    const fleet = await startFleet(folder, 2, [], { store, url: () => line.url });
    let front;
    try {
      front = await startFront(['--store', line.url, '--fleet-key', fleet.key]);
      const alone = await Promise.all([0, 1, 2].map((i) => chat(fleet.hubs[i % 2].url, i)));
      let killed = null;
      const answers = await Promise.all([0, 1, 2].map((i) => chat(front.url, i, { onEvent: (out) => {
        if (killed || out.events < 80) return;
        killed = fleet.kill([0, 1].find((at) => idOf(folder, at) === hubOf(out)));
      } })));
      await killed;
      answers.forEach((one, i) => {
        assert.ok(one.whole, JSON.stringify(one.error));
        assert.equal(one.text, alone[i].text, `stream ${i}`);
      });
      context.diagnostic(`${(front.stderr().match(/goes on at another hub/g) ?? []).length} streams moved`);
    } finally {
      await front?.stop();
      await fleet.end();
    }
  }));

test('a hub that is cut from the store serves on, is sent no requests, and is back as itself', how,
  (context) => withLine(0, async ({ store, line, folder }) => {
    // The first hub alone is cut off. The front and the other hub see the store.
    const url = (i) => (i === 0 ? line.url : store.url);
    const fleet = await startFleet(folder, 2, ['--require-key'], { store, url });
    let front;
    try {
      front = await startFront(['--store', store.url, '--fleet-key', fleet.key]);
      const { key, id } = await makeKey(store, 'ada');
      const headers = { authorization: `Bearer ${key}` };
      await knownAt(fleet.hubs, key);
      const [cut, other] = fleet.hubs, cut_id = idOf(folder, 0);
      const alone = await chat(cut.url, 0, { headers });
      assert.ok(alone.whole, `${alone.status} ${JSON.stringify(alone.error)}`);
      const before = (await hubsOf(store)).find((hub) => hub.hub === cut_id);

      let answers = 1;
      const ask = async (url) => {
        const one = await chat(url, 0, { headers });
        assert.ok(one.whole, JSON.stringify(one.error));
        assert.equal(one.text, alone.text);
        ++answers;
        return one;
      };
      // A stream runs while the line breaks. Neither hub nor front takes it away.
      let is_cut = false;
      const running = await chat(cut.url, 0, { headers, onEvent: (out) => {
        if (is_cut || out.events < 50) return;
        is_cut = true;
        line.cut();
      } });
      assert.ok(is_cut && running.whole, JSON.stringify(running.error));
      assert.equal(running.text, alone.text);
      ++answers;

      await until(async () => (await health(cut)).status === 'degraded');
      await until(async () => !(await hubsOf(store)).find((hub) => hub.hub === cut_id).lives);
      assert.equal((await health(other)).status, 'ok');
      await ask(cut.url);
      // A front looks four times a second: it may send one more request there.
      await until(async () => hubOf(await ask(front.url)) !== cut_id);
      for (let i = 0; i < 6; ++i) assert.notEqual(hubOf(await ask(front.url)), cut_id);

      line.heal();
      await until(async () => (await hubsOf(store)).find((hub) => hub.hub === cut_id).lives);
      await until(async () => (await health(cut)).status === 'ok');
      assert.equal((await hubsOf(store)).find((hub) => hub.hub === cut_id).incarnation, before.incarnation);
      await until(async () => hubOf(await ask(front.url)) === cut_id);
      const all = { requests: answers, tokens: answers * tokens };
      assert.deepEqual(await usageFrom(store, id, all.requests, all.tokens), all);
      context.diagnostic(`${answers} answers, all counted once`);
    } finally {
      line.heal();
      await front?.stop();
      await fleet.end();
    }
  }));

test('a front that is cut from the store goes on with the hubs that it knows', how,
  () => withLine(0, async ({ store, line, folder }) => {
    const fleet = await startFleet(folder, 2, [], { store, url: () => store.url });
    let front;
    try {
      front = await startFront(['--store', line.url, '--fleet-key', fleet.key]);
      const alone = await chat(fleet.hubs[0].url, 0);
      line.cut();
      let killed = null;
      const one = await chat(front.url, 0, { onEvent: (out) => {
        if (killed || out.events < 50) return;
        killed = fleet.kill([0, 1].find((at) => idOf(folder, at) === hubOf(out)));
      } });
      await killed;
      assert.ok(one.whole, JSON.stringify(one.error));
      assert.equal(one.text, alone.text);
    } finally {
      line.heal();
      await front?.stop();
      await fleet.end();
    }
  }));
