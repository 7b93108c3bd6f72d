// Tests with a lying worker, a separate program: eleven kinds of false answers, and rare ones, against a hub that
// computes experts only to check answers. No text changes. A liar is banned after three false answers; its key stays
// closed over a restart, until the ban is lifted.
//   MOEX_LIES_TOKENS=10000 node --test tests/api/lying_workers.test.mjs     # by hand: at least this many tokens
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';

import { gpt_oss, packFamily } from './family_package.mjs';
import { cleanEnvironment, inFolder, modelFolder, postJson, runHub, startHub } from './hub_process.mjs';

const worker_program = process.env.MOEX_LYING_WORKER ?? 'build/tests/support/lying_worker';
const kinds = ['x1.05', 'x1.5', 'x10', 'x1000', 'zero', 'negated', 'noise10', 'noise100', 'other-expert', 'previous',
  'constant'];
const tokens_wanted = Number(process.env.MOEX_LIES_TOKENS ?? 0);
const prompts = ['Tell me a story about a garden.', 'Write a story about a ship.', 'Once upon a time',
  'Tell me a story about a key and a garden.'];
const max_tokens = 24;

class Worker {
  // Starts a worker; `served` is false if the hub closes the connection before the worker serves.
  static async start(hub, args, key, model = modelFolder) {
    const worker = new Worker();
    worker.child = spawn(worker_program, [hub.join, model, ...args, '--key', key],
      { env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'inherit'] });
    let printed = '';
    worker.closed = new Promise((resolve) => {
      worker.child.stdout.setEncoding('utf8').on('data', (text) => {
        printed += text;
        if (/^closed .*\n/m.test(printed)) resolve(/^closed (.*)\n/m.exec(printed)[1]);
      });
    });
    worker.serves = new Promise((resolve) => {
      worker.child.stdout.on('data', () => { if (printed.includes('serving')) resolve(true); });
      worker.closed.then(() => resolve(false));
    });
    worker.served = await worker.serves;
    return worker;
  }
  stop() {
    const ended = new Promise((resolve) => this.child.once('close', resolve));
    if (this.child.exitCode !== null || this.child.signalCode !== null) return null;
    this.child.kill();
    return ended;
  }
}

async function answer(hub, prompt) {
  const response = await postJson(`${hub.url}/v1/completions`, { prompt, temperature: 0, max_tokens });
  const body = await response.json();
  assert.equal(response.status, 200, JSON.stringify(body));
  return { text: body.choices[0].text, moex: body.moex, tokens: body.usage.completion_tokens };
}
const statusOf = async (hub) => (await fetch(`${hub.url}/api/status`)).json();

const judged_only = ['--deterministic', '--local-fallback', 'off', '--replicas', '3', '--timeout-ms', '60000',
  '--round-deadline-s', '120'];

// Starts a hub that computes experts only to check answers, and two honest workers; computes the correct texts.
async function withHub(args, story) {
  const alone = await startHub(['--deterministic', '--backend', 'local']);
  const texts = [];
  for (const prompt of prompts) texts.push((await answer(alone, prompt)).text);
  await alone.stop();

  const hub = await startHub([...judged_only, ...args]);
  const workers = [];
  try {
    for (const key of ['honest-worker-1', 'honest-worker-2']) workers.push(await Worker.start(hub, ['none'], key));
    await story(hub, texts);
  } finally {
    for (const worker of workers) await worker.stop();
    await hub.stop();
  }
}

// Requests all prompts in up to 8 rounds, until `enough(status)`; returns false if `enough` never
// returned true. Each text has to be correct.
async function askUntil(hub, texts, what, enough, sum) {
  for (let round = 0; round < 8; round++) {
    for (const [i, prompt] of prompts.entries()) {
      const got = await answer(hub, prompt);
      assert.equal(got.text, texts[i], `${what}: the text changed`);
      sum.tokens += got.tokens;
      for (const name of ['verified', 'proven', 'unchecked']) sum[name] += got.moex[name];
      if (enough(await statusOf(hub))) return true;
    }
  }
  return false;
}

// Runs liars until `enough(calls, before)`. If the first answers of a worker are late, e.g. on a busy machine, it gets
// hardly any further calls while two other workers are quick. Such a liar leaves, and a new one without a record joins.
// `keyOf(visit)` is its worker key. A liar that was found out while it left is not accepted again.
async function meetLiar(hub, texts, args, keyOf, enough) {
  const sum = { tokens: 0, verified: 0, proven: 0, unchecked: 0 };
  const others = (await statusOf(hub)).workers.length;
  for (let visit = 0; ; visit++) {
    const before = (await statusOf(hub)).calls;
    const came = ({ calls }) => enough(calls, before);
    const liar = await Worker.start(hub, args, keyOf(visit));
    if (liar.served ? await askUntil(hub, texts, args.join(' '), came, sum) : came(await statusOf(hub)))
      return { liar, before, sum };
    assert.ok(liar.served, keyOf(visit));
    await liar.stop();
    while ((await statusOf(hub)).workers.length > others) await setTimeout(20);
  }
}

