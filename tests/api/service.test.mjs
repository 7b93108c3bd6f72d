// Tests of the hub as a service: its units, its settings, its manual, and a chat under the unit's limits if systemd is
// not process 1. scripts/check_package.sh tests the same with the package in a bare root.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { chmodSync, existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { hubProgram, inFolder, modelFolder, postJson, runHub, startHub } from './hub_process.mjs';

const root = join(dirname(fileURLToPath(import.meta.url)), '../..'), host = join(root, 'scripts/host');
const launcher = process.env.MOEX_UNIT_LAUNCHER ?? 'build/tests/support/unit_launcher';
const unitText = (name) => readFileSync(join(host, `${name}.service`), 'utf8');
const has = (program, ...args) => !spawnSync(program, args).error;
const systemd = has('systemd-analyze', '--version') ? false : 'systemd-analyze is not here';

// Returns a systemd unit that runs the programs of the build folder and does not read the settings in /etc.
const local = (name) => unitText(name).replaceAll('/usr/bin/', `${dirname(hubProgram)}/`)
  .replace(' --config /etc/moex/hub.toml', '');

const parses = 'units name options that systemd knows, and programs that are there';
test(parses, { skip: systemd }, () => inFolder((folder) => {
  const units = ['moex-hub', 'moex-worker'].filter((name) => existsSync(join(dirname(hubProgram), name)));
  for (const name of units) {
    writeFileSync(join(folder, `${name}.service`), local(name));
    const run = spawnSync('systemd-analyze', ['verify', '--man=no', join(folder, `${name}.service`)],
      { encoding: 'utf8' });
    const said = run.stderr.split('\n').filter((line) => line.includes(`${name}.service`)).join('\n');
    assert.equal(said, '');
    assert.equal(run.status, 0, run.stderr);
  }
}));

test("the hub's unit is exposed to 2.0 at most", { skip: systemd }, (t) => {
  const level = (name) => {
    const unit = join(host, `${name}.service`);
    const run = spawnSync('systemd-analyze', ['security', '--offline=true', '--no-pager', unit],
      { encoding: 'utf8', env: { ...process.env, LC_ALL: 'C.UTF-8' } });
    const [, found] = /exposure level for \S+: ([0-9.]+)/.exec(run.stdout) ?? assert.fail(run.stdout + run.stderr);
    t.diagnostic(`${name}.service: ${found}`);
    return Number(found);
  };
  assert.ok(level('moex-hub') <= 2.0);
  level('moex-worker');
});

