// Writes a small model that copies what its prompt says, and prompts for it. Drafts by n-grams are measured with it,
// because the demo cannot copy.
//   node bench/induction.mjs DIR [--layers N] [--prompts N] [--length N] [--answer N]
// DIR gets a checkpoint of the kind qwen3_moe, for `moex-hub pack`, and prompts.txt. The weights are built, not
// trained. Layer 0 has heads that look one position back, so that each position knows the token before it. Layer 1 has
// induction heads: they look for the position whose earlier token is the current token, and bring the token that is
// there. The other layers and all experts write to dimensions that nothing reads.
// A token of the text is one capital and one small letter. A prompt is --length different tokens, and then one of them
// again, at a place with --answer tokens behind it: the model continues with these.
// example: node bench/induction.mjs /tmp/induction && build/moex-hub pack /tmp/induction /tmp/copies &&
//   node bench/speculative_bench.mjs --model /tmp/copies --text /tmp/induction/prompts.txt --words 1 --drafts off,ngram
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { readFlags } from "./flags.mjs";

const [folder] = process.argv.splice(2, 1);
const options = { layers: "4", prompts: "20", length: "120", answer: "64" };
readFlags("induction", options);
if (!folder || folder.startsWith("-")) throw new Error("induction: wants a folder to write to");

const code_dims = 256;            // of each part of the hidden state
const [token_part, before_part, found_part, rest_part] = [0, 1, 2, 3].map((i) => i * code_dims);
const constant_dims = 192;        // of the last part: ones, which heads that look at positions alone read
const [heads, head_dim, experts, used_experts, expert_dims] = [2, 128, 16, 4, 64];
const hidden = 4 * code_dims;
const letters = 16;
const vocabulary = 256 + letters * letters + 2;
const slow_pairs = 23;            // pairs of a head that rope turns by less than a tenth over 500 positions
const fast_pairs = 12;            // pairs whose angles differ most between neighbours

// Park and Miller's generator: the same checkpoint on every machine.
let state = 1;
const uniform = () => (state = (state * 48271) % 2147483647) / 2147483647;
const sign = () => (uniform() < 0.5 ? -1 : 1);
const below = (n) => Math.floor(uniform() * n);

// Codes of +1 and -1. In the dimensions that the induction heads compare, any two differ in at least 12 of 46.
const compared = 2 * slow_pairs;
const codes = [];
while (codes.length < vocabulary) {
  const code = Float32Array.from({ length: code_dims }, sign);
  const alike = (other) => {
    let sum = 0;
    for (let i = 0; i < compared; i += 1) sum += code[i] * other[i];
    return sum;
  };
  if (codes.every((other) => alike(other) <= compared - 24)) codes.push(code);
}

const tensors = new Map();
function matrix(name, rows, columns, fill) {
  const values = new Float32Array(rows * columns);
  fill?.((row, column, value) => { values[row * columns + column] = value; });
  tensors.set(name, { shape: [rows, columns], values });
}
function vector(name, size, value) {
  tensors.set(name, { shape: [size], values: Float32Array.from({ length: size }, (_, i) => value(i)) });
}
const noise = (rows, columns, scale) => (set) => {
  for (let row = 0; row < rows; row += 1)
    for (let column = 0; column < columns; column += 1) set(row, column, scale * (2 * uniform() - 1));
};
// Dimension of a head that belongs to pair i of rope: the pairs turn slower with i.
const pairs = head_dim / 2;
const inHead = (head, i, half) => head * head_dim + half * pairs + i;

// Rope turns the key at j and the query at i by their positions. The query is turned back by one position more, so that
// their product is largest at j = i - 1.
function lookBack(layer, theta) {
  const weights = `model.layers.${layer}.self_attn`;
  const wide = heads * head_dim;
  for (const [name, turn] of [["q_proj", -1], ["k_proj", 0]])
    matrix(`${weights}.${name}.weight`, wide, hidden, (set) => {
      for (let head = 0; head < heads; head += 1)
        for (let i = 0; i < fast_pairs; i += 1) {
          const angle = turn * theta ** (-i / pairs);
          for (let c = 0; c < constant_dims; c += 1) {
            set(inHead(head, i, 0), rest_part + c, Math.cos(angle) / constant_dims);
            set(inHead(head, i, 1), rest_part + c, Math.sin(angle) / constant_dims);
          }
        }
    });
  vector(`${weights}.q_norm.weight`, head_dim, () => 8);
  vector(`${weights}.k_norm.weight`, head_dim, () => 8);
  bring(weights, before_part, 1);
}

function induct(layer) {
  const weights = `model.layers.${layer}.self_attn`;
  for (const [name, part] of [["q_proj", token_part], ["k_proj", before_part]])
    matrix(`${weights}.${name}.weight`, heads * head_dim, hidden, (set) => {
      for (let head = 0; head < heads; head += 1)
        for (let i = 0; i < slow_pairs; i += 1)
          for (const half of [0, 1])
            set(inHead(head, pairs - slow_pairs + i, half), part + half * slow_pairs + i, 1);
    });
  vector(`${weights}.q_norm.weight`, head_dim, () => 3);
  vector(`${weights}.k_norm.weight`, head_dim, () => 3);
  bring(weights, found_part, 4);
}

// The token's code at the position that the heads look at, written to `part`.
function bring(weights, part, scale) {
  matrix(`${weights}.v_proj.weight`, heads * head_dim, hidden, (set) => {
    for (let i = 0; i < heads * head_dim; i += 1) set(i, token_part + i, 1);
  });
  matrix(`${weights}.o_proj.weight`, hidden, heads * head_dim, (set) => {
    for (let i = 0; i < heads * head_dim; i += 1) set(part + i, i, scale);
  });
}

