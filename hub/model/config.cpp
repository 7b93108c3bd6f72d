#include "hub/model/config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "hub/model/strict_json.h"

namespace moex {
namespace {

using Json = nlohmann::json;

Error bad_field(std::string_view key, const std::string& found, const std::string& wanted) {
    return {ErrorCode::bad_field, text("config: ", key, " is ", found, ", wanted ", wanted)};
}

// Numbers that a program put into the JSON may be signed where parsed ones are not.
bool is_count_below(const Json& value, std::uint64_t limit) {
    return value.is_number_integer() &&
           (value.is_number_unsigned() || value.get<std::int64_t>() >= 0) &&
           value.get<std::uint64_t>() < limit;
}

// Reads the keys of one object; the first error is kept,
// so that a caller reads everything and checks once.
class FieldReader {
  public:
    explicit FieldReader(const Json& object) : object_(object) {}

    const Json* find(std::string_view key) const {
        const auto found = object_.find(key);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }
    std::uint32_t count(std::string_view key, std::uint32_t min, std::uint32_t max) {
        const Json* value = find(key);
        if (value == nullptr) {
            fail(bad_field(key, object_.contains(key) ? "null" : "missing",
                           text("a whole number of ", min, "..", max)));
            return min;
        }
        return check_count(key, *value, min, max);
    }
    std::uint32_t count_or(std::string_view key, std::uint32_t min, std::uint32_t max,
                           std::uint32_t otherwise) {
        const Json* value = find(key);
        return value == nullptr ? otherwise : check_count(key, *value, min, max);
    }
    bool flag(std::string_view key, bool otherwise) {
        const Json* value = find(key);
        if (value == nullptr) return otherwise;
        if (!value->is_boolean()) {
            fail(bad_field(key, json_excerpt(*value), "true or false"));
            return otherwise;
        }
        return value->get<bool>();
    }
    double positive(std::string_view key, double otherwise) {
        const Json* value = find(key);
        if (value == nullptr) return otherwise;
        const double number = value->is_number() ? value->get<double>() : 0;
        if (!(number > 0 && std::isfinite(number)))
            fail(bad_field(key, json_excerpt(*value), "a positive number"));
        return number;
    }
    std::string word(std::string_view key, std::string_view otherwise) {
        const Json* value = find(key);
        if (value == nullptr) return std::string(otherwise);
        if (!value->is_string()) {
            fail(bad_field(key, json_excerpt(*value), "a string"));
            return std::string(otherwise);
        }
        return value->get<std::string>();
    }
    void fail(Error error) {
        if (status_.ok()) status_ = std::move(error);
    }
    const Status& status() const { return status_; }

