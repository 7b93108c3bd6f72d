// Tests of the hub as an app developer uses it: the npm package `openai`, with only the base URL changed.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { startHub } from './hub_process.mjs';

const require = createRequire(`${process.env.MOEX_NPM ?? 'build/npm'}/`);
const { OpenAI } = require('openai');

let hub, client, model;
const apiKey = 'a-key-for-tests-0123456789';

before(async () => {
  hub = await startHub(['--backend', 'local', '--require-key', '--deterministic'], { MOEX_API_KEY: apiKey });
  client = new OpenAI({ apiKey, baseURL: hub.api, maxRetries: 0 });
  const models = await client.models.list();
  model = models.data[0].id;
});
after(async () => {
  if (hub) assert.equal(await hub.stop(), 0, hub.stderr());
});

const messages = [{ role: 'user', content: 'Tell me a story about a lighthouse' }];

async function status() {
  const response = await fetch(`${hub.url}/api/status`, { headers: { authorization: `Bearer ${apiKey}` } });
  assert.equal(response.status, 200);
  return response.json();
}

test('chat answers with text and exact usage', async () => {
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
  assert.match(answer.id, /^chatcmpl-/);
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.equal(answer.usage.completion_tokens, 12);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 12);
  assert.equal(answer.moex.workers, 0);
});

test('a stream gives the same text, chunk by chunk', async () => {
  const request = { model, messages, max_tokens: 24, temperature: 0 };
  const whole = await client.chat.completions.create(request);
  const stream = await client.chat.completions.create({
    ...request, stream: true, stream_options: { include_usage: true },
  });
  let text = '', chunks = 0, usage, finish;
  for await (const chunk of stream) {
    ++chunks;
    text += chunk.choices[0]?.delta?.content ?? '';
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, 'length');
  assert.deepEqual(usage, whole.usage);
  assert.ok(chunks > 10, `${chunks} chunks`);
});

test('a stop string ends the text in front of it', async () => {
  const request = { model, prompt: 'The sea was', max_tokens: 24, temperature: 0 };
  const whole = (await client.completions.create(request)).choices[0].text;
  const stop = whole.slice(whole.length >> 1, (whole.length >> 1) + 3);
  const cut = await client.completions.create({ ...request, stop });
  assert.equal(cut.choices[0].text, whole.slice(0, whole.indexOf(stop)));
  assert.equal(cut.choices[0].finish_reason, 'stop');
});

test('a seed repeats a text, another seed gives another', async () => {
  const request = { model, messages, max_tokens: 16, temperature: 1 };
  const text = async (seed) => (await client.chat.completions.create({ ...request, seed })).choices[0].message.content;
  const [first, again, other] = await Promise.all([text(7), text(7), text(8)]);
  assert.equal(first, again);
  assert.notEqual(first, other);
});

test('embeddings: numbers, whatever the client asks them to be written as', async () => {
  const input = ['The sea was calm.', 'A fox ran over the hill.', 'The sea was calm.'];
  const packed = await client.embeddings.create({ model, input });      // the client library requests base64 by default
  const plain = await client.embeddings.create({ model, input, encoding_format: 'float' });
  assert.deepEqual(packed.data.map(({ index }) => index), [0, 1, 2]);
  packed.data.forEach(({ embedding }, i) => {
    const f32 = (row) => [...new Float32Array(row)];
    assert.deepEqual(f32(embedding), f32(plain.data[i].embedding));
    assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-5);
  });
  assert.deepEqual(packed.data[0].embedding, packed.data[2].embedding);
  assert.notDeepEqual(packed.data[0].embedding, packed.data[1].embedding);
  assert.equal(packed.usage.total_tokens, packed.usage.prompt_tokens);
  const alone = await client.embeddings.create({ model, input: input[1] });
  assert.deepEqual(alone.data[0].embedding, packed.data[1].embedding);

  const refusal = { status: 400, param: 'dimensions' };
  await assert.rejects(client.embeddings.create({ model, input, dimensions: 8 }), refusal);
  const stranger = new OpenAI({ apiKey: 'wrong', baseURL: hub.api, maxRetries: 0 });
  await assert.rejects(stranger.embeddings.create({ model, input }), { status: 401 });
});

test('n gives that many choices', async () => {
  const answer = await client.chat.completions.create({
    model, messages, max_tokens: 8, temperature: 1, seed: 1, n: 3,
  });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
  assert.equal(answer.usage.completion_tokens, answer.choices.length * 8);
});

test('logprobs join to the content', async () => {
  const answer = await client.chat.completions.create({
    model, messages, max_tokens: 8, temperature: 0, logprobs: true, top_logprobs: 4,
  });
  const tokens = answer.choices[0].logprobs.content;
  assert.equal(tokens.map((token) => token.token).join(''), answer.choices[0].message.content);
  for (const token of tokens) {
    assert.ok(token.logprob <= 0);
    assert.equal(token.top_logprobs.length, 4);
    assert.ok(token.bytes.length > 0);
  }
});

