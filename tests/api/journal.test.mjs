// Streams that outlive their hub: hubs with a fleet key and a front before them, real processes and a real PostgreSQL.
// Hubs are killed while streams run, and no client of the front sees more than a pause.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { chmodSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { connect } from 'node:net';
import { test } from 'node:test';
import { knownAt, makeKey, question, secret, startFleet, stream, until } from './fleet_process.mjs';
import { startFront } from './front_process.mjs';
import { inFolder, postJson, runHub } from './hub_process.mjs';
import { postgresIsInstalled } from './postgres.mjs';

// The limit ends a story that waits for ever. The stories take 30 s in all on two free cores, and ten times as long
// where other programs leave them a twentieth of a core.
const how = { skip: postgresIsInstalled() ? false : 'SKIPPED: no postgresql-15', timeout: 300_000 };

// Shortly before the limit of a story is over, this prints the progress of its processes and streams and ends its hubs.
// A story that waits for a hub then ends, too. `run` and `wait` are times of the scheduler in ms: they show whether a
// hub lost an event or got no processor. `front()` returns the front, if there is one.
function explainTimeout(context, fleet, streams, front) {
  const timer = setTimeout(async () => {
    for (const { pid, stderr } of fleet.hubs) {
      const threads = existsSync(`/proc/${pid}/task`) ? readdirSync(`/proc/${pid}/task`) : [];
      const times = threads.map((id) => readFileSync(`/proc/${pid}/task/${id}/schedstat`, 'utf8').split(' '));
      const sum = (column) => Math.round(times.reduce((all, one) => all + Number(one[column]), 0) / 1e6);
      console.error(`hub ${pid}: run ${sum(0)} ms, wait ${sum(1)} ms; ${lastLines(stderr())}`);
    }
    for (const [i, one] of streams.entries())
      console.error(`stream ${i}: ${one.events} events, whole ${one.whole}, ${JSON.stringify(one.error)}`);
    console.error(`front: ${lastLines(front()?.stderr() ?? '')}`);
    for (const hub of fleet.hubs) {
      const status = fetch(`${hub.url}/api/status`, { signal: AbortSignal.timeout(2000) });
      console.error(await status.then(async (one) => JSON.stringify((await one.json()).engine), String));
      hub.signal('SIGKILL');
    }
    await front()?.kill();
  }, how.timeout - 10_000);
  context.after(() => clearTimeout(timer));
}
const lastLines = (text) => text.trimEnd().split('\n').slice(-4).join(' | ');

// Reads a stream of lines of JSON, as Ollama has them, to its end.
function lines(url, body, onLine = () => {}) {
  return new Promise((resolve) => {
    const out = { text: '', lines: 0, pieces: 0, whole: false, error: null };
    const call = request(url, { method: 'POST', headers: { 'content-type': 'application/json' } }, (response) => {
      let held = '';
      response.setEncoding('utf8').on('data', (piece) => {
        ++out.pieces;
        held += piece;
        for (let end = held.indexOf('\n'); end >= 0; end = held.indexOf('\n')) {
          const line = JSON.parse(held.slice(0, end));
          held = held.slice(end + 1);
          ++out.lines;
          out.text += line.message?.content ?? '';
          out.whole ||= line.done;
          out.error ??= line.error ?? null;
          onLine(out);
        }
      });
      response.on('error', () => resolve(out)).on('close', () => resolve(out));
    });
    call.on('error', (error) => { out.error ??= error; resolve(out); });
    call.end(JSON.stringify(body));
  });
}

const idOf = (folder, hub, fleet) => readFileSync(`${folder}/hub${fleet.hubs.indexOf(hub)}/hub_id`, 'utf8').trim();

