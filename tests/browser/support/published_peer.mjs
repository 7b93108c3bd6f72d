// A worker in plain JavaScript that implements DISPATCH, RESULT, CANCEL, HEARTBEAT and WEIGHT_SYNC, and nothing else.
// It computes in doubles from the blob's definition, so it is also an independent implementation of the weight format.
const header_bytes = 16;
const tensor_header_bytes = 28;

function halfToFloat(h) {
  const sign = h & 0x8000 ? -1 : 1;
  const exponent = (h >> 10) & 31;
  const mantissa = h & 1023;
  if (exponent === 0) return sign * mantissa * 2 ** -24;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (1 + mantissa / 1024) * 2 ** (exponent - 15);
}
// Converts a number to f16 bits, rounded to nearest even.
function floatToHalf(value) {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const magnitude = Math.abs(value);
  if (magnitude === 0) return sign;
  const exponent = Math.max(-14, Math.floor(Math.log2(magnitude)));
  const quantum = 2 ** (exponent - 10);
  let steps = magnitude / quantum;
  const floor = Math.floor(steps);
  const rest = steps - floor;
  steps = rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
  const rounded = steps * quantum;
  if (rounded > 65504) return sign | 0x7c00;
  if (rounded < 2 ** -14) return sign | Math.round(rounded * 2 ** 24);
  const final_exponent = Math.floor(Math.log2(rounded));
  return sign | ((final_exponent + 15) << 10) | Math.round((rounded / 2 ** final_exponent - 1) * 1024);
}

const align = (value) => Math.ceil(value / 256) * 256;

// Returns weights as f64 arrays: gate and up [inner][hidden], down [hidden][inner].
function readBlob(bytes, hidden, inner, group) {
  const view = new DataView(bytes);
  const matrix = (codes_at, scales_at, rows, columns) => Array.from({ length: rows }, (_, row) => {
    const out = new Float64Array(columns);
    for (let column = 0; column < columns; column += 1) {
      const word = view.getUint32(codes_at + 4 * (row * (columns / 8) + (column >> 3)), true);
      const scale_zero = view.getUint32(scales_at + 4 * (row * (columns / group) + Math.floor(column / group)), true);
      const code = (word >>> (4 * (column & 7))) & 15;
      out[column] = halfToFloat(scale_zero & 0xffff) * (code - halfToFloat(scale_zero >>> 16));
    }
    return out;
  });
  const scales_1 = align(2 * inner * hidden / 2);
  const codes_2 = scales_1 + align(2 * inner * (hidden / group) * 4);
  const scales_2 = codes_2 + align(hidden * inner / 2);
  const both = matrix(0, scales_1, 2 * inner, hidden);
  return { gate: both.slice(0, inner), up: both.slice(inner), down: matrix(codes_2, scales_2, hidden, inner) };
}

function ffn({ gate, up, down }, x) {
  const dot = (a, b) => {
    let sum = 0;
    for (let i = 0; i < b.length; i += 1) sum += a[i] * b[i];
    return sum;
  };
  const h = gate.map((row, i) => {
    const g = dot(row, x);
    return (g / (1 + Math.exp(-g))) * dot(up[i], x);
  });
  return down.map((row) => dot(row, h));
}

export class PublishedPeer {
  // The default sizes are those of the demo model: a worker with only these five messages must know the sizes in
  // advance.
  constructor(hub, WebSocket, { hidden = 384, inner = 256, group = 128, more = {} } = {}) {
    Object.assign(this, { hub, hidden, inner, group });
    Object.assign(this, { answered: 0, types_received: new Set(), experts: new Map(), work: Promise.resolve() });
    const token = new URL(hub.join).hash.slice(1).split("token=")[1];
    const headers = { Authorization: `Bearer ${token}` };
    this.socket = new WebSocket(`${hub.url.replace("http", "ws")}/worker`, { headers });
    this.socket.binaryType = "nodebuffer";
    const capabilities = Buffer.from(JSON.stringify({ gpu: "none", description: "published messages only", ...more }));
    this.socket.on("open", () => this.send(4, 0, capabilities));
    // Messages are handled in order, one at a time: an echo proves that all earlier messages have been handled.
    this.socket.on("message", (frame) => {
      this.work = this.work.then(() => this.handle(frame)).catch((error) => {
        this.error = error;
        this.socket.close();
      });
    });
  }
  close() { this.socket.close(); }
  send(type, sequence_id, payload, tensor_header = Buffer.alloc(0)) {
    const header = Buffer.alloc(header_bytes);
    header.write("MoEx", 0, "latin1");
    header.writeUInt16LE(1, 4);
    header.writeUInt16LE(type, 6);
    header.writeUInt32LE(payload.length, 8);
    header.writeUInt32LE(sequence_id, 12);
    this.socket.send(Buffer.concat([header, tensor_header, payload]));
  }
  async handle(frame) {
    const type = frame.readUInt16LE(6);
    const sequence_id = frame.readUInt32LE(12);
    this.types_received.add(type);
    if (type === 4) this.send(4, sequence_id, Buffer.alloc(0));
    else if (type === 5) {
      const hash = frame.subarray(tensor_header_bytes).toString("hex");
      const response = await fetch(`${this.hub.url}/weights/${hash}`);
      if (!response.ok) throw new Error(`blob: ${response.status}`);
      this.experts.set(`${frame.readUInt16LE(16)}/${frame.readUInt16LE(18)}`, { bytes: await response.arrayBuffer() });
    } else if (type === 1) {
      const expert = this.experts.get(`${frame.readUInt16LE(16)}/${frame.readUInt16LE(18)}`);
      expert.weights ??= readBlob(expert.bytes, this.hidden, this.inner, this.group);
      const num_tokens = frame.readUInt32LE(20);
      const payload = frame.subarray(tensor_header_bytes);
      const y = Buffer.alloc(2 * num_tokens * this.hidden);
      for (let token = 0; token < num_tokens; token += 1) {
        const row = token * this.hidden;
        const x_at = (i) => halfToFloat(payload.readUInt16LE(2 * (row + i)));
        const x = Float64Array.from({ length: this.hidden }, (_, i) => x_at(i));
        const gate = halfToFloat(payload.readUInt16LE(2 * (num_tokens * this.hidden + token)));
        ffn(expert.weights, x).forEach((value, i) => y.writeUInt16LE(floatToHalf(gate * value), 2 * (row + i)));
      }
      this.answered += 1;
      this.send(2, sequence_id, y, frame.subarray(header_bytes, tensor_header_bytes));
    }
  }
}
