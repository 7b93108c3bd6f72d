// Runs a real moex-hub as a process: on a free port, with a separate state folder, stopped by a signal.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const hubProgram = process.env.MOEX_HUB ?? 'build/moex-hub';
export const modelFolder = process.env.MOEX_MODEL ?? 'static/models/demo';

// The processes of hubs that have not ended.
const running = new Set();

export function temporaryFolder() {
  const path = mkdtempSync(join(tmpdir(), 'moex-api-'));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

// Calls the function `story` with the path of a temporary folder, and removes the folder afterwards. Hubs that a story
// leaves behind when it fails are killed: they would keep this process from ending.
export async function inFolder(story) {
  const folder = temporaryFolder(), before = new Set(running);
  try { await story(folder.path); } finally {
    for (const hub of running) if (!before.has(hub)) hub.kill('SIGKILL');
    folder.remove();
  }
}

// Returns the environment variables without the caller's settings of the hub.
export function cleanEnvironment(extra = {}) {
  const env = { ...process.env, MOEX_CONFIG: '/dev/null', ...extra };
  const inherited = (name) => name.startsWith('MOEX_') && name !== 'MOEX_CONFIG' && !(name in extra);
  for (const name of Object.keys(env).filter(inherited)) delete env[name];
  return env;
}

// Runs a program to its end and returns { code, stdout, stderr }. `code` is the name of the signal if one ended it.
export function runProgram(program, args, options = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'pipe'], ...options,
    });
    let stdout = '', stderr = '';
    child.stdout?.setEncoding('utf8').on('data', (text) => { stdout += text; });
    child.stderr?.setEncoding('utf8').on('data', (text) => { stderr += text; });
    child.on('error', reject);
    child.on('close', (code, signal) => resolve({ code: code ?? signal, stdout, stderr }));
  });
}

// `stdio` has the meaning of Node's spawn.
export const runHub = (args, extra = {}, stdio = ['ignore', 'pipe', 'pipe']) =>
  runProgram(hubProgram, args, { env: cleanEnvironment(extra), stdio });

// Sends a POST of JSON, with `key` as Bearer if it is given.
export function postJson(url, body, key) {
  const headers = { 'content-type': 'application/json', ...(key ? { authorization: `Bearer ${key}` } : {}) };
  return fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
}

// Starts a hub that serves until stop(); resolves once the hub prints its `ready:` line. Without --state in `args` it
// has a state folder of its own, which is removed when it ends. Workers are always asked, unless `args` name
// --use-workers.
export function startHub(args = [], extra = {}, model = modelFolder, program = hubProgram) {
  const state = args.includes('--state') ? { path: '', remove: () => {} } : temporaryFolder();
  const own = ['serve', '--model', model, ...(args.includes('--listen') ? [] : ['--listen', '127.0.0.1:0']),
    ...(state.path ? ['--state', state.path] : [])];
  const child = spawn(program, [...own, ...args], {
    env: cleanEnvironment({ MOEX_USE_WORKERS: 'always', MOEX_SPANS: 'off', ...extra }),
    stdio: ['ignore', 'pipe', 'pipe'],
  });

  running.add(child);
  let stdout = '', stderr = '';
  const ended = new Promise((resolve) => child.on('close', (code, signal) => {
    running.delete(child);
    state.remove();
    resolve(code ?? signal);
  }));
  child.stderr.setEncoding('utf8').on('data', (text) => { stderr += text; });

  // Resolves once the log contains `words`; rejects if the hub ends before that.
  const logged = (words) => new Promise((resolve, reject) => {
    const look = () => {
      if (!stderr.includes(words)) return;
      child.stderr.off('data', look);
      resolve();
    };
    child.stderr.on('data', look);
    ended.then(() => reject(new Error(`moex-hub ended without "${words}":\n${stderr}`)));
    look();
  });

  return new Promise((resolve, reject) => {
    child.on('error', reject);
    ended.then((code) => reject(new Error(`moex-hub ended with ${code} before it was ready:\n${stderr}`)));
    child.stdout.setEncoding('utf8').on('data', (text) => {
      stdout += text;
      const ready = /^ready: url=(\S+) join=(\S+) api=(\S+)$/m.exec(stdout);
      if (!ready) return;

      resolve({
        url: ready[1], join: ready[2], api: ready[3], pid: child.pid,
        stdout: () => stdout, stderr: () => stderr, logged, ended,
        signal: (name) => child.kill(name),
        stop: async () => { child.kill('SIGTERM'); return ended; },
      });
    });
  });
}
