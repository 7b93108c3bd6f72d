// Tests of `moex-hub generate --gpu` and `serve --gpu` on any Vulkan device of this machine, else on a software device.
// A build without the worker's part (MOEX_GPU unset) has to report what is missing.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { inFolder, modelFolder, postJson, runHub, startHub } from './hub_process.mjs';

const built = process.env.MOEX_GPU === '1';
const generating = (...args) => ['generate', '--model', modelFolder, '--max-tokens', '10', ...args];
const greedy = ['--temperature', '0'];
const lighthouse = ['--prompt', 'Tell me a story about a lighthouse', '--chat'];
// The index of the first Vulkan device, since device names differ between machines.
const first_device = '0';

test('the GPU writes what the CPU writes, greedily and by the same draws', { skip: !built }, async () => {
  for (const sampling of [greedy, ['--temperature', '0.7', '--seed', '9']]) {
    const args = generating(...lighthouse, ...sampling, '--arithmetic', 'exact');
    const [cpu, gpu] = [await runHub(args), await runHub([...args, '--gpu', first_device])];
    assert.equal(gpu.code, 0, gpu.stderr);
    assert.ok(gpu.stdout.length > 0);
    assert.equal(gpu.stdout, cpu.stdout);
    assert.match(gpu.stderr, /gpu: done adapter=.* dispatches_per_token=\d+/);
  }
});

