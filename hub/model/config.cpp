#include "hub/model/config.h"

#include <algorithm>
#include <string_view>

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

Error bad_field(std::string_view key, const std::string& found, const std::string& wanted) {
    return {ErrorCode::bad_field, text("config: ", key, " is ", found, ", wanted ", wanted)};
}

// Reads the fields of a configuration file. Its errors have the form of bad_field().
using ConfigFields = JsonFields<Json, FileWording>;

bool is_whole_below(const Json& value, std::uint32_t limit) {
    const auto number = whole_number(value);
    return number && *number >= 0 && *number < std::int64_t{limit};
}

// Bounds of config.json and of the configuration in manifest.json. The wire protocol has 16 bits
// for layer, expert and hidden size.
constexpr std::uint32_t hidden_max = 65504, layers_max = 1024, heads_max = 1024,
                        head_dim_max = 1024, vocab_max = 1u << 24, context_max = 1u << 24,
                        experts_max = 4096, intermediate_max = 1u << 18;

// A model architecture that the hub can compute, with the names that transformers gives to its type
// and its class.
struct Architecture {
    std::string_view type, class_name;
    bool has_experts;
};
constexpr Architecture architectures[] = {{"qwen3_moe", "Qwen3MoeForCausalLM", true},
                                          {"qwen3", "Qwen3ForCausalLM", false},
                                          {"qwen2", "Qwen2ForCausalLM", false},
                                          {"llama", "LlamaForCausalLM", false}};

const Architecture* find_architecture(std::string_view type, std::string_view class_name) {
    for (const Architecture& one : architectures)
        if ((type.empty() || one.type == type) &&
            (class_name.empty() || one.class_name == class_name))
            return &one;
    return nullptr;
}

// The names of keys that differ between config.json and manifest.json. Errors name the key of the
// file that was read.
struct Keys {
    std::string_view num_layers, num_heads, num_kv_heads, context_tokens, num_experts, top_k, tied;
};
constexpr Keys our_keys{"num_layers",  "num_heads", "num_kv_heads",   "context_tokens",
                        "num_experts", "top_k",     "tied_embeddings"};

Keys hf_keys(const ConfigFields& fields) {
    return {.num_layers = "num_hidden_layers",
            .num_heads = "num_attention_heads",
            .num_kv_heads = "num_key_value_heads",
            .context_tokens = "max_position_embeddings",
            .num_experts = fields.find("num_local_experts") != nullptr ? "num_local_experts"
                                                                       : "num_experts",
            .top_k = "num_experts_per_tok",
            .tied = "tie_word_embeddings"};
}

void read_experts(ConfigFields& fields, const Keys& keys, ModelConfig& config) {
    using enum Presence;
    fields.whole(keys.num_experts, 1, experts_max, config.num_experts, required);
    fields.whole(keys.top_k, 1, experts_max, config.top_k, required);
    fields.whole("moe_intermediate_size", 32, intermediate_max, config.moe_intermediate_size,
                 required);
    fields.boolean("norm_topk_prob", config.norm_topk_prob);
}

void read_common(ConfigFields& fields, const Keys& keys, bool has_experts, ModelConfig& config) {
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
    if (has_experts) read_experts(fields, keys, config);
    fields.whole("intermediate_size", 0, intermediate_max, config.intermediate_size);

    fields.boolean("attention_bias", config.attention_bias);
    fields.boolean(keys.tied, config.tied_embeddings);
    fields.positive("rms_norm_eps", config.rms_norm_eps);
    fields.positive("rope_theta", config.rope_theta);
}

Status require_multiple(std::string_view key, std::uint32_t value, std::uint32_t of) {
    if (value % of != 0) return bad_field(key, text(value), text("a multiple of ", of));
    return {};
}

bool has_moe_layer(const ModelConfig& config) {
    const auto& moe = config.layer_is_moe;
    return std::any_of(moe.begin(), moe.end(), [](std::uint8_t is_moe) { return is_moe != 0; });
}

