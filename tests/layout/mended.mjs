// Every test that tests/mended.md names is in the tree: a GoogleTest case, a story by its file and title, a row of a
// GoogleTest table by its name, or a ctest case of a script. Each entry says what went wrong, its test, and what was
// before.
//   usage: node tests/layout/mended.mjs
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

// Comments cannot stand for a test.
const isComment = /^\s*(\/\/|#).*$/gm;
const tests = join(dirname(fileURLToPath(import.meta.url)), "..");
const texts = new Map();
const walk = (folder) => {
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory() && !["corpus", "golden", "node_modules"].includes(entry.name)) walk(path);
    if (!/\.(cpp|h|mjs)$|^CMakeLists\.txt$/.test(entry.name)) continue;
    texts.set(relative(tests, path), readFileSync(path, "utf8").replace(isComment, ""));
  }
};
walk(tests);

const ending = (ends) => [...texts].filter(([path]) => path.endsWith(ends)).map(([, text]) => text);
const cpp = [...ending(".cpp"), ...ending(".h")];
const found = (list, pattern) => new Set(list.flatMap((text) => [...text.matchAll(pattern)].map((match) => match[1])));
const cases = new Set(cpp.flatMap((text) => (
  [...text.matchAll(/\b(?:TYPED_TEST|TEST|TEST_F|TEST_P|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)\s*[,)]/g)]
    .map((match) => `${match[1]}.${match[2]}`))));
const scripts = found(ending("CMakeLists.txt"), /\badd_test\(\s*NAME (\w+)/g);
const rows = found(cpp, /\{\s*"((?:[^"\\\n]|\\.)*)",/g);

function titles(path) {
  const named = (texts.get(path) ?? "").matchAll(/\btest\(\s*(["'`])((?:\\.|(?!\1)[^\\])*)\1/g);
  return new Set([...named].map((match) => match[2].replace(/\\(.)/g, "$1")));
}

let bad = 0;
let checked = 0;
const complain = (entry, words) => {
  console.log(`mended: "${entry.slice(0, 60)}…": ${words}`);
  bad = 1;
};
function check(entry, is_there, words) {
  checked += 1;
  if (!is_there) complain(entry, words);
}

const document = readFileSync(join(tests, "mended.md"), "utf8");
const entries = document.split(/^(?=- |## )/m).filter((part) => part.startsWith("- "));
for (const part of entries) {
  const [, entry, named, before] = part.replace(/\s+/g, " ").match(/^- (.+?) Test: (.+?) Before: (.+)$/) ?? [];
  if (!before) {
    complain(part, "has no Test or no Before");
    continue;
  }
  const names = [...named.matchAll(/`([^`]+)`|"([^"]+)"/g)];
  if (!names[0]?.[1]) complain(entry, "names no test");
  let story = "";
  let told = true;                                // of a story's file, whether a title followed
  for (const [, name, quoted] of names) {
    if (quoted && story) check(entry, titles(story).has(quoted), `no test "${quoted}" in ${story}`);
    else if (quoted) check(entry, rows.has(quoted), `no row "${quoted}"`);
    else if (!told) complain(entry, `${story} has no title`);
    told = Boolean(quoted) || !name.endsWith(".mjs");
    if (quoted) continue;

    story = name.endsWith(".mjs") ? name : "";
    if (story) check(entry, texts.has(story), `no file ${story}`);
    else if (name.includes(".")) check(entry, cases.has(name), `no GoogleTest case ${name}`);
    else check(entry, scripts.has(name), `no ctest case ${name}`);
  }
  if (!told) complain(entry, `${story} has no title`);
}
if (entries.length === 0) complain("tests/mended.md", "has no entry: this test has lost its eyes");
console.log(`mended: ${entries.length} entries, ${checked} names looked up`);
process.exit(bad);
