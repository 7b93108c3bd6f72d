#include "hub/model/package/hub_specs.h"

#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {
namespace {

// The sizes that a tensor's shape consists of.
enum class Size : std::uint8_t {
    none,
    one,
    vocab,
    hidden,
    two_hidden,
    q,
    kv,
    head,
    heads,
    dense,
    shared,
    experts,
    delta_channels,
    delta_values,
    delta_heads,
    delta_value,
    conv_taps
};

struct Row {
    HubPart part;
    const char* name;  // after "model.layers.N." for a part of a layer
    Size out, in = Size::none;
    const char* words;
    bool precise = false;
};

constexpr Row outer_rows[] = {
    {HubPart::embeddings, "model.embed_tokens.weight", Size::vocab, Size::hidden,
     "vocab_size, hidden_size"},
    {HubPart::final_norm, "model.norm.weight", Size::hidden, Size::none, "hidden_size", true},
    {HubPart::head, "lm_head.weight", Size::vocab, Size::hidden, "vocab_size, hidden_size"},
    {HubPart::draft_join, "draft.join.weight", Size::hidden, Size::two_hidden,
     "hidden_size, 2 * hidden_size"},
    {HubPart::draft_embedding_norm, "draft.embedding_norm.weight", Size::hidden, Size::none,
     "hidden_size", true},
    {HubPart::draft_hidden_norm, "draft.hidden_norm.weight", Size::hidden, Size::none,
     "hidden_size", true},
};

// The parts of a layer in the order of hub.safetensors.
constexpr Row layer_rows[] = {
    {HubPart::input_norm, "input_layernorm.weight", Size::hidden, Size::none, "hidden_size", true},
    {HubPart::q, "self_attn.q_proj.weight", Size::q, Size::hidden,
     "num_heads * head_dim, hidden_size"},
    {HubPart::k, "self_attn.k_proj.weight", Size::kv, Size::hidden,
     "num_kv_heads * head_dim, hidden_size"},
    {HubPart::v, "self_attn.v_proj.weight", Size::kv, Size::hidden,
     "num_kv_heads * head_dim, hidden_size"},
    {HubPart::o, "self_attn.o_proj.weight", Size::hidden, Size::q,
     "hidden_size, num_heads * head_dim"},
    {HubPart::q_bias, "self_attn.q_proj.bias", Size::q, Size::none, "num_heads * head_dim", true},
    {HubPart::k_bias, "self_attn.k_proj.bias", Size::kv, Size::none, "num_kv_heads * head_dim",
     true},
    {HubPart::v_bias, "self_attn.v_proj.bias", Size::kv, Size::none, "num_kv_heads * head_dim",
     true},
    {HubPart::o_bias, "self_attn.o_proj.bias", Size::hidden, Size::none, "hidden_size", true},
    {HubPart::output_gate, "self_attn.output_gate.weight", Size::q, Size::hidden,
     "num_heads * head_dim, hidden_size"},
    {HubPart::q_norm, "self_attn.q_norm.weight", Size::head, Size::none, "head_dim", true},
    {HubPart::k_norm, "self_attn.k_norm.weight", Size::head, Size::none, "head_dim", true},
    {HubPart::sinks, "self_attn.sinks", Size::heads, Size::none, "num_heads", true},
    {HubPart::delta_qkv, "linear_attn.in_proj_qkv.weight", Size::delta_channels, Size::hidden,
     "2 * key heads * their size + value heads * their size, hidden_size"},
    {HubPart::delta_z, "linear_attn.in_proj_z.weight", Size::delta_values, Size::hidden,
     "value heads * their size, hidden_size"},
    {HubPart::delta_b, "linear_attn.in_proj_b.weight", Size::delta_heads, Size::hidden,
     "value heads, hidden_size", true},
    {HubPart::delta_a, "linear_attn.in_proj_a.weight", Size::delta_heads, Size::hidden,
     "value heads, hidden_size", true},
    {HubPart::delta_conv, "linear_attn.conv1d.weight", Size::delta_channels, Size::conv_taps,
     "channels, linear_conv_kernel_dim", true},
    {HubPart::delta_a_log, "linear_attn.A_log", Size::delta_heads, Size::none, "value heads", true},
    {HubPart::delta_dt_bias, "linear_attn.dt_bias", Size::delta_heads, Size::none, "value heads",
     true},
    {HubPart::delta_norm, "linear_attn.norm.weight", Size::delta_value, Size::none,
     "size of a value head", true},
    {HubPart::delta_out, "linear_attn.out_proj.weight", Size::hidden, Size::delta_values,
     "hidden_size, value heads * their size"},
    {HubPart::post_attention_norm, "post_attention_layernorm.weight", Size::hidden, Size::none,
     "hidden_size", true},
    {HubPart::router, "mlp.gate.weight", Size::experts, Size::hidden, "num_experts, hidden_size",
     true},
    {HubPart::router_bias, "mlp.gate.bias", Size::experts, Size::none, "num_experts", true},
    {HubPart::correction_bias, "mlp.gate.e_score_correction_bias", Size::experts, Size::none,
     "num_experts", true},
    {HubPart::gate, "mlp.gate_proj.weight", Size::dense, Size::hidden,
     "intermediate_size, hidden_size"},
    {HubPart::up, "mlp.up_proj.weight", Size::dense, Size::hidden,
     "intermediate_size, hidden_size"},
    {HubPart::down, "mlp.down_proj.weight", Size::hidden, Size::dense,
     "hidden_size, intermediate_size"},
    {HubPart::shared_gate, "mlp.shared_expert.gate_proj.weight", Size::shared, Size::hidden,
     "width of the shared expert, hidden_size"},
    {HubPart::shared_up, "mlp.shared_expert.up_proj.weight", Size::shared, Size::hidden,
     "width of the shared expert, hidden_size"},
    {HubPart::shared_down, "mlp.shared_expert.down_proj.weight", Size::hidden, Size::shared,
     "hidden_size, width of the shared expert"},
    {HubPart::shared_expert_gate, "mlp.shared_expert_gate.weight", Size::one, Size::hidden,
     "1, hidden_size", true},
};

const Row& row_of(HubPart part) {
    for (const Row& row : outer_rows)
        if (row.part == part) return row;
    for (const Row& row : layer_rows)
        if (row.part == part) return row;
    MOEX_CHECK(false, "every part has a row");
    return outer_rows[0];
}

bool is_outer(HubPart part) { return part < HubPart::input_norm; }

std::uint64_t size_of(const ModelConfig& config, const LayerPlan& plan, Size size) {
    const std::uint64_t head = config.head_dim;
    switch (size) {
        case Size::none: return 0;
        case Size::one: return 1;
        case Size::vocab: return config.vocab_size;
        case Size::hidden: return config.hidden_size;
        case Size::two_hidden: return 2ull * config.hidden_size;
        case Size::q: return config.num_heads * head;
        case Size::kv: return config.num_kv_heads * head;
        case Size::head: return head;
        case Size::heads: return config.num_heads;
        case Size::dense: return config.intermediate_size;
        case Size::shared: return plan.shared_size;
        case Size::experts: return config.num_experts;
        case Size::delta_channels: return config.delta_net.channels();
        case Size::delta_values: return config.delta_net.values();
        case Size::delta_heads: return config.delta_net.value_heads;
        case Size::delta_value: return config.delta_net.value_dim;
        case Size::conv_taps: return config.delta_net.conv_taps;
    }
    return 0;
}

// Returns true if layers of this plan have the tensor.
bool is_in(const LayerPlan& plan, HubPart part) {
    const bool has_keys = plan.mixer == Mixer::attention;
    switch (part) {
        case HubPart::q:
        case HubPart::k:
        case HubPart::v:
        case HubPart::o: return has_keys;
        case HubPart::output_gate: return has_keys && plan.has_output_gate;
        case HubPart::delta_qkv:
        case HubPart::delta_z:
        case HubPart::delta_b:
        case HubPart::delta_a:
        case HubPart::delta_conv:
        case HubPart::delta_a_log:
        case HubPart::delta_dt_bias:
        case HubPart::delta_norm:
        case HubPart::delta_out: return plan.mixer == Mixer::gated_delta_rule;
        case HubPart::q_bias:
        case HubPart::k_bias:
        case HubPart::v_bias: return has_keys && plan.has_qkv_bias;
        case HubPart::o_bias: return has_keys && plan.has_o_bias;
        case HubPart::q_norm:
        case HubPart::k_norm: return has_keys && plan.qk_norm != QkNorm::none;
        case HubPart::sinks: return has_keys && plan.has_sinks;
        case HubPart::router: return plan.is_routed;
        case HubPart::router_bias: return plan.is_routed && plan.router.has_bias;
        case HubPart::correction_bias: return plan.is_routed && plan.router.has_correction_bias;
        case HubPart::gate:
        case HubPart::up:
        case HubPart::down: return !plan.is_routed;
        case HubPart::shared_gate:
        case HubPart::shared_up:
        case HubPart::shared_down: return plan.shared_size > 0;
        case HubPart::shared_expert_gate: return plan.has_shared_gate;
        default: return true;
    }
}

}  // namespace

