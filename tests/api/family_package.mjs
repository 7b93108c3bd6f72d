// Packs the small checkpoints of tests/golden/families, which have no tokenizer, with one, so that a hub can serve
// texts. gpt-oss, whose experts are clamped, gets the chat template of channels.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const golden = (path) => new URL(`../golden/${path}`, import.meta.url);
const marks = ['<|start|>', '<|end|>', '<|message|>', '<|channel|>', '<|constrain|>', '<|return|>', '<|call|>'];

// The characters by which a byte-level BPE writes the bytes 0 to 255, as in GPT-2.
function byteCharacters() {
  const printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : next++));
}

// Returns the texts of tokenizer.json and the ids of the marks: 256 bytes, pairs of letters, and the marks last.
function tokenizerOf(vocab_size) {
  const bytes = byteCharacters();
  const letters = [...'abcdefghijklmnopqrstuvwxyz'];
  const pairs = [...letters.map((letter) => [bytes[32], letter]), ...letters.map((letter) => ['e', letter]),
    ['t', 'h'], ['i', 'n'], ['o', 'n'], ['a', 'n'], ['r', 'e']].slice(0, vocab_size - 256 - marks.length);
  const pieces = [...bytes, ...pairs.map((pair) => pair.join(''))];
  const ids = Object.fromEntries(marks.map((mark, i) => [mark, pieces.length + i]));
  const added_tokens = marks.map((content) => ({ id: ids[content], content, single_word: false, lstrip: false,
    rstrip: false, normalized: false, special: true }));
  const level = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  const json = { version: '1.0', truncation: null, padding: null, added_tokens, normalizer: null,
    pre_tokenizer: level, post_processor: null, decoder: level,
    model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
      fuse_unk: false, byte_fallback: false, ignore_merges: false,
      vocab: Object.fromEntries(pieces.map((piece, id) => [piece, id])),
      merges: pairs.map((pair) => pair.join(' ')) } };
  return { json, ids };
}

export const gpt_oss = 'gpt-oss-mxfp4';

// Writes the checkpoint and its package below `folder`. `run(args)` runs moex-hub and resolves to { code, stderr };
// `flags` are further ones of `pack`.
// Resolves to the package's folder, the ids of the marks, and golden.json.
export async function packFamily(folder, family, run, flags = []) {
  const checkpoint = join(folder, `${family}-checkpoint`), name = `families/${family}`;
  mkdirSync(checkpoint);
  copyFileSync(golden(`${name}/model.safetensors`), join(checkpoint, 'model.safetensors'));
  const config = JSON.parse(readFileSync(golden(`${name}/config.json`), 'utf8'));
  const { json, ids } = tokenizerOf(config.vocab_size);
  const files = { 'config.json': { ...config, eos_token_id: ids['<|return|>'] }, 'tokenizer.json': json,
    'tokenizer_config.json': { tokenizer_class: 'GPT2Tokenizer', eos_token: '<|return|>', bos_token: null,
      pad_token: null, unk_token: null, model_max_length: 4096, clean_up_tokenization_spaces: false,
      ...(family === gpt_oss ? { chat_template: readFileSync(golden('templates/gptoss.jinja'), 'utf8') } : {}) } };
  for (const [file, value] of Object.entries(files)) writeFileSync(join(checkpoint, file), JSON.stringify(value));

  const model = join(folder, family);
  for (const args of [['pack', ...flags, checkpoint, model], ['verify', model]]) {
    const { code, stderr } = await run(args);
    if (code !== 0) throw new Error(`moex-hub ${args.join(' ')}: ${stderr}`);
  }
  return { model, ids, golden: JSON.parse(readFileSync(golden(`${name}/golden.json`), 'utf8')) };
}
