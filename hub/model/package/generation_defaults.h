// Sampling defaults of a model, for requests that do not set the value themselves. Source:
// generation_config.json.
#pragma once

#include <cstdint>
#include <vector>

namespace moex {

struct GenerationDefaults {
    bool do_sample = false;
    double temperature = 1.0, top_p = 1.0;
    std::uint32_t sample_top_k = 0;  // 0: off
    double min_p = 0.0, repetition_penalty = 1.0;
    double presence_penalty = 0.0, frequency_penalty = 0.0;
    std::vector<std::uint32_t> eos_token_ids;
};

}  // namespace moex
