// Compares our tokenizer with npm @huggingface/tokenizers. Both must give the same ids for golden prompts and for
// thousands of generated lines of mixed scripts, emoji, code, white space, combining marks, special tokens and broken
// bytes. Both must decode the ids to the same text.
// usage: MOEX_NPM=DIR node compare_tokenizer.mjs --probe PROGRAM|--wasm FOLDER --tokenizer tokenizer.json
//        --config tokenizer_config.json [--golden golden.json]
//   [--lines N] [--seed N] [--scratch FOLDER: also with the pre-tokenizers, merges and added tokens of other families,
//   and with vocabularies of SentencePiece's kind]
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { NativeProbe, seeded, parse_arguments } from '../../../support/native_probe.mjs';
import { WasmProbe } from '../../../support/wasm_probe.mjs';
import { sentencepiece_variants } from './sentencepiece_variants.mjs';

const options = parse_arguments(process.argv);
const { Tokenizer } = createRequire(join(process.env.MOEX_NPM, 'package.json'))('@huggingface/tokenizers');
const seed = Number(options.seed ?? 20240611);
const num_lines = Number(options.lines ?? 4000);
console.log(`seed ${seed}, ${num_lines} generated lines, ${options.tokenizer}`);
const random = seeded(seed);

const demo_json = JSON.parse(readFileSync(options.tokenizer, 'utf8'));
const config_json = options.config ? JSON.parse(readFileSync(options.config, 'utf8')) : {};
const added = [...demo_json.added_tokens.map((token) => token.content), '<think>', '<|lstrip|>', '<|rstrip|>', 'word',
  'Ångström'];

const blocks = [
  [0x20, 0x7e], [0x20, 0x7e], [0xa1, 0xff], [0x100, 0x17f], [0x370, 0x3ff], [0x400, 0x4ff], [0x531, 0x556],
  [0x5d0, 0x5ea],
  [0x620, 0x64a], [0x660, 0x669], [0x904, 0x939], [0x93e, 0x94d], [0xe01, 0xe3a], [0xe40, 0xe4e], [0x10d0, 0x10fa],
  [0x1100, 0x1175],
  [0x1e00, 0x1eff], [0x2010, 0x2027], [0x2070, 0x2071], [0x20a0, 0x20bf], [0x2100, 0x214f], [0x2190, 0x23ff],
  [0x2600, 0x27bf], [0x3041, 0x3096],
  [0x30a1, 0x30fa], [0x4e00, 0x9fa5], [0xac00, 0xd7a3], [0xf900, 0xfa2d], [0xfb00, 0xfb06], [0xff01, 0xff5e],
  [0x1d400, 0x1d454],
  [0x1f300, 0x1f64f], [0x1f900, 0x1f9ff], [0x20000, 0x20050],
];
const marks = [[0x300, 0x36f], [0x591, 0x5bd], [0x64b, 0x652], [0x200b, 0x200f], [0xfe0e, 0xfe0f], [0x1f3fb, 0x1f3ff],
  [0x3099, 0x309a], [0x1161, 0x1175]];
const spaces = [' ', ' ', '  ', '    ', '\t', '\n', '\r\n', '\n\n', '\u00a0', '\u2003', '\u3000', '\u0085', '\u2028',
  '\u180e', '\ufeff', '\u200b', '\v', '\f'];
