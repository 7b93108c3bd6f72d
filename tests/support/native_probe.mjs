// Sends requests to the program text_probe and reads its answers, one JSON line each. Answers arrive in the order of
// the requests.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

export class NativeProbe {
  constructor(program) {
    this.child = spawn(program, [], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.waiting = [];
    createInterface({ input: this.child.stdout }).on('line', (line) => this.waiting.shift().resolve(JSON.parse(line)));
    this.child.on('exit', (code, signal) => {
      for (const { reject } of this.waiting.splice(0)) reject(new Error(`text_probe ended: ${code ?? signal}`));
    });
  }
  ask(request) {
    return new Promise((resolve, reject) => {
      this.waiting.push({ resolve, reject });
      this.child.stdin.write(JSON.stringify(request) + '\n');
    });
  }
  close() {
    this.child.stdin.end();
  }
}

// A small random generator with a seed, so that every run can be repeated (mulberry32's recurrence).
export function seeded(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const below = (n) => Math.floor(next() * n);
  return { next, below, pick: (list) => list[below(list.length)] };
}

export function parse_arguments(argv) {
  const options = {};
  for (let i = 2; i < argv.length; i += 2) options[argv[i].replace(/^--/, '')] = argv[i + 1];
  return options;
}
