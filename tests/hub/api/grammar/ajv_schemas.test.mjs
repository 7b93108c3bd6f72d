// Tests the masks with another validator, ajv (draft 2020-12 with its formats): ajv must accept every answer that was
// drawn under a mask. MOEX_SCHEMAS is the number of the generator's schemas (the default suits the suite's time limit;
// 2000 is the whole). MOEX_SHARD=i/n takes every n'th schema from the i'th on (0 to n - 1). MOEX_DEMO is the folder of
// the demo model. MOEX_VOCAB is the number of tokens of the vocabulary (default: the demo's; 151936 is that of a large
// model).
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { test } from 'node:test';

const require = createRequire(`${process.env.MOEX_NPM ?? 'build/npm'}/`);
const { default: Ajv2020 } = require('ajv/dist/2020');
const addFormats = require('ajv-formats').default;

const program = process.env.MOEX_SCHEMA_INSTANCES ?? 'build/schema_instances';

test('every answer parses and is valid, and every valid instance is admitted', async (t) => {
  const [first, step] = (process.env.MOEX_SHARD ?? '0/1').split('/');
  const args = ['--schemas', process.env.MOEX_SCHEMAS ?? '150', '--vocab', process.env.MOEX_VOCAB ?? '0',
    '--first', first, '--step', step];
  if (process.env.MOEX_DEMO) args.push('--model', process.env.MOEX_DEMO);
  const drawer = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const closed = once(drawer, 'close');
  let answers = 0, instances = 0, schemas = 0;
  for await (const line of createInterface({ input: drawer.stdout })) {
    const { seed, schema, answers: drawn, instances: valid } = JSON.parse(line);
    const ajv = addFormats(new Ajv2020({ strict: false }));
    const isValid = ajv.compile(schema);
    const check = (text, what) => assert.ok(isValid(JSON.parse(text)),
      `seed ${seed}, ${what}: ${ajv.errorsText(isValid.errors)}\n${JSON.stringify(schema)}\n${text}`);
    for (const text of drawn) check(text, 'an answer');
    for (const text of valid) check(text, 'an instance');
    schemas += 1;
    answers += drawn.length;
    instances += valid.length;
  }
  assert.equal((await closed)[0], 0);
  assert.equal(answers, 3 * schemas);
  assert.equal(instances, 20 * schemas);
  const last = Number(args[1]) - 1 - Number(first);
  assert.equal(schemas, Math.floor(last / Number(step)) + 1);
  t.diagnostic(`${schemas} schemas, ${answers} answers, ${instances} instances`);
});
