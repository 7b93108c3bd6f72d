// A proxy in front of a hub, for native workers and tabs: it sees their downloads and may answer them itself, it reads
// the WebSocket frames that they send, and it may replace the hub's frames.
import { createServer, request as httpRequest } from "node:http";
import { connect } from "node:net";

// Splits the bytes that one side sends after the WebSocket upgrade into frames, and calls f({fin, opcode, payload,
// raw}).
function frameReader(f, { masked }) {
  let held = Buffer.alloc(0);
  return (bytes) => {
    held = Buffer.concat([held, bytes]);
    for (;;) {
      if (held.length < 2) return;
      let size = held[1] & 0x7f;
      let at = 2;
      if (size === 126) {
        if (held.length < 4) return;
        size = held.readUInt16BE(2);
        at = 4;
      } else if (size === 127) {
        if (held.length < 10) return;
        size = Number(held.readBigUInt64BE(2));
        at = 10;
      }
      const from = masked ? at + 4 : at;                      // clients always mask
      if (held.length < from + size) return;
      const payload = Buffer.from(held.subarray(from, from + size));
      for (let i = 0; masked && i < size; i += 1) payload[i] ^= held[at + (i & 3)];
      f({ fin: (held[0] & 0x80) !== 0, opcode: held[0] & 15, payload, raw: held.subarray(0, from + size) });
      held = held.subarray(from + size);
    }
  };
}

// Packs a message into one frame, as a server sends it.
function serverFrame(payload) {
  const size = payload.length;
  const head = Buffer.alloc(size < 126 ? 2 : size <= 65535 ? 4 : 10);
  head[0] = 0x82;
  head[1] = size < 126 ? size : size <= 65535 ? 126 : 127;
  if (head.length === 4) head.writeUInt16BE(size, 2);
  if (head.length === 10) head.writeBigUInt64BE(BigInt(size), 2);
  return Buffer.concat([head, payload]);
}

// Packs a message into one frame, as a client sends it, masked with zeros.
function clientFrame(payload) {
  const frame = serverFrame(payload);
  const size = frame.length - payload.length;
  frame[1] |= 0x80;
  return Buffer.concat([frame.subarray(0, size), Buffer.alloc(4), payload]);
}

export class Front {
  // `onGet(request, response, pass)` answers a GET itself, or calls pass() for the hub's answer.
  static async start(hub, onGet = (request, response, pass) => pass()) {
    const front = new Front();
    front.hub = hub;
    // The frames {fin, opcode, payload} that the workers sent, in order.
    front.frames = [];
    front.sockets = new Set();
    front.server = createServer((request, response) => onGet(request, response, () => front.pass(request, response)));
    front.server.on("connection", (socket) => {
      front.sockets.add(socket);
      socket.on("close", () => front.sockets.delete(socket));
      socket.on("error", () => {});
    });
    front.server.on("upgrade", (request, socket, head) => front.upgrade(request, socket, head));
    await new Promise((resolve) => front.server.listen(0, "127.0.0.1", resolve));
    front.url = `http://127.0.0.1:${front.server.address().port}`;
    front.join = `${front.url}/join.html${new URL(hub.join).hash}`;
    return front;
  }
  // Starts a proxy that gives pages the text `change(text)` for the hub's file `path`.
  static changing(hub, path, change) {
    return Front.start(hub, async (request, response, pass) => {
      if (request.url !== path) return pass();
      const file = await fetch(`${hub.url}${path}`);
      const text = await file.text();
      const changed = change(text);
      if (changed === text) throw new Error(`${path} was not changed`);
      const headers = [...file.headers].filter(([name]) => !/^(content-(length|encoding)|etag)$/.test(name));
      return response.writeHead(200, Object.fromEntries(headers)).end(changed);
    });
  }
  // Returns the headers of a request with the hub as their Host, and as their Origin if a page of this proxy sent it.
  headersOf({ headers }) {
    const { host } = new URL(this.hub.url);
    return { ...headers, host, ...(headers.origin === this.url ? { origin: this.hub.url } : {}) };
  }
  pass(request, response) {
    const { method, url } = request;
    const giveUp = () => response.destroy();      // if the hub is gone, its partial answer is invalid
    httpRequest(`${this.hub.url}${url}`, { method, headers: this.headersOf(request) }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.on("error", giveUp).pipe(response);
    }).on("error", giveUp).end();
  }
  upgrade(request, socket, head) {
    const hub = connect(this.hub.port, "127.0.0.1");
    const fields = Object.entries(this.headersOf(request));
    const headers = fields.map(([name, value]) => `${name}: ${value}\r\n`).join("");
    hub.write(`${request.method} ${request.url} HTTP/1.1\r\n${headers}\r\n`);
    const keep = ({ fin, opcode, payload }) => this.frames.push({ fin, opcode, payload });
    const read = frameReader(keep, { masked: true });
    read(head);
    if (!this.toHub) hub.write(head);
    socket.on("data", read);
    if (this.toHub) this.rewriteToHub(socket, hub, head);
    else socket.pipe(hub);
    if (this.toWorker) this.rewrite(hub, socket);
    else hub.pipe(socket);
    for (const end of [socket, hub]) end.on("error", () => { socket.destroy(); hub.destroy(); });
  }
  // `toHub(payload)`, set before any worker joins: returns the message that the hub receives instead of a worker's
  // message; undefined for the unchanged message.
  rewriteToHub(socket, hub, head) {
    const read = frameReader(({ fin, opcode, payload, raw }) => {
      const given = fin && opcode === 2 ? this.toHub(payload) : undefined;
      hub.write(given ? clientFrame(given) : raw);
    }, { masked: true });
    read(head);
    socket.on("data", read);
    socket.on("end", () => hub.end());
  }
  // `toWorker(payload, give)`, set before any worker joins: sees each message of the hub and gives the messages that
  // the worker receives instead; returns undefined for the unchanged message.
  rewrite(hub, socket) {
    const give = (payload) => socket.write(serverFrame(payload));
    const read = frameReader(({ fin, opcode, payload, raw }) => {
      const given = fin && opcode === 2 ? this.toWorker(payload, give) : undefined;
      if (!given) socket.write(raw);
      else given.forEach(give);
    }, { masked: false });

    let head = Buffer.alloc(0);                                // received bytes of the HTTP reply to the upgrade
    hub.on("data", (bytes) => {
      if (!head) return read(bytes);
      head = Buffer.concat([head, bytes]);
      const end = head.indexOf("\r\n\r\n") + 4;
      if (end < 4) return undefined;
      socket.write(head.subarray(0, end));
      const rest = head.subarray(end);
      head = null;
      return read(rest);
    });
    hub.on("end", () => socket.end());
  }
  // Returns the HELLO of each connection, as JSON.
  hellos() {
    return this.frames.filter(({ payload }) => payload.length > 16 && payload.readUInt16LE(6) === 16)
      .map(({ payload }) => JSON.parse(payload.subarray(16)));
  }
  async stop() {
    for (const socket of this.sockets) socket.destroy();
    await new Promise((resolve) => this.server.close(resolve));
  }
}
