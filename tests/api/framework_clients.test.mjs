// Tests of the hub with frameworks that programs use: npm's ai over @ai-sdk/openai-compatible, and @langchain/openai.
// Only the address that these frameworks connect to is changed. Their answers are compared with the chat completion of
// the same request. A small model does not call tools sensibly, so the tests check the form that the mask guarantees.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { postJson, startHub } from './hub_process.mjs';

const require = createRequire(`${process.env.MOEX_NPM ?? 'build/npm'}/`);
const { generateText, jsonSchema, Output, streamText, tool } = require('ai');
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible');
const { ChatOpenAI } = require('@langchain/openai');
const { HumanMessage, ToolMessage } = require('@langchain/core/messages');

const apiKey = 'a-key-for-tests-0123456789';
const question = 'Tell me a story about a lighthouse';
const messages = [{ role: 'user', content: question }];
const maxTokens = 16;
let hub, model, said;

before(async () => {
  hub = await startHub(['--backend', 'local', '--require-key', '--deterministic'], { MOEX_API_KEY: apiKey });
  const listed = await fetch(`${hub.api}/models`, { headers: { authorization: `Bearer ${apiKey}` } });
  model = (await listed.json()).data[0].id;
  const answer = await postJson(`${hub.api}/chat/completions`,
    { model, messages, max_tokens: maxTokens, temperature: 0 }, apiKey);
  said = await answer.json();
});
after(async () => {
  if (hub) assert.equal(await hub.stop(), 0, hub.stderr());
});

const words = () => said.choices[0].message.content;
const stopAt = () => words().slice(6, 9);
const untilStop = () => words().slice(0, words().indexOf(stopAt()));

async function waitUntilFree() {
  for (;;) {
    const response = await fetch(`${hub.url}/api/status`, { headers: { authorization: `Bearer ${apiKey}` } });
    if ((await response.json()).engine.running === 0) return;
  }
}

const number = { type: 'integer', maximum: 99 };
const parameters = { type: 'object', additionalProperties: false, required: ['a', 'b'],
  properties: { a: number, b: number } };
const isSum = ({ a, b }) => assert.ok(Number.isInteger(a + b), `${a} + ${b}`);

// ---- ai

const vercel = (key = apiKey, name = model) => createOpenAICompatible({
  name: 'moex', baseURL: hub.api, apiKey: key, supportsStructuredOutputs: true, includeUsage: true,
})(name);
const asked = (more) => ({
  model: vercel(), messages, maxOutputTokens: maxTokens, temperature: 0, maxRetries: 0, ...more });
const add = () => tool({ description: 'adds', inputSchema: jsonSchema(parameters) });

test('ai: a text, its stream and its usage', async () => {
  const whole = await generateText(asked());
  assert.equal(whole.text, words());
  assert.equal(whole.finishReason, 'length');
  assert.equal(whole.usage.outputTokens, maxTokens);
  assert.equal(whole.usage.inputTokens, said.usage.prompt_tokens);

  const stream = streamText(asked());
  let text = '', pieces = 0;
  for await (const piece of stream.textStream) {
    text += piece;
    pieces += 1;
  }
  assert.equal(text, words());
  assert.ok(pieces > 4, `${pieces} pieces`);
  assert.equal((await stream.usage).outputTokens, maxTokens);
});

test('ai: a stop sequence ends the text in front of it', async () => {
  const { text, finishReason } = await generateText(asked({ stopSequences: [stopAt()] }));
  assert.equal(text, untilStop());
  assert.equal(finishReason, 'stop');
});

test('ai: an abort frees the slot', async () => {
  const controller = new AbortController();
  const stream = streamText(asked({ maxOutputTokens: undefined, abortSignal: controller.signal, onError() {} }));
  let pieces = 0;
  for await (const piece of stream.textStream) if (piece && ++pieces === 4) controller.abort();
  assert.ok(pieces >= 4, `${pieces} pieces`);
  await waitUntilFree();
});

test('ai: JSON of a schema, whole and streamed; JSON of any kind', async () => {
  const output = Output.object({ schema: jsonSchema(parameters) });
  isSum((await generateText(asked({ output, maxOutputTokens: 60 }))).output);
  const stream = streamText(asked({ output, maxOutputTokens: 60 }));
  for await (const part of stream.partialOutputStream) assert.equal(typeof part, 'object');
  isSum(await stream.output);

  const any = await generateText(asked({ output: Output.json(), maxOutputTokens: 60 }));
  assert.equal(typeof any.output, 'object');
});

test('ai: a required tool, a named one, several, and auto', async () => {
  const tools = { add: add(), subtract: add() };
  for (const toolChoice of ['required', { type: 'tool', toolName: 'add' }]) {
    const { toolCalls, finishReason } = await generateText(asked({ tools, toolChoice, maxOutputTokens: 200 }));
    assert.ok(toolCalls.length >= 1);
    for (const { toolName, input } of toolCalls) {
      if (toolChoice.toolName) assert.equal(toolName, 'add');
      else assert.ok(toolName in tools);
      isSum(input);
    }
    assert.match(finishReason, /tool-calls|length/);
  }
  const auto = await generateText(asked({ tools }));
  assert.ok(auto.text.length > 0, 'free text until a call opens');

  const stream = streamText(asked({ tools, toolChoice: 'required', maxOutputTokens: 200 }));
  const calls = await stream.toolCalls;
  assert.ok(calls.length >= 1);
  for (const { input } of calls) isSum(input);
});

