// Tests of the hub with other clients: npm's @anthropic-ai/sdk, ollama, and openai's responses. Only the address is
// changed. Their answers are compared with the chat completions of the same request.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { startHub } from './hub_process.mjs';

const require = createRequire(`${process.env.MOEX_NPM ?? 'build/npm'}/`);
const { OpenAI } = require('openai');
const Anthropic = require('@anthropic-ai/sdk').Anthropic;
const { Ollama } = require('ollama');

const apiKey = 'a-key-for-tests-0123456789';
let hub, openai, anthropic, ollama, model, said;

const ollamaWith = (key) => new Ollama({ host: hub.url, headers: { authorization: `Bearer ${key}` } });
const anthropicWith = (key) => new Anthropic({ apiKey: key, baseURL: hub.url, maxRetries: 0 });

const messages = [{ role: 'user', content: 'Tell me a story about a lighthouse' }];
const max_tokens = 16;

before(async () => {
  hub = await startHub(['--backend', 'local', '--require-key', '--deterministic'], { MOEX_API_KEY: apiKey });
  openai = new OpenAI({ apiKey, baseURL: hub.api, maxRetries: 0 });
  anthropic = anthropicWith(apiKey);
  ollama = ollamaWith(apiKey);
  model = (await openai.models.list()).data[0].id;
  said = await openai.chat.completions.create({ model, messages, max_tokens, temperature: 0 });
});
after(async () => {
  if (hub) assert.equal(await hub.stop(), 0, hub.stderr());
});

const words = () => said.choices[0].message.content;

async function engine() {
  const response = await fetch(`${hub.url}/api/status`, { headers: { authorization: `Bearer ${apiKey}` } });
  return (await response.json()).engine;
}

// Leaves a stream, which would run to the context's end, after a few pieces; waits until its slot is free.
async function leave(stream, abort) {
  let pieces = 0;
  try {
    for await (const piece of stream) if (piece && ++pieces === 4) abort();
  } catch (error) {
    assert.match(`${error.name} ${error.message}`, /abort/i);
  }
  while ((await engine()).running > 0) { /* each status is an event of its own */ }
}

const number = { type: 'integer', maximum: 99 };
const parameters = { type: 'object', additionalProperties: false, required: ['a', 'b'],
  properties: { a: number, b: number } };
const isSum = ({ a, b }) => assert.ok(Number.isInteger(a + b));

test('anthropic: a message, its stream and its usage', async () => {
  const request = { model, messages, max_tokens, temperature: 0 };
  const whole = await anthropic.messages.create(request);
  assert.equal(whole.content[0].text, words());
  assert.equal(whole.stop_reason, 'max_tokens');
  assert.equal(whole.usage.output_tokens, max_tokens);
  const prompt = whole.usage.input_tokens + whole.usage.cache_read_input_tokens;
  assert.equal(prompt, said.usage.prompt_tokens);

  let text = '', pieces = 0;
  const stream = anthropic.messages.stream(request).on('text', (piece) => { text += piece; ++pieces; });
  const final = await stream.finalMessage();
  assert.equal(text, words());
  assert.deepEqual(final.content.map((block) => block.text), [words()]);
  assert.equal(final.usage.output_tokens, max_tokens);
  assert.ok(pieces > 4, `${pieces} pieces`);

  const counted = await anthropic.messages.countTokens({ model, messages });
  assert.equal(counted.input_tokens, prompt);
});

test('anthropic: a stop sequence, a system prompt, a begun answer', async () => {
  const stop = words().slice(6, 9);
  const cut = await anthropic.messages.create({ model, messages, max_tokens, temperature: 0, stop_sequences: [stop] });
  assert.equal(cut.content[0]?.text ?? '', words().slice(0, words().indexOf(stop)));
  assert.equal(cut.stop_sequence, stop);

  const begun = [...messages, { role: 'assistant', content: 'Once upon' }];
  const rest = await anthropic.messages.create({ model, system: 'You tell stories.', messages: begun, max_tokens: 4 });
  assert.equal(rest.role, 'assistant');
});

