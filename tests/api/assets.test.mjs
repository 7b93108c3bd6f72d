// Tests of the files that a browser loads for the pages, over HTTP from a real hub: they are compressed, equal to the
// originals once unpacked, and small.
import assert from 'node:assert/strict';
import { get } from 'node:http';
import { after, before, test } from 'node:test';
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import { startHub } from './hub_process.mjs';

let hub;
before(async () => { hub = await startHub(['--backend', 'local', '--threads', '1']); });
after(async () => { assert.equal(await hub.stop(), 0, hub.stderr()); });

// Loads a path and returns the bytes that were sent over the connection, without unpacking them.
const load = (path, coding) => new Promise((resolve, reject) => {
  const headers = coding ? { 'accept-encoding': coding } : {};
  get(`${hub.url}${path}`, { headers }, (answer) => {
    const parts = [];
    answer.on('data', (part) => parts.push(part));
    answer.on('end', () => resolve({ status: answer.statusCode, headers: answer.headers, body: Buffer.concat(parts) }));
  }).on('error', reject);
});

// Returns the paths that a page or module loads at once: scripts, styles, pictures and static imports.
function namedIn(path, text) {
  const pattern = path.endsWith('.js') || path.endsWith('.mjs')
    ? /^(?:import|export)\s(?:[^;]*?\sfrom\s+)?"([./][^"]+)"/gm
    : /<(?:script|link|img)\b[^>]*?(?:src|href)="([^"]+)"/g;
  return [...text.matchAll(pattern)].map(([, name]) => new URL(name, `http://hub${path}`).pathname);
}

// Loads a page with all files that it needs, and returns the bytes of each on the wire.
async function firstLoad(page, t) {
  const sizes = new Map(), next = [page];
  while (next.length) {
    const path = next.pop();
    if (sizes.has(path)) continue;
    const [packed, plain] = [await load(path, 'br'), await load(path)];
    if (packed.status === 404 && path.startsWith('/vendor/')) return t.skip(`${path}: built without the tab's part`);
    assert.equal(packed.status, 200, path);
    const coding = packed.headers['content-encoding'];
    assert.deepEqual(coding === 'br' ? brotliDecompressSync(packed.body) : packed.body, plain.body, path);
    sizes.set(path, packed.body.length);
    next.push(...namedIn(path, plain.body.toString()));
  }
  return sizes;
}

test('the first load of the chat is at most 150 kB, before WASM', async (t) => {
  const sizes = await firstLoad('/', t);
  if (!sizes) return;
  const all = [...sizes.values()].reduce((sum, size) => sum + size, 0);
  t.diagnostic(`${sizes.size} files, ${all} bytes`);
  assert.ok(sizes.has('/js/chat.js') && sizes.has('/js/dom.js') && sizes.has('/css/app.css'), [...sizes.keys()].join());
  assert.ok(![...sizes.keys()].some((path) => path.endsWith('.wasm')));
  assert.ok(all <= 150_000, `${all} bytes: ${JSON.stringify([...sizes])}`);
});

test('brotli and gzip unpack to what is sent to whoever takes neither', async () => {
  const pages = ['/', '/join.html', '/status.html', '/service_worker.js'];
  const paths = [...pages, '/js/chat.js', '/css/app.css', '/favicon.svg'];
  for (const path of paths) {
    const [plain, brotli, zipped] = [await load(path), await load(path, 'br'), await load(path, 'gzip')];
    assert.deepEqual([brotli, zipped].map(({ headers }) => headers['content-encoding']), ['br', 'gzip'], path);
    assert.deepEqual(brotliDecompressSync(brotli.body), plain.body, path);
    assert.deepEqual(gunzipSync(zipped.body), plain.body, path);
  }
});