test('streams go on at other hubs while hubs are killed', how, (context) => inFolder(async (folder) => {
  const fleet = await startFleet(folder, 3);
  let front;
  try {
    front = await startFront(['--store', fleet.store.url, '--fleet-key', fleet.key]);
    const count = 12, tokens = 300;
    const latest = [];
    explainTimeout(context, fleet, latest, () => front);
    const chat = (url, i) => stream(`${url}/v1/chat/completions`, {
      body: question(i, tokens), onEvent: (out) => { latest[i] = out; },
    });
    const alone = await Promise.all(Array.from({ length: count }, (_, i) => chat(fleet.hubs[i % 3].url, i)));
    for (const one of alone) assert.ok(one.whole && one.text.length > 0, JSON.stringify(one.error));

    const { data: [{ id: model }] } = await (await fetch(`${front.url}/v1/models`)).json();
    const message = {
      model, max_tokens: 200, temperature: 0.8, messages: question(50).messages,
    };
    let running = true, kills = 0;
    const killer = (async () => {
      for (let i = 0; running && kills < 6; i = (i + 1) % 3) {
        await new Promise((resolve) => setTimeout(resolve, 700));   // so that streams get on in between
        if (!running) break;
        await fleet.kill(i);
        ++kills;
        await fleet.start(i);
      }
    })();
    const [streams, whole] = await Promise.all([
      Promise.all(Array.from({ length: count }, (_, i) => chat(front.url, i))),
      Promise.all([0, 1, 2].map(async (i) => {
        const answer = await postJson(`${front.url}/v1/chat/completions`, { ...question(i, tokens), stream: false });
        return { status: answer.status, body: await answer.json() };
      })),
      stream(`${front.url}/v1/messages`, { body: { ...message, stream: true } }).then((one) => {
        assert.ok(one.whole, `${one.status} ${JSON.stringify(one.error)}`);
      }),
    ]);
    running = false;
    await killer;
    context.diagnostic(`${kills} hubs killed; ${(front.stderr().match(/goes on at another hub/g) ?? []).length} moves`);
    assert.ok(kills > 0);
    streams.forEach((one, i) => {
      assert.ok(one.whole, `stream ${i} failed: ${JSON.stringify(one.error)}`);
      assert.equal(one.text, alone[i].text, `stream ${i}`);
      assert.equal(one.events, alone[i].events, `stream ${i}: each event once`);
    });
    whole.forEach((one, i) => {
      assert.equal(one.status, 200);
      assert.equal(one.body.choices[0].message.content, alone[i].text, `answer ${i}`);
      assert.match(one.body.id, /^chatcmpl-[0-9a-f]{8}-[0-9a-f]{32}$/, 'ids name their hub');
    });
    assert.equal(await front.stop(), 0, front.stderr());
    front = null;
  } finally {
    await front?.stop();
    await fleet.end();
  }
}));

test('a client resumes a dead hub\'s stream at another hub, and no table has its words', how,
  (context) => inFolder(async (folder) => {
    const fleet = await startFleet(folder, 2, ['--require-key']);
    try {
      const [ada, bob] = [await makeKey(fleet.store, 'ada'), await makeKey(fleet.store, 'bob')];
      for (const { key } of [ada, bob]) await knownAt(fleet.hubs, key);
      const headers = { authorization: `Bearer ${ada.key}` };
      const body = question(7, 800);
      const url = `${fleet.hubs[0].url}/v1/chat/completions`;
      const alone = await stream(`${fleet.hubs[1].url}/v1/chat/completions`, { headers, body });
      assert.ok(alone.whole, `${alone.status} ${JSON.stringify(alone.error)}`);

      // While the owner lives, the other hub passes the stream on.
      let killed = false;
      const first = await stream(url, {
        headers, body,
        onEvent: (out) => {
          if (out.events < 100 || killed) return;
          killed = true;
          fleet.kill(0);
        },
      });
      assert.ok(!first.whole, 'a client straight at the killed hub sees its line break');
      await fleet.hubs[0].ended;      // until then its port may take a connection
      const id = first.headers['x-moex-stream'];
      assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{32}$/);

      const words = [];
      const dump = spawn('pg_dump', ['--data-only', fleet.store.url], { stdio: ['ignore', 'pipe', 'inherit'] });
      for await (const piece of dump.stdout) words.push(piece);
      const tables = Buffer.concat(words).toString('latin1');
      assert.ok(tables.includes(id), 'the journal is there');
      for (const text of [secret, first.text.slice(0, 40), 'tell me about']) {
        assert.ok(!tables.includes(text) && !tables.includes(Buffer.from(text).toString('hex')), text);
      }

      const at = `${fleet.hubs[1].url}/v1/streams/${id}`;
      const last = first.ids.at(-1);
      const foreign = await fetch(at, { headers: { authorization: `Bearer ${bob.key}` } });
      assert.equal(foreign.status, 404, 'the stream of another key');
      const rest = await stream(at, { method: 'GET', headers: { ...headers, 'last-event-id': String(last) } });
      assert.equal(rest.status, 200);
      assert.ok(rest.whole, JSON.stringify(rest.error));
      assert.equal(rest.ids[0], last + 1);
      assert.equal(first.text + rest.text, alone.text);
      context.diagnostic(`went on after event ${last} of ${rest.ids.at(-1)}`);
    } finally { await fleet.end(); }
  }));

