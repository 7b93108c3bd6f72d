// Functions for the tests of the GPU's steps: must() unwraps a result that has to be present,
// greedy() makes a request without randomness, and expect_same_bits() compares logits.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

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

inline void expect_same_bits(std::span<const float> a, std::span<const float> b) {
    ASSERT_EQ(a.size(), b.size());
    ASSERT_FALSE(a.empty());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
}

}  // namespace moex
