// Makes small tokenizer files in the forms of SentencePiece and tiktoken from the demo's vocabulary, and records the
// ids that SentencePiece itself (compiled to WASM) and js-tiktoken give to texts of many kinds.
// usage: MOEX_NPM=DIR node make_golden.mjs      DIR has the packages that README.md names
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { character_vocabulary } from '../../hub/model/tokenizer/sentencepiece_variants.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const packages = createRequire(join(process.env.MOEX_NPM, 'package.json'));
const { SentencePieceProcessor } = packages('@sctg/sentencepiece-js');
const { Tiktoken } = packages('js-tiktoken/lite');
const demo = JSON.parse(readFileSync(join(here, '../../../static/models/demo/tokenizer.json'), 'utf8'));

// Protocol buffers: numbers, floats, and fields with a content.
const varint = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...varint(Math.floor(value / 128))]);
const number = (field, value) => Buffer.from([...varint(field * 8), ...varint(value)]);
const float = (field, value) => {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(value);
  return Buffer.concat([Buffer.from(varint(field * 8 + 5)), bytes]);
};
const content = (field, value) => {
  const bytes = Buffer.from(value);
  return Buffer.concat([Buffer.from([...varint(field * 8 + 2), ...varint(bytes.length)]), bytes]);
};
const types = { normal: 1, unknown: 2, control: 3, user_defined: 4, unused: 5, byte: 6 };
const piece = (text, score, type) => content(1, Buffer.concat([content(1, text), float(2, score),
  number(3, types[type])]));

// The double array of a map of characters, as darts-clone stores it: a unit has the label of its edge, the distance
// (exclusive or) to the units of its children, and a bit that says that child 0 is a leaf with a value.
function charsmap(map) {
  const root = new Map();
  let values = '';
  for (const [key, value] of map) {
    let node = root;
    for (const byte of Buffer.from(key)) {
      if (!node.has(byte)) node.set(byte, new Map());
      node = node.get(byte);
    }
    node.set(0, Buffer.byteLength(values));
    values += value + '\0';
  }
  const units = [0], used = new Set([0]), bases = new Set();
  const place = (node, index, label) => {
    let base = 1;
    while (bases.has(base) || [...node.keys()].some((byte) => used.has(base ^ byte))) ++base;
    bases.add(base);
    for (const byte of node.keys()) used.add(base ^ byte);
    units[index] = ((index ^ base) << 10 | (node.has(0) ? 256 : 0) | label) >>> 0;
    for (const [byte, child] of node)
      if (byte === 0) units[base] = (child | 0x80000000) >>> 0;
      else place(child, base ^ byte, byte);
  };
  place(root, 0, 0);
  const trie = Buffer.alloc(4 * Math.ceil(units.length / 256) * 256);
  units.forEach((unit, i) => trie.writeUInt32LE(unit ?? 0, 4 * i));
  const size = Buffer.alloc(4);
  size.writeUInt32LE(trie.length);
  return Buffer.concat([size, trie, Buffer.from(values)]);
}

const { pieces, merges } = character_vocabulary(demo);
const words = [...new Set(merges.slice(0, 260).map((merge) => merge.join('')))];
const letters = [...new Set([...words.join(''), ...'▁abcdefghijklmnopqrstuvwxyzäöüßé0123456789.,!?\'"-<>/あい日本'])];
const bytes = pieces.slice(3, 3 + 256);
const model = (list, trainer, normalizer) => Buffer.concat([...list, content(2, Buffer.concat(trainer)),
  content(3, Buffer.concat(normalizer))]);
const bpe = model([
  piece('<unk>', 0, 'unknown'), piece('<s>', 0, 'control'), piece('</s>', 0, 'control'),
  ...bytes.map((byte) => piece(byte, 0, 'byte')),
  ...words.map((word, rank) => piece(word, -rank, 'normal')),
  ...letters.filter((letter) => !words.includes(letter)).map((letter, i) => piece(letter, -words.length - i, 'normal')),
], [number(3, 2), number(35, 1)], [content(1, 'identity'), number(3, 1), number(4, 0), number(5, 1)]);

// The scores repeat no sum, so that one segmentation is the best.
const defined = ['--', '£'];
const more = [...words, ...letters.filter((letter) => !words.includes(letter))].filter((one) => !defined.includes(one));
const unigram = model([
  piece('<pad>', 0, 'control'), piece('</s>', 0, 'control'), piece('<unk>', 0, 'unknown'),
  ...defined.map((text) => piece(text, 0, 'user_defined')),
  ...more.map((text, rank) => piece(text, ([...text].length > 1 ? -4 : -9.5) - Math.sqrt(rank) * 0.31, 'normal')),
], [number(3, 1)], [content(2, charsmap([['ﬁ', 'fi'], ['e\u0301', 'é'], ['é', 'é'], ['É', 'é'], ['E\u0301', 'é'],
  ['１', '1'], ['２', '2'], ['\t', ' '], ['\n', ' '], ['\u00a0', ' '], ['\u3000', ' '], ['\u200b', ''], ['½', '1/2'],
  ['A', 'a'], ['B', 'b'], ['T', 't'], ['…', '...'], ['㍿', '日本']])), number(3, 1), number(4, 1), number(5, 1)]);