Status check_relations(const ModelConfig& config, const Keys& keys) {
    MOEX_TRY(require_multiple("hidden_size", config.hidden_size, 32));
    MOEX_TRY(require_multiple("moe_intermediate_size", config.moe_intermediate_size, 32));

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
    if (config.top_k > config.num_experts)
        return bad_field(keys.top_k, text(config.top_k),
                         text("at most ", keys.num_experts, " (", config.num_experts, ")"));

    const auto& moe = config.layer_is_moe;
    const bool any_dense = std::find(moe.begin(), moe.end(), 0) != moe.end();
    if (!any_dense) return {};
    if (config.intermediate_size == 0)
        return bad_field("intermediate_size", "missing", "the width of the dense layers");

    return require_multiple("intermediate_size", config.intermediate_size, 8);
}

void require_whole_rotation(ConfigFields& fields) {
    double factor = 1.0;
    fields.positive("partial_rotary_factor", factor);
    if (factor != 1.0)
        fields.wrong("partial_rotary_factor", "1", fields.find("partial_rotary_factor"));
}

// Reads the rope scaling in the form of transformers or of our manifests. `original` is the key
// that gives the context length of the first training.
void read_scaling(ConfigFields& fields, std::string_view original, RopeScaling& scaling) {
    for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"})
        if (fields.find(name) == nullptr) fields.wrong(name, "a number", nullptr);
    fields.real("factor", 1.0, 1024.0, scaling.factor);
    fields.real("low_freq_factor", 0.001, 1024.0, scaling.low_freq_factor);
    fields.real("high_freq_factor", 0.001, 1024.0, scaling.high_freq_factor);
    fields.whole(original, 1, context_max, scaling.original_context_tokens, Presence::required);
    if (!fields.problem() && scaling.high_freq_factor <= scaling.low_freq_factor)
        fields.wrong("high_freq_factor", "more than low_freq_factor",
                     fields.find("high_freq_factor"));
}

// Reads the JSON object that has the rope parameters. transformers 4 has rope_theta and
// rope_scaling. transformers 5 has rope_parameters, which contains both.
Status read_rope_object(const Json& rope, std::string_view key, ModelConfig& config) {
    if (!rope.is_object()) return bad_field(key, json_excerpt(rope), "an object or null");
    for (const auto& [name, value] : rope.items())
        if (value.is_object())
            return Error{ErrorCode::unsupported,
                         text("config: ", key, " differs by layer type (\"", name.substr(0, 60),
                              "\"), which is not supported")};

    ConfigFields fields(rope, {"config"});
    std::string kind = "default";
    fields.string("type", kind);
    fields.string("rope_type", kind);
    if (kind == "llama3")
        read_scaling(fields, "original_max_position_embeddings", config.rope_scaling);
    else if (kind != "default")
        return Error{ErrorCode::unsupported,
                     text("config: ", key, " of type \"", kind.substr(0, 60),
                          "\" is not supported; supported: default, llama3, or none")};

    fields.positive("rope_theta", config.rope_theta);
    require_whole_rotation(fields);
    if (fields.problem()) return *fields.problem();
    return {};
}

Status read_rope(ConfigFields& fields, ModelConfig& config) {
    for (const char* key : {"rope_scaling", "rope_parameters"})
        if (const Json* rope = fields.find(key)) MOEX_TRY(read_rope_object(*rope, key, config));
    require_whole_rotation(fields);
    return {};
}

std::string supported_architectures() {
    std::string words;
    for (const Architecture& one : architectures)
        words += text(words.empty() ? "" : ", ", one.type, " (", one.class_name, ")");
    return words;
}

