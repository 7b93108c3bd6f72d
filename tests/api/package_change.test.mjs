// Tests with a package that changes under a running hub. The same bytes change nothing. With other bytes the hub
// answers what runs with an error and ends with one sentence that names the file, never with a bus error.
import assert from 'node:assert/strict';
import { cpSync, readFileSync, statSync, truncateSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { modelFolder, startHub, temporaryFolder } from './hub_process.mjs';

// Serves a copy of the demo package. `change(folder)` damages the copy, `ask(hub)` makes the hub read it.
async function serveDamaged(change, ask) {
  const copy = temporaryFolder();
  let hub = null;
  try {
    cpSync(modelFolder, copy.path, { recursive: true, dereference: true });
    hub = await startHub([], {}, copy.path);
    await ask(hub, () => change(copy.path));
    const code = await hub.ended;
    const sentences = hub.stderr().split('\n').filter((line) => line.startsWith('moex-hub: '));
    return { code, sentences, folder: copy.path };
  } finally {
    hub?.signal('SIGKILL');      // if `ask` has thrown
    copy.remove();
  }
}

async function complete(hub) {
  const response = await fetch(`${hub.api}/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: 'Once upon a time', max_tokens: 4 }),
  });
  return { status: response.status, text: await response.text() };
}

const touch = (file) => utimesSync(file, new Date(), new Date(Date.now() - 3600_000));

const hashOf = (folder) => JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8')).experts.flat().find(Boolean);

test('files that are touched, with the same bytes, change nothing', async () => {
  const copy = temporaryFolder();
  try {
    cpSync(modelFolder, copy.path, { recursive: true, dereference: true });
    const hub = await startHub(['--backend', 'local', '--threads', '1'], {}, copy.path);
    const hash = hashOf(copy.path), blob = join(copy.path, 'weights', hash);
    const before = await complete(hub);
    assert.equal(before.status, 200, before.text);
    const served = async () => (await fetch(`${hub.url}/weights/${hash}`)).status;
    assert.equal(await served(), 200);
    for (const file of [join(copy.path, 'hub.safetensors'), blob]) {
      touch(file);
      const after = await complete(hub);
      assert.equal(after.status, 200, after.text);
      const text = (answer) => JSON.parse(answer.text).choices[0].text;
      assert.equal(text(after).length > 0, true);
      assert.equal(await served(), 200);
      await hub.logged(`with the same bytes file=${file}`);
    }
    assert.equal(await hub.stop(), 0, hub.stderr());
  } finally {
    copy.remove();
  }
});

test('a stream that runs when other bytes come ends with an error, not with a cut', async () => {
  const { code, sentences } = await serveDamaged(
    (path) => writeFileSync(join(path, 'hub.safetensors'), Buffer.alloc(1), { flag: 'r+' }),
    async (hub, change) => {
      const response = await fetch(`${hub.api}/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ prompt: 'The sea', max_tokens: 900, stream: true,
          logit_bias: { 8189: -100, 8191: -100 } }),
      });
      let text = '';
      for await (const piece of response.body) {
        if (!text) change();
        text += Buffer.from(piece).toString();
      }
      assert.match(text, /"error"/);
    });
  assert.equal(code, 1);
  assert.equal(sentences.length, 1);
});

test('a draft model that gets other bytes ends the hub in the same way', async () => {
  const draft = temporaryFolder();
  try {
    cpSync(modelFolder, draft.path, { recursive: true, dereference: true });
    const hub = await startHub(['--backend', 'local', '--threads', '1', '--draft', draft.path]);
    touch(join(draft.path, 'hub.safetensors'));
    assert.equal((await complete(hub)).status, 200);
    writeFileSync(join(draft.path, 'hub.safetensors'), Buffer.alloc(1), { flag: 'r+' });
    const answer = await complete(hub);
    assert.ok(JSON.parse(answer.text).choices || answer.status >= 500, answer.text);
    assert.equal(await hub.ended, 1);
    const sentences = hub.stderr().split('\n').filter((line) => line.startsWith('moex-hub: '));
    assert.equal(sentences.length, 1);
    assert.ok(sentences[0].includes(draft.path), sentences[0]);
  } finally {
    draft.remove();
  }
});

test('a blob that was damaged before the start is named and not served, all else is', async () => {
  const copy = temporaryFolder();
  try {
    cpSync(modelFolder, copy.path, { recursive: true, dereference: true });
    const [damaged, whole] = JSON.parse(readFileSync(join(copy.path, 'manifest.json'), 'utf8'))
      .experts.find((layer) => layer?.length > 1);
    writeFileSync(join(copy.path, 'weights', damaged), Buffer.from('damaged'), { flag: 'r+' });
    const hub = await startHub([], {}, copy.path);
    const refused = await fetch(`${hub.url}/weights/${damaged}`);
    assert.equal(refused.status, 500, await refused.text());
    await hub.logged(`${damaged}: its SHA-256 is not its name`);
    const served = await fetch(`${hub.url}/weights/${whole}`);
    assert.equal(served.status, 200);
    await served.arrayBuffer();
    assert.equal(await hub.stop(), 0, hub.stderr());
  } finally {
    copy.remove();
  }
});

test('hub.safetensors cut short under a running hub', async () => {
  const { code, sentences, folder } = await serveDamaged(
    (path) => truncateSync(join(path, 'hub.safetensors'), 1000),
    async (hub, change) => {
      await complete(hub);
      change();
      const answer = await complete(hub);
      assert.ok(answer.status >= 500, answer.text);
      assert.match(answer.text, /"error"/);
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
      const answer = await complete(hub);
      assert.ok(answer.status >= 500, answer.text);
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
        const answer = await fetch(url);
        assert.equal(answer.status, 500, await answer.text());
      });
    assert.equal(code, 1);
    assert.equal(sentences.length, 1);
    assert.match(sentences[0], new RegExp(`weights/${hash}: had \\d+ bytes when it was opened, has 100 now`));
  });
}
