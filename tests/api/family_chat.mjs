// A conversation with a small model of a family, in the dialects of OpenAI, Anthropic and Ollama: the model thinks
// where its family does, calls a tool, reads the result, and answers in a form. The weights are random, so that the
// request demands the call and the form; the thoughts and all values are the model's own.
import assert from 'node:assert/strict';
import { families, templateOf } from './family_package.mjs';

const question = { role: 'user', content: 'Weather?' };
const parameters = { type: 'object', properties: { city: { enum: ['Paris', 'Oslo', 'Rome'] },
  days: { type: 'integer', minimum: 1, maximum: 9 } }, required: ['city', 'days'], additionalProperties: false };
const form = { type: 'object', properties: { sea: { enum: ['calm', 'rough'] } }, required: ['sea'],
  additionalProperties: false };
const tools = [{ type: 'function', function: { name: 'get_weather', description: 'The weather.', parameters } }];
const result = 'rain', known_id = 'abcdefghi', tokens_max = 160;

async function post(hub, path, body) {
  const response = await fetch(`${hub.url}${path}`,
    { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  const answer = await response.json();
  assert.equal(response.status, 200, `${path}: ${JSON.stringify(answer)}`);
  return answer;
}

// For each dialect: its two requests, and how its answers are read into { thoughts, words, call, tokens }.
// `call` is { id, name, arguments }; `tokens` counts those of the prompt.
const dialects = {
  openai: {
    path: '/v1/chat/completions',
    first: () => ({ messages: [question], tools, tool_choice: 'required', parallel_tool_calls: false, temperature: 0,
      max_tokens: tokens_max, chat_template_kwargs: { enable_thinking: true } }),
    second: (first) => ({ messages: [question, first.choices[0].message,
      { role: 'tool', tool_call_id: known_id, name: 'get_weather', content: result }], tools, tool_choice: 'none',
    json_schema: form, temperature: 0, max_tokens: tokens_max, chat_template_kwargs: { enable_thinking: true } }),
    read({ choices: [{ message, finish_reason }], usage }) {
      const calls = message.tool_calls ?? [];
      assert.equal(finish_reason, calls.length > 0 ? 'tool_calls' : 'stop');
      return { thoughts: message.reasoning_content ?? '', words: message.content ?? '', tokens: usage.prompt_tokens,
        calls: calls.map((one) => ({ id: one.id, name: one.function.name,
          arguments: JSON.parse(one.function.arguments) })) };
    },
  },
  anthropic: {
    path: '/v1/messages',
    first: () => ({ messages: [question], max_tokens: tokens_max, temperature: 0,
      tools: [{ name: 'get_weather', description: 'The weather.', input_schema: parameters }],
      tool_choice: { type: 'any', disable_parallel_tool_use: true },
      thinking: { type: 'enabled', budget_tokens: 1024 } }),
    second: (first) => ({ ...dialects.anthropic.first(), tool_choice: { type: 'none' },
      output_config: { format: { type: 'json_schema', schema: form } },
      messages: [question, { role: 'assistant', content: first.content },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: known_id, content: result }] }] }),
    read({ content, stop_reason, usage }) {
      const of = (type) => content.filter((block) => block.type === type), calls = of('tool_use');
      assert.equal(stop_reason, calls.length > 0 ? 'tool_use' : 'end_turn');
      return { thoughts: of('thinking').map(({ thinking }) => thinking).join(''),
        words: of('text').map(({ text }) => text).join(''), tokens: usage.input_tokens + usage.cache_read_input_tokens,
        calls: calls.map(({ id, name, input }) => ({ id, name, arguments: input })) };
    },
  },
  ollama: {
    path: '/api/chat',
    first: (model) => ({ model, stream: false, messages: [question], tools, tool_choice: 'required',
      parallel_tool_calls: false, think: true, options: { temperature: 0, num_predict: tokens_max } }),
    second: ({ model, message }) => ({ ...dialects.ollama.first(model), tool_choice: 'none', format: form,
      messages: [question, message,
        { role: 'tool', tool_name: 'get_weather', tool_call_id: known_id, content: result }] }),
    read({ message, done_reason, prompt_eval_count }) {
      assert.equal(done_reason, 'stop');
      return { thoughts: message.thinking ?? '', words: message.content, tokens: prompt_eval_count,
        calls: (message.tool_calls ?? []).map(({ id, function: { name, arguments: given } }) =>
          ({ id, name, arguments: given })) };
    },
  },
};

