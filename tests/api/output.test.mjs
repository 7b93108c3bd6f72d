// Tests of output: a command fails if its output cannot be written. It then reports one sentence, and shows progress
// only on a terminal.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { closeSync, constants, existsSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { hubProgram, inFolder, modelFolder, runHub, runProgram, startHub } from './hub_process.mjs';

// Returns stderr of a run, without warnings that are expected here: a synthetic package has no tokenizer, and root may
// run the tests.
const said = (run) => run.stderr.replace(/^(warning: no tokenizer: |.* warning hub: runs as root; ).*\n/m, '');

// Commands of every kind that print to stdout and finish quickly.
function printingCommands(folder) {
  writeFileSync(`${folder}/text`, 'The sea was calm and the lighthouse was far away. '.repeat(4));
  return [
    ['generate', '--model', modelFolder, '--prompt', 'The sea was', '--max-tokens', '4', '--temperature', '0'],
    ['eval', '--model', modelFolder, '--text', `${folder}/text`, '--window', '16', '--windows', '1'],
    ['inspect', modelFolder],
    ['inspect', modelFolder, '--json'],
    ['synth', '--shape', 'tiny', `${folder}/tiny`],
    ['verify', modelFolder],
    ['models', '--models-dir', folder],
    ['cert', '--out', folder, '--force'],
    ['version'],
    ['--version'],
    ['serve', '--help'],
    ['serve', '--print-config'],
    ['serve', '--check', '--model', modelFolder],
  ];
}

test('a full disk behind stdout is a failure, in a sentence', () => inFolder(async (folder) => {
  for (const args of printingCommands(folder)) {
    const full = openSync('/dev/full', 'w');
    const run = await runHub(args, {}, ['ignore', full, 'pipe']);
    closeSync(full);
    assert.equal(run.code, 1, `${args}: ${run.stderr}`);
    assert.match(said(run), /^moex-hub: stdout: No space left on device; .*\n$/, args.join(' '));
  }
}));

test('a reader that left is a failure, in a sentence', () => inFolder(async (folder) => {
  execFileSync('mkfifo', [`${folder}/pipe`]);
  for (const args of printingCommands(folder)) {
    const reader = openSync(`${folder}/pipe`, constants.O_RDONLY | constants.O_NONBLOCK);
    const writer = openSync(`${folder}/pipe`, 'w');
    closeSync(reader);
    const run = await runHub(args, {}, ['ignore', writer, 'pipe']);
    closeSync(writer);
    assert.equal(run.code, 1, `${args}: ${run.stderr}`);
    assert.match(said(run), /^moex-hub: stdout: Broken pipe; .*\n$/, args.join(' '));
  }
}));

test('a closed stdout is a failure, and no file of ours takes its place', () => inFolder(async (folder) => {
  const closed = (args) => runProgram('sh', ['-c', 'exec "$0" "$@" >&-', hubProgram, ...args]);
  for (const args of printingCommands(folder)) {
    const run = await closed(args);
    assert.equal(run.code, 1, `${args}: ${run.stderr}`);
    assert.match(said(run), /^moex-hub: stdout: Bad file descriptor; .*\n$/, args.join(' '));
  }
  assert.equal((await runHub(['verify', `${folder}/tiny`])).code, 0);
}));

test('a file beyond its size limit is a failure that names the file', () => inFolder(async (folder) => {
  const out = `${folder}/tiny`;
  const limited = ['-c', 'ulimit -f 1; exec "$0" "$@"', hubProgram, 'synth', '--shape', 'tiny', out];
  const run = await runProgram('sh', limited);
  assert.equal(run.code, 1, run.stderr);
  assert.match(run.stderr, /^moex-hub: .*\/tiny.*: File too large\n$/);
  assert.equal(existsSync(`${out}/manifest.json`), false);

  const again = await runHub(['synth', '--shape', 'tiny', out]);
  assert.equal(again.code, 0, again.stderr);
}));

test('without a terminal nothing is said before the sentence at the end', () => inFolder(async (folder) => {
  writeFileSync(`${folder}/text`, 'The sea was calm and the lighthouse was far away. '.repeat(4));
  const quiet = [
    ['synth', '--shape', 'tiny', `${folder}/tiny`],
    ['verify', `${folder}/tiny`],
    ['eval', '--model', modelFolder, '--text', `${folder}/text`, '--window', '16', '--windows', '2'],
  ];
  for (const args of quiet) {
    const run = await runHub(args);
    assert.equal(run.code, 0, run.stderr);
    assert.equal(said(run), '');
    assert.equal(run.stdout.split('\n').length, 2, run.stdout);
  }

  const asked = await runHub(['verify', modelFolder, '--progress']);
  const lines = asked.stderr.trimEnd().split('\n');
  assert.ok(lines.length > 1 && lines.length <= 11, asked.stderr);
  for (const line of lines) assert.match(line, /^verifying +\d+ % /);
}));

test('the access log has a line for each answer, without queries and keys', () => inFolder(async (folder) => {
  const file = `${folder}/access.log`;
  const hub = await startHub(['--access-log', file]);
  const id = (await fetch(`${hub.url}/health?secret=1`)).headers.get('x-request-id');
  await fetch(`${hub.url}/nowhere`, { headers: { authorization: 'Bearer sk-secret' } });
  assert.equal(await hub.stop(), 0, hub.stderr());

  const text = readFileSync(file, 'utf8');
  const lines = text.trimEnd().split('\n');
  assert.equal(lines.length, 2, text);
  assert.match(lines[0], /^time=\S+Z method=GET target=\/health status=200 bytes=\d+ ms=[\d.]+ end=whole id=\S+ /);
  assert.ok(lines[0].includes(` id=${id} `), lines[0]);
  assert.match(lines[1], / target=\/nowhere status=404 /);
  assert.doesNotMatch(text, /secret/);
}));
