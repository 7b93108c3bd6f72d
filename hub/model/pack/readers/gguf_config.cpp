#include "hub/model/pack/readers/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"
#include "protocol/text.h"

namespace moex {
namespace {

struct GgufFamily {
    std::string_view name, model_type, class_name;
    bool rotates_neighbours;
};
constexpr GgufFamily gguf_families[] = {{"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", false},
                                        {"qwen3", "qwen3", "Qwen3ForCausalLM", false},
                                        {"qwen2", "qwen2", "Qwen2ForCausalLM", false},
                                        {"llama", "llama", "LlamaForCausalLM", true}};

struct NamePair {
    std::string_view gguf, transformers;
};
constexpr NamePair layer_names[] = {{"attn_norm", "input_layernorm"},
                                    {"ffn_norm", "post_attention_layernorm"},
                                    {"attn_q", "self_attn.q_proj"},
                                    {"attn_k", "self_attn.k_proj"},
                                    {"attn_v", "self_attn.v_proj"},
                                    {"attn_output", "self_attn.o_proj"},
                                    {"attn_q_norm", "self_attn.q_norm"},
                                    {"attn_k_norm", "self_attn.k_norm"},
                                    {"ffn_gate_inp", "mlp.gate"},
                                    {"ffn_gate", "mlp.gate_proj"},
                                    {"ffn_up", "mlp.up_proj"},
                                    {"ffn_down", "mlp.down_proj"},
                                    {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                    {"ffn_up_exps", "mlp.experts.up_proj"},
                                    {"ffn_down_exps", "mlp.experts.down_proj"}};
constexpr NamePair outer_names[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                    {"output_norm.weight", "model.norm.weight"},
                                    {"output.weight", "lm_head.weight"}};

// Copies metadata to a config.json under other names.
class ConfigBuilder {
  public:
    ConfigBuilder(const GgufFile& file, std::string_view family) : file_(file), family_(family) {}

    const Json* find(std::string_view name) const {
        const auto found = file_.metadata().find(text(family_, '.', name));
        return found == file_.metadata().end() ? nullptr : &found->second;
    }
    // Copies a value if it is there.
    void copy(std::string_view name, const char* to) {
        if (const Json* value = find(name)) config[to] = *value;
    }
    Status require(std::string_view name, const char* to) {
        if (find(name) == nullptr)
            return Error{ErrorCode::bad_file, text(file_.path().string(), ": metadata ", family_,
                                                   '.', name, " is missing")};
        copy(name, to);
        return {};
    }
    Json config = Json::object();

  private:
    const GgufFile& file_;
    std::string_view family_;
};

// Rope scaling of another kind than none stays under its name, so that the reader of config.json
// refuses what it cannot compute. For yarn the metadata lack `truncate`, which changes the answers.
Status add_rope(const GgufFile& file, ConfigBuilder& builder) {
    builder.copy("rope.freq_base", "rope_theta");
    if (const Json* kind = builder.find("rope.scaling.type"); kind != nullptr && *kind == "yarn")
        return Error{
            ErrorCode::unsupported,
            text(file.path().string(),
                 ": rope.scaling.type is yarn, which is not read from GGUF files; pack the "
                 "safetensors of the model")};
    if (const Json* kind = builder.find("rope.scaling.type");
        kind != nullptr && *kind != "none" && *kind != "") {
        builder.config["rope_scaling"] = {{"rope_type", *kind}};
        if (const Json* factor = builder.find("rope.scaling.factor"))
            builder.config["rope_scaling"]["factor"] = *factor;
    }
    return {};
}

// Returns the factors by which the llama3 scaling divides the frequencies of a head.
std::vector<float> llama3_factors(std::uint32_t head_dim, double theta, double factor, double low,
                                  double high, double original) {
    std::vector<float> factors;
    for (std::uint32_t j = 0; j < head_dim / 2; ++j) {
        const double turns = original * std::pow(theta, -2.0 * j / head_dim) / (2 * M_PI),
                     smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
        factors.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
    }
    return factors;
}

// llama.cpp stores the llama3 scaling as a tensor of factors. The parameters of the released models
// (original context 8192, low 1, high 4) give these factors again, or the tensor is refused.
Status add_rope_factors(const GgufFile& file, const GgufTensor* tensor, GgufModel& model) {
    if (tensor == nullptr) return {};
    const std::uint32_t head_dim = model.head_dim;
    std::vector<float> found(head_dim / 2);
    const bool is_readable = tensor->size_bytes == found.size() * 4 &&
                             std::string_view(tensor->type->name) == "F32";
    if (is_readable)
        MOEX_TRY(file.read_bytes(*tensor, 0, std::as_writable_bytes(std::span(found))));

    const double factor = is_readable ? *std::max_element(found.begin(), found.end()) : 0;
    const double theta = model.config.value("rope_theta", 10000.0);
    bool is_known = is_readable && factor >= 1 && factor <= 1024;
    if (is_known) {
        const auto wanted = llama3_factors(head_dim, theta, factor, 1, 4, 8192);
        for (std::size_t j = 0; j < found.size(); ++j)
            is_known &= std::abs(found[j] - wanted[j]) <= 1e-3f * wanted[j];
    }
    if (!is_known)
        return Error{ErrorCode::unsupported,
                     text(file.path().string(),
                          ": tensor rope_freqs.weight scales the rotation in another way than "
                          "Llama 3 does; pack the safetensors of the model")};
    if (factor > 1)
        model.config["rope_scaling"] = {{"rope_type", "llama3"},
                                        {"factor", factor},
                                        {"low_freq_factor", 1.0},
                                        {"high_freq_factor", 4.0},
                                        {"original_max_position_embeddings", 8192}};
    return {};
}

Result<const GgufFamily*> family_of(const GgufFile& file) {
    const auto found = file.metadata().find("general.architecture");
    const Json name = found == file.metadata().end() ? Json() : found->second;
    std::string known;
    for (const GgufFamily& family : gguf_families) {
        if (name == family.name) return &family;
        known += text(known.empty() ? "" : ", ", family.name);
    }
    if (name.is_null())
        return Error{ErrorCode::bad_file,
                     text(file.path().string(), ": metadata general.architecture is missing")};
    return Error{ErrorCode::unsupported,
                 text(file.path().string(), ": general.architecture ", json_excerpt(name),
                      " is not supported; supported: ", known)};
}

void add_ids(const GgufFile& file, Json& config) {
    for (const auto& [name, key] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token_id"),
                                    {"tokenizer.ggml.eos_token_id", "eos_token_id"}})
        if (const auto id = file.metadata().find(name); id != file.metadata().end())
            config[key] = id->second;
    // A model ends a turn with another token than a text, e.g. <|im_end|>.
    const auto end_of_turn = file.metadata().find("tokenizer.ggml.eot_token_id");
    if (end_of_turn == file.metadata().end()) return;
    if (!config.contains("eos_token_id"))
        config["eos_token_id"] = end_of_turn->second;
    else if (config["eos_token_id"] != end_of_turn->second)
        config["eos_token_id"] = Json::array({config["eos_token_id"], end_of_turn->second});
}

}  // namespace

Result<GgufModel> gguf_model_of(const GgufFile& file,
                                const std::vector<const GgufTensor*>& tensors) {
    MOEX_ASSIGN(family, family_of(file));
    ConfigBuilder builder(file, family->name);
    const auto find = [&](std::string_view name) -> const GgufTensor* {
        const auto found = std::find_if(tensors.begin(), tensors.end(),
                                        [&](const GgufTensor* one) { return one->name == name; });
        return found == tensors.end() ? nullptr : *found;
    };

    Json& config = builder.config;
    config["model_type"] = family->model_type;
    config["architectures"] = {family->class_name};
    MOEX_TRY(builder.require("embedding_length", "hidden_size"));
    MOEX_TRY(builder.require("block_count", "num_hidden_layers"));
    MOEX_TRY(builder.require("attention.head_count", "num_attention_heads"));
    MOEX_TRY(builder.require("context_length", "max_position_embeddings"));
    MOEX_TRY(builder.require("attention.layer_norm_rms_epsilon", "rms_norm_eps"));
    builder.copy("attention.head_count_kv", "num_key_value_heads");
    builder.copy("attention.key_length", "head_dim");
    builder.copy("feed_forward_length", "intermediate_size");
    MOEX_TRY(add_rope(file, builder));

    if (const Json* experts = builder.find("expert_count"); experts != nullptr && *experts != 0) {
        config["num_experts"] = *experts;
        MOEX_TRY(builder.require("expert_used_count", "num_experts_per_tok"));
        MOEX_TRY(builder.require("expert_feed_forward_length", "moe_intermediate_size"));
        config["norm_topk_prob"] = true;  // qwen3moe has no field for it
    }

    const GgufTensor* const embeddings = find("token_embd.weight");
    if (embeddings == nullptr || embeddings->shape.size() != 2)
        return Error{ErrorCode::bad_file, text(file.path().string(),
                                               ": tensor token_embd.weight is missing, wanted "
                                               "[vocabulary, hidden size]")};
    config["vocab_size"] = embeddings->shape[0];
    config["tie_word_embeddings"] = find("output.weight") == nullptr;
    config["attention_bias"] = find("blk.0.attn_q.bias") != nullptr;
    add_ids(file, config);

    GgufModel model{.rotates_neighbours = family->rotates_neighbours};
    const auto whole = [&](const char* key) -> std::uint64_t {
        return config.contains(key) && config[key].is_number_unsigned()
                   ? config[key].get<std::uint64_t>()
                   : 0;
    };
    const std::uint64_t heads = std::max<std::uint64_t>(1, whole("num_attention_heads"));
    const std::uint64_t head_dim = whole("head_dim") > 0 ? whole("head_dim")
                                                         : whole("hidden_size") / heads;
    if (head_dim == 0 || head_dim % 2 != 0 || head_dim > 1u << 16)
        return Error{ErrorCode::bad_file, text(file.path().string(), ": heads of ", head_dim,
                                               " components, wanted an even number")};
    model.head_dim = static_cast<std::uint32_t>(head_dim);
    if (const Json* rotated = builder.find("rope.dimension_count");
        rotated != nullptr && *rotated != head_dim)
        config["partial_rotary_factor"] =
            rotated->is_number() ? rotated->get<double>() / static_cast<double>(head_dim) : 0;
    model.config = std::move(config);
    MOEX_TRY(add_rope_factors(file, find("rope_freqs.weight"), model));
    return model;
}

std::string transformers_name(const std::string& name) {
    for (const NamePair& pair : outer_names)
        if (name == pair.gguf) return std::string(pair.transformers);
    if (!name.starts_with("blk.")) return name;

    const std::size_t dot = name.find('.', 4), last = name.rfind('.');
    if (dot == std::string::npos || last <= dot) return name;
    const std::string layer = name.substr(4, dot - 4), part = name.substr(dot + 1, last - dot - 1),
                      ending = name.substr(last);
    for (const NamePair& pair : layer_names)
        if (part == pair.gguf) return text("model.layers.", layer, '.', pair.transformers, ending);
    return text("model.layers.", layer, '.', part, ending);
}

}  // namespace moex
