// What the page asks of this device, read from JSON with the names of /v1/chat/completions, and the
// makers' own words where it says nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/engine/sampler.h"
#include "hub/model/package/generation_defaults.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "protocol/result.h"

namespace moex {

struct LocalQuestion {
    // [{role, content}, ...]; a last one of the assistant's is gone on with.
    nlohmann::ordered_json messages;
    std::optional<std::uint32_t> max_tokens;  // none: as the context allows
    std::vector<std::string> stops;
    SamplingOptions sampling;
    std::string reasoning_effort;  // for templates that have it; empty: as they are
};

// invalid_argument names the field that does not hold, and what acts on the hub alone: a form of
// answers (tools, response_format, grammar), more answers than one, log-probabilities.
Result<LocalQuestion> read_question(const nlohmann::ordered_json& body,
                                    const GenerationDefaults& defaults, const Tokenizer& tokenizer,
                                    std::uint32_t vocab_size);

}  // namespace moex
