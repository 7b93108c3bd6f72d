// The metadata of a GGUF file as a config.json, and the names of its tensors in transformers.
// Source: llama.cpp's converters and its table of tensor names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/pack/readers/gguf_file.h"
#include "protocol/result.h"

namespace moex {

struct GgufModel {
    nlohmann::json config;  // configuration, with the keys of transformers' config.json
    std::uint32_t head_dim = 0;
    // true: rows of the query and key matrices are permuted, because RoPE rotates adjacent pairs
    bool rotates_neighbours = false;
};
// Reads the model's configuration. A family that has no reader is refused by name.
Result<GgufModel> gguf_model_of(const GgufFile& file,
                                const std::vector<const GgufTensor*>& tensors);

// Returns the name that transformers gives to a tensor: "blk.3.attn_q.weight" is
// "model.layers.3.self_attn.q_proj.weight". A name that is not known stays as it is, but names of a
// layer begin with "model.layers.".
std::string transformers_name(const std::string& name);

}  // namespace moex
