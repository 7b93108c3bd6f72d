// ModelConfig: the contents of a checkpoint's config.json under the names of this project. Only
// this file maps Hugging Face keys to those names. Source: transformers Qwen3MoeConfig,
// Qwen3Config, Qwen2Config and LlamaConfig, versions 4 (num_experts, rope_theta, torch_dtype) and 5
// (num_local_experts, rope_parameters, dtype).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "protocol/result.h"
#include "protocol/rope.h"
#include "protocol/tensor_format.h"

namespace moex {

struct ModelConfig {
    // "qwen3_moe", or a dense one: "qwen3", "qwen2", "llama"
    std::string architecture = "qwen3_moe";
    std::uint32_t hidden_size = 0;
    std::uint32_t num_layers = 0;
    std::uint32_t num_heads = 0;
    std::uint32_t num_kv_heads = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t vocab_size = 0;
    std::uint32_t context_tokens = 0;  // max_position_embeddings
    std::uint32_t num_experts = 0;     // 0 for a dense model, and so are the next two fields
    std::uint32_t top_k = 0;           // experts per token
    std::uint32_t moe_intermediate_size = 0;
    std::uint32_t intermediate_size = 0;  // of dense layers
    // [num_layers]; true for a layer with experts; from mlp_only_layers and decoder_sparse_step
    std::vector<std::uint8_t> layer_is_moe;
    bool norm_topk_prob = false;
    bool attention_bias = false;  // the projections q, k and v have biases; for o see has_o_bias()
    bool tied_embeddings = false;
    double rms_norm_eps = 1e-6;
    double rope_theta = 10000.0;
    RopeScaling rope_scaling;

    bool is_moe(std::uint32_t layer) const { return layer_is_moe[layer] != 0; }
    bool has_experts() const { return num_experts > 0; }
    // Returns true if the model normalises the query and the key of each attention head, as Qwen3
    // does.
    bool has_qk_norm() const { return architecture == "qwen3_moe" || architecture == "qwen3"; }
    bool has_o_bias() const { return attention_bias && architecture != "qwen2"; }
};

// Reads config.json. Errors name the key, the value found and the value wanted. The function
// refuses unknown architectures, unknown rope scalings, sliding windows, and experts in a dense
// architecture; the error names the refused item.
Result<ModelConfig> parse_hf_config(const nlohmann::json& config);
// These functions write and read a ModelConfig in the form of manifest.json, which has this
// project's names.
nlohmann::json to_json(const ModelConfig& config);
Result<ModelConfig> parse_model_config(const nlohmann::json& object);

}  // namespace moex
