// A Dedicated Worker of a tab that downloads and verifies blobs, so that the worker that serves does not: in Chromium,
// reading 2.5 MB from the network takes 10 ms or more of a thread, and hashing them 3 to 5 ms.
// Messages in:  {ticket, hex, url, size} | {ticket, abort: true}
// Messages out: {ticket, progress}, bytes since the last one; {ticket, progress, has_arrived: true} before the blob is
//               hashed; at the end {ticket, progress, is_last: true} with bytes and matches, or with a reason; the
//               memory of `bytes` is handed over
import { downloadBlob } from "./download.js";

const progress_every_ms = 100;
const running = new Map();      // ticket -> AbortController

async function get({ ticket, ...blob }) {
  const stop = new AbortController();
  running.set(ticket, stop);
  let progress = 0, told_at = performance.now();
  const answer = await downloadBlob(blob, stop.signal, (bytes) => {
    progress += bytes;
    if (performance.now() - told_at < progress_every_ms) return;
    told_at = performance.now();
    self.postMessage({ ticket, progress });
    progress = 0;
  }, () => {
    self.postMessage({ ticket, progress, has_arrived: true });
    progress = 0;
  }).catch((error) => ({ reason: error.message }));
  running.delete(ticket);
  self.postMessage({ ticket, progress, ...answer, is_last: true }, answer.bytes ? [answer.bytes.buffer] : []);
}

self.onmessage = ({ data }) => {
  if (data.abort) running.get(data.ticket)?.abort();
  else get(data);
};
