// The form of a ModelConfig in manifest.json, with this project's names.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/config.h"

namespace moex {

// A model whose layers compute as PlainLayers describes is written without plans, in the form of
// all packages before plans. parse_model_config() names the key, the value found and the value
// wanted in its errors.
nlohmann::json to_json(const ModelConfig& config);
Result<ModelConfig> parse_model_config(const nlohmann::json& object);
// Returns true if to_json() writes plans, which older programs do not read.
bool needs_plans(const ModelConfig& config);

// The layers of the families of the first packages (Qwen3-MoE, Qwen3, Qwen2, Llama), which need no
// plans in manifest.json.
struct PlainLayers {
    std::string_view architecture = "qwen3_moe";
    bool norm_topk_prob = true, attention_bias = false;
    double rope_theta = 10000.0;
    RopeScaling rope_scaling = {};
};
// `layer_is_moe` has a value for each layer, 1 for a routed one.
std::vector<LayerPlan> plain_layers(const PlainLayers& plain,
                                    std::span<const std::uint8_t> layer_is_moe);

}  // namespace moex
