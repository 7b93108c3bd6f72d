// The JSON that OpenAI clients read: whole answers,
// chunks of a stream, usage, log-probabilities, errors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "hub/api/answer_text.h"
#include "hub/api/http.h"
#include "hub/engine/engine.h"

namespace moex {

// What every object of one answer carries.
struct AnswerHeader {
    bool is_chat = false;
    std::string id;              // chatcmpl-... or cmpl-...
    std::int64_t created_s = 0;  // Unix time
    std::string model, fingerprint;
};
AnswerHeader make_answer_header(bool is_chat, std::string_view model,
                                std::string_view package_sha256);

// {"id","object","created","model","system_fingerprint","choices":[]};
// a chunk's object for streams.
nlohmann::ordered_json answer_object(const AnswerHeader& header, bool is_chunk);

struct Usage {
    std::uint64_t prompt_tokens = 0, completion_tokens = 0;
};
nlohmann::ordered_json usage_json(const Usage& usage);
// Sums of all sequences of one request.
nlohmann::ordered_json timings_json(const GenerationStats& stats, const Usage& usage);
nlohmann::ordered_json provenance_json(const GenerationStats& stats);
nlohmann::ordered_json chat_logprobs_json(std::span<const TokenText> tokens,
                                          const Tokenizer* tokenizer);
nlohmann::ordered_json legacy_logprobs_json(std::span<const TokenText> tokens,
                                            const Tokenizer* tokenizer);

// Invalid UTF-8 cannot occur in our texts; should it, it is replaced and not thrown about.
std::string dump_json(const nlohmann::ordered_json& value);

}  // namespace moex
