// What config.json and the configuration in manifest.json have in common: the sizes of a model,
// their bounds, and the relations between them. Only the names of some keys differ.
#pragma once

#include <string>
#include <string_view>

#include "hub/model/config.h"
#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"

namespace moex {

// Bounds of both files. The wire protocol has 16 bits for layer, expert and hidden size.
inline constexpr std::uint32_t hidden_max = 65504, layers_max = 1024, heads_max = 1024,
                               head_dim_max = 1024, vocab_max = 1u << 24, context_max = 1u << 24,
                               experts_max = 4096, intermediate_max = 1u << 18, conv_taps_max = 16;

// Reads the fields of a configuration file. Its errors have the form of bad_field().
using ConfigFields = JsonFields<Json, FileWording>;

// The names of keys that differ between the files. Errors name the key of the file that was read.
struct ConfigKeys {
    std::string_view num_layers, num_heads, num_kv_heads, context_tokens, num_experts, top_k, tied,
        expert_width, dense_width;
};

Error bad_field(std::string_view key, const std::string& found, const std::string& wanted);
Status require_object(const Json& object);
bool is_whole_below(const Json& value, std::uint32_t limit);
// Reads the sizes, norms and flags of a model into `config`; fields that are absent keep their
// values. Its `has_experts` decides whether the keys of experts are read.
void read_sizes(ConfigFields& fields, const ConfigKeys& keys, bool has_experts,
                ModelConfig& config);
// Checks the relations between sizes and plans. If the model's experts are no multiple of 32 wide,
// moe_intermediate_size becomes the next multiple.
Status check_relations(ModelConfig& config, const ConfigKeys& keys);

}  // namespace moex
