// A small Qwen3-MoE model with random weights and the demo model's tokenizer. A software GPU loads it in a moment. Its
// text is arbitrary, but the same at each run.
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Hub, run, build } from "./hub.mjs";

const demo = new URL("../../../static/models/demo/", import.meta.url);
const hidden = 64, heads = 4, kv_heads = 2, head_dim = 32, experts = 4, expert_rows = 64, vocab = 8192;

// Returns `num` numbers of the normal distribution as bf16, a pure function of `seed` (xorshift32, Box-Muller).
function randomBf16(num, deviation, seed) {
  let state = (seed * 2654435761) >>> 0 || 1;
  const uniform = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return ((state >>> 0) + 0.5) / 2 ** 32;
  };
  const values = Float32Array.from({ length: num }, () => (
    deviation * Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform())));
  return Uint16Array.from(new Uint32Array(values.buffer), (bits) => bits >>> 16);
}

// Returns the shapes of all tensors by name; a vector is the weight of a norm.
function shapesOf(layers) {
  const shapes = { "model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden] };
  for (let layer = 0; layer < layers; layer += 1) {
    const at = `model.layers.${layer}`;
    Object.assign(shapes, {
      [`${at}.input_layernorm.weight`]: [hidden], [`${at}.post_attention_layernorm.weight`]: [hidden],
      [`${at}.self_attn.q_proj.weight`]: [heads * head_dim, hidden],
      [`${at}.self_attn.k_proj.weight`]: [kv_heads * head_dim, hidden],
      [`${at}.self_attn.v_proj.weight`]: [kv_heads * head_dim, hidden],
      [`${at}.self_attn.o_proj.weight`]: [hidden, heads * head_dim],
      [`${at}.self_attn.q_norm.weight`]: [head_dim], [`${at}.self_attn.k_norm.weight`]: [head_dim],
      [`${at}.mlp.gate.weight`]: [experts, hidden],
    });
    for (let expert = 0; expert < experts; expert += 1) {
      const one = `${at}.mlp.experts.${expert}`;
      Object.assign(shapes, {
        [`${one}.gate_proj.weight`]: [expert_rows, hidden], [`${one}.up_proj.weight`]: [expert_rows, hidden],
        [`${one}.down_proj.weight`]: [hidden, expert_rows],
      });
    }
  }
  return shapes;
}

function safetensors(layers) {
  const header = {}, parts = [];
  let end = 0;
  Object.entries(shapesOf(layers)).forEach(([name, shape], i) => {
    const num = shape.reduce((all, one) => all * one, 1);
    const ones = shape.length === 1 && new Uint16Array(num).fill(0x3f80);
    const bytes = Buffer.from((ones || randomBf16(num, name.includes("embed") ? 1 : 0.2, i + 1)).buffer);
    header[name] = { dtype: "BF16", shape, data_offsets: [end, end + bytes.length] };
    end += bytes.length;
    parts.push(bytes);
  });
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json, ...parts]);
}

// Writes the model's package below `folder`, and resolves to its folder. Its name is "small".
export async function packSmall(folder, { layers = 8, context_tokens = 1024 } = {}) {
  const checkpoint = join(folder, "small-checkpoint"), model = join(folder, "small");
  mkdirSync(checkpoint);
  writeFileSync(join(checkpoint, "model.safetensors"), safetensors(layers));
  writeFileSync(join(checkpoint, "config.json"), JSON.stringify({
    architectures: ["Qwen3MoeForCausalLM"], model_type: "qwen3_moe", attention_bias: false, bos_token_id: 8189,
    eos_token_id: 8191, decoder_sparse_step: 1, head_dim, hidden_act: "silu", hidden_size: hidden,
    intermediate_size: 128, max_position_embeddings: context_tokens, mlp_only_layers: [],
    moe_intermediate_size: expert_rows, norm_topk_prob: true, num_attention_heads: heads, num_experts: experts,
    num_experts_per_tok: 2, num_hidden_layers: layers, num_key_value_heads: kv_heads, rms_norm_eps: 1e-6,
    rope_scaling: null, rope_theta: 10000, tie_word_embeddings: true, torch_dtype: "bfloat16", vocab_size: vocab,
  }));
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    copyFileSync(new URL(name, demo), join(checkpoint, name));
  }
  const { code, stderr } = await run(join(build, "moex-hub"), ["pack", checkpoint, model, "--name", "small"]);
  if (code !== 0) throw new Error(`moex-hub pack: ${stderr}`);
  return model;
}

// Starts a hub that serves a small model and computes its experts. remove() ends the hub and removes the model, too.
export async function startSmallHub(options) {
  const folder = mkdtempSync(join(tmpdir(), "moex-small-"));
  const hub = await Hub.start(["--backend", "local", "--model", await packSmall(folder, options)]);
  const remove = hub.remove.bind(hub);
  hub.remove = async () => {
    await remove();
    rmSync(folder, { recursive: true, force: true });
  };
  return hub;
}
