#include "hub/model/config_json.h"

#include <algorithm>

#include "hub/model/config_fields.h"
#include "hub/model/families.h"

namespace moex {
namespace {

constexpr ConfigKeys keys{.num_layers = "num_layers",
                          .num_heads = "num_heads",
                          .num_kv_heads = "num_kv_heads",
                          .context_tokens = "context_tokens",
                          .num_experts = "num_experts",
                          .top_k = "top_k",
                          .tied = "tied_embeddings",
                          .expert_width = "moe_intermediate_size",
                          .dense_width = "intermediate_size"};

// The keys of manifests without plans describe layers that are all of this kind.
PlainLayers plain_of(const ModelConfig& config) {
    PlainLayers plain{.architecture = config.architecture, .norm_topk_prob = false};
    if (!config.layers.empty()) {
        plain.attention_bias = config.layers[0].has_qkv_bias;
        plain.rope_theta = config.layers[0].rope.theta;
        plain.rope_scaling = config.layers[0].rope.scaling;
    }
    for (const LayerPlan& plan : config.layers)
        plain.norm_topk_prob |= plan.is_routed && plan.router.is_normalised;
    return plain;
}

// Writes what PlainLayers has. The rope scaling is left out if the model uses none, so that
// manifests of such models keep the bytes that older versions wrote.
void write_plain(Json& object, const ModelConfig& config) {
    const PlainLayers plain = plain_of(config);
    object["layer_is_moe"] = config.layer_is_moe();
    object["norm_topk_prob"] = plain.norm_topk_prob;
    object["attention_bias"] = plain.attention_bias;
    object["rope_theta"] = plain.rope_theta;
    const RopeScaling& scaling = plain.rope_scaling;
    if (scaling.factor != 1.0)
        object["rope_scaling"] = {{"factor", scaling.factor},
                                  {"low_freq_factor", scaling.low_freq_factor},
                                  {"high_freq_factor", scaling.high_freq_factor},
                                  {"original_context_tokens", scaling.original_context_tokens}};
}

// Writes each plan once, and for each layer the index of its plan:
//   plans [{window 128, ...}, {...}], layer_plans [0, 1, 0, 1]
void write_plans(Json& object, const ModelConfig& config) {
    std::vector<LayerPlan> plans;
    Json list = Json::array(), indices = Json::array();
    for (const LayerPlan& plan : config.layers) {
        auto at = std::find(plans.begin(), plans.end(), plan);
        if (at == plans.end()) {
            list.push_back(plan_to_json(plan));
            plans.push_back(plan);
            at = std::prev(plans.end());
        }
        indices.push_back(at - plans.begin());
    }
    object["plans"] = std::move(list);
    object["layer_plans"] = std::move(indices);
    object["embedding_multiplier"] = config.embedding_multiplier;
    object["logits_divisor"] = config.logits_divisor;
    if (config.is_draft_head) object["is_draft_head"] = true;
    const DeltaNetSizes& net = config.delta_net;
    if (config.has_delta_net())
        object["delta_net"] = {{"key_heads", net.key_heads},
                               {"value_heads", net.value_heads},
                               {"key_dim", net.key_dim},
                               {"value_dim", net.value_dim},
                               {"conv_taps", net.conv_taps}};
}

Status read_plain_scaling(const Json& object, RopeScaling& scaling) {
    ConfigFields fields(object, {"config"});
    for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"})
        if (fields.find(name) == nullptr) fields.wrong(name, "a number", nullptr);
    fields.real("factor", 1.0, 1024.0, scaling.factor);
    fields.real("low_freq_factor", 0.001, 1024.0, scaling.low_freq_factor);
    fields.real("high_freq_factor", 0.001, 1024.0, scaling.high_freq_factor);
    fields.whole("original_context_tokens", 1, context_max, scaling.original_context_tokens,
                 Presence::required);
    if (!fields.problem() && scaling.high_freq_factor <= scaling.low_freq_factor)
        fields.wrong("high_freq_factor", "more than low_freq_factor",
                     fields.find("high_freq_factor"));
    if (fields.problem()) return *fields.problem();
    return {};
}

Status read_plain(ConfigFields& fields, const Family& family, ModelConfig& config) {
    PlainLayers plain{.architecture = family.type, .norm_topk_prob = false};
    fields.boolean("norm_topk_prob", plain.norm_topk_prob);
    fields.boolean("attention_bias", plain.attention_bias);
    fields.positive("rope_theta", plain.rope_theta);
    if (const Json* scaling = fields.find("rope_scaling"))
        MOEX_TRY(read_plain_scaling(*scaling, plain.rope_scaling));
    if (fields.problem()) return *fields.problem();

    const Json* const layers = fields.find("layer_is_moe");
    if (layers == nullptr || !layers->is_array() || layers->size() != config.num_layers)
        return bad_field("layer_is_moe", layers == nullptr ? "missing" : json_excerpt(*layers),
                         text("a list of ", config.num_layers, " zeros and ones"));
    std::vector<std::uint8_t> layer_is_moe;
    for (const Json& layer : *layers) {
        if (!is_whole_below(layer, 2))
            return bad_field("layer_is_moe", json_excerpt(*layers), "a list of zeros and ones");
        layer_is_moe.push_back(static_cast<std::uint8_t>(*whole_number(layer)));
    }

    const bool any = std::find(layer_is_moe.begin(), layer_is_moe.end(), 1) != layer_is_moe.end();
    if (any != family.has_experts)
        return bad_field(
            "layer_is_moe", json_excerpt(*layers),
            family.has_experts ? "at least one MoE layer" : "0 for every layer of a dense model");
    config.layers = plain_layers(plain, layer_is_moe);
    return {};
}

Status read_delta_net(const Json& object, DeltaNetSizes& sizes) {
    if (!object.is_object()) return bad_field("delta_net", json_excerpt(object), "an object");
    ConfigFields fields(object, {"config: delta_net"});
    using enum Presence;
    fields.whole("key_heads", 1, heads_max, sizes.key_heads, required);
    fields.whole("value_heads", 1, heads_max, sizes.value_heads, required);
    fields.whole("key_dim", 1, head_dim_max, sizes.key_dim, required);
    fields.whole("value_dim", 1, head_dim_max, sizes.value_dim, required);
    fields.whole("conv_taps", 1, conv_taps_max, sizes.conv_taps, required);
    if (fields.problem()) return *fields.problem();
    return {};
}

Status read_plans(ConfigFields& fields, const Json& list, ModelConfig& config) {
    if (!list.is_array() || list.empty() || list.size() > config.num_layers)
        return bad_field("plans", json_excerpt(list), "a list of plans");
    std::vector<LayerPlan> plans;
    for (const Json& one : list) {
        MOEX_ASSIGN(plan, parse_plan(one));
        plans.push_back(std::move(plan));
    }

    const Json* const indices = fields.find("layer_plans");
    const bool is_list = indices != nullptr && indices->is_array() &&
                         indices->size() == config.num_layers &&
                         std::all_of(indices->begin(), indices->end(), [&](const Json& index) {
                             return is_whole_below(index, static_cast<std::uint32_t>(plans.size()));
                         });
    if (!is_list)
        return bad_field("layer_plans", indices == nullptr ? "missing" : json_excerpt(*indices),
                         text("a list of ", config.num_layers, " indices of plans"));
    for (const Json& index : *indices)
        config.layers.push_back(plans[static_cast<std::size_t>(*whole_number(index))]);

    if (const Json* const sizes = fields.find("delta_net"))
        MOEX_TRY(read_delta_net(*sizes, config.delta_net));
    fields.real("embedding_multiplier", -1e6, 1e6, config.embedding_multiplier);
    fields.positive("logits_divisor", config.logits_divisor);
    fields.boolean("is_draft_head", config.is_draft_head);
    if (fields.problem()) return *fields.problem();
    return {};
}

}  // namespace

std::vector<LayerPlan> plain_layers(const PlainLayers& plain,
                                    std::span<const std::uint8_t> layer_is_moe) {
    const Family* const family = find_family(plain.architecture);
    LayerPlan plan;
    plan.rope = {.theta = plain.rope_theta, .scaling = plain.rope_scaling};
    plan.has_qkv_bias = plain.attention_bias;
    if (family != nullptr) {
        plan.qk_norm = family->qk_norm;
        plan.has_o_bias = plain.attention_bias && family->has_o_bias;
    }
    std::vector<LayerPlan> layers(layer_is_moe.size(), plan);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        layers[layer].is_routed = layer_is_moe[layer] != 0;
        layers[layer].router.is_normalised = layers[layer].is_routed && plain.norm_topk_prob;
    }
    return layers;
}