Result<Architecture> read_architecture(ConfigFields& fields) {
    std::string model_type, architecture;
    fields.string("model_type", model_type);
    if (const Json* list = fields.find("architectures");
        list != nullptr && list->is_array() && !list->empty() && (*list)[0].is_string())
        architecture = (*list)[0].get<std::string>();

    const bool is_named = !model_type.empty() || !architecture.empty();
    if (const Architecture* known = find_architecture(model_type, architecture); known && is_named)
        return *known;

    const bool type_known = is_named && find_architecture(model_type, "") != nullptr;
    const std::string found = !type_known
                                  ? text("model_type \"", model_type.substr(0, 60), "\"")
                                  : text("architecture \"", architecture.substr(0, 60),
                                         "\" of model_type \"", model_type.substr(0, 60), "\"");
    return Error{
        ErrorCode::unsupported,
        text("config: ", found, " is not supported; supported: ", supported_architectures())};
}

// Refuses keys that only a model with experts has in the configuration of a dense architecture.
Status check_dense(const ConfigFields& fields, const Architecture& architecture) {
    for (const char* key :
         {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"})
        if (const Json* found = fields.find(key))
            return Error{ErrorCode::unsupported,
                         text("config: ", key, " is ", json_excerpt(*found), ", but ",
                              architecture.type, " is a dense architecture")};
    return {};
}

// Refuses models that this program cannot compute: another activation, biases in an FFN, or sliding
// windows. The error names the key. The form in which the weights are stored, quantization_config,
// is no part of the model: hub/model/pack/readers/quantization.h reads it.
Status check_supported(ConfigFields& fields) {
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

    bool sliding_window = false;
    fields.boolean("use_sliding_window", sliding_window);
    if (sliding_window)
        return Error{
            ErrorCode::unsupported,
            "config: use_sliding_window is true; sliding-window attention is not supported"};

    const Json* types = fields.find("layer_types");
    if (types == nullptr) return {};

    const bool all_full = types->is_array() &&
                          std::all_of(types->begin(), types->end(),
                                      [](const Json& type) { return type == "full_attention"; });
    if (!all_full)
        return Error{ErrorCode::unsupported, text("config: layer_types is ", json_excerpt(*types),
                                                  "; supported: full_attention in every layer")};

    return {};
}

// Checks the number of experts. transformers 4 writes the key num_experts, and version 5 writes
// num_local_experts. If the file has both keys, they must be equal.
Status check_num_experts(const ConfigFields& fields) {
    const Json *older = fields.find("num_experts"), *newer = fields.find("num_local_experts");
    if (older == nullptr || newer == nullptr || *older == *newer) return {};
    return bad_field("num_experts", json_excerpt(*older),
                     text("the same as num_local_experts (", json_excerpt(*newer), ")"));
}

// Layer l is an MoE layer when l is not in mlp_only_layers and (l + 1) is a multiple of
// decoder_sparse_step.
Status read_moe_layers(ConfigFields& fields, const Keys& keys, ModelConfig& config) {
    std::uint32_t step = 1;
    fields.whole("decoder_sparse_step", 1, layers_max, step);
    if (fields.problem()) return *fields.problem();
    if (step > config.num_layers)
        return bad_field("decoder_sparse_step", text(step),
                         text("at most ", keys.num_layers, " (", config.num_layers,
                              "), so that a layer has experts"));

    config.layer_is_moe.assign(config.num_layers, 0);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        config.layer_is_moe[layer] = (layer + 1) % step == 0;

    const Json* dense = fields.find("mlp_only_layers");
    if (dense == nullptr) return {};
    if (!dense->is_array())
        return bad_field("mlp_only_layers", json_excerpt(*dense), "a list of layers");

    for (const Json& layer : *dense) {
        if (!is_whole_below(layer, config.num_layers))
            return bad_field("mlp_only_layers", json_excerpt(*dense),
                             text("layers of 0..", config.num_layers - 1));
        config.layer_is_moe[static_cast<std::size_t>(*whole_number(layer))] = 0;
    }

    if (!has_moe_layer(config))
        return bad_field("mlp_only_layers", json_excerpt(*dense), "at least one MoE layer left");
    return {};
}

Status require_object(const Json& object) {
    if (object.is_object()) return {};
    return Error{ErrorCode::bad_field,
                 text("config: ", json_excerpt(object), ", wanted an object")};
}

}  // namespace

Result<ModelConfig> parse_hf_config(const Json& object) {
    MOEX_TRY(require_object(object));
    ConfigFields fields(object, {"config"});
    MOEX_ASSIGN(architecture, read_architecture(fields));
    MOEX_TRY(check_supported(fields));
    MOEX_TRY(architecture.has_experts ? check_num_experts(fields)
                                      : check_dense(fields, architecture));

    const Keys keys = hf_keys(fields);
    ModelConfig config;
    config.architecture = architecture.type;
    read_common(fields, keys, architecture.has_experts, config);
    // qwen2 models always have this bias, and their files have no key for it
    if (config.architecture == "qwen2") config.attention_bias = true;
    MOEX_TRY(read_rope(fields, config));
    if (fields.problem()) return *fields.problem();

    if (architecture.has_experts)
        MOEX_TRY(read_moe_layers(fields, keys, config));
    else
        config.layer_is_moe.assign(config.num_layers, 0);
    MOEX_TRY(check_relations(config, keys));
    return config;
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
                {"layer_is_moe", config.layer_is_moe},
                {"norm_topk_prob", config.norm_topk_prob},
                {"attention_bias", config.attention_bias},
                {"tied_embeddings", config.tied_embeddings},
                {"rms_norm_eps", config.rms_norm_eps},
                {"rope_theta", config.rope_theta}};

    // Write the rope scaling only if the model uses it, so that manifests of models without scaling
    // keep the bytes that older versions wrote.
    const RopeScaling& scaling = config.rope_scaling;
    if (scaling.factor != 1.0)
        object["rope_scaling"] = {{"factor", scaling.factor},
                                  {"low_freq_factor", scaling.low_freq_factor},
                                  {"high_freq_factor", scaling.high_freq_factor},
                                  {"original_context_tokens", scaling.original_context_tokens}};
    return object;
}

