// The bodies of answers, in browsers that fill given memory and in those that do not.
import assert from "node:assert/strict";
import { test } from "node:test";

import { readPieces } from "../../web-worker/browser/pieces.js";

const size = 3_000_000;
const bytes = Uint8Array.from({ length: size }, (_, at) => at * 2654435761 >>> 13);

// A body that gives `bytes` in parts of 700,000, and then breaks off if `breaks`. "bytes": a reader may give it memory.
function bodyOf(type, { breaks = false } = {}) {
  let at = 0;
  const gone = { cancelled: false };
  const stream = new ReadableStream({
    type,
    pull(controller) {
      if (at < size) controller.enqueue(bytes.slice(at, at += 700_000));
      else if (breaks) controller.error(new Error("broken off"));
      else {
        controller.close();
        controller.byobRequest?.respond(0);
      }
    },
    cancel() { gone.cancelled = true; },
  });
  return { stream, gone };
}

for (const type of ["bytes", undefined]) {
  const name = type ? "fills given memory" : "gives memory of its own";
  test(`a body that ${name} arrives whole, twice at the same time`, async () => {
    const read = async () => {
      const got = new Uint8Array(size);
      let have = 0;
      await readPieces(bodyOf(type).stream, (piece) => {
        got.set(piece, have);
        have += piece.length;
      });
      assert.equal(have, size);
      assert.ok(Buffer.from(got.buffer).equals(Buffer.from(bytes.buffer)));
    };
    for (let turn = 0; turn < 2; turn += 1) await Promise.all([read(), read()]);
  });

  test(`a body that ${name} is cancelled when no more is wanted, and may break off`, async () => {
    const { stream, gone } = bodyOf(type);
    let num_pieces = 0;
    await readPieces(stream, () => {
      num_pieces += 1;
      return num_pieces < 2;
    });
    assert.equal(num_pieces, 2);
    assert.equal(gone.cancelled, true);
    let have = 0;
    const reading = readPieces(bodyOf(type, { breaks: true }).stream, ({ length }) => { have += length; });
    await assert.rejects(reading, /broken off/);
    assert.equal(have, size);
  });
}