// Runs the model in `generate`, and in `serve` with the default --backend, where no workers are connected.
test('a dense model on the GPU writes what its golden says', { skip: !built }, () => inFolder(async (folder) => {
  const golden = new URL('../golden/dense/llama/', import.meta.url).pathname;
  const packed = `${folder}/llama`;
  assert.equal((await runHub(['pack', golden, packed, '--expert-dtype', 'f32'])).code, 0);
  const { ids, greedy: wanted } = JSON.parse(readFileSync(`${golden}golden.json`, 'utf8'))[1];
  writeFileSync(`${folder}/ids`, ids.join(' '));
  const run = await runHub(['generate', '--model', packed, '--prompt-ids', `${folder}/ids`, '--max-tokens', '24',
    ...greedy, '--gpu', first_device]);
  assert.equal(run.stdout, wanted.join(' '), run.stderr);

  const hub = await startHub(['--gpu', first_device, '--kv-mb', '16'], {}, packed);
  try {
    const response = await postJson(`${hub.api}/completions`, { model: 'llama', prompt: ids, max_tokens: 5 });
    assert.equal(response.status, 200, await response.clone().text());
    assert.equal((await response.json()).usage.completion_tokens, 5);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

// Most layers of these models remember a state instead of keys and values. The second request goes on from a copy of
// the first one's state.
test('a hybrid is served on the GPU with the tokens of its golden', { skip: !built }, () => inFolder(async (folder) => {
  for (const family of ['qwen35-moe', 'qwen3-next']) {
    const golden = new URL(`../golden/families/${family}/`, import.meta.url).pathname, packed = `${folder}/${family}`;
    assert.equal((await runHub(['pack', golden, packed, '--expert-dtype', 'f32'])).code, 0);
    const hub = await startHub(['--gpu', first_device, '--backend', 'local', '--kv-mb', '64', '--kv-dtype', 'f32'], {},
      packed);
    const ask = async (prompt, max_tokens) => {
      const body = { model: family, prompt, max_tokens, temperature: 0, logprobs: 0 };
      const response = await postJson(`${hub.api}/completions`, body);
      assert.equal(response.status, 200, await response.clone().text());
      const { choices: [choice], usage } = await response.json();
      // a model without a tokenizer names a token by its number
      return { ids: choice.logprobs.tokens.map(Number), cached: usage.prompt_tokens_details.cached_tokens };
    };
    try {
      const entries = JSON.parse(readFileSync(`${golden}golden.json`, 'utf8'));
      const answers = await Promise.all(entries.map(({ ids, greedy }) => ask(ids, greedy.length)));
      assert.deepEqual(answers.map(({ ids }) => ids), entries.map(({ greedy }) => greedy));
      const long = Array.from({ length: 300 }, (_, i) => (i * 37) % 250);
      const cold = await ask(long, 8), warm = await ask(long, 8);
      assert.deepEqual([cold.cached, warm.cached], [0, 256]);
      assert.deepEqual(warm.ids, cold.ids);
      assert.match(hub.stderr(), /attention, routers and LM head on a GPU adapter=.* experts=gpu/);
      assert.match(hub.stderr(), /drafts tokens by=.*mtp/, 'the draft head of the checkpoint, on the cores');
      const vectors = await postJson(`${hub.api}/embeddings`, { model: family, input: [long.slice(0, 9), long] });
      assert.equal(vectors.status, 200, await vectors.clone().text());
      for (const { embedding } of (await vectors.json()).data)
        assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-4);
    } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
  }
}));

test('a device that is not here is named, beside those that are', { skip: !built }, async () => {
  const run = await runHub(generating(...lighthouse, ...greedy, '--gpu', 'abacus'));
  assert.equal(run.code, 1);
  assert.match(run.stderr, /no Vulkan device is called abacus; there are: ./);
});

test('--gpu auto answers in any case and takes no software device', async () => {
  const run = await runHub(generating(...lighthouse, ...greedy, '--gpu', 'auto'));
  assert.equal(run.code, 0, run.stderr);
  assert.ok(run.stdout.length > 0);
  assert.doesNotMatch(run.stderr, /adapter=llvmpipe/);
  assert.match(run.stderr, /gpu: (the CPU computes because=|done adapter=)/);
});

test('a build without Vulkan says how to get one with it', { skip: built }, async () => {
  const run = await runHub(generating(...lighthouse, ...greedy, '--gpu', first_device));
  assert.equal(run.code, 1);
  assert.match(run.stderr, /built without Vulkan \(scripts\/setup\.sh --for worker/);
});

// Requests a chat as a stream, with greedy sampling, and returns its text.
async function say(hub, content) {
  const messages = [{ role: 'user', content }];
  const body = { model: 'moex-demo', stream: true, temperature: 0, max_tokens: 6, messages };
  const response = await postJson(`${hub.api}/chat/completions`, body);
  assert.equal(response.status, 200);
  return (await response.text()).split('\n')
    .filter((line) => line.startsWith('data: {'))
    .map((line) => JSON.parse(line.slice(6)).choices[0]?.delta?.content ?? '')
    .join('');
}
const prompts = ['Tell me a story about a lighthouse', 'Why?'];
async function sayAll(args) {
  const hub = await startHub(['--backend', 'local', '--kv-mb', '64', ...args]);
  try {
    const together = await Promise.all(prompts.map((prompt) => say(hub, prompt)));
    const alone = [await say(hub, prompts[0]), await say(hub, prompts[1])];
    assert.deepEqual(together, alone);
    return { texts: alone, log: hub.stderr() };
  } finally {
    await hub.stop();
  }
}

test('serve --gpu: two streams at once are those of each alone, and what the processor says', { skip: !built },
  async () => {
    const cpu = await sayAll(['--deterministic']);
    assert.ok(cpu.texts[0].length > 0);
    const gpu = await sayAll(['--deterministic', '--gpu', first_device]);
    assert.deepEqual(gpu.texts, cpu.texts);
    assert.match(gpu.log, /attention, routers and LM head on a GPU adapter=.* experts=local/);
    const whole = await sayAll(['--gpu', first_device, '--kv-dtype', 'int8']);
    assert.ok(whole.texts[0].length > 0);
    assert.match(whole.log, /attention, routers and LM head on a GPU adapter=.* experts=gpu/);
  });

test('a model beyond the memory that serve may take is refused with both sizes', { skip: !built }, async () => {
  const run = await runHub(['serve', '--model', modelFolder, '--listen', '127.0.0.1:0', '--gpu', first_device,
    '--gpu-mb', '3']);
  assert.equal(run.code, 1);
  assert.match(run.stderr, /the model wants \d+ MB of .* of weights.* of keys and values.*, 3 MB are there/);
});

test('doctor says which device --gpu means', { skip: !built }, async () => {
  const known = await runHub(['doctor', '--model', modelFolder, '--gpu', first_device]);
  assert.match(known.stdout, /ok +GPU +--gpu 0: .*, \d+ MB/);
  const unknown = await runHub(['doctor', '--model', modelFolder, '--gpu', 'abacus']);
  assert.match(unknown.stdout, /wrong +GPU +--gpu abacus: no Vulkan device is called abacus; there are: /);
});

test('a hub on a GPU goes on with its pages after kill -9', { skip: !built }, () => inFolder(async (state) => {
  const prompt = Array.from({ length: 150 }, (_, i) => 20 + (i * 37) % 900);
  const ask = async (hub) => {
    const body = { prompt, max_tokens: 4, temperature: 0, logprobs: 0 };
    const answer = await (await postJson(`${hub.api}/completions`, body)).json();
    return { logprobs: answer.choices[0].logprobs.token_logprobs, ...answer.usage.prompt_tokens_details };
  };
  const args = ['--gpu', first_device, '--backend', 'local', '--kv-mb', '64', '--kv-dtype', 'int8', '--state', state];
  // Until a hub knows what is on the disk, it keeps and finds nothing.
  const diskOnce = async ({ url }, isThere) => {
    while (!isThere((await (await fetch(`${url}/api/status`)).json()).engine.kv_disk))
      await new Promise((go) => setTimeout(go, 20));
  };
  const first = await startHub(args);
  await diskOnce(first, ({ listed }) => listed);
  const before = await ask(first);
  await diskOnce(first, ({ pages_written }) => pages_written > 0);
  first.signal('SIGKILL');
  await first.ended;
  const again = await startHub(args);
  await diskOnce(again, ({ listed }) => listed);
  const after = await ask(again);
  await again.stop();
  assert.equal(before.cached_tokens, 0);
  assert.equal(after.cached_tokens_disk, 128, 'a page of a GPU has 128 tokens');
  assert.deepEqual(after.logprobs, before.logprobs);
}));