const texts = ['', ' ', '   ', 'the', ' the', 'the ', 'the  dog and the  cat', 'a\nb\n\nc', 'a\tb', 'naïve café',
  'cafe\u0301 É E\u0301', 'ﬁne １２ ½ …', 'x\u00a0y\u3000z', 'zero\u200bwidth', '日本語 あいう ㍿',
  '👩‍👩‍👧‍👦 🇩🇪 👍🏽', 'русский язык',
  'עברית العربية', 'ไทย हिन्दी 한국어', '▁under▁score', '--', 'a--b', 'a -- b---c', '£5 and 5£', '<s>', '</s> <unk> <pad>',
  '<0x41>', '"quoted" \'single\'', '1234567890', '3.14159, 2.71828', '!?!?!?', 'a'.repeat(40), '-'.repeat(41),
  ' '.repeat(20) + 'x', 'ab '.repeat(30), 'There was once a little girl who lived in the house.',
  'THE QUICK BROWN FOX', 'for (int i = 0; i < n; ++i) { x += i; }', '\u0000zero', '\u001b[0m', 'é', 'e\u0301\u0301',
  'don\'t I\'LL we\'ve', 'Ünïcödé', '𝔘𝔫𝔦', '\u2028line', 'end.'];

async function sentencepiece(name, file, kept) {
  writeFileSync(join(here, name), file);
  const processor = new SentencePieceProcessor();
  await processor.loadFromB64StringModel(file.toString('base64'));
  return { file: name, cases: texts.filter(kept).map((text) => {
    const ids = [...processor.encodeIds(text)];
    // SentencePiece shows an unknown piece as " ⁇ "; transformers shows the name of the token.
    return { text, ids, decoded: processor.decodeIds(Int32Array.from(ids)).replaceAll(' ⁇ ', '<unk>') };
  }) };
}

// Ranks of tiktoken: the bytes first, then the merges of the demo.
function tiktoken() {
  const alphabet = new Map();
  let next = 256;
  for (let byte = 0; byte < 256; ++byte) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    alphabet.set(String.fromCodePoint(printable ? byte : next++), byte);
  }
  const tokens = [...alphabet.values()].map((byte) => Buffer.from([byte]).toString('base64'));
  for (const merge of demo.model.merges.slice(0, 400))
    tokens.push(Buffer.from([...(Array.isArray(merge) ? merge.join('') : merge.replace(' ', ''))]
      .map((c) => alphabet.get(c))).toString('base64'));
  const unique = [...new Set(tokens)];
  writeFileSync(join(here, 'tiktoken.model'), unique.map((token, rank) => `${token} ${rank}\n`).join(''));

  // Kimi's pattern in JavaScript's syntax.
  const upper = '(?:(?!\\p{sc=Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])';
  const lower = '(?:(?!\\p{sc=Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])';
  const suffix = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?", before = '[^\\r\\n\\p{L}\\p{N}]?';
  const space = '\\p{White_Space}';
  const pattern = [`[\\p{sc=Han}]+`, `${before}${upper}*${lower}+${suffix}`, `${before}${upper}+${lower}*${suffix}`,
    '\\p{N}{1,3}', ` ?[^${space}\\p{L}\\p{N}]+[\\r\\n]*`, `${space}*[\\r\\n]+`, `${space}+(?!\\P{White_Space})`,
    `${space}+`].join('|');
  const encoder = new Tiktoken({ pat_str: pattern, bpe_ranks: `! 0 ${unique.join(' ')}`,
    special_tokens: { '[BOS]': unique.length, '<|im_end|>': unique.length + 2 } });
  return { file: 'tiktoken.model', cases: [...texts, '[BOS]a<|im_end|>b'].map((text) => {
    const ids = encoder.encode(text, 'all');
    return { text, ids, decoded: encoder.decode(ids) };
  }) };
}

const golden = [
  // SentencePiece takes the names of its control tokens for text; checkpoints have them as added tokens.
  await sentencepiece('bpe.model', bpe, (text) => !/<(s|\/s|unk|pad)>/.test(text)),
  // Metaspace, which transformers uses for Unigram models, adds no "▁" before a "▁".
  await sentencepiece('unigram.model', unigram, (text) => !/<(s|\/s|unk|pad)>|^▁/.test(text)),
  tiktoken(),
];
writeFileSync(join(here, 'golden.json'), `[${golden.map(({ file, cases }) => `{"file": "${file}", "cases": [\n${
  cases.map((one) => JSON.stringify(one)).join(',\n')}\n]}`).join(',\n')}]\n`);