// The number of connections of this machine to a port, the other side of each not counted.
const connectionsTo = (port) => readFileSync('/proc/net/tcp', 'utf8').split('\n').slice(1)
  .map((line) => line.trim().split(/\s+/))
  .filter(([, , remote, state]) => state === '01' && parseInt(remote?.split(':')[1], 16) === port).length;

test('a client resumes while the hub of its stream dies', how, () => inFolder(async (folder) => {
  const fleet = await startFleet(folder, 2);
  try {
    const body = question(8, 800), [dying, other] = fleet.hubs, port = Number(new URL(dying.url).port);
    const alone = await stream(`${other.url}/v1/chat/completions`, { body });
    let rest = null;
    const first = await stream(`${dying.url}/v1/chat/completions`, {
      body,
      onEvent: (out) => {
        if (rest || out.events < 100) return;
        // The stopped hub takes the other hub's connection, and dies with it.
        dying.signal('SIGSTOP');
        const before = connectionsTo(port), last = out.ids.at(-1);
        rest = stream(`${other.url}/v1/streams/${out.headers['x-moex-stream']}`,
          { method: 'GET', headers: { 'last-event-id': String(last) } }).then((one) => ({ ...one, last }));
        const limit = Date.now() + 60_000;
        const kill = () => {
          if (connectionsTo(port) > before || Date.now() > limit) dying.signal('SIGKILL');
          else setImmediate(kill);
        };
        kill();
      },
    });
    assert.ok(!first.whole, 'a client straight at the killed hub sees its line break');
    const { status, whole, ids, text, error, last } = await rest;
    assert.equal(status, 200, JSON.stringify(error));
    assert.ok(whole, JSON.stringify(error));
    assert.equal(ids[0], last + 1);
    assert.ok(alone.text.endsWith(text) && text.length > 0);
  } finally {
    fleet.hubs[0].signal('SIGCONT');
    await fleet.end();
  }
}));

test('a line that a hub passes on breaks with the hub of its stream', how, () => inFolder(async (folder) => {
  const fleet = await startFleet(folder, 2);
  try {
    const body = question(8, 800), [dying, other] = fleet.hubs;
    const alone = await stream(`${other.url}/v1/chat/completions`, { body });
    const resume = (id, last, onEvent) => stream(`${other.url}/v1/streams/${id}`,
      { method: 'GET', headers: { 'last-event-id': String(last) }, onEvent });
    let passed = null;
    const first = await stream(`${dying.url}/v1/chat/completions`, {
      body,
      onEvent: (out) => {
        if (passed || out.events < 100) return;
        passed = resume(out.headers['x-moex-stream'], out.ids.at(-1),
          ({ events }) => { if (events === 20) dying.signal('SIGKILL'); });
      },
    });
    const middle = await passed;
    assert.equal(middle.status, 200, JSON.stringify(middle.error));
    assert.ok(!middle.whole && middle.events >= 20, 'the other hub had no whole answer to pass on');
    const rest = await resume(first.headers['x-moex-stream'], middle.ids.at(-1));
    assert.ok(rest.whole, JSON.stringify(rest.error));
    assert.equal(rest.ids[0], middle.ids.at(-1) + 1);
    assert.ok(rest.text.length > 0 && alone.text.endsWith(middle.text + rest.text));
  } finally {
    await fleet.end();
  }
}));

