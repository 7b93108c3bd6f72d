// Tests of the processor's kernels as WASM with SIMD128, which a tab without WebGPU runs. Node runs them here, with
// Chromium's engine.
import assert from "node:assert/strict";
import { test } from "node:test";

import { loadSimd128 } from "./browser/load_simd128.mjs";

const wasm = await loadSimd128();

test("SIMD128 gives the bits of the portable loops", () => {
  assert.equal(wasm.UTF8ToString(wasm._simd128_path()), "SIMD128");
  assert.equal(wasm.UTF8ToString(wasm._simd128_disagreements()), "");
});

// cpu_worker_test compares the digest of the native program with the same expected value.
test("a tab's int8 answers have the bits of every other machine's", () => {
  assert.equal(wasm._simd128_digest_is_right(), 1);
});
