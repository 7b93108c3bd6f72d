// Tests of moex-hub chat through a pseudo-terminal, as a person uses it, and through a pipe, as a script does.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { cleanEnvironment, hubProgram, inFolder, modelFolder, postJson, runHub, startHub } from './hub_process.mjs';

const greedy = ['--temperature', '0', '--deterministic'];
const story = 'Tell me a story about a lighthouse';

// Runs the program behind a pipe with `input` on stdin.
async function piped(args, input) {
  const child = spawn(hubProgram, ['chat', ...args], { env: cleanEnvironment(), stdio: ['pipe', 'pipe', 'pipe'] });
  let stdout = '', stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text) => { stdout += text; });
  child.stderr.setEncoding('utf8').on('data', (text) => { stderr += text; });
  child.stdin.end(input);
  const [code] = await once(child, 'close');
  return { code, stdout, stderr };
}

// Runs the program on a terminal of its own, which script(1) makes. send() types, shows() waits for words. The shell of
// script(1) becomes the program: a shell that waits for the program (dash) would get Ctrl-C, too, and exit with 130.
function onTerminal(args) {
  const words = [hubProgram, 'chat', ...args].map((word) => `'${word}'`).join(' ');
  const child = spawn('script', ['-qfec', `exec ${words}`, '/dev/null'], { env: cleanEnvironment({ TERM: 'dumb' }) });
  let screen = '', at = 0;
  child.stdout.setEncoding('utf8').on('data', (text) => { screen += text; child.emit('screen'); });
  const ended = once(child, 'close').then(([code]) => code);
  return {
    send: (text) => child.stdin.write(text),
    // Resolves once `pattern` is shown behind what an earlier call has found.
    shows: async (pattern) => {
      for (;;) {
        const found = pattern.exec(screen.slice(at));
        if (found) { at += found.index + found[0].length; return found; }
        const deadline = AbortSignal.timeout(60_000);
        await Promise.race([once(child, 'screen', { signal: deadline }), ended]).catch(() => {});
        if (pattern.test(screen.slice(at))) continue;
        if (deadline.aborted || child.exitCode !== null) {
          child.kill();
          throw new Error(`the terminal does not show ${pattern}:\n${screen}`);
        }
      }
    },
    screen: () => screen, ended,
  };
}

// Asks a hub the same conversation over its API.
async function overApi(hub, messages, maxTokens) {
  const answer = await postJson(`${hub.api}/chat/completions`,
    { model: 'moex-demo', messages, max_tokens: maxTokens, temperature: 0 });
  assert.equal(answer.status, 200, await answer.clone().text());
  return (await answer.json()).choices[0].message.content;
}

