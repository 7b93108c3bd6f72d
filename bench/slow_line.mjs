// A proxy like a slow internet connection, which a bench puts between a hub and a worker: each direction is delayed and
// has a bandwidth.
import { connect, createServer } from "node:net";

// Sends what `from` reads to `to`, late and no faster than the line allows. Reading stops while more than a second of
// data waits. Timers of about the same time fire in any order, so each sends the oldest chunk that waits.
function carry(from, to, line) {
  let free_at = 0;
  const waiting = [];
  from.on("data", (bytes) => {
    const now = performance.now();
    const send_ms = line.mbit_per_s > 0 ? bytes.length * 8 / (line.mbit_per_s * 1000) : 0;
    free_at = Math.max(now, free_at) + send_ms;
    waiting.push(bytes);
    if (free_at - now > 1000) from.pause();
    setTimeout(() => {
      to.write(waiting.shift());
      if (waiting.length === 0 || free_at - performance.now() < 500) from.resume();
    }, free_at - now + line.delay_ms);
  });
  const end = () => setTimeout(() => to.destroy(), Math.max(0, free_at - performance.now()) + line.delay_ms);
  from.on("close", end);
  from.on("error", end);
}

// Resolves to {port, set({rtt_ms, mbit_per_s}), close()}: a proxy to 127.0.0.1:`port`. It begins without delay and
// without limit, so that a worker loads its experts quickly; set() makes it slow. mbit_per_s 0: no limit.
export async function slowLine(port) {
  const line = { delay_ms: 0, mbit_per_s: 0 };
  const sockets = new Set();
  const server = createServer({ noDelay: true }, (near) => {
    const far = connect({ port, host: "127.0.0.1", noDelay: true });
    for (const socket of [near, far]) {
      sockets.add(socket);
      socket.on("close", () => sockets.delete(socket));
    }
    carry(near, far, line);
    carry(far, near, line);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    port: server.address().port,
    set({ rtt_ms, mbit_per_s }) {
      line.delay_ms = rtt_ms / 2;
      line.mbit_per_s = mbit_per_s;
    },
    close() {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}