function lookNowhere(layer) {
  const weights = `model.layers.${layer}.self_attn`;
  for (const name of ["q_proj", "k_proj", "v_proj"])
    matrix(`${weights}.${name}.weight`, heads * head_dim, hidden, noise(heads * head_dim, hidden, 0.05));
  matrix(`${weights}.o_proj.weight`, hidden, heads * head_dim);
  for (const name of ["q_norm", "k_norm"]) vector(`${weights}.${name}.weight`, head_dim, () => 1);
}

function addExperts(layer) {
  const weights = `model.layers.${layer}.mlp`;
  matrix(`${weights}.gate.weight`, experts, hidden, noise(experts, hidden, 0.1));
  const unread = rest_part + constant_dims;
  for (let e = 0; e < experts; e += 1) {
    for (const name of ["gate_proj", "up_proj"])
      matrix(`${weights}.experts.${e}.${name}.weight`, expert_dims, hidden, noise(expert_dims, hidden, 0.02));
    matrix(`${weights}.experts.${e}.down_proj.weight`, hidden, expert_dims, (set) => {
      for (let row = unread; row < hidden; row += 1)
        for (let i = 0; i < expert_dims; i += 1) set(row, i, 0.02 * (2 * uniform() - 1));
    });
  }
}

const config = {
  architectures: ["Qwen3MoeForCausalLM"], model_type: "qwen3_moe", attention_bias: false, hidden_act: "silu",
  hidden_size: hidden, intermediate_size: expert_dims, moe_intermediate_size: expert_dims, num_experts: experts,
  num_experts_per_tok: used_experts, norm_topk_prob: true, decoder_sparse_step: 1, mlp_only_layers: [],
  num_hidden_layers: Number(options.layers), num_attention_heads: heads, num_key_value_heads: heads,
  head_dim, max_position_embeddings: 1024, rms_norm_eps: 1e-6, rope_theta: 1e6, rope_scaling: null,
  tie_word_embeddings: false, vocab_size: vocabulary, bos_token_id: null, eos_token_id: vocabulary - 1,
  torch_dtype: "bfloat16",
};
const layers = Number(options.layers);
if (!(layers >= 2)) throw new Error(`induction: wants at least 2 layers, got ${options.layers}`);

matrix("model.embed_tokens.weight", vocabulary, hidden, (set) => {
  for (let token = 0; token < vocabulary; token += 1) {
    for (let i = 0; i < code_dims; i += 1) set(token, token_part + i, codes[token][i]);
    for (let i = 0; i < constant_dims; i += 1) set(token, rest_part + i, 1);
  }
});
for (let layer = 0; layer < layers; layer += 1) {
  if (layer === 0) lookBack(layer, config.rope_theta);
  else if (layer === 1) induct(layer);
  else lookNowhere(layer);
  addExperts(layer);
  for (const name of ["input_layernorm", "post_attention_layernorm"])
    vector(`model.layers.${layer}.${name}.weight`, hidden, () => 1);
}
vector("model.norm.weight", hidden, () => 1);
matrix("lm_head.weight", vocabulary, hidden, (set) => {
  for (let token = 0; token < vocabulary; token += 1)
    for (let i = 0; i < code_dims; i += 1) set(token, found_part + i, codes[token][i] / 4);
});

function bf16Of(values) {
  const bits = new Uint32Array(values.buffer);
  return Buffer.from(Uint16Array.from(bits, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16).buffer);
}
function writeTensors(path) {
  const header = {}, bodies = [];
  let offset = 0;
  for (const [name, { shape, values }] of tensors) {
    header[name] = { dtype: "BF16", shape, data_offsets: [offset, offset + 2 * values.length] };
    offset += 2 * values.length;
    bodies.push(bf16Of(values));
  }
  const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([length, text, ...bodies]));
}

// GPT-2's letters for bytes: printable bytes are themselves, and the others follow from U+0100 on.
function byteLetters() {
  const plain = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(plain(byte) ? byte : next++));
}
const pairsOfLetters = Array.from({ length: letters * letters },
  (_, i) => [String.fromCharCode(65 + Math.floor(i / letters)), String.fromCharCode(97 + (i % letters))]);
const words = [...byteLetters(), ...pairsOfLetters.map((pair) => pair.join(""))];
const special = ["<|unused|>", "<|endoftext|>"].map((content, i) => ({
  id: words.length + i, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true,
}));
const tokenizer = {
  version: "1.0", truncation: null, padding: null, added_tokens: special, normalizer: null,
  pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
  post_processor: null, decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
  model: {
    type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
    fuse_unk: false, byte_fallback: false, vocab: Object.fromEntries(words.map((word, id) => [word, id])),
    merges: pairsOfLetters.map((pair) => pair.join(" ")),
  },
};

function prompt() {
  const left = pairsOfLetters.map((pair) => pair.join(""));
  const [length, answer] = [Number(options.length), Number(options.answer)];
  const tokens = Array.from({ length }, () => left.splice(below(left.length), 1)[0]);
  return [...tokens, tokens[below(length - answer)]].join("");
}

mkdirSync(folder, { recursive: true });
writeTensors(join(folder, "model.safetensors"));
writeFileSync(join(folder, "config.json"), JSON.stringify(config, null, 2));
writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizer));
writeFileSync(join(folder, "tokenizer_config.json"), JSON.stringify({ eos_token: "<|endoftext|>", bos_token: null }));
writeFileSync(join(folder, "prompts.txt"), Array.from({ length: Number(options.prompts) }, prompt).join("\n") + "\n");
