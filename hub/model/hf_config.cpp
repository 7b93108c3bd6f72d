#include "hub/model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "hub/model/config_fields.h"
#include "hub/model/families.h"

namespace moex {
namespace {

// bounds of factors and limits
constexpr double factor_min = 1e-6, factor_max = 1e6;

ConfigKeys keys_of(const ConfigFields& fields, const Family& family) {
    const auto first_of = [&](std::initializer_list<std::string_view> names) {
        for (const std::string_view name : names)
            if (fields.find(name) != nullptr) return name;
        return *std::prev(names.end());
    };
    const auto& further = family.further_keys;
    const std::string_view older_top_k = "experts_per_token", top_k = "num_experts_per_tok";
    const bool knows_older = std::find(further.begin(), further.end(), older_top_k) !=
                             further.end();
    return {.num_layers = "num_hidden_layers",
            .num_heads = "num_attention_heads",
            .num_kv_heads = "num_key_value_heads",
            .context_tokens = "max_position_embeddings",
            .num_experts = first_of({"num_local_experts", "num_experts", family.expert_count}),
            .top_k = knows_older ? first_of({top_k, older_top_k}) : top_k,
            .tied = "tie_word_embeddings",
            .expert_width = family.expert_width,
            .dense_width = family.dense_width};
}

Result<const Family*> read_family(ConfigFields& fields) {
    std::string model_type, class_name;
    fields.string("model_type", model_type);
    if (const Json* list = fields.find("architectures");
        list != nullptr && list->is_array() && !list->empty() && (*list)[0].is_string())
        class_name = (*list)[0].get<std::string>();

    const bool is_named = !model_type.empty() || !class_name.empty();
    if (const Family* known = find_family(model_type, class_name); known && is_named) return known;

    const bool type_known = is_named && find_family(model_type, "") != nullptr;
    const std::string found = !type_known
                                  ? text("model_type \"", model_type.substr(0, 60), "\"")
                                  : text("architecture \"", class_name.substr(0, 60),
                                         "\" of model_type \"", model_type.substr(0, 60), "\"");
    return Error{ErrorCode::unsupported,
                 text("config: ", found, " is not supported; supported: ", supported_families())};
}

// Refuses keys that only a model with experts has in the configuration of a dense family.
Status check_dense(const ConfigFields& fields, const Family& family) {
    for (const char* key :
         {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"})
        if (const Json* found = fields.find(key))
            return Error{ErrorCode::unsupported,
                         text("config: ", key, " is ", json_excerpt(*found), ", but ", family.type,
                              " is a dense architecture")};
    return {};
}

// Checks the number of experts, for which versions of transformers write different keys. If the
// file has several of them, they must be equal.
Status check_num_experts(const ConfigFields& fields) {
    const Json *older = fields.find("num_experts"), *newer = fields.find("num_local_experts");
    if (older == nullptr || newer == nullptr || *older == *newer) return {};
    return bad_field("num_experts", json_excerpt(*older),
                     text("the same as num_local_experts (", json_excerpt(*newer), ")"));
}

// Refuses another activation, biases in an FFN, and windows where a family has none. The form in
// which the weights are stored, quantization_config, is no part of the model:
// hub/model/pack/readers/quantization.h reads it.
Status check_supported(ConfigFields& fields, const Family& family) {
    std::string activation = "silu";
    fields.string("hidden_act", activation);
    if (activation != "silu")
        return Error{ErrorCode::unsupported, text("config: hidden_act \"", activation.substr(0, 60),
                                                  "\" is not supported; supported: silu")};

    bool mlp_bias = false;
    fields.boolean("mlp_bias", mlp_bias);
    if (mlp_bias)
        return Error{ErrorCode::unsupported,
                     "config: mlp_bias is true; biases of an FFN are not supported"};
    if (family.window == WindowRule::by_types) return {};

    bool sliding_window = false;
    fields.boolean("use_sliding_window", sliding_window);
    if (sliding_window)
        return Error{ErrorCode::unsupported,
                     text("config: use_sliding_window is true; sliding-window attention is not "
                          "supported for models of type ",
                          family.type)};
    if (family.has_delta_net) return {};  // read_mixers() reads layer_types

    const Json* types = fields.find("layer_types");
    if (types == nullptr) return {};
    const std::string_view wanted = family.window == WindowRule::all &&
                                            fields.find("sliding_window") != nullptr
                                        ? "sliding_attention"
                                        : "full_attention";
    const bool is_same = types->is_array() &&
                         std::all_of(types->begin(), types->end(),
                                     [&](const Json& type) { return type == wanted; });
    if (!is_same)
        return Error{ErrorCode::unsupported,
                     text("config: layer_types is ", json_excerpt(*types),
                          "; supported: a list of ", wanted, " for each layer")};
    return {};
}

// Refuses every key that may change what the model computes and that the family does not read.
Status check_foreign_keys(const Json& object, const Family& family, const ConfigKeys& keys) {
    std::set<std::string_view> read = {
        "hidden_size",       "head_dim",           "vocab_size",       "rms_norm_eps",
        "rope_theta",        "rope_scaling",       "rope_parameters",  "hidden_act",
        "mlp_bias",          "use_sliding_window", "layer_types",      "intermediate_size",
        keys.num_layers,     keys.num_heads,       keys.num_kv_heads,  keys.context_tokens,
        keys.tied,           family.bias_key,      family.qk_norm_key, family.shared_width,
        family.shared_count, family.limit_key,     family.norm_key,    keys.expert_width};
    read.insert(family.further_keys.begin(), family.further_keys.end());
    if (family.has_experts)
        read.insert({"num_experts", "num_local_experts", "num_experts_per_tok", keys.num_experts});
    if (family.routed == RoutedRule::sparse_step)
        read.insert({"decoder_sparse_step", "mlp_only_layers"});
    if (family.routed == RoutedRule::after_dense) read.insert("first_k_dense_replace");
    if (family.window != WindowRule::none) read.insert("sliding_window");
    if (family.is_partly_rotated) read.insert("partial_rotary_factor");
    if (family.reads_clip) read.insert("clip_qkv");
    if (family.reads_groups) read.insert({"n_group", "topk_group", "routed_scaling_factor"});
    if (family.has_delta_net)
        read.insert({"linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
                     "linear_num_key_heads", "linear_num_value_heads", "full_attention_interval",
                     "attn_output_gate"});
    if (family.has_multipliers)
        read.insert({"embedding_multiplier", "attention_multiplier", "residual_multiplier",
                     "logits_scaling"});

    for (const auto& [key, value] : object.items()) {
        if (read.contains(key) || is_harmless_key(key) || is_neutral_value(key, value)) continue;
        return Error{ErrorCode::unsupported,
                     text("config: ", key.substr(0, 60), " is ", json_excerpt(value),
                          ", which models of type \"", family.type,
                          "\" do not compute here; if it changes no result, delete it")};
    }
    return {};
}

// transformers' factor of cosines and sines for yarn with a factor `mscale`.
double yarn_factor(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void read_bounds(ConfigFields& fields, RopeScaling& scaling) {
    for (const char* name : {"low_freq_factor", "high_freq_factor"})
        if (fields.find(name) == nullptr) fields.wrong(name, "a number", nullptr);
    fields.real("low_freq_factor", 0.001, 1024.0, scaling.low_freq_factor);
    fields.real("high_freq_factor", 0.001, 1024.0, scaling.high_freq_factor);
    fields.whole("original_max_position_embeddings", 1, context_max,
                 scaling.original_context_tokens, Presence::required);
    if (!fields.problem() && scaling.high_freq_factor <= scaling.low_freq_factor)
        fields.wrong("high_freq_factor", "more than low_freq_factor",
                     fields.find("high_freq_factor"));
}

void read_yarn(ConfigFields& fields, std::uint32_t context_tokens, RopeScaling& scaling) {
    scaling.original_context_tokens = context_tokens;
    fields.whole("original_max_position_embeddings", 1, context_max,
                 scaling.original_context_tokens);
    fields.real("beta_fast", 0.001, 1024.0, scaling.beta_fast);
    fields.real("beta_slow", 0.001, 1024.0, scaling.beta_slow);
    if (!fields.problem() && scaling.beta_fast <= scaling.beta_slow)
        fields.wrong("beta_fast", "more than beta_slow", fields.find("beta_fast"));
    fields.boolean("truncate", scaling.truncate);

    double mscale = 0, mscale_all_dim = 0;
    fields.real("mscale", 0.0, 1024.0, mscale);
    fields.real("mscale_all_dim", 0.0, 1024.0, mscale_all_dim);
    scaling.attention_factor = mscale != 0 && mscale_all_dim != 0
                                   ? yarn_factor(scaling.factor, mscale) /
                                         yarn_factor(scaling.factor, mscale_all_dim)
                                   : yarn_factor(scaling.factor, 1.0);
    fields.real("attention_factor", 0.001, 1024.0, scaling.attention_factor);
}

// Reads the JSON object that has the rope parameters. transformers 4 has rope_theta and
// rope_scaling. transformers 5 has rope_parameters, which contains both.
Status read_rope_object(const Json& rope, std::string_view key, const Family& family,
                        std::uint32_t context_tokens, RopePlan& plan, double& rotary) {
    if (!rope.is_object()) return bad_field(key, json_excerpt(rope), "an object or null");
    constexpr std::string_view known[] = {"type",
                                          "rope_type",
                                          "rope_theta",
                                          "factor",
                                          "low_freq_factor",
                                          "high_freq_factor",
                                          "original_max_position_embeddings",
                                          "beta_fast",
                                          "beta_slow",
                                          "truncate",
                                          "mscale",
                                          "mscale_all_dim",
                                          "attention_factor",
                                          "partial_rotary_factor",
                                          "mrope_section",
                                          "mrope_interleaved"};
    for (const auto& [name, value] : rope.items()) {
        if (value.is_object())
            return Error{ErrorCode::unsupported,
                         text("config: ", key, " differs by layer type (\"", name.substr(0, 60),
                              "\"), which is not supported")};
        if (std::find(std::begin(known), std::end(known), name) == std::end(known) &&
            !value.is_null() && value != false)
            return Error{ErrorCode::unsupported,
                         text("config: ", key, ": ", name.substr(0, 60), " is ",
                              json_excerpt(value), ", which is not supported")};
    }

    ConfigFields fields(rope, {"config"});
    std::string kind = "default";
    fields.string("type", kind);
    fields.string("rope_type", kind);
    const bool is_scaled = kind == "llama3" || kind == "linear" || kind == "yarn";
    if (!is_scaled && kind != "default" && kind != "mrope")
        return Error{ErrorCode::unsupported,
                     text("config: ", key, " of type \"", kind.substr(0, 60),
                          "\" is not supported; supported: default, linear, llama3, yarn, or "
                          "none")};
    RopeScaling& scaling = plan.scaling;
    if (is_scaled) {
        if (fields.find("factor") == nullptr) fields.wrong("factor", "a number", nullptr);
        fields.real("factor", 1.0, 1024.0, scaling.factor);
    }
    if (kind == "llama3") read_bounds(fields, scaling);
    if (kind == "linear") scaling.kind = RopeScalingKind::linear;
    if (kind == "yarn") {
        scaling.kind = RopeScalingKind::yarn;
        read_yarn(fields, context_tokens, scaling);
    }
    fields.positive("rope_theta", plan.theta);
    fields.positive("partial_rotary_factor", rotary);
    if (!family.is_partly_rotated && rotary != 1.0)
        fields.wrong("partial_rotary_factor", "1", fields.find("partial_rotary_factor"));
    if (fields.problem()) return *fields.problem();
    return {};
}

Result<RopePlan> read_rope(ConfigFields& fields, const Family& family, const ModelConfig& config) {
    RopePlan plan{.theta = family.rope_theta};
    double rotary = family.partial_rotary;
    fields.positive("rope_theta", plan.theta);
    fields.positive("partial_rotary_factor", rotary);
    for (const char* key : {"rope_scaling", "rope_parameters"})
        if (const Json* rope = fields.find(key))
            MOEX_TRY(read_rope_object(*rope, key, family, config.context_tokens, plan, rotary));
    const Json *older = fields.find("rope_scaling"), *newer = fields.find("rope_parameters");
    if (older != nullptr && newer != nullptr && *older != *newer)
        return bad_field("rope_scaling", json_excerpt(*older), "the same as rope_parameters");
    // The value inside rope_parameters counts; another one at the top level is a contradiction.
    for (const auto& [key, value] :
         {std::pair("rope_theta", plan.theta), std::pair("partial_rotary_factor", rotary)}) {
        double outer = value;
        fields.positive(key, outer);
        if (outer != value)
            return bad_field(key, json_excerpt(*fields.find(key)),
                             text("the same as in the rope parameters (", value, ")"));
    }
    if (rotary > 1.0 || (!family.is_partly_rotated && rotary != 1.0))
        fields.wrong("partial_rotary_factor", family.is_partly_rotated ? "at most 1" : "1",
                     fields.find("partial_rotary_factor"));
    if (fields.problem()) return *fields.problem();
    if (rotary < 1.0) plan.rotary_size = static_cast<std::uint32_t>(rotary * config.head_dim);
    if (rotary < 1.0 && plan.rotary_size == 0)
        return bad_field("partial_rotary_factor", text(rotary), "a part of each head");
    return plan;
}

// Layer l is an MoE layer when l is not in mlp_only_layers and (l + 1) is a multiple of
// decoder_sparse_step.
Status read_sparse_step(ConfigFields& fields, const ConfigKeys& keys, ModelConfig& config) {
    std::uint32_t step = 1;
    fields.whole("decoder_sparse_step", 1, layers_max, step);
    if (fields.problem()) return *fields.problem();
    if (step > config.num_layers)
        return bad_field("decoder_sparse_step", text(step),
                         text("at most ", keys.num_layers, " (", config.num_layers,
                              "), so that a layer has experts"));
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        config.layers[layer].is_routed = (layer + 1) % step == 0;

    const Json* dense = fields.find("mlp_only_layers");
    if (dense == nullptr) return {};
    if (!dense->is_array())
        return bad_field("mlp_only_layers", json_excerpt(*dense), "a list of layers");
    for (const Json& layer : *dense) {
        if (!is_whole_below(layer, config.num_layers))
            return bad_field("mlp_only_layers", json_excerpt(*dense),
                             text("layers of 0..", config.num_layers - 1));
        config.layers[static_cast<std::size_t>(*whole_number(layer))].is_routed = false;
    }
    return {};
}

Status read_routed_layers(ConfigFields& fields, const Family& family, const ConfigKeys& keys,
                          ModelConfig& config) {
    std::uint32_t num_dense = 0;
    std::string_view key = "mlp_only_layers";
    switch (family.routed) {
        case RoutedRule::none: return {};
        case RoutedRule::all: break;
        case RoutedRule::sparse_step: MOEX_TRY(read_sparse_step(fields, keys, config)); break;
        case RoutedRule::after_dense:
            key = "first_k_dense_replace";
            num_dense = 1;
            fields.whole(key, 0, layers_max, num_dense);
            if (fields.problem()) return *fields.problem();
            break;
    }
    bool any = false;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (family.routed != RoutedRule::sparse_step)
            config.layers[layer].is_routed = layer >= num_dense;
        any |= config.layers[layer].is_routed;
    }
    if (any) return {};
    const Json* const found = fields.find(key);
    return bad_field(key, found == nullptr ? "missing" : json_excerpt(*found),
                     "at least one MoE layer left");
}

Status read_windows(ConfigFields& fields, const Family& family, ModelConfig& config) {
    if (family.window == WindowRule::none) return {};
    std::uint32_t window = 0;
    fields.whole("sliding_window", 1, context_max, window);
    if (fields.problem()) return *fields.problem();
    if (family.window == WindowRule::all) {
        for (LayerPlan& plan : config.layers) plan.window = window;
        return {};
    }

    const Json* const types = fields.find("layer_types");
    if (types != nullptr && (!types->is_array() || types->size() != config.num_layers))
        return bad_field("layer_types", json_excerpt(*types),
                         text("a type for each of ", config.num_layers, " layers"));
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        const bool slides = types != nullptr ? (*types)[layer] == "sliding_attention"
                                             : layer % 2 == 0;
        if (types != nullptr && !slides && (*types)[layer] != "full_attention")
            return Error{ErrorCode::unsupported,
                         text("config: layer_types has ", json_excerpt((*types)[layer]),
                              "; supported: full_attention and sliding_attention")};
        if (slides && window == 0)
            return bad_field("sliding_window", "missing", "the window of sliding layers");
        if (slides) config.layers[layer].window = window;
    }
    return {};
}

// Reads which layers have a gated delta rule, and the sizes of these layers. Layers without keys
// have none of the parts of attention.
Status read_mixers(ConfigFields& fields, const Family& family, ModelConfig& config) {
    if (!family.has_delta_net) return {};
    bool has_gate = true;
    fields.boolean("attn_output_gate", has_gate);
    std::uint32_t interval = 4;
    fields.whole("full_attention_interval", 1, layers_max, interval);
    const Json* const types = fields.find("layer_types");
    if (types != nullptr && (!types->is_array() || types->size() != config.num_layers))
        return bad_field("layer_types", json_excerpt(*types),
                         text("a type for each of ", config.num_layers, " layers"));
    if (fields.problem()) return *fields.problem();

    bool any = false;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        LayerPlan& plan = config.layers[layer];
        const bool attends = types != nullptr ? (*types)[layer] == "full_attention"
                                              : (layer + 1) % interval == 0;
        if (types != nullptr && !attends && (*types)[layer] != "linear_attention")
            return Error{ErrorCode::unsupported,
                         text("config: layer_types has ", json_excerpt((*types)[layer]),
                              "; supported: full_attention and linear_attention")};
        any |= !attends;
        plan.has_output_gate = attends && has_gate;
        if (attends) continue;
        plan.mixer = Mixer::gated_delta_rule;
        plan.qk_norm = QkNorm::none;
        plan.has_qkv_bias = plan.has_o_bias = false;
        plan.rope = {.theta = plan.rope.theta};
    }
    if (!any) return {};
    DeltaNetSizes& sizes = config.delta_net;
    sizes = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_taps = 4};
    fields.whole("linear_num_key_heads", 1, heads_max, sizes.key_heads);
    fields.whole("linear_num_value_heads", 1, heads_max, sizes.value_heads);
    fields.whole("linear_key_head_dim", 1, head_dim_max, sizes.key_dim);
    fields.whole("linear_value_head_dim", 1, head_dim_max, sizes.value_dim);
    fields.whole("linear_conv_kernel_dim", 1, conv_taps_max, sizes.conv_taps);
    return {};
}

RouterPlan read_router(ConfigFields& fields, const Family& family) {
    RouterPlan router = family.router;
    if (!family.norm_key.empty()) fields.boolean(family.norm_key, router.is_normalised);
    if (family.reads_groups) {
        fields.whole("n_group", 1, experts_max, router.num_groups);
        fields.whole("topk_group", 1, experts_max, router.groups_kept);
        fields.real("routed_scaling_factor", factor_min, factor_max, router.scaling);
    }
    return router;
}

std::uint32_t read_shared_size(ConfigFields& fields, const Family& family,
                               const ModelConfig& config) {
    std::uint32_t size = 0;
    if (!family.shared_width.empty())
        fields.whole(family.shared_width, 0, intermediate_max, size, Presence::required);
    if (family.shared_count.empty()) return size;

    std::uint32_t count = 1;
    fields.whole(family.shared_count, 0, 64, count);
    return count * config.moe_intermediate_size;
}

// Reads what all layers share.
LayerPlan read_common(ConfigFields& fields, const Family& family, ModelConfig& config) {
    LayerPlan plan;
    plan.qk_norm = family.qk_norm;
    if (!family.qk_norm_key.empty()) {
        bool is_normed = false;
        fields.boolean(family.qk_norm_key, is_normed);
        if (!is_normed) plan.qk_norm = QkNorm::none;
    }
    plan.has_qkv_bias = family.bias_default;
    if (!family.bias_key.empty()) fields.boolean(family.bias_key, plan.has_qkv_bias);
    plan.has_o_bias = plan.has_qkv_bias && family.has_o_bias;
    plan.has_sinks = family.has_sinks;
    plan.norms_add_one = family.norms_add_one;
    if (family.reads_clip && fields.find("clip_qkv") != nullptr)
        fields.real("clip_qkv", factor_min, factor_max, plan.clip_qkv);
    if (family.has_multipliers) {
        plan.attention_scale = 1.0;
        fields.real("attention_multiplier", factor_min, factor_max, plan.attention_scale);
        fields.real("residual_multiplier", factor_min, factor_max, plan.residual_multiplier);
        fields.real("embedding_multiplier", factor_min, factor_max, config.embedding_multiplier);
        fields.real("logits_scaling", factor_min, factor_max, config.logits_divisor);
    }
    return plan;
}

Status read_layers(ConfigFields& fields, const Family& family, const ConfigKeys& keys,
                   ModelConfig& config) {
    LayerPlan plan = read_common(fields, family, config);
    MOEX_ASSIGN(rope, read_rope(fields, family, config));
    plan.rope = rope;
    config.layers.assign(config.num_layers, plan);
    MOEX_TRY(read_mixers(fields, family, config));
    MOEX_TRY(read_windows(fields, family, config));
    MOEX_TRY(read_routed_layers(fields, family, keys, config));
    if (!family.has_experts) return {};

    const RouterPlan router = read_router(fields, family);
    const std::uint32_t shared_size = read_shared_size(fields, family, config);
    double limit = family.limit_default;
    if (!family.limit_key.empty()) fields.real(family.limit_key, factor_min, factor_max, limit);
    if (fields.problem()) return *fields.problem();
    for (LayerPlan& layer : config.layers) {
        if (!layer.is_routed) continue;
        layer.router = router;
        layer.shared_size = shared_size;
        layer.has_shared_gate = shared_size > 0 && family.has_shared_gate;
        layer.activation = family.activation;
        layer.activation_limit = limit;
        layer.has_expert_bias = family.has_expert_bias;
    }
    return {};
}

// Refuses keys beside text_config that may change what the model computes: they are not read. A key
// that has the same value in the text part, and keys about pictures and sounds, change nothing.
Status check_beside_text(const Json& object, const Json& inner) {
    constexpr std::string_view known[] = {"text_config", "tie_word_embeddings"};
    constexpr std::string_view others[] = {"vision_", "image_", "video_", "audio_"};
    for (const auto& [key, value] : object.items()) {
        const auto begins = [&name = key](std::string_view part) { return name.starts_with(part); };
        if (std::find(std::begin(known), std::end(known), key) != std::end(known) ||
            std::any_of(std::begin(others), std::end(others), begins) || is_harmless_key(key) ||
            is_neutral_value(key, value) || member(inner, key) == value)
            continue;
        return Error{ErrorCode::unsupported,
                     text("config: ", key.substr(0, 60), " is ", json_excerpt(value),
                          " beside text_config, where it is not read; if it changes no result, "
                          "delete it")};
    }
    return {};
}

}  // namespace

