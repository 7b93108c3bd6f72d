// Runs a real `moex-hub front` as a process, on a free port.
import { spawn } from 'node:child_process';
import { cleanEnvironment, hubProgram } from './hub_process.mjs';

// Resolves to { url, pid, ended, stderr, kill, stop } once the front is ready.
export function startFront(args) {
  const listen = args.includes('--listen') ? [] : ['--listen', '127.0.0.1:0'];
  const child = spawn(hubProgram, ['front', ...listen, ...args],
    { env: cleanEnvironment(), stdio: ['ignore', 'pipe', 'pipe'] });
  let stdout = '', stderr = '';
  const ended = new Promise((resolve) => child.on('close', (code, signal) => resolve(code ?? signal)));
  child.stderr.setEncoding('utf8').on('data', (text) => { stderr += text; });
  return new Promise((resolve, reject) => {
    ended.then((code) => reject(new Error(`the front ended with ${code}:\n${stderr}`)));
    child.stdout.setEncoding('utf8').on('data', (text) => {
      stdout += text;
      const found = /ready: url=(\S+)/.exec(stdout);
      if (found) {
        resolve({
          url: found[1], pid: child.pid, ended, stderr: () => stderr,
          kill: () => { child.kill('SIGKILL'); return ended; },
          stop: () => { child.kill('SIGTERM'); return ended; },
        });
      }
    });
  });
}