test('an answer has the form that was asked for, whole and streamed', async () => {
  const schema = { type: 'object', additionalProperties: false, required: ['name', 'age'],
    properties: { name: { type: 'string', maxLength: 10 }, age: { type: 'integer', minimum: 1, maximum: 99 } } };
  const response_format = { type: 'json_schema', json_schema: { name: 'person', strict: true, schema } };
  const request = { model, messages, max_tokens: 100, temperature: 1, seed: 5, response_format };
  const answer = await client.chat.completions.parse(request);
  const { name, age } = JSON.parse(answer.choices[0].message.content);
  assert.ok([...name].length <= 10 && age >= 1 && age <= 99, answer.choices[0].message.content);

  const stream = client.chat.completions.stream({ ...request });
  assert.equal((await stream.finalMessage()).content, answer.choices[0].message.content);

  const object = await client.chat.completions.create(
    { ...request, max_tokens: 12, response_format: { type: 'json_object' } });
  assert.equal(typeof JSON.parse(object.choices[0].message.content), 'object');
});

test('a required tool is called, whole and streamed, and its result is taken', async () => {
  const number = { type: 'integer', maximum: 99 };
  const parameters = { type: 'object', additionalProperties: false, required: ['a', 'b'],
    properties: { a: number, b: number } };
  const tool = { type: 'function', function: { name: 'add', parameters } };
  const request = { model, messages, max_tokens: 200, temperature: 1, seed: 3, tools: [tool], tool_choice: 'required',
    parallel_tool_calls: false };
  const answer = await client.chat.completions.create(request);
  const [{ message, finish_reason }] = answer.choices;
  assert.equal(finish_reason, 'tool_calls');
  assert.equal(message.content, null);
  const { a, b } = JSON.parse(message.tool_calls[0].function.arguments);
  assert.ok(Number.isInteger(a + b));

  const streamed = await client.chat.completions.stream({ ...request }).finalMessage();
  assert.equal(streamed.tool_calls[0].function.arguments, message.tool_calls[0].function.arguments);

  const result = { role: 'tool', tool_call_id: message.tool_calls[0].id, content: String(a + b) };
  const said = await client.chat.completions.create({ model, max_tokens: 4, tools: [tool],
    messages: [...messages, message, result] });
  assert.equal(said.choices.length, 1);
});

// Fields that clients send by default and whose values the hub supports.
test('fields that clients send by default are accepted', async () => {
  const plain = await client.chat.completions.create({ model, messages, max_tokens: 6, temperature: 0 });
  const content = plain.choices[0].message.content;
  const words = messages[0].content.split(' ');
  const tool = { type: 'function', function: { name: 'f', parameters: { type: 'object', properties: {} } } };
  for (const extra of [
    { tools: [], tool_choice: 'auto', parallel_tool_calls: false },
    { tools: [tool], tool_choice: 'none' },
    { response_format: { type: 'text' } },
    { stop: '' }, { stop: [] }, { stop: null },
    { store: true, metadata: { a: 'b' }, service_tier: 'auto', user: 'u', prompt_cache_key: 'k' },
    { safety_identifier: 's', something_new: { a: 1 } },
    { max_tokens: undefined, max_completion_tokens: 6 },
    { max_tokens: 100, max_completion_tokens: 6 },
    { n: 1, logit_bias: {}, presence_penalty: 0, frequency_penalty: 0 },
    { messages: [{ role: 'user', name: 'bob', content: [{ type: 'text', text: words[0] },
      { type: 'text', text: ` ${words.slice(1).join(' ')}` }] }] },
  ]) {
    const request = { model, messages, max_tokens: 6, temperature: 0, ...extra };
    const answer = await client.chat.completions.create(request);
    assert.equal(answer.choices[0].message.content, content, JSON.stringify(extra));
  }

  const roles = [{ role: 'system', content: 'a' }, { role: 'developer', content: 'b' }, ...messages,
    { role: 'assistant', content: null }, { role: 'user', content: '' }];
  const answer = await client.chat.completions.create({ model, messages: roles, max_tokens: 2 });
  assert.equal(answer.choices[0].finish_reason, 'length');
});

test('an unsupported field is refused by its name', async () => {
  const image = [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] }];
  for (const [extra, param] of [
    [{ tools: [{ type: 'function', function: { name: 'f g' } }] }, 'tools[0].function.name'],
    [{ response_format: { type: 'xml' } }, 'response_format'],
    [{ response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { not: {} } } } },
      'response_format.json_schema.schema'],
    [{ max_tokens: 0 }, 'max_tokens'],
    [{ n: 0 }, 'n'],
    [{ messages: [] }, 'messages'],
    [{ messages: [{ role: 'user', content: null }] }, 'messages[0].content'],
    [{ messages: [{ role: 'robot', content: 'y' }] }, 'messages[0].role'],
    [{ messages: image }, 'messages[0].content[0].type'],
    [{ stop: ['a'.repeat(1025)] }, 'stop'],
    [{ stream_options: { include_usage: true } }, 'stream_options'],
    [{ top_logprobs: 2 }, 'top_logprobs'],
  ]) {
    const named = (error) => error instanceof OpenAI.BadRequestError && error.param === param;
    await assert.rejects(client.chat.completions.create({ model, messages, ...extra }), named, param);
  }

  const lost = new OpenAI({ apiKey, baseURL: `${hub.url}/v2`, maxRetries: 0 });
  await assert.rejects(lost.chat.completions.create({ model, messages }), OpenAI.NotFoundError);
  const bare = new OpenAI({ apiKey, baseURL: hub.url, maxRetries: 0 });
  const answer = await bare.chat.completions.create({ model, messages, max_tokens: 2 });
  assert.equal(answer.usage.completion_tokens, 2);
});

