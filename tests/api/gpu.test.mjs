// `moex-hub generate --gpu` on whatever Vulkan device is here, software where there is no other.
// A build without the worker's part (MOEX_GPU unset) has to say what is missing.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { modelFolder, runHub } from './hub_process.mjs';

const built = process.env.MOEX_GPU === '1';
const generating = (...args) => ['generate', '--model', modelFolder, '--max-tokens', '10', ...args];
const greedy = ['--temperature', '0'];
const lighthouse = ['--prompt', 'Tell me a story about a lighthouse', '--chat'];
// The first, whatever its name.
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
