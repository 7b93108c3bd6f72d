// Downloads and verifies one expert blob. fetch_worker.js calls this on threads of their own, and fetchers.js calls it
// where it is if those threads did not start.
import { readPieces } from "./pieces.js";

const attempts_max = 4;

const toHex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");

// Resolves to true if `hex` is the SHA-256 of `bytes`.
export const isBlob = async (bytes, hex) => toHex(await crypto.subtle.digest("SHA-256", bytes)) === hex;

// Downloads a blob of `size` bytes and hashes it. Resolves to {bytes, matches}, or to {reason} if it did not arrive.
// Calls progress(bytes) as bytes arrive, with a negative count for bytes that are discarded, and arrived() before the
// blob is hashed.
export async function downloadBlob({ hex, url, size }, signal, progress, arrived) {
  const { bytes, reason = "" } = await download(url, size, signal, progress);
  if (!bytes) return { reason };
  arrived();
  return { bytes, matches: await isBlob(bytes, hex) };
}

// A broken download is resumed where it broke.
async function download(url, size, signal, progress) {
  const bytes = new Uint8Array(size);
  let have = 0;
  let reason = "";
  for (let attempt = 0; attempt < attempts_max && !signal.aborted; attempt += 1) {
    reason = "";
    try {
      const headers = have > 0 ? { Range: `bytes=${have}-` } : {};
      const response = await fetch(url, { signal, headers, cache: "no-store" });
      if (response.status !== 200 && response.status !== 206) {
        reason = `the hub answered ${response.status} for a weight blob`;
        await response.body?.cancel();
        if (response.status === 404) break;
        throw new Error(reason);
      }

      if (response.status === 200 && have > 0) {
        progress(-have);
        have = 0;
      }

      await readPieces(response.body, (piece) => {
        if (have + piece.length <= size) bytes.set(piece, have);
        have += piece.length;
        progress(piece.length);
        return have <= size;
      });
      if (have > size) {
        progress(-have);
        return { reason: `a weight blob is longer than ${size} bytes` };
      }

      if (have === size) return { bytes };
      reason = `a weight blob ended after ${have} of ${size} bytes`;
    } catch (error) {
      reason = error.name === "AbortError" ? "cancelled" : reason || `download failed: ${error.message}`;
      if (error.name === "AbortError") break;
    }

    await new Promise((resolve) => setTimeout(resolve, 300 * 2 ** attempt * Math.random()));
  }
  progress(-have);
  return { reason };
}