test("the sample settings are read, those that stand behind a '#', too", () => inFolder(async (folder) => {
  const sample = readFileSync(join(host, 'hub.toml'), 'utf8'), file = join(folder, 'hub.toml');
  const print = async (text) => {
    writeFileSync(file, text);
    const run = await runHub(['serve', '--config', file, '--print-config']);
    assert.equal(run.code, 0, run.stderr);
    return run.stdout;
  };
  assert.match(await print(sample), /^state = "\/var\/lib\/moex" /m);
  const all = await print(sample.replace(/^listen = .*$/m, '').replace(/^# (?=\w+ = )/gm, ''));
  assert.match(all, /^listen = "0\.0\.0\.0:8443" /m);
}));

const groff = has('groff', '-v') ? false : 'groff is not here';
test('groff renders every page without a warning', { skip: groff }, () => inFolder((folder) => {
  const made = spawnSync(process.execPath, [join(host, 'man_pages.mjs'), dirname(hubProgram), folder, '2026-01-01'],
    { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  const pages = readdirSync(folder);
  for (const name of ['moex-hub', 'moex-hub-serve', 'moex-hub-completion']) assert.ok(pages.includes(`${name}.1`));

  const files = pages.map((page) => join(folder, page));
  const shown = spawnSync('groff', ['-K', 'utf8', '-ww', '-man', '-Tutf8', '-P-c', ...files],
    { encoding: 'utf8', maxBuffer: 1 << 26 });
  assert.equal(shown.stderr, '');
  assert.equal(shown.status, 0);
  const heading = 'SYNOPSIS'.replace(/./g, '$&\b$&');
  assert.equal(shown.stdout.split(heading).length - 1, pages.length);
}));

test('every metric of the Grafana board and the alert rules is one of /metrics', async () => {
  const board = readFileSync(join(host, 'grafana.json'), 'utf8');
  const rules = readFileSync(join(host, 'alerts.yml'), 'utf8');
  const hub = await startHub(['--backend', 'local', '--threads', '1']);
  let metrics;
  try {
    await (await fetch(`${hub.url}/health`)).text();   // creates the first sample of moex_http_responses_total
    metrics = await (await fetch(`${hub.url}/metrics`)).text();
  } finally { await hub.stop(); }
  const known = new Map();   // keyed by sample name: the names of its labels
  for (const [, name, labels = ''] of metrics.matchAll(/^(moex_\w+)(?:\{(.*)\})? /gm))
    known.set(name, [...(known.get(name) ?? []), ...[...labels.matchAll(/(\w+)="/g)].map(([, label]) => label)]);

  for (const [file, text] of Object.entries({ 'grafana.json': board, 'alerts.yml': rules })) {
    const named = [...text.replaceAll('\\"', '"').matchAll(/\b(moex_\w+)(?:\{([^}]*)\})?/g)];
    assert.ok(named.length > 8, file);
    for (const [, name, labels = ''] of named) {
      assert.ok(known.has(name), `${file}: ${name}`);
      for (const [, label] of labels.matchAll(/(\w+)(?:=|!)/g))
        assert.ok(label === 'instance' || known.get(name).includes(label), `${file}: ${name}{${label}}`);
    }
  }
  assert.equal(JSON.parse(board).panels.every(({ targets }) => targets.length > 0), true);

  const checked = spawnSync('promtool', ['check', 'rules', join(host, 'alerts.yml')], { encoding: 'utf8' });
  if (!checked.error) assert.equal(checked.status, 0, checked.stdout + checked.stderr);
});

// Texts that PCRE2 splits. Outside the systemd unit PCRE2 compiles its patterns at run time (JIT); inside the unit it
// uses its interpreter.
const texts = [
  ...["a", " ", "\n", "!", "é", "7", "😀", "a\u0301", "\t \n", " \n\t a1!"].map((piece) => piece.repeat(3000) + 'x'),
  "Don't stop: the queen's 12345 ships, they'll sail…\r\n\r\n  ".repeat(200),
];
async function tokensOf(url) {
  const all = [];
  for (const content of texts) all.push((await (await postJson(`${url}/tokenize`, { content })).json()).tokens);
  return all;
}

const story = 'under its unit the hub says that it serves, chats, and finds the same tokens without a compiler';
const noLauncher = existsSync(launcher) ? false : 'the launcher is built on x86-64 only';
test(story, { skip: noLauncher }, async (t) => inFolder(async (folder) => {
  chmodSync(folder, 0o755);
  const unit = join(folder, 'moex-hub.service'), state = join(folder, 'state');
  writeFileSync(unit, local('moex-hub'));
  const child = spawn(launcher, ['--groups', join(root, 'tests/support/syscall_groups.txt'), '--program', hubProgram,
    '--state', state, '--kill', unit, '--config', '/dev/null', '--model', modelFolder, '--state', state,
    '--listen', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  const heard = [];
  const hear = (text) => { said += text; for (const look of heard) look(); };
  child.stdout.setEncoding('utf8').on('data', hear);
  child.stderr.setEncoding('utf8').on('data', hear);
  const ended = new Promise((resolve) => child.on('close', (code, signal) => resolve(code ?? signal)));
  const saying = (words) => new Promise((resolve, reject) => {
    const look = () => { const found = words.exec(said); if (found) resolve(found); };
    heard.push(look);
    look();
    ended.then((code) => reject(new Error(`ended with ${code} before ${words}:\n${said}`)));
  });

  try {
    const [, url] = await saying(/^ready: url=(\S+)/m);
    await saying(/^notify: READY=1$/m);
    await saying(/^notify: WATCHDOG=1$/m);
    t.diagnostic(/^launcher: user.*/m.exec(said)[0]);
    const answer = await postJson(`${url}/v1/chat/completions`,
      { model: 'moex-demo', messages: [{ role: 'user', content: 'Tell me a story.' }], max_tokens: 8 });
    assert.equal(answer.status, 200);
    assert.equal((await answer.json()).usage.completion_tokens, 8);

    const outside = await startHub(['--backend', 'local', '--threads', '1']);
    try {
      assert.deepEqual(await tokensOf(url), await tokensOf(outside.url));
    } finally { await outside.stop(); }

    child.kill('SIGTERM');
    assert.equal(await ended, 0, said);
    assert.match(said, /^notify: STOPPING=1$/m);
  } catch (error) {
    if (await Promise.race([ended, null]) === 77) return t.skip(said.trim());
    throw error;
  } finally { child.kill('SIGKILL'); }
}));