test('a package and a hub give the same answers, turn by turn, as the API', async () => {
  const hub = await startHub(['--backend', 'local', '--deterministic']);
  try {
    const messages = [{ role: 'system', content: 'You are old.' }, { role: 'user', content: story }];
    const first = await overApi(hub, messages, 16);
    messages.push({ role: 'assistant', content: first }, { role: 'user', content: 'Go on.' });
    const second = await overApi(hub, messages, 16);
    const input = `/system You are old.\n${story}\nGo on.\n`;

    for (const source of [['--model', modelFolder], ['--url', hub.url]]) {
      const more = source[0] === '--model' ? greedy : greedy.slice(0, 2);
      const run = await piped([...source, ...more, '--max-tokens', '16'], input);
      assert.equal(run.code, 0, run.stderr);
      assert.equal(run.stdout, `${first}\n${second}\n`, source[0]);
      assert.equal(run.stderr, 'the system message is set\n');
    }
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
});

test('on a terminal answers stream, Ctrl-C stops one, and the chat goes on', () => inFolder(async (folder) => {
  const chat = onTerminal(['--model', modelFolder, ...greedy, '--max-tokens', '100000']);
  await chat.shows(/\/help lists the commands/);
  await chat.shows(/> /);
  chat.send(`${story}\n`);
  await chat.shows(/lighthouse\r\n[\s\S]{40}/);
  chat.send('\x03');
  const [, tokens] = await chat.shows(/\((\d+) tokens, [\d.]+ a second, stopped\)/);
  assert.ok(Number(tokens) > 5);

  chat.send('/history\n');
  await chat.shows(/user: Tell me a story about a lighthouse\r\nassistant: /);
  chat.send(`/save ${folder}/chat.json\n`);
  await chat.shows(/saved 2 messages/);
  chat.send(`/save ${folder}/chat.json\n`);
  await chat.shows(/File exists/);
  chat.send('/new\n/history\n');
  await chat.shows(/the conversation is empty/);
  chat.send('/wrong\n');
  await chat.shows(/there is no command \/wrong/);
  chat.send('/help\n');
  await chat.shows(/\/save FILE/);
  chat.send('/quit\n');
  assert.equal(await chat.ended, 0);

  const saved = JSON.parse(readFileSync(`${folder}/chat.json`, 'utf8'));
  assert.equal(saved.model, 'moex-demo');
  assert.deepEqual(saved.messages.map(({ role }) => role), ['user', 'assistant']);
  assert.ok(saved.messages[1].content.length > 20);
}));

test('a second Ctrl-C ends the chat, during an answer and at the prompt', async () => {
  const atPrompt = onTerminal(['--model', modelFolder, ...greedy]);
  await atPrompt.shows(/> /);
  atPrompt.send('\x03');
  await atPrompt.shows(/Ctrl-C again, Ctrl-D or \/quit ends the chat/);
  atPrompt.send('\x03');
  assert.equal(await atPrompt.ended, 130);

  // The server never ends its answer.
  let isLeft;
  const left = new Promise((resolve) => { isLeft = resolve; });
  const server = createServer((request, response) => {
    if (request.url === '/v1/models') { response.end('{"data": [{"id": "slow"}]}'); return; }
    response.on('close', isLeft);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: {"choices": [{"delta": {"content": "it begins"}}]}\n\n');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const chat = onTerminal(['--url', `http://127.0.0.1:${server.address().port}`]);
  await chat.shows(/slow; /);
  chat.send('hello\n');
  await chat.shows(/it begins/);
  chat.send('\x03');
  await chat.shows(/stopped\)/);
  await left;
  chat.send('\x03');
  assert.equal(await chat.ended, 130);
  server.closeAllConnections();
  server.close();
});

test('a message may have several lines, and Ctrl-D ends the chat', async () => {
  const hub = await startHub(['--backend', 'local']);
  try {
    const chat = onTerminal(['--url', hub.url, '--max-tokens', '16', '--temperature', '0']);
    await chat.shows(/moex-demo; /);
    chat.send(`${story}\\\n`);
    await chat.shows(/\| /);
    chat.send('by the sea\n');
    await chat.shows(/\(\d+ tokens, [\d.]+ a second, cut at the limit\)/);
    chat.send('/history\n');
    await chat.shows(/user: Tell me a story about a lighthouse\r\nby the sea\r\nassistant: /);
    chat.send('\x04');
    assert.equal(await chat.ended, 0);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
});

test('keys and errors of a hub arrive as sentences', () => inFolder(async (folder) => {
  const environment = { MOEX_API_KEY: 'mxk_test_key_of_the_chat_test' };
  const hub = await startHub(['--backend', 'local', '--require-key'], environment);
  try {
    const without = await piped(['--url', hub.url], 'hello\n');
    assert.equal(without.code, 1);
    assert.match(without.stderr, /answers 401.*--key-file names a key/);
    writeFileSync(`${folder}/key`, 'mxk_test_key_of_the_chat_test\n');
    const run = await piped(['--url', hub.url, '--key-file', `${folder}/key`, '--max-tokens', '4'], `${story}\n`);
    assert.equal(run.code, 0, run.stderr);
    assert.ok(run.stdout.trim().length > 0);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }

  const refused = [
    [['--url', 'http://example.invalid'], 1, /plain http is for this machine alone.*--insecure-http/],
    [['--url', 'http://127.0.0.1:1'], 1, /127\.0\.0\.1:1/],
    [['--url', 'http://127.0.0.1:1', '--model', modelFolder], 2, /either --model DIR or --url URL/],
    [['--ca', 'x'], 2, /--ca is for --url/],
    [['--model', folder], 1, /manifest\.json/],
  ];
  for (const [args, code, sentence] of refused) {
    const run = await runHub(['chat', ...args]);
    assert.equal(run.code, code, run.stderr);
    assert.match(run.stderr, sentence);
  }
}));

test('a hub behind TLS is asked with its certificate, and without it refused', () => inFolder(async (folder) => {
  assert.equal((await runHub(['cert', '--out', folder])).code, 0);
  const [cert, key] = [`${folder}/cert.pem`, `${folder}/key.pem`];
  const hub = await startHub(['--backend', 'local', '--tls-cert', cert, '--tls-key', key]);
  try {
    const url = `https://localhost:${new URL(hub.url).port}`;
    const refused = await piped(['--url', url], 'hello\n');
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, /certificate/);
    const run = await piped(['--url', url, '--ca', cert, '--max-tokens', '4'], `${story}\n`);
    assert.equal(run.code, 0, run.stderr);
    assert.ok(run.stdout.trim().length > 0);
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
}));

test('a broken or hostile hub ends an answer in a sentence', async () => {
  let answer = '';
  const server = createServer((request, response) => {
    if (request.url === '/v1/models') { response.end('{"data": [{"id": "m"}]}'); return; }
    response.end(answer);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = `http://127.0.0.1:${server.address().port}`;
  const event = (content) => `data: ${JSON.stringify({ choices: [{ delta: { content } }] })}\n\n`;
  try {
    const cases = [
      ['', /ended before its last event/],
      [event('half'), /ended before its last event/],
      ['data: {"error": {"message": "the experts are gone"}}\n\n', /the experts are gone/],
      ['data: not json\n\n', /not JSON/],
      ['data: []\n\n', /is no object/],
      ['x'.repeat(2 << 20), /ended before its last event/],
    ];
    for (const [body, sentence] of cases) {
      answer = body;
      const run = await piped(['--url', url], 'hello\n');
      assert.equal(run.code, 1, run.stderr);
      assert.match(run.stderr, sentence);
    }

    // Escape sequences of a model do not reach the terminal; a pipe gets them unchanged.
    const hostile = 'a\u001b]0;title\u0007b\u009bc\u00c4\td';
    answer = `${event(hostile)}data: [DONE]\n\n`;
    assert.equal((await piped(['--url', url], 'hello\n')).stdout, `${hostile}\n`);
    const chat = onTerminal(['--url', url]);
    await chat.shows(/m; /);
    chat.send('hello\n');
    await chat.shows(/a\]0;titlebc\u00c4\s+d/);
    chat.send('/quit\n');
    await chat.ended;
    assert.ok(!chat.screen().includes('\u001b'), JSON.stringify(chat.screen()));
    assert.ok(!existsSync('typescript'));
  } finally { server.closeAllConnections(); server.close(); }
});