std::string hub_tensor_name(HubPart part, std::uint32_t layer) {
    const Row& row = row_of(part);
    return is_outer(part) ? std::string(row.name) : text("model.layers.", layer, '.', row.name);
}

HubTensorSpec hub_tensor_spec(const ModelConfig& config, HubPart part, std::uint32_t layer) {
    const Row& row = row_of(part);
    const LayerPlan plan = is_outer(part) ? LayerPlan{} : config.layers[layer];
    HubTensorSpec spec{.name = hub_tensor_name(part, layer),
                       .shape = {size_of(config, plan, row.out)},
                       .shape_words = row.words,
                       .precise = row.precise,
                       .is_table = part == HubPart::embeddings || part == HubPart::head};
    if (row.in != Size::none) spec.shape.push_back(size_of(config, plan, row.in));
    if (plan.qk_norm == QkNorm::all_heads && part == HubPart::q_norm) {
        spec.shape = {size_of(config, plan, Size::q)};
        spec.shape_words = "num_heads * head_dim";
    }
    if (plan.qk_norm == QkNorm::all_heads && part == HubPart::k_norm) {
        spec.shape = {size_of(config, plan, Size::kv)};
        spec.shape_words = "num_kv_heads * head_dim";
    }
    return spec;
}

std::vector<HubTensorSpec> hub_tensor_specs(const ModelConfig& config) {
    std::vector<HubTensorSpec> specs;
    for (const HubPart part : config.is_draft_head
                                  ? std::vector{HubPart::draft_join, HubPart::draft_embedding_norm,
                                                HubPart::draft_hidden_norm}
                                  : std::vector{HubPart::embeddings})
        specs.push_back(hub_tensor_spec(config, part));
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        for (const Row& row : layer_rows)
            if (is_in(config.layers[layer], row.part))
                specs.push_back(hub_tensor_spec(config, row.part, layer));
    specs.push_back(hub_tensor_spec(config, HubPart::final_norm));
    if (!config.tied_embeddings && !config.is_draft_head)
        specs.push_back(hub_tensor_spec(config, HubPart::head));
    return specs;
}

}  // namespace moex
