// Runs real agent programs against a hub, without a network beyond loopback. It is not in the suite, because the
// programs are large and have licences of their own. Install them outside the repository, then run it in a network
// namespace of its own:
//   npm install --prefix FOLDER @anthropic-ai/claude-code @qwen-code/qwen-code @openai/codex opencode-ai
//   unshare -n sh -c 'ip link set lo up; node tests/api/live_agents.mjs FOLDER [NAME...]'
// MOEX_HUB is the hub's program. Each program gets the settings that `moex-hub clients` prints, and runs twice:
//   demo    the demo model answers as it likes: every request is answered with 200, and the program ends by itself,
//           with any exit code
//   script  the hub is forced to call the program's tool that reads a file, and then to say a sentence about it. The
//           program reads the file, sends its text back, and prints the sentence.
// A proxy between program and hub writes down each status, and adds the constraints (tool_choice, structured_outputs)
// that force the answers. The package is the demo's with a longer context and a template that has tools.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { createServer, request as httpRequest } from 'node:http';
import { join, resolve } from 'node:path';
import { agentPackage } from './agent_package.mjs';
import { inFolder, runHub, startHub } from './hub_process.mjs';

const sentence = 'The note is about a blue whale.';
const note = 'A blue whale sang at noon.\n';
const prompt = 'Read the file note.txt and say what it is about.';

// What the tool that reads a file is called, and its arguments by its schema.
const readers = /^(Read|read|read_file|exec_command|shell|shell_command)$/;
function argumentsOf(schema, file) {
  const known = schema.properties ?? {};
  for (const name of ['file_path', 'filePath', 'absolute_path', 'path']) if (known[name]) return { [name]: file };
  if (known.cmd) return { cmd: `cat ${file}` };
  return { command: known.command?.type === 'array' ? ['cat', file] : `cat ${file}` };
}
const onlyThese = (values) => ({ type: 'object', additionalProperties: false, required: Object.keys(values),
  properties: Object.fromEntries(Object.entries(values).map(([name, value]) => [name, { const: value }])) });

const dialects = {
  '/v1/messages': {
    schemaOf: (tool) => tool.input_schema ?? {}, nameOf: (tool) => tool.name,
    force: (tool, schema) => ({ ...tool, input_schema: schema }),
    choice: (name) => ({ type: 'tool', name, disable_parallel_tool_use: true }), none: { type: 'none' },
    limits: ['max_tokens'],
    results: (body) => body.messages.flatMap((one) => Array.isArray(one.content) ? one.content : [])
      .filter((block) => block.type === 'tool_result'),
  },
  '/v1/chat/completions': {
    schemaOf: (tool) => tool.function?.parameters ?? {}, nameOf: (tool) => tool.function?.name ?? '',
    force: (tool, schema) => ({ ...tool, function: { ...tool.function, parameters: schema } }),
    choice: (name) => ({ type: 'function', function: { name } }), none: 'none',
    limits: ['max_tokens', 'max_completion_tokens'],
    results: (body) => body.messages.filter((one) => one.role === 'tool'),
  },
  '/v1/responses': {
    schemaOf: (tool) => tool.parameters ?? {}, nameOf: (tool) => tool.type === 'function' ? tool.name : '',
    force: (tool, schema) => ({ ...tool, strict: false, parameters: schema }),
    choice: (name) => ({ type: 'function', name }), none: 'none',
    limits: ['max_output_tokens'],
    results: (body) => [body.input].flat().filter((item) => item?.type === 'function_call_output'),
  },
};

// Returns the body with the constraints that force the next answer of the script.
function scripted(dialect, body, file, seen) {
  const out = { ...body, temperature: 0 };
  const tool = (body.tools ?? []).find((one) => readers.test(dialect.nameOf(one)));
  const results = dialect.results(body);
  seen.results.push(...results.map((one) => JSON.stringify(one)));
  if (tool && results.length === 0) {
    const forced = dialect.force(tool, onlyThese(argumentsOf(dialect.schemaOf(tool), file)));
    out.tools = body.tools.map((one) => one === tool ? forced : one);
    out.tool_choice = dialect.choice(dialect.nameOf(tool));
    if (dialect.none === 'none') out.parallel_tool_calls = false;
    return out;
  }
  if (body.tools?.length) out.tool_choice = dialect.none;
  const hasForm = body.response_format || body.text?.format || body.output_config?.format;
  if (!hasForm) out.structured_outputs = { choice: [tool ? sentence : 'A title'] };
  return out;
}

