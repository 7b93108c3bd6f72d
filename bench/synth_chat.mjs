// A package of random weights in which a chat is possible.
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const { build, run } = await import("../tests/browser/support/hub.mjs");

// Makes the package `folder` with the shape `shape` (`moex-hub synth`, `args`: further flags), and gives it the demo's
// tokenizer and chat template.
export async function synthChat(shape, folder, args = []) {
  const made = await run(join(build, "moex-hub"), ["synth", "--shape", shape, ...args, folder]);
  if (made.code !== 0) throw new Error(made.stderr);
  const from = "static/models/demo";
  const manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
  const demo = JSON.parse(readFileSync(join(from, "manifest.json"), "utf8"));
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    cpSync(join(from, name), join(folder, name));
    (manifest.files ??= {})[name] = demo.files[name];
  }
  writeFileSync(join(folder, "manifest.json"), JSON.stringify(manifest));
}