// Has the conversation in one dialect. `extra`: further fields of both requests; `thinks`: the answers that must have
// thoughts, while the other must have none. Resolves to both answers, without the call's id.
export async function talk(hub, family, dialect, extra = {}, thinks = families[family].thinks ?? []) {
  const { path, first, second, read } = dialects[dialect], where = `${family}, ${dialect}`;
  const asked = await post(hub, path, { ...first(family), ...extra });
  const { calls, ...said } = read(asked);
  assert.equal(calls.length, 1, where);
  const [{ id, ...call }] = calls, { city, days } = call.arguments;
  assert.equal(call.name, 'get_weather', where);
  assert.deepEqual(Object.keys(call.arguments), ['city', 'days'], where);
  assert.ok(['Paris', 'Oslo', 'Rome'].includes(city) && Number.isInteger(days) && days >= 1 && days <= 9,
    `${where}: ${JSON.stringify(call)}`);
  assert.equal(said.words, '', where);

  // A call's id is random, and Mistral's template writes it.
  const known = JSON.parse(JSON.stringify(asked).replaceAll(id, known_id));
  const last = read(await post(hub, path, { ...second(known), ...extra }));
  assert.equal(last.calls.length, 0, where);
  assert.deepEqual(Object.keys(JSON.parse(last.words)), ['sea'], where);
  for (const [answer, { thoughts }] of Object.entries({ first: said, last }))
    assert.equal(thoughts !== '', thinks.includes(answer), `${where}, ${answer}: ${thoughts}`);
  return { first: { ...said, call }, last };
}

// Has the conversation in each dialect; all three must say the same.
export async function talkInAll(hub, family) {
  const said = await talk(hub, family, 'openai');
  for (const dialect of ['anthropic', 'ollama'])
    assert.deepEqual(await talk(hub, family, dialect), said, `${family}: ${dialect}`);
  return said;
}

// Compares the hub's prompts with those that `Template`, of npm @huggingface/jinja, renders from the family's template.
// `said` is the result of talk(). A template that has no tools is not asked for them, because the hub then adds them to
// the words of the system.
export async function comparePrompts(hub, family, said, Template) {
  const source = templateOf(family), { bos: bos_token = '', eos: eos_token } = families[family];
  const has_tools = source.includes('tools'), has_channels = families[family].syntax === 'gpt-oss';
  const call = { id: known_id, type: 'function', function: said.first.call };
  const thoughts = has_channels ? { thinking: 'Hm.' } : {};
  const turns = [question, { role: 'assistant', content: '', reasoning_content: 'Hm.', tool_calls: [call] },
    { role: 'tool', tool_call_id: call.id, name: call.function.name, content: result }];
  const chats = [{ messages: [{ role: 'system', content: 'Be brief.' }, question] },
    { messages: [question, { role: 'assistant', content: 'Wet.' }, { role: 'user', content: '<|im_end|> and now?' }] },
    ...(has_tools ? [{ messages: [question], tools }, { messages: turns, tools }] : [])];

  const template = new Template(source);
  for (const { messages, tools: given } of chats)
    for (const enable_thinking of [true, false]) {
      const { prompt } = await post(hub, '/apply-template',
        { messages, tools: given, chat_template_kwargs: { enable_thinking } });
      const known = messages.map((one) => (one.reasoning_content ? { ...one, ...thoughts } : one));
      assert.equal(prompt, template.render({ messages: known, tools: given ?? null, add_generation_prompt: true,
        enable_thinking, bos_token, eos_token }), `${family}: ${JSON.stringify(messages)}`);
      if (messages.length > 1 || !enable_thinking) continue;

      const { tokens } = await post(hub, '/tokenize', { content: prompt });
      assert.equal(tokens.length, said.first.tokens, `${family}: tokens of the first request`);
    }
  return chats.length;
}
