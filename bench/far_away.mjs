// A line to a port of this machine that is as long as one wants: what a bench puts between a hub and its workers.
import { connect, createServer } from "node:net";

// Resolves to a server on a free port: every piece, and each end, comes half of `rtt_ms` later on the other side of
// 127.0.0.1:`port`.
export async function farAway(port, rtt_ms) {
  const server = createServer((near) => {
    const far = connect(port, "127.0.0.1");
    for (const [from, to] of [[near, far], [far, near]]) {
      from.setNoDelay(true);
      from.on("data", (bytes) => setTimeout(() => to.write(bytes), rtt_ms / 2));
      from.on("close", () => setTimeout(() => to.destroy(), rtt_ms / 2));
      from.on("error", () => to.destroy());
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}
