// Tests with a package that changes under a running hub: the hub ends with one sentence that names the file,
// never with a bus error.
import assert from 'node:assert/strict';
import { cpSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { modelFolder, startHub, temporaryFolder } from './hub_process.mjs';

// Serves a copy of the demo package. `change(folder)` damages the copy, `ask(hub)` makes the hub read it.
async function serveDamaged(change, ask) {
  const copy = temporaryFolder();
  try {
    cpSync(modelFolder, copy.path, { recursive: true, dereference: true });
    const hub = await startHub([], {}, copy.path);
    await ask(hub, () => change(copy.path));
    const code = await hub.ended;
    const sentences = hub.stderr().split('\n').filter((line) => line.startsWith('moex-hub: '));
    return { code, sentences, folder: copy.path };
  } finally {
    copy.remove();
  }
}

async function complete(hub) {
  const response = await fetch(`${hub.api}/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: 'Once upon a time', max_tokens: 4 }),
  });
  return response.text();
}

const hashOf = (folder) => JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8')).experts.flat().find(Boolean);

test('hub.safetensors cut short under a running hub', async () => {
  const { code, sentences, folder } = await serveDamaged(
    (path) => truncateSync(join(path, 'hub.safetensors'), 1000),
    async (hub, change) => {
      await complete(hub);
      change();
      await complete(hub).catch(() => {});   // the hub ends, and the connection with it
    });
  assert.equal(code, 1);
  assert.equal(sentences.length, 1);
  assert.match(sentences[0], /hub\.safetensors: had \d+ bytes when it was opened, has 1000 now; put the file back/);
  assert.ok(sentences[0].includes(folder));
});

test('hub.safetensors overwritten in place, of the same size', async () => {
  const { code, sentences } = await serveDamaged(
    (path) => {
      const file = join(path, 'hub.safetensors');
      writeFileSync(file, Buffer.alloc(1), { flag: 'r+' });
    },
    async (hub, change) => {
      change();
      await complete(hub).catch(() => {});
    });
  assert.equal(code, 1);
  assert.equal(sentences.length, 1);
  assert.match(sentences[0], /hub\.safetensors: was written to since it was opened/);
});

for (const isMapped of [false, true]) {
  test(`an expert's blob cut short ${isMapped ? 'after' : 'before'} it was first served`, async () => {
    const hash = hashOf(modelFolder);
    const { code, sentences } = await serveDamaged(
      (path) => truncateSync(join(path, 'weights', hash), 100),
      async (hub, change) => {
        const url = `${hub.url}/weights/${hash}`;
        if (isMapped) {
          const whole = await (await fetch(url)).arrayBuffer();
          assert.equal(whole.byteLength, statSync(join(modelFolder, 'weights', hash)).size);
        }
        change();
        await fetch(url).then((response) => response.arrayBuffer()).catch(() => {});
      });
    assert.equal(code, 1);
    assert.equal(sentences.length, 1);
    assert.match(sentences[0], new RegExp(`weights/${hash}: had \\d+ bytes when it was opened, has 100 now`));
  });
}