test('anthropic: a tool is used, whole and streamed, and its result taken', async () => {
  const request = { model, messages, max_tokens: 120, tools: [{ name: 'add', input_schema: parameters }],
    tool_choice: { type: 'tool', name: 'add', disable_parallel_tool_use: true } };
  const whole = await anthropic.messages.create(request);
  assert.equal(whole.stop_reason, 'tool_use');
  const use = whole.content.find((block) => block.type === 'tool_use');
  isSum(use.input);
  const streamed = await anthropic.messages.stream(request).finalMessage();
  isSum(streamed.content.find((block) => block.type === 'tool_use').input);

  const result = { type: 'tool_result', tool_use_id: use.id, content: '3' };
  const next = await anthropic.messages.create({ model, max_tokens: 4, tools: request.tools,
    messages: [...messages, { role: 'assistant', content: whole.content }, { role: 'user', content: [result] }] });
  assert.ok(next.usage.output_tokens > 0);
});

test('anthropic: errors have its classes; an abort frees the slot', async () => {
  const create = (client, more) => client.messages.create({ model, messages, max_tokens: 2, ...more });
  await assert.rejects(create(anthropicWith('wrong')), Anthropic.AuthenticationError);
  await assert.rejects(create(anthropic, { model: 'claude' }), Anthropic.NotFoundError);
  await assert.rejects(create(anthropic, { max_tokens: undefined }),
    (error) => error instanceof Anthropic.BadRequestError && error.error.error.message.includes('max_tokens'));
  const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: '' } };
  await assert.rejects(create(anthropic, { messages: [{ role: 'user', content: [image] }] }),
    (error) => error.message.includes('messages.0.content'));

  const stream = anthropic.messages.stream({ model, messages, max_tokens: 900 });
  await leave(stream, () => stream.abort());
});

test('ollama: a chat, its stream and its counts', async () => {
  const options = { temperature: 0, num_predict: max_tokens };
  const whole = await ollama.chat({ model, messages, options });
  assert.equal(whole.message.content, words());
  assert.equal(whole.eval_count, max_tokens);
  assert.equal(whole.prompt_eval_count, said.usage.prompt_tokens);
  assert.ok(whole.total_duration > 1000, 'nanoseconds');

  let text = '', last;
  for await (const piece of await ollama.chat({ model: `${model}:latest`, messages, options, stream: true })) {
    text += piece.message.content;
    last = piece;
  }
  assert.equal(text, words());
  assert.deepEqual([last.done, last.done_reason, last.eval_count], [true, 'length', max_tokens]);
  assert.equal((await ollama.generate({ model, prompt: messages[0].content, options })).response, words());
});