bool needs_plans(const ModelConfig& config) {
    const Family* const family = find_family(config.architecture);
    const PlainLayers plain = plain_of(config);
    const RopeScaling& scaling = plain.rope_scaling;
    return family == nullptr || !family->is_first || config.is_draft_head ||
           (scaling.factor != 1.0 && scaling.kind != RopeScalingKind::llama3) ||
           config.embedding_multiplier != 1.0 || config.logits_divisor != 1.0 ||
           config.layers != plain_layers(plain, config.layer_is_moe());
}

Json to_json(const ModelConfig& config) {
    Json object{{"architecture", config.architecture},
                {"hidden_size", config.hidden_size},
                {"num_layers", config.num_layers},
                {"num_heads", config.num_heads},
                {"num_kv_heads", config.num_kv_heads},
                {"head_dim", config.head_dim},
                {"vocab_size", config.vocab_size},
                {"context_tokens", config.context_tokens},
                {"num_experts", config.num_experts},
                {"top_k", config.top_k},
                {"moe_intermediate_size", config.moe_intermediate_size},
                {"intermediate_size", config.intermediate_size},
                {"tied_embeddings", config.tied_embeddings},
                {"rms_norm_eps", config.rms_norm_eps}};
    if (needs_plans(config))
        write_plans(object, config);
    else
        write_plain(object, config);
    if (config.expert_width != 0) object["expert_width"] = config.expert_width;
    return object;
}

