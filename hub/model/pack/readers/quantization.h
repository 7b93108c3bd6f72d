// The quantization_config of a config.json: the form in which a checkpoint stores its weights.
// Source: transformers' quantization configs of GPTQ, AWQ, fine-grained FP8 and MXFP4.
#pragma once

#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "protocol/result.h"

namespace moex {

enum class QuantMethod { none, fp8, gptq, awq, mxfp4 };

struct Quantization {
    QuantMethod method = QuantMethod::none;
    // rows and columns of an FP8 block with one scale; 0: one scale per row or per tensor
    std::uint64_t block_rows = 0, block_columns = 0;
    // number of inputs in a group of GPTQ and AWQ; 0: all inputs of a row are one group
    std::uint64_t group_size = 0;
    // GPTQ: the file stores the zero minus one (checkpoint_format "gptq"), or the zero itself
    // ("gptq_v2")
    std::uint32_t zero_offset = 1;
    bool has_own_groups = false;  // GPTQ: rules of `dynamic` give modules other group sizes
};

// Reads the member quantization_config of config.json, which may be absent. A method, a number of
// bits or a layout that no reader knows is refused by name.
Result<Quantization> parse_quantization(const nlohmann::json& config);
// Reads quantize_config.json, in which older versions of AutoGPTQ wrote the same for GPTQ.
Result<Quantization> parse_quantize_config(const nlohmann::json& object);

}  // namespace moex
