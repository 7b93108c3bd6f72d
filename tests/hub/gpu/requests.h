// Functions for the tests of the GPU's steps: must() unwraps a result that has to be present, and
// greedy() makes a request without randomness.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "hub/engine/engine.h"
#include "protocol/result.h"

namespace moex {

template <class Value>
Value must(Result<Value> result) {
    if (!result.ok()) throw std::runtime_error(result.error().message);
    return std::move(result).value();
}

inline GenerationRequest greedy(std::vector<TokenId> prompt, std::uint32_t max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
}

}  // namespace moex
