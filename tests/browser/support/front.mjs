// A front before a hub, for native workers: it sees their downloads and may answer them itself, and it reads the
// WebSocket frames that they send.
import { createServer, request as httpRequest } from "node:http";
import { connect } from "node:net";

// Splits what a client sends after its upgrade into frames: f({fin, opcode, payload}).
function frameReader(f) {
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
      if (held.length < at + 4 + size) return;
      const mask = held.subarray(at, at + 4);                 // clients always mask
      const payload = Buffer.from(held.subarray(at + 4, at + 4 + size));
      for (let i = 0; i < size; i += 1) payload[i] ^= mask[i & 3];
      f({ fin: (held[0] & 0x80) !== 0, opcode: held[0] & 15, payload });
      held = held.subarray(at + 4 + size);
    }
  };
}

export class Front {
  // `onGet(request, response, pass)` answers a GET itself or calls pass(), which gives the hub's answer.
  static async start(hub, onGet = (request, response, pass) => pass()) {
    const front = new Front();
    front.hub = hub;
    front.frames = [];                                          // {fin, opcode, payload}, of all connections in order
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
  pass(request, response) {
    const { method, url, headers } = request;
    const { host } = new URL(this.hub.url);
    httpRequest(`${this.hub.url}${url}`, { method, headers: { ...headers, host } }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    }).end();
  }
  upgrade(request, socket, head) {
    const hub = connect(this.hub.port, "127.0.0.1");
    const { host } = new URL(this.hub.url);
    const fields = Object.entries({ ...request.headers, host });
    const headers = fields.map(([name, value]) => `${name}: ${value}\r\n`).join("");
    hub.write(`${request.method} ${request.url} HTTP/1.1\r\n${headers}\r\n`);
    const read = frameReader((frame) => this.frames.push(frame));
    read(head);
    hub.write(head);
    socket.on("data", read);
    socket.pipe(hub).pipe(socket);
    for (const end of [socket, hub]) end.on("error", () => { socket.destroy(); hub.destroy(); });
  }
  // The HELLO of each connection, as JSON.
  hellos() {
    return this.frames.filter(({ payload }) => payload.length > 16 && payload.readUInt16LE(6) === 16)
      .map(({ payload }) => JSON.parse(payload.subarray(16)));
  }
  async stop() {
    for (const socket of this.sockets) socket.destroy();
    await new Promise((resolve) => this.server.close(resolve));
  }
}