const hangs = 'a hub that hangs loses its streams with its lease, and stays fenced';
test(hangs, how, (context) => inFolder(async (folder) => {
  const fleet = await startFleet(folder, 2);
  let front;
  try {
    front = await startFront(['--store', fleet.store.url, '--fleet-key', fleet.key]);
    const latest = [];
    explainTimeout(context, fleet, latest, () => front);
    const body = question(3, 800);
    const alone = await stream(`${fleet.hubs[0].url}/v1/chat/completions`, { body });
    let hung = null, at = 0;
    const one = await stream(`${front.url}/v1/chat/completions`, {
      body,
      onEvent: (out) => {
        latest[0] = out;
        if (hung || out.events < 50) return;
        at = Date.now();
        const id = out.headers['x-moex-stream'].slice(0, 8);
        hung = fleet.hubs.find((hub) => idOf(folder, hub, fleet) === id);
        hung.signal('SIGSTOP');
      },
    });
    assert.ok(one.whole, JSON.stringify(one.error));
    assert.equal(one.text, alone.text);
    assert.equal(one.events, alone.events);
    context.diagnostic(`whole ${Date.now() - at} ms after the hub hung`);

    // The journal is the other hub's, and whole.
    const journal = () => fleet.store.query('SELECT hub_id, ended, position, md5(records) FROM streams JOIN '
      + `stream_pieces USING (stream_id) WHERE stream_id = '${one.headers['x-moex-stream']}' ORDER BY position`);
    let kept = '';
    await until(async () => { kept = await journal(); return kept.includes('|t|'); }, () => kept);
    const other = fleet.hubs.find((hub) => hub !== hung);
    assert.ok(kept.startsWith(idOf(folder, other, fleet)), kept);

    // The hub goes on. It ends its job because the front has left it or because its journal is refused, whichever it
    // sees first. By its end it has written all that it ever writes.
    hung.signal('SIGCONT');
    await until(async () => (await (await fetch(`${hung.url}/api/status`)).json()).engine.running === 0);
    assert.equal(await hung.stop(), 0, hung.stderr());
    assert.equal(await journal(), kept);
  } finally {
    for (const hub of fleet.hubs) hub.signal('SIGCONT');
    await front?.stop();
    await fleet.end();
  }
}));

test('a hub that is stopped hands its streams on', how, () => inFolder(async (folder) => {
  const fleet = await startFleet(folder, 2, ['--drain-s', '0']);
  let front;
  try {
    const urls = fleet.hubs.flatMap((hub) => ['--hub', hub.url]);
    front = await startFront([...urls, '--fleet-key', fleet.key]);
    const body = question(4, 600);
    const alone = await stream(`${fleet.hubs[0].url}/v1/chat/completions`, { body });
    let stopped = null;
    const one = await stream(`${front.url}/v1/chat/completions`, {
      body,
      onEvent: (out) => {
        if (stopped || out.events < 50) return;
        const id = out.headers['x-moex-stream'].slice(0, 8);
        stopped = fleet.hubs.find((hub) => idOf(folder, hub, fleet) === id).stop();
      },
    });
    assert.ok(one.whole, JSON.stringify(one.error));
    assert.equal(one.text, alone.text);
    assert.equal(await stopped, 0);
  } finally {
    await front?.stop();
    await fleet.end();
  }
}));

test('lines of JSON stream through a front, and go on at another hub', how, () => inFolder(async (folder) => {
  const fleet = await startFleet(folder, 2, ['--drain-s', '0']);
  let front;
  try {
    const urls = fleet.hubs.flatMap((hub) => ['--hub', hub.url]);
    front = await startFront([...urls, '--fleet-key', fleet.key]);
    const { models: [{ name: model }] } = await (await fetch(`${front.url}/api/tags`)).json();
    const ask = (seed) => ({
      model, messages: [{ role: 'user', content: 'tell me about the sea' }],
      options: { seed, temperature: 0.8, num_predict: 400 },
    });
    // The model ends its answers itself, so look for a long one.
    let alone = { lines: 0 }, seed = 0;
    while (alone.lines < 80 && seed < 40) alone = await lines(`${fleet.hubs[0].url}/api/chat`, ask(++seed));
    assert.ok(alone.whole && alone.lines >= 80, `${alone.lines} lines`);

    for (const how of ['SIGTERM', 'SIGKILL']) {
      let stopped = null;
      const one = await lines(`${front.url}/api/chat`, ask(seed), (out) => {
        if (stopped || out.lines < 20) return;
        stopped = (async () => {
          const statusOf = async (hub) => (await fetch(`${hub.url}/api/status`)).json();
          const states = await Promise.all(fleet.hubs.map(statusOf));
          const busy = states.findIndex((state) => state.engine.running > 0);
          if (busy < 0) return null;
          fleet.hubs[busy].signal(how);
          await fleet.hubs[busy].ended;
          return busy;
        })();
      });
      const busy = await stopped;
      assert.ok(one.whole, JSON.stringify(one.error));
      assert.equal(one.text, alone.text);
      assert.equal(one.lines, alone.lines, 'each line once');
      assert.ok(one.pieces > 5, 'the lines arrive as they are made');
      if (busy !== null) await fleet.start(busy);
    }
    assert.match(front.stderr(), /goes on at another hub/);
  } finally {
    await front?.stop();
    await fleet.end();
  }
}));