Result<ModelConfig> parse_model_config(const Json& object) {
    MOEX_TRY(require_object(object));
    ConfigFields fields(object, {"config"});
    ModelConfig config;
    config.architecture.clear();
    fields.string("architecture", config.architecture);
    const Architecture* const architecture = config.architecture.empty()
                                                 ? nullptr
                                                 : find_architecture(config.architecture, "");
    if (architecture == nullptr)
        return Error{ErrorCode::unsupported,
                     text("config: architecture \"", config.architecture.substr(0, 60),
                          "\" is not supported; supported: ", supported_architectures())};

    read_common(fields, our_keys, architecture->has_experts, config);
    if (const Json* scaling = fields.find("rope_scaling")) {
        ConfigFields inner(*scaling, {"config"});
        read_scaling(inner, "original_context_tokens", config.rope_scaling);
        if (inner.problem()) return *inner.problem();
    }
    if (fields.problem()) return *fields.problem();

    const Json* layers = fields.find("layer_is_moe");
    if (layers == nullptr || !layers->is_array() || layers->size() != config.num_layers)
        return bad_field("layer_is_moe", layers == nullptr ? "missing" : json_excerpt(*layers),
                         text("a list of ", config.num_layers, " zeros and ones"));

    for (const Json& layer : *layers) {
        if (!is_whole_below(layer, 2))
            return bad_field("layer_is_moe", json_excerpt(*layers), "a list of zeros and ones");
        config.layer_is_moe.push_back(static_cast<std::uint8_t>(*whole_number(layer)));
    }

    if (has_moe_layer(config) != architecture->has_experts)
        return bad_field("layer_is_moe", json_excerpt(*layers),
                         architecture->has_experts ? "at least one MoE layer"
                                                   : "0 for every layer of a dense model");

    MOEX_TRY(check_relations(config, our_keys));
    return config;
}

}  // namespace moex
