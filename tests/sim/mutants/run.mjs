// Plants the bugs of mutants.mjs one by one into a copy of their file, links the tests with the copy, and prints which
// bugs the tests find. The checkout and its build are not changed.
// usage: node tests/sim/mutants/run.mjs [--fleet] [--check] [--build DIR] [--dispatch-only] [NUMBER|FROM-TO...]
//   --fleet          the bugs of leases and journals (fleet_mutants.mjs, registry_test) in place of those of dispatch
//   --check          only check that each mutant still applies; else run the tests, up to 30 s of one core per mutant
//   --build          the directory where the tests were built from this checkout, with Ninja [build]
//   --dispatch-only  run dispatch_test alone; a mutant that only the simulated swarm finds counts as surviving
//   NUMBER, FROM-TO  numbers of mutants in the list, from 1 [all]
// example: nice node tests/sim/mutants/run.mjs 1-10 14
// Prints CSV: number, file, what, the first test that fails, or SURVIVES.
// exit: 0 each mutant was found or is known to survive, 1 a mutant survived, 2 a mutant does not apply or not build
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { mutants as fleetMutants } from './fleet_mutants.mjs';
import { mutants as dispatchMutants } from './mutants.mjs';

const root = resolve(dirname(fileURLToPath(import.meta.url)), '../../..');
const args = process.argv.slice(2);
const buildAt = args.indexOf('--build');
const build = resolve(root, buildAt >= 0 ? args.splice(buildAt, 2)[1] : 'build');
const has = (flag) => args.includes(flag);

// The room of the bugs, its library, and the test programs that run on each mutant, the fastest first, each with its
// timeout in seconds.
const dispatch = {
  folder: 'hub/dispatch', library: 'moex_dispatch', mutants: dispatchMutants,
  tests: [['dispatch_test', 300], ['sim_test', 900]].slice(0, has('--dispatch-only') ? 1 : 2),
};
const fleet = {
  folder: 'hub/registry', library: 'moex_registry', mutants: fleetMutants, tests: [['registry_test', 300]],
};
const { folder, library, mutants, tests } = has('--fleet') ? fleet : dispatch;

function planted(mutant, number) {
  const parts = readFileSync(join(root, folder, mutant.file), 'utf8').split(mutant.from);
  if (parts.length === 2) return parts.join(mutant.to);
  console.error(`mutant ${number}, ${mutant.file}: "${mutant.from}" occurs ${parts.length - 1} times`);
  return null;
}

function chosen() {
  const given = args.filter((arg) => !arg.startsWith('--')).flatMap((arg) => {
    const [from, to = from] = arg.split('-').map(Number);
    return Array.from({ length: to - from + 1 }, (_, i) => from + i);
  });
  return given.length > 0 ? given : mutants.map((_, i) => i + 1);
}

// Returns the command by which the build makes `target`, as Ninja prints it.
const commandOf = (target) => execFileSync('ninja', ['-C', build, '-t', 'commands', target], {
  encoding: 'utf8', maxBuffer: 1 << 28,
}).trimEnd().split('\n').at(-1);

function runs(command) {
  const done = spawnSync('sh', ['-c', command], { cwd: build, encoding: 'utf8', maxBuffer: 1 << 28 });
  if (done.status !== 0) console.error(done.stderr.slice(-2000));
  return done.status === 0;
}

const at = mkdtempSync(join(tmpdir(), 'mutants-'));
process.on('exit', () => rmSync(at, { recursive: true, force: true }));

// Returns the name and the text of the batch that includes a file of the room (CMakeLists.txt, moex_batches); undefined
// if the build compiles the file by itself.
function batchOf(file) {
  const batches = join(build, 'batches');
  const names = existsSync(batches) ? readdirSync(batches) : [];
  return names.map((name) => ({ name, text: readFileSync(join(batches, name), 'utf8') }))
    .find(({ text }) => text.includes(`#include "${folder}/${file}"`));
}

// Plants `text` as the content of `file`. Returns the first test that then fails, hangs or crashes; null if no test
// does; undefined if the text does not build.
function finder(file, text) {
  const planted_at = join(at, basename(file)), batch = batchOf(file);
  writeFileSync(planted_at, text);
  const source = batch ? join(at, batch.name) : planted_at, object = `${source}.o`;
  if (batch) writeFileSync(source, batch.text.replace(`"${folder}/${file}"`, `"${planted_at}"`));
  const made = commandOf(
    `${folder}/CMakeFiles/${library}.dir/${batch ? `__/__/batches/${batch.name}` : file}.o`);
  if (!runs(made.replace(/ -MD -MT \S+ -MF \S+ -o \S+ -c \S+$/, ` -o ${object} -c ${source}`))) return undefined;

  for (const [name, seconds] of tests) {
    // Link the mutant's object before the room's library, so that the linker takes the definitions of the mutant.
    const program = join(at, name);
    if (!runs(commandOf(name).replace(` -o ${name} `, ` ${object} -o ${program} `))) return undefined;
    const run = spawnSync(program, ['--gtest_fail_fast'], {
      encoding: 'utf8', timeout: seconds * 1000, killSignal: 'SIGKILL', maxBuffer: 1 << 28,
    });
    if (run.status === 0) continue;
    const failed = /\[ {2}FAILED {2}\] (\S+)/.exec(run.stdout ?? '');
    if (failed) return `${name}: ${failed[1]}`;
    // The test that began last has crashed or hung.
    const last = [...(run.stdout ?? '').matchAll(/\[ RUN {6}\] (\S+)/g)].at(-1);
    return `${name}: ${last?.[1] ?? ''} (${run.signal ?? `exit ${run.status}`})`;
  }
  return null;
}

const texts = mutants.map((mutant, i) => planted(mutant, i + 1));
if (texts.includes(null)) process.exit(2);
if (has('--check')) {
  console.log(`${mutants.length} mutants apply`);
  process.exit(0);
}

const healthy = mutants[0].file;
const before = finder(healthy, readFileSync(join(root, folder, healthy), 'utf8'));
if (before !== null) {
  console.error(`tests fail without a mutant: ${before ?? 'does not build'}`);
  process.exit(2);
}

let num_survivors = 0;
for (const number of chosen()) {
  const mutant = mutants[number - 1];
  const found = finder(mutant.file, texts[number - 1]);
  if (found === undefined) process.exitCode = 2;
  if (found === null && !mutant.survives) ++num_survivors;
  const survives = mutant.survives ? `SURVIVES (${mutant.survives})` : 'SURVIVES';
  const word = found === undefined ? 'does not build' : found ?? survives;
  console.log(`${number},${mutant.file},"${mutant.what}",${word}`);
}
if (num_survivors > 0) process.exitCode ||= 1;
