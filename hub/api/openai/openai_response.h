// The JSON that OpenAI clients read: whole answers,
// chunks of a stream, usage, log-probabilities, errors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "hub/api/jobs/answer_text.h"
#include "hub/api/jobs/reply_writer.h"
#include "hub/engine/engine.h"
#include "hub/model/json_fields.h"

namespace moex {

// {"id","object","created","model","system_fingerprint","choices":[]};
// a chunk's object for streams.
OrderedJson answer_object(const AnswerHeader& header, bool is_chat, bool is_chunk);

OrderedJson usage_json(const Usage& usage);
// Sums of all sequences of one request.
OrderedJson timings_json(const GenerationStats& stats, const Usage& usage);
// Who computed the answer, and how.
OrderedJson provenance_json(const AnswerTotals& totals);
OrderedJson chat_logprobs_json(std::span<const TokenText> tokens, const Tokenizer* tokenizer);
OrderedJson legacy_logprobs_json(std::span<const TokenText> tokens, const Tokenizer* tokenizer);
// The same of a prompt and the answer behind it; the prompt's first token has null.
OrderedJson echo_logprobs_json(std::span<const TokenText> prompt, std::span<const TokenText> answer,
                               const Tokenizer* tokenizer);

// [null, {"ID": {logprob, rank, decoded_token}, ...}, ...]: of a prompt's tokens, each with the
// likeliest ones in its place. `rank`, from 1, where the token is one of those. As vLLM has it.
OrderedJson prompt_logprobs_json(std::span<const SampledToken> scores, const Tokenizer* tokenizer);

}  // namespace moex
