// ModelConfig: the contents of a checkpoint's config.json under the names of this project. The
// sizes of the model are fields, and how each layer computes is a LayerPlan. hf_config.h makes it
// from config.json, config_json.h writes and reads it in manifest.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/model/layer_plan.h"
#include "protocol/rope.h"
#include "protocol/tensor_format.h"

namespace moex {

// Sizes of layers with a gated delta rule, the same in all of them; 0 if the model has none.
struct DeltaNetSizes {
    std::uint32_t key_heads = 0, value_heads = 0;  // value_heads is a multiple of key_heads
    std::uint32_t key_dim = 0, value_dim = 0;
    std::uint32_t conv_taps = 0;  // tokens that the convolution sees, the current one included

    std::uint64_t keys() const { return std::uint64_t{key_heads} * key_dim; }
    std::uint64_t values() const { return std::uint64_t{value_heads} * value_dim; }
    // channels of the convolution: all queries, all keys, all values
    std::uint64_t channels() const { return 2 * keys() + values(); }
    bool operator==(const DeltaNetSizes&) const = default;
};

struct ModelConfig {
    // model_type of config.json. People and API clients read it; no code depends on it but
    // the table in families.h.
    std::string architecture = "qwen3_moe";
    std::uint32_t hidden_size = 0;
    std::uint32_t num_layers = 0;
    std::uint32_t num_heads = 0;
    std::uint32_t num_kv_heads = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t vocab_size = 0;
    std::uint32_t context_tokens = 0;  // max_position_embeddings
    std::uint32_t num_experts = 0;     // 0 for a dense model, and so are the next three fields
    std::uint32_t top_k = 0;           // experts per token
    // Width of a routed expert. If the model's width, expert_width, is no multiple of 32, `pack`
    // pads experts with zeros to the next multiple, which changes no result.
    std::uint32_t moe_intermediate_size = 0;
    std::uint32_t expert_width = 0;       // 0: moe_intermediate_size
    std::uint32_t intermediate_size = 0;  // of dense layers
    bool tied_embeddings = false;
    double rms_norm_eps = 1e-6;
    double embedding_multiplier = 1.0;  // factor of the rows after the embedding
    double logits_divisor = 1.0;        // divides all logits
    DeltaNetSizes delta_net;
    // A head that drafts tokens for another model (hub/model/package/draft_head.h): one layer,
    // without embeddings and LM head of its own.
    bool is_draft_head = false;
    std::vector<LayerPlan> layers;  // [num_layers]

    bool is_moe(std::uint32_t layer) const { return layers[layer].is_routed; }
    bool has_keys(std::uint32_t layer) const { return layers[layer].mixer == Mixer::attention; }
    bool has_delta_net() const { return delta_net.key_heads > 0; }
    bool has_experts() const { return num_experts > 0; }
    // Returns the shape of a routed expert, which is the same in all layers. `group_size` is that
    // of INT4 experts, else 0.
    ExpertShape expert_shape(std::uint32_t group_size) const;
    std::vector<std::uint8_t> layer_is_moe() const;  // [num_layers]; 1 for a routed layer
};

}  // namespace moex
