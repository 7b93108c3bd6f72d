// Packs the small checkpoints of tests/golden/families, which have no tokenizer, with one, so that a hub can serve
// texts. Each gets the chat template of its family, and the family's special tokens.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const golden = (path) => new URL(`../golden/${path}`, import.meta.url);
const tags = (...names) => names.flatMap((name) => [`<${name}>`, `</${name}>`]);
const turns = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];
const qwen_marks = [...turns, ...tags('think', 'tool_call', 'tool_response')];
// Tokens of their own that are part of an answer's text.
const parts_of_answers = tags('think', 'tool_call', 'tool_response', 'arg_key', 'arg_value');

// For each family: its template in tests/golden/templates; `marks`, its special tokens; the marks that begin a prompt
// and end an answer; the hub's name for the syntax of calls; the answers of family_chat.mjs that have thoughts.
export const families = {
  mixtral: { template: 'mistral', bos: '<s>', eos: '</s>', syntax: 'mistral',
    marks: ['<s>', '</s>', '[INST]', '[/INST]', '[TOOL_CALLS]', '[AVAILABLE_TOOLS]', '[/AVAILABLE_TOOLS]',
      '[TOOL_RESULTS]', '[/TOOL_RESULTS]'] },
  olmoe: { template: 'olmoe', bos: '<|endoftext|>', eos: '<|endoftext|>', syntax: 'hermes',
    marks: ['<|endoftext|>'] },
  'qwen2-moe': { template: 'chatml', eos: '<|im_end|>', syntax: 'hermes', marks: turns },
  'granite-moe': { template: 'granite', eos: '<|end_of_text|>', syntax: 'template',
    marks: ['<|end_of_text|>', '<|start_of_role|>', '<|end_of_role|>', '<|tool_call|>'] },
  'glm4-moe': { template: 'glm4', eos: '<|user|>', syntax: 'glm', thinks: ['first', 'last'],
    marks: ['<|endoftext|>', '[gMASK]', '<sop>', '<|system|>', '<|user|>', '<|assistant|>', '<|observation|>',
      '/nothink', ...parts_of_answers] },
  'gpt-oss-mxfp4': { template: 'gptoss', eos: '<|return|>', syntax: 'gpt-oss', thinks: ['last'],
    marks: ['<|start|>', '<|end|>', '<|message|>', '<|channel|>', '<|constrain|>', '<|return|>', '<|call|>'] },
  'qwen3-next': { template: 'qwen3-next', eos: '<|im_end|>', syntax: 'hermes', thinks: ['first', 'last'],
    marks: qwen_marks },
  'qwen35-moe': { template: 'qwen3.5', eos: '<|im_end|>', syntax: 'qwen3-coder', thinks: ['first', 'last'],
    marks: qwen_marks },
};
export const gpt_oss = 'gpt-oss-mxfp4';
export const templateOf = (family) => readFileSync(golden(`templates/${families[family].template}.jinja`), 'utf8');

// The characters by which a byte-level BPE writes the bytes 0 to 255, as in GPT-2.
function byteCharacters() {
  const printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : next++));
}

// Returns the texts of tokenizer.json and the ids of the marks: 256 bytes, pairs of letters, and the marks last.
function tokenizerOf(vocab_size, marks) {
  const bytes = byteCharacters();
  const letters = [...'abcdefghijklmnopqrstuvwxyz'];
  const pairs = [...letters.map((letter) => [bytes[32], letter]), ...letters.map((letter) => ['e', letter]),
    ['t', 'h'], ['i', 'n'], ['o', 'n'], ['a', 'n'], ['r', 'e']].slice(0, vocab_size - 256 - marks.length);
  const pieces = [...bytes, ...pairs.map((pair) => pair.join(''))];
  const ids = Object.fromEntries(marks.map((mark, i) => [mark, pieces.length + i]));
  const added_tokens = marks.map((content) => ({ id: ids[content], content, single_word: false, lstrip: false,
    rstrip: false, normalized: false, special: !parts_of_answers.includes(content) }));
  const level = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  const json = { version: '1.0', truncation: null, padding: null, added_tokens, normalizer: null,
    pre_tokenizer: level, post_processor: null, decoder: level,
    model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
      fuse_unk: false, byte_fallback: false, ignore_merges: false,
      vocab: Object.fromEntries(pieces.map((piece, id) => [piece, id])),
      merges: pairs.map((pair) => pair.join(' ')) } };
  return { json, ids };
}

// Writes the checkpoint and its package below `folder`. `run(args)` runs moex-hub and resolves to { code, stderr };
// `flags` are further ones of `pack`, `more` are values of config.json in place of the checkpoint's.
// Resolves to the package's folder, the ids of the marks, and golden.json.
export async function packFamily(folder, family, run, flags = [], more = {}) {
  const checkpoint = join(folder, `${family}-checkpoint`), name = `families/${family}`;
  mkdirSync(checkpoint);
  copyFileSync(golden(`${name}/model.safetensors`), join(checkpoint, 'model.safetensors'));
  const config = JSON.parse(readFileSync(golden(`${name}/config.json`), 'utf8'));
  const text_config = config.text_config ?? config, { marks, bos = null, eos } = families[family];
  const { json, ids } = tokenizerOf(text_config.vocab_size, marks);
  // Each byte of a prompt that describes tools is a token.
  text_config.max_position_embeddings = Math.max(text_config.max_position_embeddings, 4096);
  const files = { 'config.json': { ...config, ...more, eos_token_id: ids[eos] }, 'tokenizer.json': json,
    'tokenizer_config.json': { tokenizer_class: 'GPT2Tokenizer', eos_token: eos, bos_token: bos, pad_token: null,
      unk_token: null, model_max_length: 4096, clean_up_tokenization_spaces: false,
      chat_template: templateOf(family) } };
  for (const [file, value] of Object.entries(files)) writeFileSync(join(checkpoint, file), JSON.stringify(value));

  const model = join(folder, family);
  for (const args of [['pack', '--name', family, ...flags, checkpoint, model], ['verify', model]]) {
    const { code, stderr } = await run(args);
    if (code !== 0) throw new Error(`moex-hub ${args.join(' ')}: ${stderr}`);
  }
  return { model, ids, golden: JSON.parse(readFileSync(golden(`${name}/golden.json`), 'utf8')) };
}
