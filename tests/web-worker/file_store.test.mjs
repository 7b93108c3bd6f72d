// The files that a page keeps, where another tab works on them, too.
import assert from "node:assert/strict";
import { test } from "node:test";

import { FileStore } from "../../web-worker/browser/file_store.js";

function storeOf(files) {
  const store = new FileStore();
  store.folder = {
    async* entries() {
      for (const [name, size] of Object.entries(files)) {
        yield [name, {
          async getFile() {
            if (typeof size === "number") return { size };
            throw new DOMException("not as it was listed", size);
          },
        }];
      }
    },
  };
  return store;
}

test("a file that another tab renamed while it was listed is missing, and no error", async () => {
  const files = [{ sha256: "aa", bytes: 5 }, { sha256: "bb", bytes: 7 }];
  const store = storeOf({ aa: 5, "bb.part": "NotFoundError" });
  assert.deepEqual(await store.missing(files), { files: [files[1]], bytes: 7 });
});

test("a file that cannot be read for another reason is told", async () => {
  await assert.rejects(storeOf({ aa: "NotReadableError" }).sizes(), { name: "NotReadableError" });
});
