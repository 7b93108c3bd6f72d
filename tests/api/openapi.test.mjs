// Tests of /openapi.json: it is a complete OpenAPI 3.1 document, has the routes of the hub, and describes real answers.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { startHub } from './hub_process.mjs';

let hub, document;
before(async () => {
  hub = await startHub(['--log-level', 'warn']);
  document = await (await fetch(`${hub.url}/openapi.json`)).json();
});
after(() => hub?.stop());

const resolve = (reference) => {
  assert.match(reference, /^#\//, reference);
  const found = reference.slice(2).split('/').reduce((node, key) => node?.[key], document);
  assert.ok(found, `${reference} points nowhere`);
  return found;
};

const typeNames = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null'];
const schemaKeys = ['$ref', 'type', 'properties', 'required', 'items', 'enum', 'const', 'oneOf', 'description',
  'default', 'minimum', 'maximum', 'minItems', 'maxItems', 'prefixItems', 'additionalProperties'];

// Checks that a schema uses only the known keywords of JSON Schema; any other keyword is a typing error.
function checkSchema(schema, where) {
  for (const key of Object.keys(schema)) assert.ok(schemaKeys.includes(key), `${where}: unknown word ${key}`);
  if (schema.$ref) resolve(schema.$ref);
  for (const type of [schema.type ?? []].flat()) assert.ok(typeNames.includes(type), `${where}: type ${type}`);
  for (const [name, one] of Object.entries(schema.properties ?? {})) checkSchema(one, `${where}.${name}`);
  for (const name of schema.required ?? [])
    assert.ok(schema.properties[name], `${where}: requires ${name}, which it does not describe`);
  if (schema.items) checkSchema(schema.items, `${where}[]`);
  if (typeof schema.additionalProperties === 'object') checkSchema(schema.additionalProperties, `${where}{}`);
  for (const one of [...schema.oneOf ?? [], ...schema.prefixItems ?? []]) checkSchema(one, where);
}

const typeOf = (value) => value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
const fitsType = (value, type) => type === 'integer' ? Number.isInteger(value) : typeOf(value) === type;

// Returns the errors of `value` as a list of sentences.
// `closed`: a field that the schema does not list is an error, too.
function problems(value, schema, where, closed) {
  if (schema.$ref) return problems(value, resolve(schema.$ref), where, closed);
  if (schema.oneOf) {
    const fits = schema.oneOf.filter((one) => problems(value, one, where, closed).length === 0).length;
    return fits === 1 ? [] : [`${where} fits ${fits} of its forms`];
  }
  if ('const' in schema) return value === schema.const ? [] : [`${where} is ${JSON.stringify(value)}`];
  if (schema.enum && !schema.enum.includes(value)) return [`${where} is ${JSON.stringify(value)}`];
  const types = [schema.type ?? []].flat();
  if (types.length > 0 && !types.some((type) => fitsType(value, type))) return [`${where} is of type ${typeOf(value)}`];

  if (typeOf(value) === 'array')
    return value.flatMap((one, i) => {
      const item = schema.prefixItems?.[i] ?? schema.items;
      return item ? problems(one, item, `${where}[${i}]`, closed) : [];
    });
  if (typeOf(value) !== 'object') return [];
  const missing = (schema.required ?? []).filter((name) => !(name in value))
    .map((name) => `${where}.${name} is missing`);
  const known = schema.properties ?? {};
  const members = Object.entries(value).flatMap(([name, one]) =>
    known[name] ? problems(one, known[name], `${where}.${name}`, closed)
      : closed && schema.properties ? [`${where}.${name} is not described`] : []);
  return [...missing, ...members];
}

test('the document has the parts that OpenAPI 3.1 asks for', () => {
  assert.equal(document.openapi, '3.1.0');
  for (const key of ['title', 'version']) assert.equal(typeof document.info[key], 'string');
  for (const [name, schema] of Object.entries(document.components.schemas)) checkSchema(schema, name);

  for (const [path, item] of Object.entries(document.paths)) {
    assert.match(path, /^\/[^*]*$/);
    for (const [method, operation] of Object.entries(item)) {
      const where = `${method} ${path}`;
      assert.ok(['get', 'post', 'delete'].includes(method), where);
      assert.ok(operation.summary, where);

      const named = [...path.matchAll(/\{(\w+)\}/g)].map((match) => match[1]);
      const parameters = operation.parameters ?? [];
      assert.deepEqual(parameters.map((one) => one.name), named, where);
      for (const one of parameters) assert.deepEqual([one.in, one.required], ['path', true], where);

      assert.ok(Object.keys(operation.responses).length > 0, where);
      for (const [status, answer] of Object.entries(operation.responses)) {
        assert.match(status, /^[1-5]\d\d$/);
        assert.ok(answer.description, where);
        for (const { schema } of Object.values(answer.content ?? {})) checkSchema(schema, where);
      }
      if (method === 'post') {
        const [[type, { schema }], ...others] = Object.entries(operation.requestBody.content);
        assert.match(type, /^application\/(json|octet-stream)$/, where);
        assert.deepEqual(others, [], where);
        checkSchema(schema, where);
      }
      for (const scheme of (operation.security ?? []).flatMap(Object.keys))
        resolve(`#/components/securitySchemes/${scheme}`);
    }
  }
});

test('described routes are served with the described method', async () => {
  for (const [path, item] of Object.entries(document.paths)) {
    if (path.includes('{') || path === '/worker') continue;
    for (const method of Object.keys(item)) {
      const answer = await fetch(hub.url + path, {
        method: method.toUpperCase(), headers: { 'Content-Type': 'application/json' },
        body: method === 'post' ? '{}' : undefined,
      });
      await answer.arrayBuffer();
      assert.notEqual(answer.status, 404, path);
      assert.notEqual(answer.status, 405, path);
      assert.ok(String(answer.status) in item[method].responses, `${path} answers ${answer.status}`);
    }
  }
});

test('real answers have the shapes that are described, and no field beyond them', async () => {
  const model = (await (await fetch(`${hub.url}/api/info`)).json()).model;
  const asked = {
    '/v1/chat/completions': { messages: [{ role: 'user', content: 'Hello' }], max_tokens: 3, logprobs: true },
    '/v1/completions': { prompt: 'Hello', max_tokens: 3 },
    '/v1/responses': { input: 'Hello', max_output_tokens: 3 },
    '/v1/messages': { model, messages: [{ role: 'user', content: 'Hello' }], max_tokens: 3 },
    '/v1/chat/completions/input_tokens': { messages: [{ role: 'user', content: 'Hello' }] },
    '/v1/responses/input_tokens': { input: 'Hello' },
    '/v1/messages/count_tokens': { model, messages: [{ role: 'user', content: 'Hello' }] },
    '/api/chat': { model, messages: [{ role: 'user', content: 'Hello' }], stream: false, options: { num_predict: 3 } },
    '/api/generate': { model, prompt: 'Hello', stream: false, options: { num_predict: 3 } },
    '/api/show': { model },
    '/v1/embeddings': { input: ['Hello', 'you'] },
    '/api/embed': { model, input: 'Hello' },
    '/apply-template': { messages: [{ role: 'user', content: 'Hello' }] },
    '/tokenize': { content: 'It was café night', with_pieces: true },
    '/detokenize': { tokens: [100, 200] },
  };
  const fits = async (answer, schema, where) =>
    assert.deepEqual(problems(await answer.json(), schema, where, true), []);

  for (const [path, body] of Object.entries(asked)) {
    const { requestBody, responses } = document.paths[path].post;
    assert.deepEqual(problems(body, requestBody.content['application/json'].schema, 'body', true), []);
    const headers = { 'Content-Type': 'application/json' };
    const post = (text) => fetch(hub.url + path, { method: 'POST', headers, body: text });
    const answer = await post(JSON.stringify(body));
    assert.equal(answer.status, 200, path);
    await fits(answer, responses['200'].content['application/json'].schema, path);
    const refused = await post('{}');
    assert.equal(refused.status, 400);
    await fits(refused, responses['400'].content['application/json'].schema, path);
  }
  for (const path of ['/v1/models', '/health', '/api/info', '/api/status', '/api/tags', '/api/version', '/props']) {
    const described = document.paths[path].get.responses['200'].content['application/json'].schema;
    await fits(await fetch(hub.url + path), described, path);
  }
});
