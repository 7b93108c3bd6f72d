#!/usr/bin/env node
// Turns the WGSL kernels into C++: their text for WebGPU, their SPIR-V for Vulkan, and their constants for the code
// that dispatches them.
//   usage: NAGA_FROM=FOLDER node scripts/wgsl2spv.mjs OUT_FOLDER NAME=FILE[,setting=value...] ...
//   example: ... build/generated group_down_4=wgsl/group_down.wgsl,rows=4
// Writes kernels_text.inc (without comments), kernels_spirv.inc, kernels_constants.h and spv/NAME.spv into OUT_FOLDER.
// A family of kernels is one text. Its lines may hold the directives
//   //@ include FILE           the lines of a file beside it
//   //@ host_checked           the host checks every index in the tables that it writes: Vulkan need not clamp
//   //@ for NAME in A..B       the lines up to `//@ end` for each A <= NAME < B; A and B are numbers or settings
// and ${NAME} is replaced by a value. Overrides without a value are set when a pipeline is made: in WebGPU as
// overrides, in Vulkan as specialization constants, in the order of their declaration.
// Errors name FILE:LINE:COLUMN, which build tools link to.
import { createRequire } from "node:module";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

import { finish } from "./spirv.mjs";

const [folder, ...kernels] = process.argv.slice(2);
if (!kernels.length) {
  console.error("usage: NAGA_FROM=FOLDER node scripts/wgsl2spv.mjs OUT_FOLDER NAME=FILE[,setting=value...] ...");
  process.exit(2);
}
const require = createRequire(join(resolve(process.env.NAGA_FROM), "package.json"));
// naga is an ES module, which require() of Node 18 cannot load
const naga = await import(pathToFileURL(require.resolve("naga-wasm")));
mkdirSync(join(folder, "spv"), { recursive: true });

const readLines = (file) => readFileSync(file, "utf8").trimEnd().split("\n")
  .map((text, index) => ({ text, file, line: index + 1 }));
const fail = ({ file, line }, message) => { throw new Error(`${file}:${line}:1: error: ${message}`); };

// Expands the directives of `lines`. Each resulting line keeps the file and line number from which it came.
function expand(lines, values) {
  const out = [];
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const value_of = (name) => values[name] ?? fail(line, `what is ${name}?`);
    const number = (word) => Number(/^\d+$/.test(word) ? word : value_of(word));
    const directive = /^\s*\/\/@\s*(.*?)\s*$/.exec(line.text)?.[1];
    if (directive === undefined) {
      const text = line.text.replace(/\$\{(\w+)\}/g, (_, name) => value_of(name));
      out.push({ ...line, text });
      continue;
    }
    if (directive === "host_checked") continue;
    const include = /^include (\S+)$/.exec(directive);
    if (include) {
      out.push(...expand(readLines(join(dirname(line.file), include[1])), values));
      continue;
    }
    const loop = /^for (\w+) in (\w+)\.\.(\w+)$/.exec(directive) ?? fail(line, `//@ ${directive}?`);
    let end = at + 1;
    for (let depth = 1; ; end += 1) {
      const inner = lines[end]?.text ?? fail(line, "no //@ end");
      if (/^\s*\/\/@\s*for /.test(inner)) depth += 1;
      else if (/^\s*\/\/@\s*end\s*$/.test(inner)) depth -= 1;
      if (depth === 0) break;
    }
    for (let value = number(loop[2]); value < number(loop[3]); value += 1)
      out.push(...expand(lines.slice(at + 1, end), { ...values, [loop[1]]: value }));
    at = end;
  }
  return out;
}

const override = /^override\s+(\w+)\s*:\s*u32\s*;/gm;
const overridesOf = (text) => Array.from(text.matchAll(override), ([, name]) => name);
// naga cannot write a module with overrides, so each override becomes a private variable that is never written.
const sentinel = 0x4d6f4500;
const withoutOverrides = (text) => {
  let index = 0;
  return text.replace(override, (_, name) => `var<private> ${name}: u32 = ${sentinel + index++}u;`);
};

// Returns the kinds of the bindings 0..n-1 of group 0: 0 read-only storage, 1 storage, 2 uniform, as in
// gpu::BindingKind.
function bindingKinds(text, file) {
  const kinds = [];
  for (const [, index, space] of text.matchAll(/@group\(0\)\s*@binding\((\d+)\)\s*var<([^>]+)>/g)) {
    kinds[Number(index)] = { "storage, read": 0, "storage, read_write": 1, uniform: 2 }[space.trim()];
    if (kinds[Number(index)] === undefined) throw new Error(`${file}: binding ${index} is ${space}`);
  }
  return kinds;
}