test('ollama: a stream is lines of JSON', async () => {
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${apiKey}` };
  const body = JSON.stringify({ model, messages, options: { num_predict: 3 } });
  const answer = await fetch(`${hub.url}/api/chat`, { method: 'POST', headers, body });
  assert.equal(answer.headers.get('content-type'), 'application/x-ndjson');
  const lines = (await answer.text()).trimEnd().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(lines.map((line) => line.done), lines.map((_, i) => i + 1 === lines.length));
});

test('ollama: schemas hold, stops end, results of tools are taken', async () => {
  const options = { temperature: 1, seed: 3, num_predict: 100 };
  isSum(JSON.parse((await ollama.chat({ model, messages, format: parameters, options })).message.content));
  const object = await ollama.generate({ model, prompt: 'An object', format: 'json', options });
  assert.equal(typeof JSON.parse(object.response), 'object');

  const stop = words().slice(6, 9);
  const stopping = { temperature: 0, num_predict: max_tokens, stop: [stop] };
  const cut = await ollama.chat({ model, messages, options: stopping });
  assert.equal(cut.message.content, words().slice(0, words().indexOf(stop)));
  assert.equal(cut.done_reason, 'stop');

  const tools = [{ type: 'function', function: { name: 'add', parameters } }];
  const turns = [...messages, { role: 'assistant', content: '', tool_calls: [{ function: { name: 'add',
    arguments: { a: 1, b: 2 } } }] }, { role: 'tool', content: '3', tool_name: 'add' }];
  const next = await ollama.chat({ model, messages: turns, tools, options: { num_predict: 4 } });
  assert.equal(next.message.role, 'assistant');
});

test('ollama: embeddings are the rows that OpenAI\'s clients get', async () => {
  const input = ['The sea was calm.', 'A fox ran.'];
  const { data } = await openai.embeddings.create({ model, input, encoding_format: 'float' });
  const { embeddings, prompt_eval_count } = await ollama.embed({ model, input });
  assert.deepEqual(embeddings, data.map(({ embedding }) => embedding));
  assert.ok(prompt_eval_count > 0);
});

test('ollama: the model is listed and shown; errors are sentences; an abort frees the slot', async () => {
  const { models } = await ollama.list();
  assert.deepEqual(models.map((one) => one.name), [`${model}:latest`]);
  assert.ok((await ollama.show({ model })).capabilities.includes('completion'));
  assert.match((await ollama.version()).version, /^\d+\.\d+/);

  const status = (wanted) => (error) => error.status_code === wanted && typeof error.error === 'string';
  await assert.rejects(ollama.chat({ model: 'llama3', messages }), status(404));
  await assert.rejects(ollamaWith('wrong').chat({ model, messages }), status(401));
  await assert.rejects(ollama.chat({ model, messages, options: { temperature: 9 } }),
    (error) => error.status_code === 400 && error.error.includes('temperature'));

  const stream = await ollama.chat({ model, messages, stream: true, options: { num_predict: 900 } });
  await leave(stream, () => stream.abort());
});

test('responses: an answer, its stream and its usage', async () => {
  const request = { model, input: messages[0].content, max_output_tokens: max_tokens, temperature: 0 };
  const whole = await openai.responses.create(request);
  assert.equal(whole.output_text, words());
  assert.equal(whole.status, 'incomplete');
  assert.equal(whole.usage.output_tokens, max_tokens);
  assert.equal(whole.usage.input_tokens, said.usage.prompt_tokens);

  let text = '';
  const stream = openai.responses.stream(request).on('response.output_text.delta', ({ delta }) => { text += delta; });
  const final = await stream.finalResponse();
  assert.equal(text, words());
  assert.equal(final.output[0].content[0].text, words());
});

test('responses: tools and schemas, whole and streamed; an output goes back', async () => {
  const tool = { type: 'function', name: 'add', parameters, strict: true };
  const request = { model, input: messages, max_output_tokens: 120, tools: [tool], tool_choice: 'required',
    parallel_tool_calls: false };
  const whole = await openai.responses.create(request);
  const call = whole.output.find((item) => item.type === 'function_call');
  isSum(JSON.parse(call.arguments));
  const streamed = await openai.responses.stream(request).finalResponse();
  isSum(JSON.parse(streamed.output.find((item) => item.type === 'function_call').arguments));

  const output = { type: 'function_call_output', call_id: call.call_id, output: '3' };
  const next = await openai.responses.create({ model, tools: [tool], max_output_tokens: 4,
    input: [...messages, ...whole.output, output] });
  assert.ok(next.usage.output_tokens > 0);

  const format = { type: 'json_schema', name: 'sum', strict: true, schema: parameters };
  const formed = await openai.responses.parse({ model, input: 'Two numbers', max_output_tokens: 60, text: { format } });
  isSum(formed.output_parsed);
});

test('responses: what would need a store is refused by name; errors; an abort frees the slot', async () => {
  const create = (client, more) => client.responses.create({ model, input: 'x', max_output_tokens: 2, ...more });
  assert.equal((await create(openai, { store: true })).store, false);
  for (const [extra, param] of [[{ previous_response_id: 'resp_1' }, 'previous_response_id'],
    [{ background: true }, 'background'], [{ conversation: 'conv_1' }, 'conversation']])
    await assert.rejects(create(openai, extra),
      (error) => error instanceof OpenAI.BadRequestError && error.param === param);
  const hosted = await create(openai, { tools: [{ type: 'web_search' }] });
  assert.deepEqual(hosted.moex.left_out, [{ type: 'web_search' }]);
  const stranger = new OpenAI({ apiKey: 'wrong', baseURL: hub.api, maxRetries: 0 });
  await assert.rejects(create(stranger), OpenAI.AuthenticationError);

  const stream = await openai.responses.create({ model, input: 'x', stream: true });
  await leave(stream, () => stream.controller.abort());
});
