// Makes a ModelConfig from a checkpoint's config.json by the table of families. Source:
// transformers' configuration classes, versions 4 (num_experts, rope_theta, torch_dtype) and 5
// (num_local_experts, rope_parameters, dtype).
#pragma once

#include <nlohmann/json.hpp>

#include "hub/model/config.h"

namespace moex {

// Reads config.json. Errors name the key, the value found and the value wanted. The function
// refuses unknown model types, and every key that may change what a model computes and that its
// family does not read; the error names the key.
Result<ModelConfig> parse_hf_config(const nlohmann::json& config);

}  // namespace moex
