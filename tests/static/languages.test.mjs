// The pages' languages: tables with equal keys; documents and scripts whose visible words all come from the tables.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { afterEach, test } from "node:test";
import { fileURLToPath } from "node:url";

import { bytes, compact, ms, whole } from "../../static/js/format.js";
import { languageFor, languages, setLanguage } from "../../static/js/language.js";
import { stageWords, hubWords, shareWords } from "../../static/js/join/words.js";
import { lendWords } from "../../static/js/join/work_words.js";
import { detailWords, table as join_table } from "../../static/js/words/join.js";
import { table as chat_table } from "../../static/js/words/chat.js";
import { table as bench_table } from "../../static/js/words/bench.js";
import { table as admin_table } from "../../static/js/words/admin.js";
import { table as status_table } from "../../static/js/words/status.js";
import { table as shared_table } from "../../static/js/words/shared.js";

const root = join(dirname(fileURLToPath(import.meta.url)), "../../static");
const source = (path) => readFileSync(join(root, path), "utf8");
afterEach(() => setLanguage("en"));

// The pages; each has a document, a table of texts, and the scripts that show them.
const scriptsOf = (name) => [
  `js/${name}.js`, ...readdirSync(join(root, `js/${name}`)).map((one) => `js/${name}/${one}`)];
const pages = [
  { document: "join.html", table: join_table, scripts: scriptsOf("join") },
  { document: "admin.html", table: admin_table, scripts: scriptsOf("admin") },
  { document: "bench.html", table: bench_table, scripts: scriptsOf("bench") },
  { document: "status.html", table: status_table, scripts: scriptsOf("status") },
  {
    document: "index.html", table: chat_table,
    scripts: [...scriptsOf("chat"), "js/api.js", "js/dom.js", "js/forget.js"],
  },
];

test("EveryLanguageHasTheSameKeysAndNoEmptyWords", () => {
  for (const table of [shared_table, ...pages.map((page) => page.table)]) {
    assert.deepEqual(Object.keys(table), Object.keys(languages));
    for (const name of Object.keys(languages)) {
      assert.deepEqual(Object.keys(table[name]), Object.keys(table.en), name);
      for (const [key, words] of Object.entries(table[name])) {
        const english = table.en[key];
        assert.equal(typeof words, typeof english, `${name}: ${key}`);
        if (typeof words === "function") assert.equal(words.length, english.length, `${name}: ${key}`);
        else assert.ok(words.trim() !== "", `${name}: ${key}`);
      }
    }
  }
});

// A sentence that is equal in both languages has not been translated.
test("EverySentenceIsTranslated", () => {
  for (const { table } of pages) {
    for (const [key, words] of Object.entries(table.de)) {
      const is_sentence = typeof words === "string" && words.split(" ").length > 2;
      if (is_sentence) assert.notEqual(words, table.en[key], key);
    }
  }
});