  private:
    std::uint32_t check_count(std::string_view key, const Json& value, std::uint32_t min,
                              std::uint32_t max) {
        if (!is_count_below(value, std::uint64_t{max} + 1) || value.get<std::uint64_t>() < min) {
            fail(bad_field(key, json_excerpt(value), text("a whole number of ", min, "..", max)));
            return min;
        }
        return value.get<std::uint32_t>();
    }
    const Json& object_;
    Status status_;
};

// Bounds that hold for every spelling. The wire carries layer, expert and hidden size in 16 bits.
constexpr std::uint32_t hidden_max = 65504, layers_max = 1024, heads_max = 1024,
                        head_dim_max = 1024, vocab_max = 1u << 24, context_max = 1u << 24,
                        experts_max = 4096, intermediate_max = 1u << 18;

struct Keys {  // where the two spellings differ
    std::string_view num_layers, num_heads, num_kv_heads, context_tokens, num_experts, top_k, tied;
};
constexpr Keys ours{"num_layers",  "num_heads", "num_kv_heads",   "context_tokens",
                    "num_experts", "top_k",     "tied_embeddings"};

void read_common(FieldReader& reader, const Keys& keys, ModelConfig& config) {
    config.hidden_size = reader.count("hidden_size", 32, hidden_max);
    config.num_layers = reader.count(keys.num_layers, 1, layers_max);
    config.num_heads = reader.count(keys.num_heads, 1, heads_max);
    config.num_kv_heads = reader.count_or(keys.num_kv_heads, 1, heads_max, config.num_heads);
    config.head_dim = reader.count_or("head_dim", 1, head_dim_max,
                                      config.hidden_size / config.num_heads);
    config.vocab_size = reader.count("vocab_size", 1, vocab_max);
    config.context_tokens = reader.count(keys.context_tokens, 1, context_max);
    config.num_experts = reader.count(keys.num_experts, 1, experts_max);
    config.top_k = reader.count(keys.top_k, 1, experts_max);
    config.moe_intermediate_size = reader.count("moe_intermediate_size", 32, intermediate_max);
    config.intermediate_size = reader.count_or("intermediate_size", 0, intermediate_max, 0);
    config.norm_topk_prob = reader.flag("norm_topk_prob", false);
    config.attention_bias = reader.flag("attention_bias", false);
    config.tied_embeddings = reader.flag(keys.tied, false);
    config.rms_norm_eps = reader.positive("rms_norm_eps", 1e-6);
}

Status check_relations(const ModelConfig& config) {
    const auto multiple = [](std::string_view key, std::uint32_t value,
                             std::uint32_t of) -> Status {
        if (value % of != 0) return bad_field(key, text(value), text("a multiple of ", of));
        return {};
    };
    MOEX_TRY(multiple("hidden_size", config.hidden_size, 32));
    MOEX_TRY(multiple("moe_intermediate_size", config.moe_intermediate_size, 32));
    MOEX_TRY(multiple("head_dim", config.head_dim, 8));
    if (config.head_dim == 0)
        return bad_field("head_dim", "0", "at least 8 (is num_heads above hidden_size?)");
    if (config.num_heads % config.num_kv_heads != 0)
        return bad_field("num_heads", text(config.num_heads),
                         text("a multiple of num_kv_heads (", config.num_kv_heads, ")"));
    if (config.top_k > config.num_experts)
        return bad_field("top_k", text(config.top_k),
                         text("at most num_experts (", config.num_experts, ")"));
    bool any_moe = false, any_dense = false;
    for (const std::uint8_t moe : config.layer_is_moe) (moe ? any_moe : any_dense) = true;
    if (!any_moe)
        return bad_field("layer_is_moe", "false for every layer",
                         "at least one MoE layer (decoder_sparse_step, mlp_only_layers)");
    if (any_dense && config.intermediate_size == 0)
        return bad_field("intermediate_size", "missing", "the width of the dense layers");
    if (any_dense) MOEX_TRY(multiple("intermediate_size", config.intermediate_size, 8));
    return {};
}

// transformers 4 has rope_theta and rope_scaling; 5 has rope_parameters with both in it.
void read_rope(FieldReader& reader, const Json& object, ModelConfig& config) {
    config.rope_theta = reader.positive("rope_theta", 10000.0);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
        const Json* rope = reader.find(key);
        if (rope == nullptr) continue;
        if (!rope->is_object())
            return reader.fail(bad_field(key, json_excerpt(*rope), "an object or null"));
        for (const auto& [name, value] : rope->items())
            if (value.is_object())
                return reader.fail(Error{ErrorCode::unsupported,
                                         text("config: ", key, " differs by layer type (\"",
                                              name.substr(0, 60), "\"), which is not supported")});
        FieldReader inner(*rope);
        const std::string kind = inner.word("rope_type", inner.word("type", "default"));
        if (kind != "default")
            return reader.fail(Error{ErrorCode::unsupported,
                                     text("config: ", key, " of type \"", kind.substr(0, 60),
                                          "\" is not supported; supported: default, or none")});
        config.rope_theta = inner.positive("rope_theta", config.rope_theta);
        if (inner.positive("partial_rotary_factor", 1.0) != 1.0)
            return reader.fail(bad_field("partial_rotary_factor",
                                         json_excerpt((*rope)["partial_rotary_factor"]), "1"));
        if (!inner.status().ok()) return reader.fail(inner.status().error());
    }
    if (reader.positive("partial_rotary_factor", 1.0) != 1.0)
        reader.fail(
            bad_field("partial_rotary_factor", json_excerpt(object["partial_rotary_factor"]), "1"));
}

Status check_architecture(FieldReader& reader) {
    const std::string model_type = reader.word("model_type", "");
    std::string architecture;
    if (const Json* list = reader.find("architectures");
        list != nullptr && list->is_array() && !list->empty() && (*list)[0].is_string())
        architecture = (*list)[0].get<std::string>();
    const bool type_known = model_type == "qwen3_moe" ||
                            (model_type.empty() && !architecture.empty());
    const bool class_known = architecture == "Qwen3MoeForCausalLM" ||
                             (architecture.empty() && !model_type.empty());
    if (type_known && class_known) return {};
    const std::string found = !type_known
                                  ? text("model_type \"", model_type.substr(0, 60), "\"")
                                  : text("architecture \"", architecture.substr(0, 60), "\"");
    return Error{
        ErrorCode::unsupported,
        text("config: ", found, " is not supported; supported: qwen3_moe (Qwen3MoeForCausalLM)")};
}

// Layer l is MoE when it is not in mlp_only_layers
// and (l + 1) is a multiple of decoder_sparse_step.
void read_moe_layers(FieldReader& reader, ModelConfig& config) {
    const std::uint32_t step = reader.count_or("decoder_sparse_step", 1, layers_max, 1);
    config.layer_is_moe.assign(config.num_layers, 0);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        config.layer_is_moe[layer] = (layer + 1) % step == 0;
    const Json* dense = reader.find("mlp_only_layers");
    if (dense == nullptr) return;
    if (!dense->is_array())
        return reader.fail(bad_field("mlp_only_layers", json_excerpt(*dense), "a list of layers"));
    for (const Json& layer : *dense) {
        if (!is_count_below(layer, config.num_layers))
            return reader.fail(bad_field("mlp_only_layers", json_excerpt(*dense),
                                         text("layers of 0..", config.num_layers - 1)));
        config.layer_is_moe[layer.get<std::uint64_t>()] = 0;
    }
}

}  // namespace

