// Makes a real worker dishonest in its spans: a proxy between worker and hub changes rows of SPAN_ANSWER frames
// (PROTOCOL.md, "Spans"), so that the lie is the only thing that differs from an honest worker.
import { Front } from "./front.mjs";
import { NativeWorker } from "./hub.mjs";

const type_span_answer = 37, header_bytes = 16, head_bytes = 24, dtype_f32 = 5;
// Returns the bounds of the parts of a SPAN_ANSWER with rows; null for other frames.
function partsOf(frame) {
  if (frame.length < header_bytes + head_bytes || frame.readUInt16LE(6) !== type_span_answer) return null;
  const head = frame.subarray(header_bytes);
  const [verdict, dtype] = [head[4], head[5]];
  const [num_rows, num_layers, hidden] = [6, 8, 10].map((at) => head.readUInt16LE(at));
  if (verdict !== 0 || num_rows === 0) return null;
  if (dtype !== dtype_f32) throw new Error(`a SPAN_ANSWER with dtype ${dtype}`);
  const x = header_bytes + head_bytes;
  return { num_rows, num_layers, hidden, kv_size: head.readUInt32LE(12), x, kv: x + 4 * num_rows * hidden };
}

// The signs of half of the values are changed: rows of the right shape and norm, and wrong.
const lies = {
  rows(frame, { x, kv }) { for (let at = x + 3; at < kv; at += 8) frame[at] ^= 0x80; },
  keys(frame, parts) { changeKv(frame, parts, 0); },
  values(frame, parts) { changeKv(frame, parts, 1); },
};
function changeKv(frame, { num_rows, num_layers, kv_size, kv }, part) {
  for (let row = 0; row < num_layers * num_rows; row += 1) {
    const begin = kv + 2 * kv_size * (2 * row + part);
    for (let at = begin + 1; at < begin + 2 * kv_size; at += 4) frame[at] ^= 0x80;
  }
}
export const kinds_of_lies = Object.keys(lies);

export class SpanLiar {
  // Starts a worker at `hub`, {url, port, join}, that lies in its answers as `kind` says, in a share `share` of them,
  // from the moment at which `lies` is set.
  static async start(hub, kind, { share = 1, lies: begins = true, args = [] } = {}) {
    const liar = new SpanLiar();
    Object.assign(liar, { lies: begins, num_lies: 0, num_answers: 0 });
    liar.front = await Front.start(hub);
    liar.front.toHub = (frame) => {
      liar.front.frames.length = 0;      // a long run needs none of them
      const parts = partsOf(frame);
      if (!parts) return undefined;
      liar.num_answers += 1;
      if (!liar.lies || Math.random() >= share) return undefined;
      liar.num_lies += 1;
      lies[kind](frame, parts);
      return frame;
    };
    liar.worker = await NativeWorker.start(liar.front, args);
    return liar;
  }
  async stop() {
    await this.worker.stop("SIGKILL");
    await this.front.stop();
  }
}
