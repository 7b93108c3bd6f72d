// A line between a process and its store: a relay of TCP to the local socket of a PostgreSQL (postgres.mjs) that delays
// bytes, or keeps them back as a network does that is cut in two.
import { connect, createServer } from 'node:net';

// Resolves to { url, cut, heal, remove }. Each byte takes `delay_ms` in each direction. While the line is cut, nothing
// arrives and no connection ends: both sides wait. What was sent meanwhile arrives after heal().
export function startLine(store, delay_ms = 0) {
  let is_cut = false;
  const sockets = new Set(), held = [];
  const later = (act) => { if (is_cut) held.push(act); else act(); };
  const relay = (from, to) => {
    sockets.add(from);
    const after = (act) => setTimeout(() => later(act), delay_ms);
    from.on('data', (bytes) => after(() => { if (to.writable) to.write(bytes); }));
    from.on('end', () => after(() => to.end())).on('error', () => {});
    from.on('close', () => { sockets.delete(from); after(() => to.destroy()); });
  };
  const server = createServer((client) => {
    const database = connect(`${store.folder}/.s.PGSQL.5432`);
    relay(client, database);
    relay(database, client);
  });
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => resolve({
      url: `postgresql://moex@127.0.0.1:${server.address().port}/postgres`,
      cut: () => { is_cut = true; },
      heal: () => { is_cut = false; for (const act of held.splice(0)) act(); },
      remove: () => {
        for (const socket of sockets) socket.destroy();
        return new Promise((closed) => { server.close(closed); });
      },
    }));
  });
}