// Returns the tags and texts of a document, in order: {tag, attributes} and {text}.
function piecesOf(html) {
  const body = html.replace(/<!--.*?-->|<!doctype[^>]*>/gis, "");
  return [...body.matchAll(/<(\/?[a-z0-9]+)((?:\s+[a-z-]+(?:="[^"]*")?)*)\s*>|([^<]+)/gi)].map(
    ([, tag, attributes, text]) => (tag ? {
      tag, attributes: Object.fromEntries([...attributes.matchAll(/([a-z-]+)(?:="([^"]*)")?/gi)]
        .map(([, name, value = ""]) => [name, value])),
    } : { text: text.replace(/\s+/g, " ").trim() }));
}

const plain = (text) => text.replace(/&amp;/g, "&").replace(/&#(\d+);/g, (_, code) => String.fromCodePoint(code));
// Names, signs and units that are the same in all languages.
const is_name = (text) => !/\p{L}{2}/u.test(text) || ["MoEx", "GPU", "0 B", "curl", "JavaScript", "Python",
  "Claude Code", "Codex", "Qwen Code", "OpenCode", "Continue.dev", "Open WebUI"]
  .includes(text);

test("EveryTextOfADocumentComesFromItsTable", () => {
  for (const { document, table } of pages) {
    let parent = { attributes: {} };
    for (const piece of piecesOf(source(document))) {
      if (piece.tag) {
        parent = piece;
        for (const name of ["aria-label", "placeholder", "title", "alt"]) {
          const text = piece.attributes[name];
          if (text === undefined || is_name(text)) continue;
          const key = piece.attributes[`data-say-${name}`];
          assert.equal(table.en[key], plain(text), `${document}: ${name}="${text}"`);
        }
      } else if (parent.tag !== "code" && !is_name(piece.text)) {
        assert.equal(table.en[parent.attributes["data-say"]], plain(piece.text), `${document}: "${piece.text}"`);
      }
    }
  }
});

// A string that begins with a capitalised word and continues in words, or that ends in a full stop, is a text for
// people.
test("ScriptsShowOnlyTextsOfTheTables", () => {
  for (const { scripts } of pages) {
    for (const path of scripts) {
      const code = source(path).replace(/^\s*\/\/.*$/gm, "").replace(/(?<=\s)\/\/ .*$/gm, "");
      const said = [...code.matchAll(/(["`])((?:\\.|(?!\1)[^\\\n])*)\1/g)].map(([, , text]) => text)
        .filter((text) => /^[A-Z][a-z]+[ ,][a-z]/.test(text) || /[a-z]{2} [a-z]{2,}.*\.$/.test(text));
      assert.deepEqual(said, [], path);
    }
  }
});

test("UsersChoicePrecedesTheBrowsersLanguages", () => {
  assert.equal(languageFor("", ["de-AT", "en"]), "de");
  assert.equal(languageFor("", ["fr-FR", "en-GB", "de"]), "en");
  assert.equal(languageFor("en", ["de"]), "en");
  assert.equal(languageFor("xx", ["ja"]), "en");
  assert.equal(languageFor("constructor", []), "en");
});

test("GermanFiguresAndSentences", () => {
  setLanguage("de");
  assert.equal(bytes(2.5e9), "2,5 GB");
  assert.equal(ms(4.2), "4,2 ms");
  assert.equal(whole.format(12345), "12.345");
  assert.match(compact.format(1.25e6), /^1,3\sMio\.$/);
  assert.equal(hubWords({ model: "qwen3" }, { workers: 1, units: 9, covered: 8 }),
    "Dieser Hub bietet qwen3 an. 1 Helfer ist hier, und 1 Experte hat niemanden.");
  assert.equal(shareWords({ units_ready: 3 }, 6144), "Dieser Tab hält 3 von 6.144 Experten des Modells: 0,0 %.");
  const lend = { units: 6144, held: 6144, expert_blob_bytes: 2506752, computes_itself: false, scarce: [{ layer: 7 }] };
  assert.deepEqual(lendWords(lend), [
    "Jeder Experte liegt bei jemandem; eine weitere Kopie fehlt am meisten in Schicht 7.",
    "Ein Gigabyte hier hält 398 Experten von 6.144. Einer braucht 2,5 MB.",
  ]);
  const now = { is_online: true, now_ms: 0 };
  const offline = { phase: "offline", detail: "The hub is not there. Trying again.", retry_at: 4200 };
  assert.equal(stageWords(offline, now).detail, "Der Hub ist nicht da. Neuer Versuch. Nächster Versuch in 5 s.");
});

// The worker's program reports in English (web-worker/); the page translates its sentences.
test("WorkerSentencesAreTranslatedAndUnknownOnesKept", () => {
  const said = [
    "The hub refused this worker.", "The hub refused this worker: full. Ask the host for a fresh join link.",
    "The GPU was lost (gone). Starting again.", "The GPU was lost (gone). Starting again, try 2 of 5.",
    "The GPU was lost (no memory). Starting again with at most 512 MB.",
    "The memory limit of 150 kB has no room for one expert of this model, which takes 156 kB. Raise the limit, then "
      + "start again.",
  ];
  for (const words of said) assert.equal(detailWords(words), words);
  setLanguage("de");
  const german = said.map(detailWords);
  assert.deepEqual(german.filter((words, i) => words === said[i]), []);
  assert.equal(german[1], "Der Hub hat diesen Tab abgelehnt: full. Bitte den Gastgeber um einen neuen Link.");
  assert.equal(german[3], "Die GPU ging verloren (gone). Neuer Anfang, Versuch 2 von 5.");
  assert.equal(detailWords("Something new."), "Something new.");
});
