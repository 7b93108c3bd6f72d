// Reads the body of an answer of fetch() in pieces, into memory that is used again: the browser would take new memory
// for each piece, and the kernel clears every page of it. Reading 1 GB took a page 6.8 s of a processor instead of 8.7
// (bench/results/tab_trip.epyc-2-cores.csv).
const piece_bytes = 512 << 10;
const spare = [];      // memory that no reader fills

// Returns a reader that fills given memory, or null in a browser that has none for `body`.
function fillingReader(body) {
  try {
    return body.getReader({ mode: "byob" });
  } catch {
    return null;
  }
}

// Calls take(piece) with the pieces of `body` in turn, Uint8Arrays that are valid during the call. Stops where it
// returns false, or throws. Rejects if the body breaks off.
export async function readPieces(body, take) {
  const filling = fillingReader(body);
  const reader = filling ?? body.getReader();
  let memory = filling && (spare.pop() ?? new ArrayBuffer(piece_bytes));      // lost if the download breaks
  for (;;) {
    const { done, value } = await (filling ? reader.read(new Uint8Array(memory)) : reader.read());
    if (filling && value) memory = value.buffer;
    if (done) break;
    if (take(value) === false) {
      await reader.cancel();
      break;
    }
  }
  if (memory) spare.push(memory);
}