test('ai: a result of a tool goes back, and the answer goes on', async () => {
  const tools = { add: add() };
  const { toolCalls } = await generateText(asked({ tools, toolChoice: 'required', maxOutputTokens: 200 }));
  const [{ toolCallId, toolName, input }] = toolCalls;
  const output = { type: 'json', value: input.a + input.b };
  const { text } = await generateText(asked({ tools, messages: [...messages,
    { role: 'assistant', content: [{ type: 'tool-call', toolCallId, toolName, input }] },
    { role: 'tool', content: [{ type: 'tool-result', toolCallId, toolName, output }] }] }));
  assert.ok(text.length > 0);
});

test('ai: errors have a status and the words of the hub', async () => {
  await assert.rejects(generateText(asked({ model: vercel('a-wrong-key') })), { statusCode: 401 });
  const other = vercel(apiKey, 'another');
  await assert.rejects(generateText(asked({ model: other })), { statusCode: 404, message: /another/ });
  await assert.rejects(generateText(asked({ temperature: 9 })), { statusCode: 400, message: /temperature/ });
});

// ---- langchain

const chain = (more = {}, key = apiKey) => new ChatOpenAI({
  model, apiKey: key, maxTokens, temperature: 0, maxRetries: 0, configuration: { baseURL: hub.api }, ...more });
const human = () => [new HumanMessage(question)];
const sums = (...names) => names.map((name) => (
  { type: 'function', function: { name, description: 'adds', parameters } }));

test('langchain: a text, its stream and its usage', async () => {
  const whole = await chain().invoke(human());
  assert.equal(whole.content, words());
  assert.equal(whole.response_metadata.finish_reason, 'length');
  assert.equal(whole.usage_metadata.output_tokens, maxTokens);
  assert.equal(whole.usage_metadata.input_tokens, said.usage.prompt_tokens);

  let joined = null, pieces = 0;
  for await (const piece of await chain().stream(human())) {
    joined = joined ? joined.concat(piece) : piece;
    pieces += 1;
  }
  assert.equal(joined.content, words());
  assert.ok(pieces > 4, `${pieces} pieces`);
  assert.equal(joined.usage_metadata.output_tokens, maxTokens);
});

test('langchain: a stop sequence ends the text in front of it', async () => {
  const cut = await chain().invoke(human(), { stop: [stopAt()] });
  assert.equal(cut.content, untilStop());
  assert.equal(cut.response_metadata.finish_reason, 'stop');
});

test('langchain: an abort frees the slot', async () => {
  const controller = new AbortController();
  let pieces = 0;
  await assert.rejects(async () => {
    for await (const piece of await chain({ maxTokens: -1 }).stream(human(), { signal: controller.signal })) {
      if (piece && ++pieces === 4) controller.abort();
    }
  }, /abort/i);
  assert.ok(pieces >= 4, `${pieces} pieces`);
  await waitUntilFree();
});

test('langchain: JSON of a schema, and of any kind', async () => {
  const long = chain({ maxTokens: 120 });
  isSum(await long.withStructuredOutput({ title: 'sum', ...parameters }, { method: 'jsonSchema' }).invoke(human()));
  isSum(await long.withStructuredOutput({ title: 'sum', ...parameters }, { method: 'functionCalling' })
    .invoke(human()));
  const any = await long.invoke(human(), { response_format: { type: 'json_object' } });
  assert.equal(typeof JSON.parse(any.content), 'object');
});

test('langchain: a required tool, a named one, one alone, and auto', async () => {
  const long = chain({ maxTokens: 200 });
  for (const tool_choice of ['required', 'add']) {
    const { tool_calls } = await long.bindTools(sums('add', 'subtract'), { tool_choice }).invoke(human());
    assert.ok(tool_calls.length >= 1);
    for (const { name, args } of tool_calls) {
      assert.match(name, tool_choice === 'add' ? /^add$/ : /^(add|subtract)$/);
      isSum(args);
    }
  }
  const single = { tool_choice: 'required', parallel_tool_calls: false };
  const one = await long.bindTools(sums('add'), single).invoke(human());
  assert.equal(one.tool_calls.length, 1);
  assert.equal(one.response_metadata.finish_reason, 'tool_calls');

  const auto = await chain().bindTools(sums('add')).invoke(human());
  assert.ok(auto.content.length > 0, 'free text until a call opens');

  let joined = null;
  const stream = await long.bindTools(sums('add'), { tool_choice: 'required' }).stream(human());
  for await (const piece of stream) joined = joined ? joined.concat(piece) : piece;
  assert.ok(joined.tool_calls.length >= 1);
  for (const { args } of joined.tool_calls) isSum(args);
});

test('langchain: a result of a tool goes back, and the answer goes on', async () => {
  const bound = chain({ maxTokens: 200 }).bindTools(sums('add'), { tool_choice: 'required',
    parallel_tool_calls: false });
  const call = await bound.invoke(human());
  const [{ id, args }] = call.tool_calls;
  const result = new ToolMessage({ tool_call_id: id, content: String(args.a + args.b) });
  const answer = await chain().bindTools(sums('add')).invoke([...human(), call, result]);
  assert.ok(answer.content.length > 0);
});

test('langchain: errors have a status and the words of the hub', async () => {
  await assert.rejects(chain({}, 'a-wrong-key').invoke(human()), { status: 401 });
  await assert.rejects(chain({ model: 'another' }).invoke(human()), { status: 404, message: /another/ });
  await assert.rejects(chain({ temperature: 9 }).invoke(human()), { status: 400, message: /temperature/ });
});
