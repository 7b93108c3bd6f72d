// Tests of the shipped programs' hardening, as the loader sees it.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';

const programs = (process.env.MOEX_PROGRAMS ?? 'build/moex-hub:build/moex-worker').split(':');
const readelf = (program, ...flags) => execFileSync('readelf', ['-W', ...flags, program], {
  encoding: 'utf8', maxBuffer: 1 << 28, env: { ...process.env, LC_ALL: 'C' },
});

for (const program of programs) {
  test(`${program} is hardened`, () => {
    const dynamic = readelf(program, '-d');
    const segments = readelf(program, '-l');
    const symbols = readelf(program, '--dyn-syms');

    assert.match(dynamic, /\(FLAGS\).*BIND_NOW/, 'symbols are bound at the start');
    assert.match(dynamic, /\(FLAGS_1\).*NOW.*PIE/, 'position-independent');
    assert.match(segments, /GNU_RELRO/, 'and their table is read-only then');
    assert.match(segments, /GNU_STACK.* RW /, 'the stack is not executable');
    assert.match(symbols, /__stack_chk_fail/, 'stack protector');

    if (process.env.MOEX_FORTIFY === 'OFF') return;
    assert.match(symbols, /__(mem|str|snprintf|vsnprintf|fprintf|printf|read|fread)\w*_chk/, 'fortified calls');
  });
}
