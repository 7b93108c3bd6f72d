// The files that a page keeps while another tab also works on them, and the order in which files are evicted when there
// is no room.
import assert from "node:assert/strict";
import { test } from "node:test";

import { FileStore } from "../../web-worker/browser/file_store.js";
import { StoreFolder, leavingOrder } from "../../web-worker/browser/store_folder.js";

function storeOf(files) {
  const folder = new StoreFolder();
  folder.files = async () => Object.entries(files).map(([name, size]) => [name, {
    async getFile() {
      if (typeof size === "number") return { size };
      throw new DOMException("not as it was listed", size);
    },
  }]);
  return new FileStore(folder);
}

test("a file that another tab renamed while it was listed is missing, and no error", async () => {
  const files = [{ sha256: "aa", bytes: 5 }, { sha256: "bb", bytes: 7 }];
  const store = storeOf({ aa: 5, "bb.part": "NotFoundError" });
  assert.deepEqual(await store.missing(files), { files: [files[1]], bytes: 7 });
});

test("a file that cannot be read for another reason is told", async () => {
  await assert.rejects(storeOf({ aa: "NotReadableError" }).missing([]), { name: "NotReadableError" });
});

test("other models' blobs leave first, the longest unused ahead; of the served model's who was used least", () => {
  const blobs = new Map(Object.entries({
    often: { uses: 9, at: 1, model: "served" },
    rarely: { uses: 2, at: 5, model: "served" },
    rarely_before: { uses: 2, at: 4, model: "served" },
    other_lately: { uses: 1, at: 9, model: "other" },
    other_once: { uses: 7, at: 3, model: "other" },
    nobodys: { uses: 1, at: 8, model: "" },
  }));
  assert.deepEqual(leavingOrder(blobs, "served"),
    ["other_once", "nobodys", "other_lately", "rarely_before", "rarely", "often"]);
  assert.equal(leavingOrder(blobs, "").at(0), "often", "nothing is served: by time alone");
});