const words = [
  "don't", "I'LL", "we've", "it's", "THEY'RE", "'\u017f", "hello", "World", "naïve", "cafe\u0301", "Ångström", "straße",
  "ﬁne", "0x1F", "3.14159", "１２３", "²³½",
  "for (int i = 0; i < n; ++i) {", "}\n\n\n", "return x->y;", "def f(a, *b):", "#include <vector>", "// comment", "\\n",
  "'''", "```", "<div class=\"a\">", "&amp;",
  "https://example.org/a?b=c&d=%20", "user@example.org", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "한국어", "각", "日本語テスト", "が", "ไทย",
  "हिन्दी", "עִבְרִית", "العربية", "Ελληνικά", "русский",
  "…", "—", "“quoted”", "\u0000", "\u001b[0m", "a".repeat(70), "!?".repeat(40), "-".repeat(100),
];
const from = ([low, high]) => String.fromCodePoint(low + random.below(high - low + 1));
function fragment() {
  switch (random.below(9)) {
    case 0: return random.pick(spaces).repeat(1 + random.below(4));
    case 1: return random.pick(words);
    case 2: return added.length ? random.pick(added) : '';
    case 3: return random.pick(marks.map(from)).repeat(1 + random.below(3));
    case 4: {
      const token = added.length ? random.pick(added) : 'x';
      return token.slice(0, random.below(token.length + 1));
    }
    case 5: return String(random.below(1000000));
    default: {
      const block = random.pick(blocks);
      let text = '';
      for (let i = random.below(8); i >= 0; --i) text += from(block)
        + (random.below(12) === 0 ? from(random.pick(marks)) : '');
      return text;
    }
  }
}
function line_bytes(index) {
  let text = '';
  for (let i = random.below(14); i >= 0; --i) text += fragment() + (random.below(2) ? ' ' : '');
  if (index % 500 === 499) text = text.repeat(60);  // long lines too
  const bytes = [...Buffer.from(text, 'utf8')];
  if (index % 4 === 3) {
    for (let i = 1 + random.below(6); i > 0; --i) {
      const at = random.below(bytes.length + 1);
      if (random.below(2)) bytes.splice(at, random.below(3));
      else bytes.splice(at, 0, ...[[0xff], [0xc0, 0x80], [0xe2, 0x82], [0xf0, 0x9f, 0x98], [0xed, 0xa0, 0x80], [0x80],
        [0xf4, 0x90], [0xe0, 0x80]][random.below(8)]);
    }
  }
  return Buffer.from(bytes);
}

const inputs = [];
for (const text of ['', ' ', '\n', 'hello', ' '.repeat(300), '\n'.repeat(50) + 'x', 'e\u0301'.repeat(50),
  'a\u0315\u0300\u05ae\u0062', 'x'.repeat(5000), '\ufeffx', '\u0300'.repeat(200)])
  inputs.push(Buffer.from(text));
if (options.golden && existsSync(options.golden)) {
  const golden = JSON.parse(readFileSync(options.golden, 'utf8'));
  const collect = (value) => {
    if (typeof value === 'string') inputs.push(Buffer.from(value));
    else if (value && typeof value === 'object')
      for (const inner of Object.values(value))
        if (!Array.isArray(inner) || typeof inner[0] !== 'number') collect(inner);
  };
  collect(golden);
}
for (let i = 0; i < num_lines; ++i) inputs.push(line_bytes(i));

// Variants of the tokenizer: the same vocabulary with the settings of other model families.
const split = (regex, behavior = 'Isolated', invert = false) => ({ type: 'Split', pattern: { Regex: regex }, behavior,
  invert });
const byte_level = (use_regex, add_prefix_space = false) => ({ type: 'ByteLevel', add_prefix_space, trim_offsets: true,
  use_regex });
const sequence = (...pretokenizers) => ({ type: 'Sequence', pretokenizers });
const token = (id, content, flags) => ({ id, content, single_word: false, lstrip: false, rstrip: false,
  normalized: false, special: false, ...flags });
