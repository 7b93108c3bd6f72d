// How many JSON schemas the grammar holds. Every .json file under a folder is one schema: it is refused by name, or
// answers are drawn under its mask and validated by ajv. Schemas of draft 4 are counted, but not validated, because
// ajv does not know them. Formats that the standard does not name are annotations. It prints one CSV row for each
// folder directly under DIR, and one for all.
// usage: node bench/schema_coverage.mjs DIR [--every N] [--reasons]
//   --every N   takes every N'th schema of the sorted names       --reasons   prints why schemas are refused
// example, with a checkout of guidance-ai/jsonschemabench: node bench/schema_coverage.mjs jsonschemabench/data
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join, relative, resolve, sep } from 'node:path';
import { createInterface } from 'node:readline';

const args = process.argv.slice(2);
const folder = args[0];
if (!folder || folder.startsWith('-')) {
  console.error('usage: node bench/schema_coverage.mjs DIR [--every N] [--reasons]');
  process.exit(2);
}
const every = args.includes('--every') ? Number(args[args.indexOf('--every') + 1]) : 1;
const require = createRequire(`${resolve(process.env.MOEX_NPM ?? 'build/npm')}/`);
const addFormats = require('ajv-formats').default;
const drafts = { 2020: require('ajv/dist/2020').default, 2019: require('ajv/dist/2019').default,
  7: require('ajv').default };
const formats = ['date-time', 'date', 'time', 'duration', 'email', 'hostname', 'ipv4', 'ipv6', 'uri', 'uri-reference',
  'uri-template', 'uuid', 'json-pointer', 'relative-json-pointer', 'regex'];
const program = process.env.MOEX_SCHEMA_INSTANCES ?? 'build/schema_instances';

const files = readdirSync(folder, { recursive: true }).map(String).filter((name) => name.endsWith('.json'))
  .filter((name) => statSync(join(folder, name)).isFile()).sort().filter((_, i) => i % every === 0);
const schemas = new Map();
for (const name of files) {
  try {
    const schema = JSON.parse(readFileSync(join(folder, name), 'utf8'));
    if (typeof schema === 'object' && schema !== null) schemas.set(name, schema);
  } catch { /* not JSON, so not a schema */ }
}

// Returns a function that says whether a value is valid; null: ajv cannot compile the schema.
function validator(schema) {
  const uri = String(schema.$schema ?? 'draft-07');
  if (/draft-0?[34]/.test(uri)) return null;
  const draft = uri.includes('2020') ? 2020 : uri.includes('2019') ? 2019 : 7;
  try {
    const { $schema: _, ...rest } = schema;
    const ajv = addFormats(new drafts[draft]({ strict: false, validateSchema: false, logger: false }), formats);
    return ajv.compile(rest);
  } catch { return null; }
}

const rows = new Map();
const rowOf = (name) => {
  if (!rows.has(name))
    rows.set(name, { schemas: 0, answered: 0, checked: 0, invalid: 0, broken: 0, slow: 0 });
  return rows.get(name);
};
const reasons = new Map();
const scratch = mkdtempSync(join(tmpdir(), 'schemas-'));
const list = join(scratch, 'list');
writeFileSync(list, [...schemas].map(([name, schema]) => JSON.stringify({ name, schema })).join('\n') + '\n');
const drawer = spawn(program, ['--read', list], { stdio: ['ignore', 'pipe', 'inherit'] });
for await (const line of createInterface({ input: drawer.stdout })) {
  const { name, error, answers, ms } = JSON.parse(line);
  const isValid = error ? null : validator(schemas.get(name));
  for (const row of [rowOf(relative('.', name).split(sep)[0]), rowOf('all')]) {
    row.schemas += 1;
    if (ms > 250) row.slow += 1;
    if (error) continue;
    row.answered += 1;
    if (isValid) row.checked += 1;
    for (const text of answers) {
      let value;
      try { value = JSON.parse(text); } catch { row.broken += 1; continue; }
      if (!isValid || isValid(value)) continue;
      row.invalid += 1;
      if (args.includes('--reasons') && row === rows.get('all'))
        console.error(`invalid: ${name}: ${JSON.stringify(isValid.errors.slice(0, 2))} ${text.slice(0, 300)}`);
    }
  }
  if (error) {
    const reason = error.replace(/^schema[^:]*: /, '').replace(/"[^"]*"/g, '"..."').slice(0, 100);
    reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
  }
}
rmSync(scratch, { recursive: true });

console.log('folder,schemas,answered,answered_percent,checked_by_ajv,invalid,broken_json,over_250_ms');
const all = rows.get('all');
rows.delete('all');
for (const [name, row] of [...rows, ['all', all]])
  console.log([name, row.schemas, row.answered, (100 * row.answered / row.schemas).toFixed(1), row.checked, row.invalid,
    row.broken, row.slow].join(','));
if (args.includes('--reasons'))
  for (const [reason, count] of [...reasons].sort((a, b) => b[1] - a[1]).slice(0, 40))
    console.log(`# ${count} ${reason}`);