test('a store that is away hurts no stream', how, () => inFolder(async (folder) => {
  const fleet = await startFleet(folder, 1);
  try {
    const alone = await stream(`${fleet.hubs[0].url}/v1/chat/completions`, { body: question(1, 300) });
    let stopped = null;
    const one = await stream(`${fleet.hubs[0].url}/v1/chat/completions`, {
      body: question(1, 300),
      onEvent: (out) => { if (out.events === 50) stopped = fleet.store.stop(); },
    });
    await stopped;
    assert.ok(one.whole);
    assert.equal(one.text, alone.text);
    await fleet.store.start();
  } finally { await fleet.end(); }
}));

test('keys of a fleet are checked, and a front says what it lacks', () => inFolder(async (folder) => {
  const run = async (...args) => { const one = await runHub(args); return { code: one.code, said: one.stderr }; };
  const key = `${folder}/fleet.key`;
  assert.equal((await run('fleet', 'key', key)).code, 0);
  assert.equal((await run('fleet', 'key', key)).code, 1, 'a key is not overwritten');
  const store = ['--store', 'postgresql://moex@127.0.0.1:9/none'];
  chmodSync(key, 0o644);
  const open = await run('serve', '--state', `${folder}/s`, ...store, '--fleet-key', key, '--listen', '127.0.0.1:0');
  assert.equal(open.code, 1);
  assert.match(open.said, /--fleet-key: .*chmod 600/);
  writeFileSync(`${folder}/short`, 'abc\n', { mode: 0o600 });
  const short = await run('serve', '--state', `${folder}/s`, ...store, '--fleet-key', `${folder}/short`);
  assert.match(short.said, /wanted 64 hexadecimal digits/);
  const lonely = await run('serve', '--state', `${folder}/s`, '--fleet-key', `${folder}/short`);
  assert.match(lonely.said, /--store/);

  assert.match((await run('front', '--fleet-key', key)).said, /--hub URL|--store URL/);
  assert.match((await run('front', '--hub', 'http://127.0.0.1:9')).said, /--fleet-key FILE/);
  chmodSync(key, 0o600);
  assert.match((await run('front', '--hub', 'ftp://x', '--fleet-key', key)).said, /wanted http/);
  const wide = await run('front', '--hub', 'http://127.0.0.1:9', '--fleet-key', key, '--listen', '0.0.0.0:0');
  assert.equal(wide.code, 2);
  assert.match(wide.said, /--tls-cert/);
  const front = await startFront(['--hub', 'http://127.0.0.1:9', '--fleet-key', key]);
  const page = await fetch(`${front.url}/worker`);
  assert.equal(page.status, 501);
  assert.equal(await front.stop(), 0);
}));

test('a front has a limit of connections', () => inFolder(async (folder) => {
  const key = `${folder}/fleet.key`;
  assert.equal((await runHub(['fleet', 'key', key])).code, 0);
  const front = await startFront(['--hub', 'http://127.0.0.1:9', '--fleet-key', key, '--connections-max', '8']);
  const { port } = new URL(front.url);
  const open = async () => {
    const socket = connect(Number(port), '127.0.0.1');
    const ended = new Promise((resolve) => { socket.on('close', () => resolve('closed')).on('error', () => {}); });
    await new Promise((resolve) => { socket.on('connect', resolve); });
    // The front answers the request of a connection that it holds.
    const answered = new Promise((resolve) => { socket.on('data', () => resolve('answered')); });
    socket.write('GET /worker HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n');
    return { socket, first: Promise.race([ended, answered]) };
  };
  const idle = await Promise.all(Array.from({ length: 8 }, async () => {
    const socket = connect(Number(port), '127.0.0.1');
    await new Promise((resolve) => { socket.on('connect', resolve); });
    return socket;
  }));
  assert.equal(await (await open()).first, 'closed', 'the ninth connection');
  for (const socket of idle) socket.destroy();
  for (let i = 0; ; ++i) {
    const one = await open();
    const first = await one.first;
    one.socket.destroy();
    if (first === 'answered') break;
    assert.ok(i < 10_000, 'a closed connection leaves its place');
  }
  assert.equal(await front.stop(), 0);
}));
