// A hub with scripted answers: the pages, the pool and every other route are those of a real hub, over real sockets.
// Only the model's answers come from the test: the demo model writes neither 40 KB of Markdown nor thoughts, and it
// breaks no connection on command.
import { once } from "node:events";
import { createServer, request as httpRequest } from "node:http";

// One streamed answer under the control of a test.
export class Stream {
  constructor(body, response, hub) {
    this.body = body;
    this.response = response;
    this.hub = hub;
    this.id = "";
    this.closed = once(response, "close");      // resolves when the page or the test closes the stream
  }
  // Makes the answer resumable from now on, as with a hub. Call it before the first event.
  keep(id) {
    this.id = id;
    this.events = [];
    this.ended = false;
    this.stopped = new Promise((resolve) => { this.stop = resolve; });
    this.hub.streams.set(id, this);
    this.head();
  }
  resume(response, last) {
    this.response = response;
    this.head();
    response.write(this.events.slice(last).join(""));
    if (this.ended) response.end();
  }
  head() {
    if (this.response.headersSent) return;
    const headers = this.id ? { "X-Moex-Stream": this.id } : {};
    this.response.writeHead(200, { "Content-Type": "text/event-stream", ...headers });
    this.response.flushHeaders();
  }
  send(event) {
    let words = `data: ${typeof event === "string" ? event : JSON.stringify(event)}\n\n`;
    if (this.id) {
      words = `id: ${this.events.length + 1}\n${words}`;
      this.events.push(words);
      if (this.response.destroyed) return;      // a page that resumes the stream gets the event later
    }
    this.head();
    this.response.write(words);
  }
  say(content, index = 0) { this.send({ choices: [{ index, delta: { content } }] }); }
  // Ends one of several answers that are streamed side by side.
  endChoice(index, finish_reason = "stop") { this.send({ choices: [{ index, delta: {}, finish_reason }] }); }
  // Sends a piece of a tool call; the first piece contains the name of the tool.
  call(index, more, name) {
    const begun = name ? { id: `call_${index}`, type: "function" } : {};
    this.send({ choices: [{ index: 0,
      delta: { tool_calls: [{ index, ...begun, function: { ...(name ? { name } : {}), arguments: more } }] } }] });
  }
  think(reasoning_content) { this.send({ choices: [{ index: 0, delta: { reasoning_content } }] }); }
  // Ends the answer like a hub: sends the reason, the figures and [DONE].
  end(finish_reason = "stop", last = {}) {
    this.endChoice(0, finish_reason);
    this.send({ choices: [], ...last });
    this.send("[DONE]");
    this.ended = true;
    this.response.end();
  }
  refuse(status, error) {
    this.response.writeHead(status, { "Content-Type": "application/json" });
    this.response.end(JSON.stringify({ error }));
  }
  breakLine() { this.response.socket.destroy(); }
}

export class ScriptedHub {
  // Each question is passed to `answer(stream)`; `routes` {"/health": (response) => …} replace routes of the hub.
  static async start(hub, { answer = () => {}, routes = {} } = {}) {
    const scripted = new ScriptedHub();
    scripted.hub = hub;
    scripted.answer = answer;
    scripted.routes = routes;
    scripted.requests = [];
    scripted.streams = new Map();      // streams by id
    scripted.resumed = [];             // requests to resume a stream: {method, last event}
    scripted.server = createServer((request, response) => scripted.handle(request, response));
    scripted.server.listen(0, "127.0.0.1");
    await once(scripted.server, "listening");
    scripted.url = `http://127.0.0.1:${scripted.server.address().port}`;
    return scripted;
  }

  async handle(request, response) {
    const path = request.url.split("?")[0];
    if (path === "/v1/chat/completions") {
      const pieces = [];
      for await (const piece of request) pieces.push(piece);
      const body = JSON.parse(Buffer.concat(pieces).toString());
      this.requests.push(body);
      await this.answer(new Stream(body, response, this), this.requests.length - 1);
      return;
    }
    const stream = this.streams.get(path.split("/v1/streams/")[1]);
    if (stream) {
      const last = request.headers["last-event-id"];
      this.resumed.push({ method: request.method, last });
      if (request.method === "DELETE") {
        json({ id: stream.id, stopped: true })(response);
        stream.stop();
      } else {
        stream.resume(response, Number(last));
      }
      return;
    }
    if (this.routes[path]) {
      this.routes[path](response);
      return;
    }

    // Remove the header Origin: it names this server, and the hub would refuse it.
    const { hostname, port } = new URL(this.hub.url);
    const { origin, ...headers } = request.headers;
    const onward = httpRequest({
      hostname, port, path: request.url, method: request.method,
      agent: false,      // a kept-alive connection may be closed at its next use
      headers: { ...headers, host: `${hostname}:${port}` },
    }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on("error", () => response.destroy());
    request.pipe(onward);
  }

  async stop() {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

export const json = (body, status = 200) => (response) => {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(body));
};
