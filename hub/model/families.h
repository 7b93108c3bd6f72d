// The table of model families: for each model_type of transformers, how the fields of its
// config.json become plans of layers (layer_plan.h), and how its checkpoints name their tensors. A
// new family is a new entry here; no other code asks for a family by its name.
// Source: the configuration_* and modeling_* files of each family in transformers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/layer_plan.h"

namespace moex {

// Which layers have a window.
enum class WindowRule : std::uint8_t {
    none,      // refused if use_sliding_window or layer_types asks for one
    all,       // every layer, if sliding_window is not null
    by_types,  // layers of the type sliding_attention in layer_types; by default every second one
};
// Which layers are routed.
enum class RoutedRule : std::uint8_t {
    none,         // a dense family
    all,          // every layer
    sparse_step,  // decoder_sparse_step and mlp_only_layers
    after_dense,  // all but the first first_k_dense_replace
};

// The names of a tensor in a package (hub_specs.h), and in the family's checkpoints, without the
// layer's prefix.
struct TensorAlias {
    std::string_view ours, theirs;
};

// The tensors of routed experts, without the layer's prefix. Every family is also read in the
// layouts of the entry `common_experts`.
struct ExpertNames {
    // One tensor for each expert and matrix: AT.E.GATE.weight.
    std::string_view at = {}, gate = {}, up = {}, down = {};
    // One tensor for all experts of a layer: gate and up [E, 2 I, H], and down [E, H, I].
    std::string_view all_gate_up = {}, all_down = {};
    // gate and up rows alternate in all_gate_up; false: all gate rows come first
    bool alternates = false;
    // Tensors without codes are transposed: [E, H, 2 I] and [E, I, H].
    bool is_transposed = false;
    std::string_view all_gate_up_bias = {}, all_down_bias = {};
};

struct Family {
    std::string_view type, class_name;
    // If this family is the text part of a model that also reads pictures: the names of that model.
    // Checkpoints of the text part alone may keep them.
    std::string_view wrapper_type = {}, wrapper_class = {};
    bool has_experts = false;
    bool is_first = false;  // of the families of the first packages, see config_json.h
    // values of config.json that are absent
    double rms_norm_eps = 1e-6, rope_theta = 10000.0, partial_rotary = 1.0;

    QkNorm qk_norm = QkNorm::none;
    std::string_view qk_norm_key = {};  // a flag that turns the norms on; empty: always
    // The flag of the biases of q, k and v; empty: they are as bias_default.
    std::string_view bias_key = "attention_bias";
    bool bias_default = false;
    bool has_o_bias = true;  // if q, k and v have biases
    bool has_sinks = false;
    bool is_partly_rotated = false;  // reads partial_rotary_factor
    bool reads_clip = false;         // reads clip_qkv
    WindowRule window = WindowRule::none;
    bool has_multipliers = false;  // reads the four multipliers of Granite
    bool norms_add_one = false;
    // The other layers have a gated delta rule: by layer_types, or all but every
    // full_attention_interval-th. Attention has an output gate unless attn_output_gate is false.
    bool has_delta_net = false;
    // Checkpoints may have a head that drafts tokens, in tensors mtp.*
    bool has_draft_head = false;

    RoutedRule routed = RoutedRule::none;
    // The key of the number of experts, beside num_experts and num_local_experts.
    std::string_view expert_count = "num_experts";
    std::string_view expert_width = "moe_intermediate_size";
    std::string_view dense_width = "intermediate_size";  // empty: no layer is dense
    // The shared expert's width, or its width in widths of routed experts.
    std::string_view shared_width = {}, shared_count = {};
    bool has_shared_gate = false;
    Activation activation = Activation::silu;
    std::string_view limit_key = {};
    double limit_default = 0;
    bool has_expert_bias = false;

    RouterPlan router = {};          // without the values of the keys below
    std::string_view norm_key = {};  // the flag of normalised weights; empty: as in `router`
    bool reads_groups = false;       // reads n_group, topk_group and routed_scaling_factor

    std::vector<std::string_view> further_keys = {};  // read, or without an effect in this family
    std::vector<TensorAlias> aliases = {};
    std::optional<ExpertNames> experts = {};
};

extern const ExpertNames common_experts;

// Returns nullptr if the program has no such family.
const Family* find_family(std::string_view type);
// Either name may be empty, but not both.
const Family* find_family(std::string_view type, std::string_view class_name);
// Returns the families in the words of errors: "qwen3_moe, qwen3, ...".
std::string supported_families();

// Returns true if a key of config.json may stay unread, whatever its value: it steers training,
// generation or another program.
bool is_harmless_key(std::string_view key);
// Returns the value of a key that changes nothing where a family does not read the key.
bool is_neutral_value(std::string_view key, const nlohmann::json& value);

}  // namespace moex