const special_token = (id) => ({ SpecialToken: { id, type_id: 0 } });
const variants = {
  gpt2: { pre_tokenizer: byte_level(true), normalizer: null, script_spaces: true },
  prefix_space: { pre_tokenizer: byte_level(true, true), normalizer: null, script_spaces: true },
  llama3: {
    pre_tokenizer: sequence(
      split("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
        + " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
      byte_level(false)),
    normalizer: null, ignore_merges: true,
  },
  deepseek: {
    pre_tokenizer: sequence(split('\\p{N}{1,3}'), split('[一-龥぀-ゟ゠-ヿ]+'),
      split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
        + " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
      byte_level(false)),
    normalizer: { type: 'Sequence', normalizers: [] },
  },
  o200k: {
    pre_tokenizer: sequence(
      split("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
        + "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        + "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
        + "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        + "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
      byte_level(false)),
    normalizer: null,
  },
  added: {
    script_spaces: true,
    added: [token(8192, '<think>', {}), token(8193, '<|lstrip|>', { lstrip: true }),
      token(8194, '<|rstrip|>', { rstrip: true, special: true }),
      token(8195, 'word', {}), token(8196, 'Ångström', { normalized: true })],
  },
  string_merges: { merges_as_strings: true },
  bos: {
    post_processor: {
      type: 'Sequence', processors: [{ type: 'ByteLevel', add_prefix_space: true, trim_offsets: false,
        use_regex: true },
        { type: 'TemplateProcessing', single: [special_token('<s>'), { Sequence: { id: 'A', type_id: 0 } },
          special_token('</s>')], pair: [],
          special_tokens: { '<s>': { id: '<s>', ids: [8192], tokens: ['<s>'] },
            '</s>': { id: '</s>', ids: [8193], tokens: ['</s>'] } } }],
    },
    added: [token(8192, '<s>', { special: true }), token(8193, '</s>', { special: true })],
  },
};
// script_spaces: in these variants the npm package uses JavaScript's definition of white space, which has U+FEFF and
// lacks U+0085. The tokenizers library and our tokenizer use Unicode's White_Space. Texts with these two characters are
// omitted.
const cases = [[options.tokenizer, demo_json, inputs]];
if (options.scratch) {
  mkdirSync(options.scratch, { recursive: true });
  for (const [name, variant] of Object.entries(variants)) {
    const json = structuredClone(demo_json);
    for (const key of ['pre_tokenizer', 'normalizer', 'post_processor']) if (key in variant) json[key] = variant[key];
    if (variant.ignore_merges) json.model.ignore_merges = true;
    if (variant.added) json.added_tokens.push(...variant.added);
    if (variant.merges_as_strings)
      json.model.merges = json.model.merges.map((merge) => (Array.isArray(merge) ? merge.join(' ') : merge));
    const path = join(options.scratch, `tokenizer_${name}.json`);
    writeFileSync(path, JSON.stringify(json));
    const some = inputs.filter((input, i) => i % 4 === 0 || input.length < 40);
    cases.push([path, json, variant.script_spaces
      ? some.filter((input) => !/[\ufeff\u0085]/.test(input.toString('utf8'))) : some]);
  }
  // The npm package drops U+FEFF at the begin of a run of bytes, which shuffled bytes may give, too. The tokenizers
  // library and our tokenizer keep it.
  for (const [name, json] of Object.entries(sentencepiece_variants(demo_json))) {
    const path = join(options.scratch, `tokenizer_${name}.json`);
    writeFileSync(path, JSON.stringify(json));
    cases.push([path, json, inputs.filter((input, i) => (i % 2 === 0 || input.length < 40)
      && !/[\ufeff\u0085]/.test(input.toString('utf8'))), '\ufeff']);
  }
}

const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
const probe = options.wasm ? await WasmProbe.open(options.wasm) : new NativeProbe(options.probe);
let failures = 0, tokens = 0;
function fail(what, input, ours, theirs) {
  if (++failures > 10) return;
  const shown = JSON.stringify(decoder.decode(input).slice(0, 300));
  console.error(`${what} differs for ${shown} (hex ${input.toString('hex').slice(0, 400)})`);
  console.error(`  ours   ${JSON.stringify(ours).slice(0, 500)}\n  theirs ${JSON.stringify(theirs).slice(0, 500)}`);
}
for (const [path, json, texts, dropped = ''] of cases) {
  const loaded = await probe.ask({ op: 'tokenizer', json: path, config: options.config ?? '' });
  if (!loaded.ok) throw new Error(`${path}: ${loaded.error}`);
  const reference = new Tokenizer(json, config_json);
  const before = failures;
  for (const input of texts) {
    const theirs = reference.encode(decoder.decode(input), { add_special_tokens: false }).ids;
    const { ids: ours, prompt } = await probe.ask({ op: 'encode', hex: input.toString('hex') });
    tokens += ours.length;
    if (JSON.stringify(ours) !== JSON.stringify(theirs)) fail('encode', input, ours, theirs);
    const theirs_with_special = reference.encode(decoder.decode(input), { add_special_tokens: true }).ids;
    if (JSON.stringify(prompt) !== JSON.stringify(theirs_with_special))
      fail('encode_prompt', input, prompt, theirs_with_special);
    if (!ours.length) continue;
    // Decode the tokens in random order, so that UTF-8 sequences are broken at every border between tokens.
    const shuffled = ours.map((id) => (random.below(3) ? id : random.pick(ours)));
    for (const ids of [ours, shuffled]) {
      for (const skip_special of [false, true]) {
        const text = reference.decode(ids, { skip_special_tokens: skip_special, clean_up_tokenization_spaces: false });
        const answer = await probe.ask({ op: 'decode', ids, skip_special });
        const kept = (decoded) => (dropped ? decoded.replaceAll(dropped, '') : decoded);
        if (kept(answer.text) !== kept(text)) fail('decode', input, answer.text, text);
        if (answer.streamed !== answer.text) fail('stream', input, answer.streamed, answer.text);
      }
    }
  }
  console.log(`${path.split('/').pop()}: ${texts.length} texts, ${failures - before} differences`);
}
probe.close();
console.log(`${tokens} tokens, ${failures} differences`);
process.exit(failures ? 1 : 0);
