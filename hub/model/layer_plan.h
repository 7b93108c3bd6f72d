// LayerPlan: how one layer of a model computes, as data. The packer, the hub, the GPU's decoder and
// `inspect` read plans; none of them knows a model family by its name. A family is a table that
// makes plans from the fields of config.json (families.h), and manifest.json stores the plans.
//   a layer of Qwen3:   q and k norms per head, routed, softmax over all, weights normalised
//   a layer of gpt-oss: window 128, sinks, biases, yarn, softmax over the chosen, clamped SwiGLU
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "protocol/result.h"
#include "protocol/rope.h"

namespace moex {

// The part of a layer that mixes the tokens. This program does not compute latent attention; the
// plan has a place for it, so that an error can name it.
enum class Mixer : std::uint8_t { attention, gated_delta_rule, latent_attention };
// Norms of queries and keys before their rotation: over each head, or over all heads together.
enum class QkNorm : std::uint8_t { none, per_head, all_heads };
enum class Activation : std::uint8_t {
    silu,            // silu(gate) · up
    gelu,            // gelu(gate) · up
    clamped_swiglu,  // (min(up, limit) + 1) · g · sigmoid(1.702 · g) with g = min(gate, limit)
};
// How router logits become the weights of the chosen experts.
enum class RouterScore : std::uint8_t {
    softmax,            // over all experts, then the top_k
    softmax_of_chosen,  // the top_k by logit, then over these
    sigmoid,            // of each logit by itself
};

struct RopePlan {
    double theta = 10000.0;
    std::uint32_t rotary_size = 0;  // the first elements of a head, which are rotated; 0: all
    RopeScaling scaling = {};
    bool operator==(const RopePlan&) const = default;
};

struct RouterPlan {
    RouterScore score = RouterScore::softmax;
    bool has_bias = false;  // added to the logits
    // sigmoid only: a bias of each expert that is added to its score to choose experts, and not to
    // weigh them
    bool has_correction_bias = false;
    // sigmoid only: experts are divided into num_groups groups of the same size, and only those in
    // the groups_kept groups with the largest sum of two scores can be chosen
    std::uint32_t num_groups = 1, groups_kept = 1;
    bool is_normalised = false;  // the weights of the chosen are divided by their sum
    double scaling = 1.0;        // factor of all weights
    bool operator==(const RouterPlan&) const = default;
};

struct LayerPlan {
    Mixer mixer = Mixer::attention;
    std::uint32_t window = 0;  // positions that a token sees, its own included; 0: all
    RopePlan rope = {};
    bool norms_add_one = false;  // weights of norms are stored as their difference from 1
    QkNorm qk_norm = QkNorm::none;
    bool has_qkv_bias = false, has_o_bias = false;
    bool has_sinks = false;            // each head has a further logit; its probability is dropped
    bool has_output_gate = false;      // attention is multiplied by a sigmoid of its own projection
    double clip_qkv = 0;               // queries, keys and values are clamped to ±clip_qkv; 0: not
    double attention_scale = 0;        // factor of q · k; 0: 1 / sqrt(head_dim)
    double residual_multiplier = 1.0;  // factor of what attention and FFN add to the rows

    bool is_routed = false;  // the FFN is a choice of experts; false: one dense FFN
    // Width of an expert that every token takes, beside the routed ones; 0: none. If it has a gate,
    // its answer is multiplied by sigmoid(gate · x).
    std::uint32_t shared_size = 0;
    bool has_shared_gate = false;
    Activation activation = Activation::silu;
    double activation_limit = 0;   // of clamped_swiglu
    bool has_expert_bias = false;  // routed experts have biases of both products
    RouterPlan router = {};
    bool operator==(const LayerPlan&) const = default;
};

// Write and read a plan as an object of manifest.json. Fields that have the values of LayerPlan{}
// are left out.
nlohmann::json plan_to_json(const LayerPlan& plan);
Result<LayerPlan> parse_plan(const nlohmann::json& object);

// Returns an error that names the first part of the plan that no code of this program computes.
Status check_computable(const LayerPlan& plan);

// Returns the features of a plan in words, beyond those of a dense layer of Llama: {"window 128",
// "sinks", "router: softmax of the chosen"}. `inspect` and `pack` print them.
std::vector<std::string> plan_words(const LayerPlan& plan);

}  // namespace moex
