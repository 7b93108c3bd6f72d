// The known answers that decide whether a GPU or processor may serve: a small seeded expert of
// each form, five rows, and the expected outputs in double.
#pragma once

#include <vector>

#include "protocol/expert_reference.h"

namespace moex {

struct KnownAnswers {
    static constexpr std::uint32_t num_tokens = 5, hidden = 96, inner = 64;
    ExpertShape shape{hidden, inner, 32};
    Bytes blob;
    std::vector<float> x;          // [num_tokens, hidden]
    std::vector<double> expected;  // [num_tokens, hidden], for a gate of 1

    explicit KnownAnswers(ExpertForm form);
};

}  // namespace moex
