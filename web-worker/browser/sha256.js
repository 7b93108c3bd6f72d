// SHA-256 of a file that is too large for the browser's own digest(), which takes all bytes at once: the file is hashed
// in stretches. Source: FIPS 180-4.
const stretch_bytes = 8 << 20;
export const whole_bytes_max = 2 ** 30;

export const toHex = (bytes) => (
  Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join(""));

// The standard's constants are the first 32 bits of the fractions of square and cube roots of primes.
const primes = [];
for (let n = 2; primes.length < 64; n += 1) if (primes.every((prime) => n % prime !== 0)) primes.push(n);
const fraction = (root) => Math.floor((root - Math.floor(root)) * 2 ** 32) | 0;
const first_state = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
const constants = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));

// Hashes bytes that come in stretches.
export class Sha256 {
  constructor() {
    this.state = first_state.slice();
    this.words = new Int32Array(64);
    this.rest = new Uint8Array(64);      // bytes of a block that is not whole yet
    this.num_rest = 0;
    this.num_bytes = 0;
  }

  update(bytes) {
    this.num_bytes += bytes.length;
    let at = 0;
    if (this.num_rest > 0) {
      at = Math.min(64 - this.num_rest, bytes.length);
      this.rest.set(bytes.subarray(0, at), this.num_rest);
      this.num_rest += at;
      if (this.num_rest < 64) return;
      this.block(new DataView(this.rest.buffer), 0);
      this.num_rest = 0;
    }
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    for (; at + 64 <= bytes.length; at += 64) this.block(view, at);
    this.rest.set(bytes.subarray(at));
    this.num_rest = bytes.length - at;
  }

  block(view, at) {
    const { state, words } = this;
    for (let i = 0; i < 16; i += 1) words[i] = view.getInt32(at + 4 * i);
    for (let i = 16; i < 64; i += 1) {
      const x = words[i - 15], y = words[i - 2];
      const small = (x >>> 7 | x << 25) ^ (x >>> 18 | x << 14) ^ x >>> 3;
      const large = (y >>> 17 | y << 15) ^ (y >>> 19 | y << 13) ^ y >>> 10;
      words[i] = words[i - 16] + small + words[i - 7] + large | 0;
    }
    let a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (let i = 0; i < 64; i += 1) {
      const mixed_e = (e >>> 6 | e << 26) ^ (e >>> 11 | e << 21) ^ (e >>> 25 | e << 7);
      const mixed_a = (a >>> 2 | a << 30) ^ (a >>> 13 | a << 19) ^ (a >>> 22 | a << 10);
      const first = h + mixed_e + (e & f ^ ~e & g) + constants[i] + words[i] | 0;
      const second = mixed_a + (a & b ^ a & c ^ b & c) | 0;
      h = g;
      g = f;
      f = e;
      e = d + first | 0;
      d = c;
      c = b;
      b = a;
      a = first + second | 0;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }

  // Returns the 32 bytes of the hash; nothing can be added afterwards.
  digest() {
    const bits = this.num_bytes * 8;
    const end = new Uint8Array((this.num_rest < 56 ? 64 : 128) - this.num_rest);
    end[0] = 0x80;
    const tail = new DataView(end.buffer);
    tail.setUint32(end.length - 8, Math.floor(bits / 2 ** 32));
    tail.setUint32(end.length - 4, bits % 2 ** 32);
    this.update(end);
    const hash = new DataView(new ArrayBuffer(32));
    this.state.forEach((word, i) => hash.setInt32(4 * i, word));
    return new Uint8Array(hash.buffer);
  }
}

// Returns the hash of a File as hexadecimal digits. Files of at most `whole_max` bytes are hashed at once, which is
// faster.
export async function sha256OfFile(file, whole_max) {
  if (file.size <= whole_max) return toHex(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()));
  const hash = new Sha256();
  for (let at = 0; at < file.size; at += stretch_bytes) {
    hash.update(new Uint8Array(await file.slice(at, at + stretch_bytes).arrayBuffer()));
  }
  return toHex(hash.digest());
}