async function startProxy(hubUrl, file, isScripted, seen) {
  const server = createServer(async (incoming, outgoing) => {
    const pieces = [];
    for await (const piece of incoming) pieces.push(piece);
    let body = Buffer.concat(pieces);
    const path = incoming.url.split('?')[0];
    const dialect = dialects[path];
    if (dialect && incoming.method === 'POST') {
      let given = JSON.parse(body.toString());
      if (isScripted) given = scripted(dialect, given, file, seen);
      // The demo never ends an answer by itself.
      else for (const name of dialect.limits) if (given[name] || name === dialect.limits[0]) given[name] = 12;
      if (isScripted) for (const name of dialect.limits) if (given[name]) given[name] = Math.min(given[name], 4000);
      body = Buffer.from(JSON.stringify(given));
    }
    const headers = { ...incoming.headers, host: new URL(hubUrl).host };
    delete headers['content-length'];
    delete headers['transfer-encoding'];
    if (body.length > 0) headers['content-length'] = body.length;
    const forwarded = httpRequest(hubUrl + incoming.url, { method: incoming.method, headers }, (answer) => {
      const entry = { request: `${incoming.method} ${path}`, status: answer.statusCode, bytes: body.length };
      seen.requests.push(entry);
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.on('data', (piece) => {
        if (answer.statusCode >= 400) entry.answer = (entry.answer ?? '') + piece;
        outgoing.write(piece);
      });
      answer.on('end', () => outgoing.end());
    });
    outgoing.on('close', () => forwarded.destroy());
    forwarded.on('error', () => outgoing.destroy());
    forwarded.end(body);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return { url: `http://127.0.0.1:${server.address().port}`, stop: () => server.close() };
}

// The programs, with the settings that `moex-hub clients NAME` prints.
const agents = {
  'claude-code': (home, url, model) => ({
    program: 'claude', args: ['-p', prompt, '--allowedTools', 'Read'],
    env: { DISABLE_TELEMETRY: '1', DISABLE_ERROR_REPORTING: '1', DISABLE_AUTOUPDATER: '1' },
  }),
  codex: (home, url, model, settings) => {
    mkdirSync(join(home, '.codex'));
    writeFileSync(join(home, '.codex', 'config.toml'), settings.split('\n\n')[0]);
    return { program: 'codex', args: ['exec', '--skip-git-repo-check', '--sandbox', 'danger-full-access', prompt],
      env: { CODEX_HOME: join(home, '.codex') } };
  },
  'qwen-code': (home) => {
    mkdirSync(join(home, '.qwen'));
    writeFileSync(join(home, '.qwen', 'settings.json'), JSON.stringify(
      { telemetry: { enabled: false }, privacy: { usageStatisticsEnabled: false } }));
    return { program: 'qwen', args: ['--auth-type', 'openai', '-y', '-p', prompt], env: {} };
  },
  opencode: (home, url, model, settings) => {
    writeFileSync(join(home, 'opencode.json'), settings.replace(/^#.*\n/gm, ''));
    return { program: 'opencode', args: ['run', prompt], env: { OPENCODE_DISABLE_AUTOUPDATE: '1' } };
  },
};

// Returns the variables of the lines `export NAME=VALUE ...`.
function exportsOf(settings) {
  const found = {};
  for (const line of settings.split('\n').filter((one) => one.startsWith('export ')))
    for (const pair of line.slice(7).split(' ')) found[pair.split('=')[0]] = pair.slice(pair.indexOf('=') + 1);
  return found;
}

// A prompt of 25,000 tokens takes minutes on a loaded machine with two cores.
const agent_ms = 1_200_000;

function runAgent({ program, args, env }, folder, home) {
  return new Promise((done) => {
    const child = spawn(join(folder, 'node_modules', '.bin', program), args, {
      cwd: home, stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env.PATH, HOME: home, TERM: 'dumb', NO_COLOR: '1', ...env },
    });
    let output = '';
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text) => { output += text; });
    const timer = setTimeout(() => child.kill('SIGKILL'), agent_ms);
    child.on('error', (error) => { output += error.message; });
    child.on('close', (code, signal) => { clearTimeout(timer); done({ code: code ?? signal, output }); });
  });
}

const [folder, ...wanted] = process.argv.slice(2);
if (!folder || !existsSync(join(folder, 'node_modules'))) {
  console.error('usage: node tests/api/live_agents.mjs FOLDER [NAME...]; FOLDER has the programs in node_modules');
  process.exit(2);
}
const names = wanted.length ? wanted : Object.keys(agents);
let failures = 0;
await inFolder(async (scratch) => {
  const model = agentPackage(join(scratch, 'model'));
  const hub = await startHub(['--backend', 'local', '--log-level', 'warn'], {}, model);
  for (const name of names)
    for (const mode of ['demo', 'script']) {
      const home = join(scratch, `${name}-${mode}`);
      mkdirSync(home);
      const file = join(home, 'note.txt');
      writeFileSync(file, note);
      const seen = { requests: [], results: [] };
      const proxy = await startProxy(hub.url, file, mode === 'script', seen);
      const settings = (await runHub(['clients', name, '--url', proxy.url])).stdout;
      const agent = agents[name](home, proxy.url, model, settings);
      agent.env = { ...exportsOf(settings), ...agent.env };
      seen.requests = [];
      const { code, output } = await runAgent(agent, folder, home);
      proxy.stop();
      const isServed = seen.requests.length > 0 && seen.requests.every((one) => one.status === 200);
      const isRead = seen.results.some((one) => one.includes('blue whale sang'));
      // Some programs end with an error when the demo's text reaches the limit of tokens.
      const hasEnded = typeof code === 'number';       // otherwise the name of the signal that killed it
      const isDone = code === 0 && isRead && output.includes(sentence);
      const isRight = isServed && (mode === 'demo' ? hasEnded : isDone);
      failures += isRight ? 0 : 1;
      console.log(`${isRight ? 'ok  ' : 'FAIL'} ${name} ${mode}: exit ${code}, ${seen.requests.length} requests`);
      if (isRight) continue;
      for (const one of seen.requests) console.log(`     ${JSON.stringify(one).slice(0, 600)}`);
      console.log(`     tool results: ${seen.results.join(' ').slice(0, 500)}\n     output: ${output.slice(-1500)}`);
    }
  await hub.stop();
});
process.exit(failures ? 1 : 0);
