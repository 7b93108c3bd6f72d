// The memory that a whole model may take on a processor (web-worker/processor).

const wasm_bytes_max = 3.5 * 2 ** 30;        // a WASM program has 4 GiB, which holds the text and the steps, too
const device_share = 0.5, device_bytes_usual = 4 * 2 ** 30;
// A matrix of the hub's part, 2 bytes a weight in the file, has at least 6 bits in memory, and its scales.
const packed_share_min = 0.4;

// Returns the most bytes of weights, keys and values. Browsers report the device's memory rounded, or not at all.
export function processorBytes() {
  const device_bytes = (self.navigator.deviceMemory ?? 0) * 2 ** 30 || device_bytes_usual;
  return Math.min(device_bytes * device_share, wasm_bytes_max);
}

// Finds out before the download whether a model of these files is too large; when it is opened, its memory is computed
// more closely. Returns the reason, or "".
export function processorProblem(files) {
  const bytesOf = (wanted) => files.filter(wanted).reduce((sum, { bytes }) => sum + bytes, 0);
  const experts = bytesOf(({ name }) => name.startsWith("weights/"));
  const least = experts + packed_share_min * bytesOf(({ name }) => name === "hub.safetensors");
  const room = processorBytes(), megabytes = (bytes) => Math.ceil(bytes / 1e6);
  return least > room ? `it takes ${megabytes(least)} MB of this browser's memory, which has room for ${
    megabytes(room)} MB` : "";
}
