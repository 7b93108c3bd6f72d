// A server of model repositories as tests need it: the tree and resolve routes of Hugging Face's shape on one port, and
// a second port as the storage to which resolve redirects. `fault` may break any answer.
import { createHash } from 'node:crypto';
import { createServer as createPlainServer } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import { once } from 'node:events';

export const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');
const gitOid = (bytes) => createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');

// Returns the entry of the tree route for one file. Weights are in large file storage, as on a real endpoint.
export function treeEntry(path, bytes, isLfs = /\.(safetensors|gguf)$/.test(path)) {
  const entry = { type: 'file', oid: gitOid(bytes), size: bytes.length, path };
  return isLfs ? { ...entry, lfs: { oid: sha256(bytes), size: bytes.length, pointerSize: 134 } } : entry;
}

// `files` is { path: Buffer }. Options: `token` that the endpoint wants, `pageSize` of the tree route, `links`: whether
// weights are redirected to the storage, `edit(entries)`: changes the list of files before it is sent, `tls`: the
// certificate and key of both ports, `storageUrl`: where resolve redirects instead of to the own storage.
export async function startEndpoint(name, files, options = {}) {
  const { pageSize = 1000, token, links = true } = options;
  const commit = createHash('sha1').update(JSON.stringify(Object.keys(files))).digest('hex');
  const createServer = options.tls ? (handler) => createTlsServer(options.tls, handler) : createPlainServer;
  const seen = [];
  const self = { fault: () => null, edit: options.edit ?? ((entries) => entries), files, commit, seen, revisions: {} };

  const sendBytes = (request, response, bytes, headers, fault) => {
    const wanted = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const size = bytes.length;
    if (fault?.flip !== undefined && size > 0) {
      bytes = Buffer.from(bytes);
      bytes[fault.flip % size] ^= 1;
    }
    if (fault?.kind === 'status') {
      response.writeHead(fault.status, fault.headers ?? {});
      return response.end('no');
    }
    const useRange = wanted && fault?.kind !== 'ignoreRange' && !options.ignoresRange;
    const first = useRange ? Number(wanted[1]) : 0;
    const last = useRange && wanted[2] ? Math.min(Number(wanted[2]), size - 1) : size - 1;
    if (useRange && first >= size) {
      response.writeHead(416, { 'content-range': `bytes */${size}` });
      return response.end();
    }
    let body = bytes.subarray(first, last + 1);
    const shift = fault?.kind === 'wrongRange' ? 1 : 0;
    const all = { ...headers };
    if (useRange) all['content-range'] = `bytes ${first + shift}-${last + shift}/${size}`;
    if (fault?.kind === 'wrongLength') all['content-length'] = body.length + 5;
    else if (fault?.kind === 'more') body = Buffer.concat([body, Buffer.alloc(4096, 7)]);
    else if (fault?.kind === 'short') body = body.subarray(0, Math.floor(body.length * fault.share));
    else all['content-length'] = body.length;
    response.writeHead(useRange ? 206 : 200, all);
    if (fault?.kind === 'cut' || fault?.kind === 'stall') {
      const part = body.subarray(0, Math.floor(body.length * fault.share));
      const end = () => { if (fault.kind === 'cut') response.destroy(); };
      return part.length ? response.write(part, end) : (response.flushHeaders(), end());
    }
    return response.end(body);
  };

  const common = (request, response, fault) => {
    if (fault?.kind === 'refuse') { request.socket.destroy(); return true; }
    if (fault?.kind === 'garbage') { request.socket.end('this is no HTTP\r\n\r\n'); return true; }
    return false;
  };

  const tree = (request, response, url, fault) => {
    const at = Number(url.searchParams.get('cursor') ?? 0);
    const entries = self.edit(Object.entries(self.files).map(([path, bytes]) => treeEntry(path, bytes)));
    const page = entries.slice(at, at + pageSize);
    const headers = { 'content-type': 'application/json' };
    if (at + pageSize < entries.length)
      headers.link = `<${self.url}${url.pathname}?recursive=true&cursor=${at + pageSize}>; rel="next"`;
    sendBytes({ headers: {} }, response, Buffer.from(JSON.stringify(page)), headers, fault);
  };

  const storage = createServer((request, response) => {
    const path = decodeURIComponent(request.url.slice(1).split('?')[0]);
    seen.push({ route: 'storage', path, headers: request.headers });
    const fault = self.fault({ route: 'storage', path });
    if (common(request, response, fault)) return;
    sendBytes(request, response, self.files[path], {}, fault);
  });

  const server = createServer((request, response) => {
    const url = new URL(request.url, 'http://x');
    const route = url.pathname.startsWith('/api/') ? 'tree' : 'resolve';
    const [, revision, path] = new RegExp(`^/(?:api/models/)?${name}/(?:tree|resolve)/([^/]+)/?(.*)$`)
      .exec(url.pathname)?.map(decodeURIComponent) ?? [];
    seen.push({ route, path, revision, headers: request.headers });
    const fault = self.fault({ route, path });
    if (common(request, response, fault)) return;
    if (token && request.headers.authorization !== `Bearer ${token}`) {
      response.writeHead(401, { 'x-error-message': 'Access to this repository is restricted' });
      response.end();
      return;
    }
    if (!revision || (revision !== 'main' && revision !== commit)) { response.writeHead(404).end(); return; }
    if (route === 'tree') { tree(request, response, url, fault); return; }

    const bytes = self.files[path];
    if (!bytes) { response.writeHead(404, { 'x-error-message': 'Entry not found' }).end(); return; }
    const headers = { 'x-repo-commit': commit };
    if (fault?.kind === 'redirect') { response.writeHead(302, { ...headers, location: fault.location }).end(); return; }
    if (links && treeEntry(path, bytes).lfs && fault?.kind !== 'status') {
      response.writeHead(302, {
        ...headers, 'x-linked-size': bytes.length, location: `${self.storageUrl}/${path}?signature=x`,
      }).end('to the storage');
      return;
    }
    sendBytes(request, response, bytes, headers, fault);
  });

  for (const one of [server, storage]) {
    one.on('clientError', (error, socket) => socket.destroy());
    one.listen(0, '127.0.0.1');
    await once(one, 'listening');
  }
  const scheme = options.tls ? 'https' : 'http';
  self.url = `${scheme}://127.0.0.1:${server.address().port}`;
  self.storageUrl = options.storageUrl ?? `${scheme}://127.0.0.1:${storage.address().port}`;
  self.stop = async () => {
    for (const one of [server, storage]) {
      one.closeAllConnections();
      one.close();
      await once(one, 'close');
    }
  };
  return self;
}

// A generator of numbers from 0 to 1 with a seed (mulberry32).
export function randomOf(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function randomBytes(random, size) {
  const bytes = Buffer.alloc(size);
  for (let i = 0; i < size; ++i) bytes[i] = Math.floor(random() * 256);
  return bytes;
}
