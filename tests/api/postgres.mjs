// A PostgreSQL server for one story: Debian's programs, without privileges, in a temporary folder, on a local socket
// there. It ends with the process of the story.
import { spawn } from 'node:child_process';
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// Debian 12 has version 15, Ubuntu 24.04 has version 16.
const versions = '/usr/lib/postgresql';
const found = existsSync(versions) ? readdirSync(versions) : [];
const version = found.filter((name) => Number(name) >= 15).sort().at(-1);
const programs = join(versions, version ?? 'none', 'bin');
export const postgresIsInstalled = () => existsSync(join(programs, 'initdb'));

// PostgreSQL does not run as root, so root starts it as `nobody`.
const nobody = 65534;
const asUser = process.getuid() === 0 ? [`--reuid=${nobody}`, `--regid=${nobody}`, '--clear-groups'] : [];
const unprivileged = (folder, program, args) => spawn(
  'setpriv', ['--pdeathsig', 'QUIT', ...asUser, join(programs, program), ...args],
  { cwd: folder, env: { PATH: process.env.PATH, LC_ALL: 'C' }, stdio: ['ignore', 'pipe', 'pipe'] },
);

const endOf = (child) => new Promise((resolve) => { child.on('close', resolve); });

// Resolves once the server accepts connections, to { url, start, stop, query, remove }. stop() ends it as a loss of
// power does. query(sql) resolves to the first value of the answer.
export async function startPostgres() {
  const folder = mkdtempSync(join(tmpdir(), 'moex-postgres-'));
  if (asUser.length > 0) chownSync(folder, nobody, nobody);
  const data = join(folder, 'data');
  const maker = unprivileged(folder, 'initdb',
    ['-D', data, '-U', 'moex', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync']);
  let log = '';
  for (const stream of [maker.stdout, maker.stderr]) stream.setEncoding('utf8').on('data', (text) => { log += text; });
  const code = await endOf(maker);
  if (code !== 0) throw new Error(`initdb ended with ${code}:\n${log}`);

  let server, ended;
  const start = () => new Promise((resolve, reject) => {
    server = unprivileged(folder, 'postgres',
      ['-D', data, '-k', folder, '-c', 'listen_addresses=', '-c', 'fsync=off', '-c', 'max_connections=40']);
    ended = endOf(server);
    let said = '';
    server.stdout.resume();
    server.stderr.setEncoding('utf8').on('data', (text) => {
      said += text;
      if (said.includes('ready to accept connections')) resolve();
    });
    ended.then((end) => reject(new Error(`postgres ended with ${end}:\n${said}`)));
  });
  const stop = async () => { server.kill('SIGQUIT'); await ended; };
  await start();
  return {
    url: `postgresql://moex@${encodeURIComponent(folder)}/postgres`,
    folder,
    start,
    stop,
    query: (sql) => new Promise((resolve, reject) => {
      const child = unprivileged(folder, 'psql', ['-h', folder, '-U', 'moex', '-Atqc', sql, 'postgres']);
      let out = '';
      const hear = (text) => { out += text; };
      for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', hear);
      endOf(child).then((end) => (end === 0 ? resolve(out.trim()) : reject(new Error(out))));
    }),
    remove: async () => { await stop(); rmSync(folder, { recursive: true, force: true }); },
  };
}