Result<ModelConfig> parse_model_config(const Json& object) {
    MOEX_TRY(require_object(object));
    ConfigFields fields(object, {"config"});
    ModelConfig config;
    config.architecture.clear();
    fields.string("architecture", config.architecture);
    // A model with plans needs no family that this program knows.
    const Json* const plans = fields.find("plans");
    const Family* const family = find_family(config.architecture);
    const bool is_known = plans != nullptr ? !config.architecture.empty()
                                           : family != nullptr && family->is_first;
    if (!is_known || config.architecture.size() > 60)
        return Error{ErrorCode::unsupported,
                     text("config: architecture \"", config.architecture.substr(0, 60),
                          "\" is not supported; supported: ", supported_families())};

    bool has_experts = plans == nullptr && family->has_experts;
    if (const Json* count = fields.find("num_experts"); plans != nullptr && count != nullptr)
        has_experts = *count != 0;
    read_sizes(fields, keys, has_experts, config);
    fields.whole("expert_width", 1, intermediate_max, config.expert_width);
    if (fields.problem()) return *fields.problem();
    MOEX_TRY(plans != nullptr ? read_plans(fields, *plans, config)
                              : read_plain(fields, *family, config));

    const auto is_moe = config.layer_is_moe();
    const bool any = std::find(is_moe.begin(), is_moe.end(), 1) != is_moe.end();
    if (any != has_experts)
        return bad_field("plans", json_excerpt(member(object, "plans")),
                         has_experts ? "at least one routed layer" : "no routed layer");
    if (config.moe_intermediate_size % 32 != 0)
        return bad_field("moe_intermediate_size", text(config.moe_intermediate_size),
                         "a multiple of 32");
    if (config.expert_width > config.moe_intermediate_size)
        return bad_field(
            "expert_width", text(config.expert_width),
            text("at most moe_intermediate_size (", config.moe_intermediate_size, ")"));
    MOEX_TRY(check_relations(config, keys));
    return config;
}

}  // namespace moex
