// Writes man pages from the help texts of the programs: moex-hub(1), one page for each command, and moex-worker(1).
//   usage: node scripts/host/man_pages.mjs BIN_DIR OUT_DIR [YYYY-MM-DD]      BIN_DIR holds moex-hub and moex-worker
//   example: node scripts/host/man_pages.mjs build /tmp/man && man /tmp/man/moex-hub-serve.1
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const [binaries, out, day = new Date().toISOString().slice(0, 10)] = process.argv.slice(2);
if (!out) {
  console.error('usage: node scripts/host/man_pages.mjs BIN_DIR OUT_DIR [YYYY-MM-DD]');
  process.exit(2);
}
const said = (program, ...args) => execFileSync(join(binaries, program), args, { encoding: 'utf8' });

// Returns text in the form that roff prints unchanged: escapes and requests at the beginning of a line are disabled,
// and hyphens can be searched and copied.
const roff = (text) => text.replaceAll('\\', '\\e').replaceAll('-', '\\-').replace(/^(?=[.'])/gm, '\\&');
const bold = (text) => `\\fB${roff(text)}\\fR`;

// Returns the parts of a help text: the items of its list, and the paragraphs around the list. An item is
// { name, words }, or { heading } for a line such as "Logs" that begins a group.
function parts(help) {
  const items = [], paragraphs = [], lines = help.split('\n');
  for (const [i, line] of lines.entries()) {
    const [, left, right] = /^ {2}(\S.*?)(?: {2,}(.*))?$/.exec(line) ?? [];
    const [, continued] = /^ {15,}(\S.*)$/.exec(line) ?? [];
    if (continued && items.length) items.at(-1).words = `${items.at(-1).words} ${continued}`.trim();
    else if (continued) paragraphs.push(`${paragraphs.pop() ?? ''} ${continued}`.trim());
    else if (left) items.push({ name: left, words: right ?? '' });
    else if (/^[A-Z]/.test(line) && /^ {2}-/.test(lines[i + 1] ?? '') && !/^options:$/i.test(line))
      items.push({ heading: line });
    else if (line && !/^options:$/i.test(line)) paragraphs.push(line.trim());
  }
  return { items, paragraphs };
}

const list = (items) => items.flatMap(({ heading, name, words }) => (
  heading ? [`.SS ${roff(heading)}`] : ['.TP', bold(name), roff(words)]));
const take = (paragraphs, start) => {
  const found = paragraphs.findIndex((line) => line.toLowerCase().startsWith(start));
  return found < 0 ? '' : paragraphs.splice(found, 1)[0].slice(start.length).trim();
};

function page(title, program, help, { listName = 'OPTIONS', seeAlso, version, files = [] }) {
  const { items, paragraphs } = parts(help);
  const usage = take(paragraphs, 'usage:').replace(/^\S*\/(?=moex-)/, ''), example = take(paragraphs, 'example:');
  let exit = take(paragraphs, 'exit:');
  const [, shown, code] = /^(.*?)\s{2,}exit:\s*(.*)$/.exec(example) ?? [null, example, ''];
  exit ||= code;
  const summary = program ?? paragraphs.shift() ?? '';

  return [
    `.TH ${title.toUpperCase()} 1 ${day} "MoEx ${version}" "User Commands"`,
    '.SH NAME', `${roff(title)} \\- ${roff(summary.replace(/\.$/, ''))}`,
    '.SH SYNOPSIS', bold(usage),
    ...(paragraphs.length ? ['.SH DESCRIPTION', ...paragraphs.flatMap((line) => ['.PP', roff(line)])] : []),
    `.SH ${listName}`, ...list(items),
    ...(exit ? ['.SH EXIT STATUS', roff(exit)] : []),
    ...(shown ? ['.SH EXAMPLES', '.EX', roff(shown), '.EE'] : []),
    ...(files.length ? ['.SH FILES', ...list(files)] : []),
    '.SH SEE ALSO', seeAlso.map((name) => `${bold(name)}(1)`).join(', '), '',
  ].join('\n');
}

mkdirSync(out, { recursive: true });
const version = said('moex-hub', '--version').trim().split(' ').at(-1);
const overview = said('moex-hub', '--help');
const commands = parts(overview).items.map(({ name }) => name);
const write = (title, text) => writeFileSync(join(out, `${title}.1`), text);

write('moex-hub', page('moex-hub', 'serve Mixture-of-Experts models whose experts run in browsers', overview, {
  listName: 'COMMANDS', version,
  files: [
    { name: '/etc/moex/hub.toml', words: 'settings of the service moex-hub' },
    { name: '/var/lib/moex', words: 'its keys, counts and bans' },
    { name: '~/.config/moex/config.toml, ~/.local/state/moex', words: 'the same of a hub that a user starts' },
  ],
  seeAlso: [...commands.map((name) => `moex-hub-${name}`), 'moex-worker'],
}));
for (const name of commands)
  write(`moex-hub-${name}`, page(`moex-hub-${name}`, null, said('moex-hub', name, '--help-all'),
    { version, seeAlso: ['moex-hub'] }));
if (existsSync(join(binaries, 'moex-worker')))
  write('moex-worker', page('moex-worker', "compute experts of a hub on this machine's GPU or processor",
    said('moex-worker', '--help'), { version, seeAlso: ['moex-hub'] }));
