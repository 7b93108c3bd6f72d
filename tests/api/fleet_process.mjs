// What the stories of a fleet share: hubs over one PostgreSQL, commands beside them, and clients of streams.
import assert from 'node:assert/strict';
import { request } from 'node:http';
import { createServer } from 'node:net';
import { runHub, startHub } from './hub_process.mjs';
import { startPostgres } from './postgres.mjs';
import { endless, rowsOf } from './streams.mjs';

export const secret = 'zanzibar lighthouse';   // words of the prompts, which no table may hold

// Resolves once the condition holds. A loop outlives the time limit of its test, so that it has a limit of its own.
export const until = async (condition, seen = () => 'the condition does not hold') => {
  const begun = Date.now();
  while (!await condition()) assert.ok(Date.now() - begun < 60_000, `${seen()} after a minute`);
};

export const command = async (store, ...args) => {
  const run = await runHub([...args, '--store', store.url]);
  assert.equal(run.code, 0, run.stderr);
  return run;
};
export const makeKey = async (store, ...args) => {
  const made = await command(store, 'key', 'add', ...args);
  return { key: made.stdout.trim(), id: /^key ([0-9a-f]{8})/.exec(made.stderr)[1] };
};
// Resolves once each hub has seen a key that was made beside it.
export const knownAt = async (hubs, key) => {
  const ask = (hub) => fetch(`${hub.api}/streams/unknown`, { headers: { authorization: `Bearer ${key}` } });
  for (const hub of hubs) await until(async () => (await ask(hub)).status !== 401);
};
export const usage = async (store, id) => rowsOf((await command(store, 'key', 'usage', '--csv')).stdout)
  .filter((row) => row.key === id)
  .reduce(({ requests, tokens }, row) => (
    { requests: requests + Number(row.requests), tokens: tokens + Number(row.answer_tokens) }
  ), { requests: 0, tokens: 0 });
// Resolves to the use of a key once at least as many requests and tokens are counted: hubs write counts behind their
// answers.
export const usageFrom = async (store, id, requests, tokens) => {
  let used;
  await until(async () => {
    used = await usage(store, id);
    return used.requests >= requests && used.tokens >= tokens;
  }, () => `${JSON.stringify(used)} counted, ${requests} requests and ${tokens} tokens awaited`);
  return used;
};
export const hubsOf = async (store) => JSON.parse((await command(store, 'fleet', '--json')).stdout);

export const health = async (hub) => {
  const answer = await fetch(`${hub.url}/health`);
  return { code: answer.status, ...await answer.json() };
};
// The first hub of a store makes the admin key.
export const adminKeyOf = (...hubs) => hubs
  .map((hub) => /admin key, shown this once: (\S+)/.exec(hub.stdout())?.[1]).find((key) => key);

export const freePort = () => new Promise((resolve) => {
  const server = createServer();
  server.listen(0, '127.0.0.1', () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

// Resolves to the hub once the others may know it: it is ready shortly before that.
export const entered = async (hub) => {
  await hub.logged('this hub has entered');
  return hub;
};

// Three hubs at most, each on a port and with a state folder of its own, so that it comes back as itself. `given`: a
// store that outlives the fleet, and the address url(i) at which hub i reaches it.
export async function startFleet(folder, count, extra = [], given = null) {
  const key = `${folder}/fleet.key`;
  assert.equal((await runHub(['fleet', 'key', key])).code, 0);
  const store = given?.store ?? await startPostgres();
  const removeStore = async () => { if (!given) await store.remove(); };
  const ports = await Promise.all(Array.from({ length: count }, freePort));
  const serve = async (i) => entered(await startHub([
    '--state', `${folder}/hub${i}`, '--listen', `127.0.0.1:${ports[i]}`, '--store', given?.url(i) ?? store.url,
    '--fleet-key', key, '--backend', 'local', '--threads', '1', '--deterministic', '--kv-disk-mb', '0', ...extra]));
  const hubs = await Promise.all(ports.map((_, i) => serve(i))).catch(async (error) => {
    await removeStore();
    throw error;
  });
  return {
    store, key, hubs,
    kill: async (i) => { hubs[i].signal('SIGKILL'); await hubs[i].ended; },
    start: async (i) => { hubs[i] = await serve(i); },
    end: async () => {
      for (const hub of hubs) { hub.signal('SIGKILL'); await hub.ended; }
      await removeStore();
    },
  };
}

// Reads a stream of events to its end: { status, text, events, ids, whole, headers }.
export function stream(url, { method = 'POST', headers = {}, body, onEvent = () => {} } = {}) {
  return new Promise((resolve) => {
    const out = { text: '', events: 0, ids: [], whole: false, error: null };
    const call = request(url, { method, headers: { 'content-type': 'application/json', ...headers } }, (response) => {
      out.status = response.statusCode;
      out.headers = response.headers;
      let held = '';
      response.setEncoding('utf8').on('data', (piece) => {
        held += piece;
        for (let end = held.indexOf('\n\n'); end >= 0; end = held.indexOf('\n\n')) {
          const lines = held.slice(0, end).split('\n');
          held = held.slice(end + 2);
          const id = lines.find((line) => line.startsWith('id: '))?.slice(4);
          if (id) out.ids.push(Number(id));
          const data = lines.find((line) => line.startsWith('data: '))?.slice(6);
          if (data === undefined) continue;
          ++out.events;
          if (data === '[DONE]') { out.whole = true; continue; }
          const event = JSON.parse(data);
          if (event.error) out.error = event.error;
          if (event.type === 'message_stop') out.whole = true;
          const choice = event.choices?.[0];
          out.text += choice?.delta?.content ?? choice?.text ?? event.delta?.text ?? '';
          onEvent(out);
        }
      });
      response.on('error', () => resolve(out)).on('close', () => resolve(out));
    });
    call.on('error', (error) => { out.error ??= error; resolve(out); });
    call.end(body ? JSON.stringify(body) : undefined);
  });
}

export const question = (i, tokens) => ({
  messages: [{ role: 'user', content: `${secret} ${i}: tell me about the sea` }],
  max_tokens: tokens, temperature: 0.8, seed: 100 + i, stream: true, ...endless,
});
