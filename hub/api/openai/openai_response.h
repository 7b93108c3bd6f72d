// Builds the JSON objects that OpenAI clients read: whole answers, chunks of a stream, usage,
// timings, provenance and log-probabilities.
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

// Returns {"id","object","created","model","system_fingerprint","choices":[]}; `is_chunk` selects
// the name of the object for streams.
OrderedJson answer_object(const AnswerHeader& header, bool is_chat, bool is_chunk);

OrderedJson usage_json(const Usage& usage);
// Returns the timings over all sequences of a request, with the field names of llama.cpp.
OrderedJson timings_json(const GenerationStats& stats, const Usage& usage);
// Returns the progress of a prompt, with the field names of llama.cpp.
OrderedJson progress_json(const PromptProgress& progress);
// The `moex` object of a reply: the shares of the answer that the workers and the hub computed, and
// the expert mode.
OrderedJson provenance_json(const AnswerTotals& totals);
OrderedJson chat_logprobs_json(std::span<const TokenText> tokens, const Tokenizer* tokenizer);
OrderedJson legacy_logprobs_json(std::span<const TokenText> tokens, const Tokenizer* tokenizer);
// Returns the same object as legacy_logprobs_json(), for a prompt and the answer after it; the
// first token of the prompt has null.
OrderedJson echo_logprobs_json(std::span<const TokenText> prompt, std::span<const TokenText> answer,
                               const Tokenizer* tokenizer);

// Returns [null, {"ID": {logprob, rank, decoded_token}, ...}, ...] for the tokens of a prompt, as
// vLLM does: each entry has the prompt's token and the likeliest tokens at the same position. The
// likeliest tokens have a `rank`, from 1.
OrderedJson prompt_logprobs_json(std::span<const SampledToken> scores, const Tokenizer* tokenizer);

}  // namespace moex