test('every cut of a stop string gives the text in front of it, whole, streamed, with logprobs', async () => {
  const request = { model, messages, max_tokens: 16, temperature: 0, logprobs: true };
  const text = (await client.chat.completions.create(request)).choices[0].message.content;
  for (const [begin, end] of [[0, 1], [0, 5], [2, 3], [3, 9], [5, 6], [7, 15], [text.length - 3, text.length]]) {
    const stop = text.slice(begin, end), wanted = text.slice(0, text.indexOf(stop));
    const whole = (await client.chat.completions.create({ ...request, stop: [stop, 'never this'] })).choices[0];
    assert.equal(whole.message.content, wanted);
    assert.equal(whole.finish_reason, 'stop');
    assert.equal(whole.logprobs.content.map((one) => one.token).join(''), wanted);
    const streamed = await client.chat.completions.stream({ ...request, stop }).finalChatCompletion();
    assert.equal(streamed.choices[0].message.content ?? '', wanted);
    assert.equal((streamed.choices[0].logprobs?.content ?? []).map((one) => one.token).join(''), wanted);
  }
});

test('a stream of several choices keeps them apart and counts once', async () => {
  const request = { model, messages, max_tokens: 6, temperature: 1, seed: 3, n: 2 };
  const whole = await client.chat.completions.create(request);
  const texts = ['', ''], roles = [0, 0];
  let usage;
  const stream = await client.chat.completions.create({
    ...request, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    if (chunk.choices.length === 0) usage = chunk.usage;
    for (const choice of chunk.choices) {
      texts[choice.index] += choice.delta.content ?? '';
      roles[choice.index] += choice.delta.role ? 1 : 0;
    }
  }
  assert.deepEqual(texts, whole.choices.map((choice) => choice.message.content));
  assert.deepEqual(roles, [1, 1]);
  assert.deepEqual(usage, whole.usage);
});

test('a begun answer goes on, streamed as well', async () => {
  const chat = (more) => client.chat.completions.create({ model, temperature: 0, ...more });
  const whole = (await chat({ messages, max_tokens: 24 })).choices[0].message.content;
  const begun = whole.slice(0, whole.indexOf(' ', whole.length / 2));
  const request = { messages: [...messages, { role: 'assistant', content: begun }], max_tokens: 40 };
  const rest = (await chat(request)).choices[0].message.content;
  assert.ok((begun + rest).startsWith(whole), JSON.stringify([whole, begun, rest]));

  let streamed = '';
  for await (const chunk of await chat({ ...request, stream: true })) streamed += chunk.choices[0].delta.content ?? '';
  assert.equal(streamed, rest);
});

test('a wrong model is not found', async () => {
  await assert.rejects(client.chat.completions.create({ model: 'gpt-4o', messages }),
    (error) => error instanceof OpenAI.NotFoundError && error.code === 'model_not_found');
});

test('a wrong key is refused', async () => {
  const stranger = new OpenAI({ apiKey: 'wrong', baseURL: hub.api, maxRetries: 0 });
  await assert.rejects(stranger.chat.completions.create({ model, messages }),
    (error) => error instanceof OpenAI.AuthenticationError);
});

test('a bad parameter is named', async () => {
  await assert.rejects(client.chat.completions.create({ model, messages, temperature: 9 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === 'temperature');
});

test('an aborted stream frees its slot, and no more is generated for it', async (t) => {
  // The bias forbids the end token, so the answer ends only at the context's end.
  const bias = { 8189: -100, 8191: -100 };
  const max_tokens = 900;
  const generated = async () => (await status()).engine.generated_tokens;
  const before = await generated();

  const controller = new AbortController();
  const stream = await client.chat.completions.create(
    { model, messages, max_tokens, temperature: 0, logit_bias: bias, stream: true }, { signal: controller.signal });
  let chunks = 0, aborted_at;
  try {
    for await (const chunk of stream) {
      if (++chunks === 4) {
        assert.equal((await status()).engine.running, 1);
        aborted_at = performance.now();
        controller.abort();
      }
    }
  } catch (error) {
    if (error.name !== 'AbortError' && !(error instanceof OpenAI.APIUserAbortError)) throw error;
  }

  while ((await status()).engine.running > 0) { /* each status is an event of its own */ }
  t.diagnostic(`slot seen free ${(performance.now() - aborted_at).toFixed(1)} ms after the abort`);
  const made = await generated() - before;
  assert.ok(made < max_tokens, `${made} tokens were generated for an answer that was left after 4`);
});