Result<ModelConfig> parse_hf_config(const Json& object) {
    if (!object.is_object())
        return Error{ErrorCode::bad_field,
                     text("config: ", json_excerpt(object), ", wanted an object")};
    FieldReader reader(object);
    MOEX_TRY(check_architecture(reader));
    if (reader.find("quantization_config") != nullptr) {
        const Json& quantization = object["quantization_config"];
        const std::string method = quantization.is_object()
                                       ? FieldReader(quantization).word("quant_method", "unnamed")
                                       : "unnamed";
        return Error{ErrorCode::unsupported,
                     text("config: quantization_config of method \"", method.substr(0, 60),
                          "\" is not supported; wanted a checkpoint in bf16, f16 or f32")};
    }
    const std::string activation = reader.word("hidden_act", "silu");
    if (activation != "silu")
        return Error{ErrorCode::unsupported, text("config: hidden_act \"", activation.substr(0, 60),
                                                  "\" is not supported; supported: silu")};
    if (reader.flag("use_sliding_window", false))
        return Error{
            ErrorCode::unsupported,
            "config: use_sliding_window is true; sliding-window attention is not supported"};
    if (const Json* types = reader.find("layer_types"); types != nullptr) {
        const bool all_full = types->is_array() &&
                              std::all_of(types->begin(), types->end(), [](const Json& type) {
                                  return type == "full_attention";
                              });
        if (!all_full)
            return Error{ErrorCode::unsupported,
                         text("config: layer_types is ", json_excerpt(*types),
                              "; supported: full_attention in every layer")};
    }
    const Keys keys{
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        reader.find("num_local_experts") != nullptr ? "num_local_experts" : "num_experts",
        "num_experts_per_tok",
        "tie_word_embeddings"};
    if (reader.find("num_local_experts") != nullptr && reader.find("num_experts") != nullptr &&
        object["num_experts"] != object["num_local_experts"])
        return bad_field("num_experts", json_excerpt(object["num_experts"]),
                         text("the same as num_local_experts (",
                              json_excerpt(object["num_local_experts"]), ")"));
    ModelConfig config;
    read_common(reader, keys, config);
    read_rope(reader, object, config);
    MOEX_TRY(reader.status());
    read_moe_layers(reader, config);
    MOEX_TRY(reader.status());
    MOEX_TRY(check_relations(config));
    return config;
}

Json to_json(const ModelConfig& config) {
    return Json{{"architecture", config.architecture},
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
}

Result<ModelConfig> parse_model_config(const Json& object) {
    if (!object.is_object())
        return Error{ErrorCode::bad_field,
                     text("config: ", json_excerpt(object), ", wanted an object")};
    FieldReader reader(object);
    ModelConfig config;
    config.architecture = reader.word("architecture", "");
    if (config.architecture != "qwen3_moe")
        return Error{ErrorCode::unsupported,
                     text("config: architecture \"", config.architecture.substr(0, 60),
                          "\" is not supported; supported: qwen3_moe")};
    read_common(reader, ours, config);
    config.rope_theta = reader.positive("rope_theta", 10000.0);
    MOEX_TRY(reader.status());
    const Json* layers = reader.find("layer_is_moe");
    if (layers == nullptr || !layers->is_array() || layers->size() != config.num_layers)
        return bad_field("layer_is_moe", layers == nullptr ? "missing" : json_excerpt(*layers),
                         text("a list of ", config.num_layers, " zeros and ones"));
    for (const Json& layer : *layers) {
        if (!is_count_below(layer, 2))
            return bad_field("layer_is_moe", json_excerpt(*layers), "a list of zeros and ones");
        config.layer_is_moe.push_back(layer.get<std::uint8_t>());
    }
    MOEX_TRY(check_relations(config));
    return config;
}

}  // namespace moex