// Waits until the log has `bans` bans, and returns for each ban the number of false answers that caused it.
async function answersUntilBan(hub, bans) {
  for (;;) {
    const found = [...hub.stderr().matchAll(/worker banned .* detail="(\d+) answers were false/g)];
    if (found.length >= bans) return found.map(([, count]) => Number(count));
    await setTimeout(20);
  }
}

test('eleven ways to lie change no text, and each liar is out after three lies', async () => {
  await withHub([], async (hub, texts) => {
    const honest = (await statusOf(hub)).workers.map(({ id }) => id);
    assert.equal(honest.length, 2);
    let tokens = 0;
    let turn = 0;
    do {
      for (const kind of kinds) {
        const { liar, before, sum } = await meetLiar(hub, texts, [kind], (visit) => `liar-${kind}-${turn}-${visit}`,
          (calls, past) => calls.bans > past.bans);
        assert.match(await liar.closed, /^1008 /);
        const { calls, workers } = await statusOf(hub);
        for (const { id, bad_answers } of workers)
          if (honest.includes(id)) assert.equal(bad_answers, 0, `${kind}: of who is honest`);
        assert.equal((await answersUntilBan(hub, calls.bans)).at(-1), 3, kind);
        // The count of false answers is above 3 if a further answer was being checked when the worker was banned. Some
        // answers of the kind x1000 have values beyond any expert's range; the hub refuses them without computing them
        // again.
        assert.ok(calls.bad_answers - before.bad_answers >= 3, kind);
        if (kind !== 'x1000') assert.ok(calls.lies - before.lies >= 3, kind);
        assert.equal(calls.bans - before.bans, 1, kind);
        assert.equal(sum.unchecked, 0);
        tokens += sum.tokens;
      }
      turn++;
    } while (tokens < tokens_wanted);
    const { calls } = await statusOf(hub);
    console.log(`${tokens} tokens, ${calls.rows_checked} rows computed again, largest honest residual ` +
      `${calls.residual_max.toFixed(3)} of what is tolerated`);
    assert.ok(calls.residual_max < 1 / 3);
  });
});

test('liars of experts with biases and a clamp are out after three lies', async () => {
  await inFolder(async (folder) => {
    const { model, golden } = await packFamily(folder, gpt_oss, (args) => runHub(args));
    const ask = async (hub) => {
      const response = await postJson(`${hub.url}/v1/completions`,
        { prompt: golden.at(-1).ids, temperature: 0, max_tokens: 24, logprobs: 1 });
      const body = await response.json();
      assert.equal(response.status, 200, JSON.stringify(body));
      return body.choices[0].logprobs.tokens;
    };
    const alone = await startHub(['--deterministic', '--backend', 'local'], {}, model);
    const wanted = await ask(alone);
    await alone.stop();

    const hub = await startHub(judged_only, {}, model);
    const workers = [];
    try {
      for (const key of ['honest-worker-1', 'honest-worker-2'])
        workers.push(await Worker.start(hub, ['none'], key, model));
      for (const [bans, kind] of ['x1.05', 'noise10', 'zero', 'other-expert', 'previous'].entries()) {
        const isOut = async () => (await statusOf(hub)).calls.bans > bans;
        // A liar that is asked too seldom leaves, and another one comes.
        for (let visit = 0; !await isOut(); visit++) {
          const liar = await Worker.start(hub, [kind], `liar-${kind}-${visit}`, model);
          for (let round = 0; round < 8 && !await isOut(); round++) assert.deepEqual(await ask(hub), wanted, kind);
          if (await isOut()) assert.match(await liar.closed, /^1008 /);
          else await liar.stop();
          while ((await statusOf(hub)).workers.length > 2) await setTimeout(20);
        }
      }
      const { calls, workers: left } = await statusOf(hub);
      assert.ok(left.length === 2 && left.every(({ bad_answers }) => bad_answers === 0), JSON.stringify(left));
      assert.ok(calls.local === 0 && calls.residual_max < 1 / 3, JSON.stringify(calls));
    } finally {
      for (const worker of workers) await worker.stop();
      await hub.stop();
    }
  });
});

test('a new worker that lies in one answer of a hundred changes no text', async () => {
  await withHub([], async (hub, texts) => {
    // With this seed the sixth answer is the first false answer and the 550th is the next, so the liar has no
    // good record when it lies. After 1,024 correct rows a worker's answers are checked afterwards, and
    // replies that it changed are marked.
    const { liar } = await meetLiar(hub, texts, ['x10', '--share', '0.01', '--seed', '841'],
      (visit) => `liar-now-and-then-${visit}`, (calls) => calls.lies > 0);
    await liar.stop();
  });
});

test('a ban outlives the hub, is listed, and is lifted', async () => {
  await inFolder(async (state) => {
    await withHub(['--state', state], async (hub, texts) => {
      await meetLiar(hub, texts, ['x1.5'], () => 'the-liar-itself', (calls) => calls.bans === 1);
    });

    const listed = await runHub(['ban', 'list', '--state', state]);
    assert.equal(listed.code, 0, listed.stderr);
    assert.match(listed.stdout, /^the-liar-itself {2}until .* UTC, ban 1, /);

    const hub = await startHub([...judged_only, '--state', state]);
    const again = await Worker.start(hub, ['none'], 'the-liar-itself');
    assert.equal(again.served, false);
    assert.match(await again.closed, /^1008 /);

    const lifted = await runHub(['ban', 'lift', 'the-liar', '--state', state]);
    assert.equal(lifted.code, 0, lifted.stderr);
    const forgiven = await Worker.start(hub, ['none'], 'the-liar-itself');
    assert.ok(forgiven.served);
    await forgiven.stop();
    await hub.stop();
  });
});
