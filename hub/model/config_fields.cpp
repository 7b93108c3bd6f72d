#include "hub/model/config_fields.h"

#include <algorithm>

namespace moex {
namespace {

Status require_multiple(std::string_view key, std::uint32_t value, std::uint32_t of) {
    if (value % of != 0) return bad_field(key, text(value), text("a multiple of ", of));
    return {};
}

Status check_heads(const ModelConfig& config, const ConfigKeys& keys) {
    MOEX_TRY(require_multiple("head_dim", config.head_dim, 8));
    if (config.head_dim == 0)
        return bad_field("head_dim", "0",
                         text("at least 8 (is ", keys.num_heads, " above hidden_size?)"));
    // if the file has no key head_dim, it is hidden_size / num_heads
    if (config.head_dim > head_dim_max)
        return bad_field("head_dim", text(config.head_dim), text("at most ", head_dim_max));
    if (config.num_heads % config.num_kv_heads != 0)
        return bad_field(keys.num_kv_heads, text(config.num_kv_heads),
                         text("a divisor of ", keys.num_heads, " (", config.num_heads, ")"));
    return {};
}

Status check_router(const ModelConfig& config, const ConfigKeys& keys, const RouterPlan& router) {
    if (router.num_groups == 0 || config.num_experts % router.num_groups != 0)
        return bad_field("the number of groups of experts", text(router.num_groups),
                         text("a divisor of ", keys.num_experts, " (", config.num_experts, ")"));
    if (router.groups_kept == 0 || router.groups_kept > router.num_groups)
        return bad_field("the number of groups that are kept", text(router.groups_kept),
                         text("1 to ", router.num_groups, " groups"));
    const std::uint32_t experts_kept = config.num_experts / router.num_groups * router.groups_kept;
    if (config.top_k > experts_kept)
        return bad_field(keys.top_k, text(config.top_k),
                         text("at most the ", experts_kept, " experts of the groups kept"));
    return {};
}

Status check_layer(const ModelConfig& config, const ConfigKeys& keys, const LayerPlan& plan) {
    MOEX_TRY(check_computable(plan));
    if (plan.mixer == Mixer::gated_delta_rule && !config.has_delta_net())
        return bad_field("delta_net", "missing", "the sizes of layers with a gated delta rule");
    if (plan.rope.rotary_size % 2 != 0 || plan.rope.rotary_size > config.head_dim)
        return bad_field("the rotated part of a head", text(plan.rope.rotary_size),
                         text("an even number of at most ", config.head_dim, " (head_dim)"));
    if (plan.shared_size > intermediate_max)
        return bad_field("the width of the shared expert", text(plan.shared_size),
                         text("at most ", intermediate_max));
    if (plan.activation == Activation::clamped_swiglu && plan.activation_limit <= 0)
        return bad_field("the limit of the clamped SwiGLU", text(plan.activation_limit),
                         "more than 0");
    if (plan.is_routed) return check_router(config, keys, plan.router);

    if (config.intermediate_size == 0)
        return bad_field(keys.dense_width, "missing", "the width of the dense layers");
    return {};
}

Status check_delta_net(const DeltaNetSizes& sizes) {
    if (sizes.value_heads % sizes.key_heads != 0)
        return bad_field("linear_num_value_heads", text(sizes.value_heads),
                         text("a multiple of linear_num_key_heads (", sizes.key_heads, ")"));
    return {};
}

bool has_same_experts(const LayerPlan& a, const LayerPlan& b) {
    return a.activation == b.activation && a.activation_limit == b.activation_limit &&
           a.has_expert_bias == b.has_expert_bias;
}

}  // namespace

Error bad_field(std::string_view key, const std::string& found, const std::string& wanted) {
    return {ErrorCode::bad_field, text("config: ", key, " is ", found, ", wanted ", wanted)};
}

Status require_object(const Json& object) {
    if (object.is_object()) return {};
    return Error{ErrorCode::bad_field,
                 text("config: ", json_excerpt(object), ", wanted an object")};
}

bool is_whole_below(const Json& value, std::uint32_t limit) {
    const auto number = whole_number(value);
    return number && *number >= 0 && *number < std::int64_t{limit};
}

void read_sizes(ConfigFields& fields, const ConfigKeys& keys, bool has_experts,
                ModelConfig& config) {
    using enum Presence;

    fields.whole("hidden_size", 32, hidden_max, config.hidden_size, required);
    fields.whole(keys.num_layers, 1, layers_max, config.num_layers, required);

    config.num_heads = 1;  // the code below divides by num_heads, even if its key is wrong
    fields.whole(keys.num_heads, 1, heads_max, config.num_heads, required);
    config.num_kv_heads = config.num_heads;
    fields.whole(keys.num_kv_heads, 1, heads_max, config.num_kv_heads);
    config.head_dim = config.hidden_size / config.num_heads;
    fields.whole("head_dim", 1, head_dim_max, config.head_dim);

    fields.whole("vocab_size", 1, vocab_max, config.vocab_size, required);
    fields.whole(keys.context_tokens, 1, context_max, config.context_tokens, required);
    if (has_experts) {
        fields.whole(keys.num_experts, 1, experts_max, config.num_experts, required);
        fields.whole(keys.top_k, 1, experts_max, config.top_k, required);
        fields.whole(keys.expert_width, 1, intermediate_max, config.moe_intermediate_size,
                     required);
    }
    if (!keys.dense_width.empty())
        fields.whole(keys.dense_width, 0, intermediate_max, config.intermediate_size);

    fields.boolean(keys.tied, config.tied_embeddings);
    fields.positive("rms_norm_eps", config.rms_norm_eps);
}

Status check_relations(ModelConfig& config, const ConfigKeys& keys) {
    MOEX_TRY(require_multiple("hidden_size", config.hidden_size, 32));
    MOEX_TRY(check_heads(config, keys));
    if (config.top_k > config.num_experts)
        return bad_field(keys.top_k, text(config.top_k),
                         text("at most ", keys.num_experts, " (", config.num_experts, ")"));
    if (config.has_delta_net()) MOEX_TRY(check_delta_net(config.delta_net));
    const LayerPlan* routed = nullptr;
    for (const LayerPlan& plan : config.layers) {
        MOEX_TRY(check_layer(config, keys, plan));
        if (!plan.is_routed) continue;
        if (routed == nullptr) routed = &plan;
        if (!has_same_experts(plan, *routed))
            return Error{ErrorCode::unsupported,
                         "config: layers whose experts differ in their form are not supported"};
    }

    if (config.moe_intermediate_size % 32 != 0) {
        config.expert_width = config.moe_intermediate_size;
        config.moe_intermediate_size = (config.moe_intermediate_size + 31) / 32 * 32;
    }
    return {};
}

}  // namespace moex
