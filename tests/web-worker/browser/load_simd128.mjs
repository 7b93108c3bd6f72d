// Loads simd128_node.cpp as the build compiled it. The bytes of the WASM file are passed to the module, since the
// loader of emcc 3.1.6 would fetch() a path.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

export function loadSimd128(build = process.env.MOEX_BUILD ?? "build") {
  const path = join(resolve(build), "web-tests", "moex-simd128.js");
  return createRequire(import.meta.url)(path)({ wasmBinary: readFileSync(path.replace(/js$/, "wasm")) });
}