// Returns the constants in a kernel's text: `threads` of a workgroup, and each `const NAME: u32`.
function constantsOf(text, file) {
  const size = /@workgroup_size\((\d+)\)/.exec(text);
  if (!size) throw new Error(`${file}: no @workgroup_size(number)`);
  const found = [["threads", size[1]]];
  for (const [, name, value] of text.matchAll(/^const\s+(\w+)\s*:\s*u32\s*=\s*(\w+?)u?\s*;/gm))
    found.push([name, value]);
  return found;
}

function toSpirv(text, lines) {
  try {
    const module = naga.parseWgsl(withoutOverrides(text));
    const info = naga.validate(module);
    const words = naga.writeSpirv(module, info, {});
    const bytes = words instanceof Uint8Array ? words
      : new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
    return finish(new Uint32Array(bytes.slice().buffer), sentinel, overridesOf(text).length);
  } catch (error) {
    const [, line, column] = /wgsl:(\d+):(\d+)/.exec(error.formatted ?? "") ?? [null, 1, 1];
    const at = lines[line - 1];
    throw new Error(`${at.file}:${at.line}:${column}: error: ${error.message}\n${error.formatted ?? error.stack}`);
  }
}

// Returns the parts of a WGSL text that a device needs, without comments and indentation.
const bare = (text) => text.replace(/\s*\/\/.*$/gm, "").replace(/^\s+/gm, "");

const generated = "// Generated by scripts/wgsl2spv.mjs from wgsl/*.wgsl.\n";
let texts_before = "";                         // C++ arrays of bindings and overrides that text_table names
let spirv_out = generated;
let constants_out = `${generated}#pragma once\n#include <cstdint>\nnamespace moex::gpu::kernels {\n`;
let text_table = "";
let spirv_table = "";
try {
  for (const kernel of kernels) {
    const [name] = kernel.split("=", 1);
    const rest = kernel.slice(name.length + 1);
    const [file, ...settings] = rest.split(",");
    const values = Object.fromEntries(settings.map((setting) => setting.split("=")));
    const lines_of_file = readLines(file);
    const lines = expand(lines_of_file, values);
    const text = `${lines.map((line) => line.text).join("\n")}\n`;
    const kinds = bindingKinds(text, file);
    const spirv = toSpirv(text, lines);
    const overrides = overridesOf(text);
    const checked = lines_of_file.some((line) => /^\/\/@ host_checked$/.test(line.text));
    writeFileSync(join(folder, "spv", `${name}.spv`), new Uint8Array(spirv.buffer));
    const casts = kinds.map((kind) => `static_cast<BindingKind>(${kind})`);
    let named = `constexpr BindingKind bindings_${name}[] = {${casts.join(", ")}};\n`;
    const names = overrides.length ? `overrides_${name}` : "{}";
    const quoted = overrides.map((one) => `"${one}"`).join(", ");
    if (overrides.length) named += `constexpr std::string_view overrides_${name}[] = {${quoted}};\n`;
    texts_before += named;
    text_table += `    KernelSource{"${name}", R"WGSL(${bare(text)})WGSL", "main", bindings_${name}, ${names},`
      + ` ${checked}},\n`;
    constants_out += `namespace ${name} {\n`;
    for (const [key, value] of constantsOf(text, file))
      constants_out += `inline constexpr std::uint32_t ${key} = ${value};\n`;
    constants_out += "}\n";
    const words = Array.from(spirv, (word) => `0x${word.toString(16)}u`);
    spirv_out += `constexpr std::uint32_t spirv_${name}[] = {${words.join(",")}};\n`;
    spirv_table += `    KernelSpirv{"${name}", spirv_${name}},\n`;
  }
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
// Write a file only if it changed, so that code which uses the file is not compiled again without need.
function write(name, text) {
  const path = join(folder, name);
  if (!existsSync(path) || readFileSync(path, "utf8") !== text) writeFileSync(path, text);
}
write("kernels_text.inc", `${generated}${texts_before}const KernelSource kernel_sources[] = {\n${text_table}};\n`);
write("kernels_spirv.inc", `${spirv_out}const KernelSpirv kernel_spirvs[] = {\n${spirv_table}};\n`);
write("kernels_constants.h", `${constants_out}}\n`);