Result<ModelConfig> parse_hf_config(const Json& object) {
    MOEX_TRY(require_object(object));
    // A model that also reads pictures has the configuration of its text part in text_config.
    const Json& part = member(object, "text_config");
    const Json& type = member(part, "model_type");
    if (type.is_string() && find_family(type.get<std::string>()) != nullptr) {
        Json inner = part;
        if (!inner.contains("tie_word_embeddings") && object.contains("tie_word_embeddings"))
            inner["tie_word_embeddings"] = object["tie_word_embeddings"];
        if (!inner.contains("text_config")) {
            MOEX_TRY(check_beside_text(object, inner));
            return parse_hf_config(inner);
        }
    }
    ConfigFields fields(object, {"config"});
    MOEX_ASSIGN(family, read_family(fields));
    MOEX_TRY(check_supported(fields, *family));
    MOEX_TRY(family->has_experts ? check_num_experts(fields) : check_dense(fields, *family));

    const ConfigKeys keys = keys_of(fields, *family);
    ModelConfig config;
    config.architecture = family->type;
    config.rms_norm_eps = family->rms_norm_eps;
    read_sizes(fields, keys, family->has_experts, config);
    if (fields.problem()) return *fields.problem();
    MOEX_TRY(check_foreign_keys(object, *family, keys));
    MOEX_TRY(read_layers(fields, *family, keys, config));
    if (fields.problem()) return *fields.problem();
    MOEX_TRY(check_relations(config, keys));
    return config;
}

}  // namespace moex
