// Tests of keys from the command line while a hub runs, and of the counts after kill -9.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inFolder, postJson, runHub, startHub } from './hub_process.mjs';
import { endless, readStream, rowsOf } from './streams.mjs';

const keyCommand = async (state, ...args) => {
  const run = await runHub(['key', ...args, '--state', state]);
  assert.equal(run.code, 0, run.stderr);
  return run;
};
const serveIn = (state, ...args) => startHub(['--state', state, '--backend', 'local', '--threads', '1', ...args]);

test('a key is made, listed, used and revoked while the hub runs', () => inFolder(async (state) => {
  const hub = await serveIn(state, '--require-key');
  try {
    const made = await keyCommand(state, 'add', 'Ada, her notebook', '--limit', '20000', '--expires', '30d');
    const key = made.stdout.trim();
    assert.match(key, /^moex-api-[\w-]{32}$/);
    const id = /^key ([0-9a-f]{8}), role api/.exec(made.stderr)[1];

    const listed = await keyCommand(state, 'list');
    const day = '\\d{4}-\\d\\d-\\d\\d';
    assert.match(listed.stdout, new RegExp(`^${id}  api +open +20000 +${day}  ${day}  Ada, her`, 'm'));
    assert.ok(!listed.stdout.includes(key));

    const ask = () => postJson(`${hub.api}/completions`, { prompt: 'The sea', max_tokens: 5, ...endless }, key);
    let answer = await ask();
    while (answer.status === 401) answer = await ask();      // the hub sees a change within 250 ms
    assert.equal(answer.status, 200);
    const { usage } = await answer.json();

    const csv = async () => {
      const { stdout } = await keyCommand(state, 'usage', '--csv');
      return rowsOf(stdout.replace('"Ada, her notebook"', 'Ada'));
    };
    let rows = await csv();
    while (rows.length === 0) rows = await csv();
    assert.deepEqual({ ...rows[0], day: '' }, {
      day: '', key: id, name: 'Ada', requests: '1', prompt_tokens: String(usage.prompt_tokens), answer_tokens: '5',
    });

    await keyCommand(state, 'revoke', id);
    let refused = await ask();
    while (refused.status === 200) refused = await ask();
    assert.equal(refused.status, 401);
    assert.match((await keyCommand(state, 'list')).stdout, new RegExp(`^${id}  api +revoked`, 'm'));
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

test('`key` reports its errors in a sentence', () => inFolder(async (state) => {
  const wrong = [
    ['dance'], ['add'], ['list', 'ada'], ['revoke'], ['add', 'a', '--role', 'king'], ['add', 'a', '--limit', '0'],
    ['add', 'a', '--expires', 'soon'], ['add', 'a', '--expires', '2020-01-31'], ['add', 'a', '--expires', '0d'],
    ['add', 'link'],
  ];
  for (const args of wrong) {
    const run = await runHub(['key', ...args, '--state', state]);
    assert.equal(run.code, 2, `${args}: ${run.stderr}`);
    assert.match(run.stderr, /^moex-hub: /);
  }

  const nowhere = await runHub(['key', 'list', '--state', `${state}/nowhere`]);
  assert.equal(nowhere.code, 1);
  assert.match(nowhere.stderr, /no hub keeps its keys here/);

  await keyCommand(state, 'add', 'ada');
  const unknown = await runHub(['key', 'revoke', 'bob', '--state', state]);
  assert.equal(unknown.code, 1);
  assert.match(unknown.stderr, /no valid key has the id or the name "bob"/);
}));

// After kill -9 the stored token counts are never above the tokens that clients received, and at most the tokens of the
// last second are missing. MOEX_LIVES is the number of kills.
test('kill -9 loses no more than the last second of counts', () => inFolder(async (state) => {
  let countedBefore = 0;
  for (let life = 0; life < Number(process.env.MOEX_LIVES ?? 6); ++life) {
    const hub = await serveIn(state);
    const received = [];
    const body = { prompt: 'The sea was', max_tokens: 900, stream: true, logprobs: 1, temperature: 1, ...endless };
    const streams = [1, 2, 3, 4].map(() => readStream(`${hub.api}/completions`, body, received));

    // Kill the hub after half a second to three seconds: a hub that ran for longer than a second has
    // counts that must be kept.
    const lives_ms = 500 + 800 * (life % 4);
    while (!(Date.now() - received[0] >= lives_ms)) await new Promise((resolve) => setTimeout(resolve, 10));
    const killed = Date.now();
    hub.signal('SIGKILL');
    await hub.ended;
    await Promise.all(streams);

    const rows = rowsOf((await keyCommand(state, 'usage', '--csv')).stdout);
    const counted = rows.reduce((sum, row) => sum + Number(row.answer_tokens), 0);
    const lost = received.length - (counted - countedBefore);
    const lastSecond = received.filter((time) => time > killed - 1000).length;
    countedBefore = counted;
    console.log(`life ${life}: ${received.length} received, ${lost} not counted, ${lastSecond} in the last second`);
    assert.ok(lost >= 0, `life ${life}: ${-lost} tokens counted that nobody got`);
    assert.ok(lost <= lastSecond, `life ${life}: ${lost} lost, ${lastSecond} received in the last second`);
  }
}));
