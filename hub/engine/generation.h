// A generation as its caller sees it: the request, the events, and the end. hub/engine/engine.h
// takes these types. The state that the engine keeps of a running generation is private to it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/engine/scores.h"

namespace moex {

using GenerationId = std::uint64_t;
class ExpertSpeculator;

struct GenerationRequest {
    std::vector<TokenId> prompt;  // at least one token
    // The client that sent the request. Waiting clients are served round-robin, and only requests
    // of the same client share what was computed for a common prefix.
    std::string client;
    std::uint32_t max_tokens = 256;
    SamplingOptions sampling;
    std::uint32_t top_logprobs = 0;
    bool logprobs = false;  // fill TokenEvent::token.logprob and top
    // Echo: fill GenerationEnd::prompt_logprobs; no TokenEvent is sent for prompt tokens.
    bool prompt_logprobs = false;
    // An embedding: no token is drawn, GenerationEnd::hidden_mean is filled.
    bool hidden_mean = false;
    // A lossy mode: the speculator whose guesses the rows of the answer take as true. The rows of
    // the prompt stay exact, so that other requests may take over its pages. The speculator
    // outlives the engine; null: the answer is exact.
    ExpertSpeculator* speculator = nullptr;
    // Latency budget for the rows of the answer, when they are computed for the first time: an
    // expert's answer that has not arrived after `late_wait` is not waited for, at most
    // `late_pairs_max` times in all. The backend chooses the substitute for a missing answer. With
    // 0 the engine waits for all answers. It also waits for all answers of the prompt's rows and of
    // rows that are computed again.
    Duration late_wait{};
    std::uint32_t late_pairs_max = 0;
    // End-of-sequence ids: they end the generation and cause no TokenEvent.
    std::vector<TokenId> stop_ids;
};

enum class FinishReason { stop, length, cancelled, error };
const char* finish_reason_name(FinishReason reason);

// How the answers of a generation were obtained, summed over its steps.
struct GenerationStats {
    std::uint32_t prompt_tokens = 0, completion_tokens = 0;
    bool speculative = false;
    // prompt tokens that were computed earlier, for another generation
    std::uint32_t cached_tokens = 0;
    Duration queued{}, prefill{}, decode{};  // decode: first token to last
    // distinct ids of the workers that contributed; those that computed the cached tokens are
    // included
    std::vector<std::uint64_t> workers;
    std::uint64_t pairs_remote = 0, pairs_local = 0, pairs_hedged = 0, pairs_verified = 0,
                  pairs_proven = 0, pairs_late = 0;
};
struct TokenEvent {
    SampledToken token;
    std::uint32_t index = 0;  // 0 for the first token
};
struct GenerationEnd {
    FinishReason reason = FinishReason::stop;
    Error error{ErrorCode::internal, {}};  // for FinishReason::error
    GenerationStats stats;
    // with prompt_logprobs: prompt[1 ...], [prompt_tokens - 1], each with the log-probability that
    // the model gave it
    std::vector<SampledToken> prompt_logprobs;
    // with hidden_mean: [hidden_size], the mean over the prompt's rows after the final norm
    std::vector<float> hidden_mean;
};

// Callbacks of a generation. They run on the engine thread, possibly before submit() has returned.
// They must not block: post to your own strand. They may call submit() and cancel().
struct GenerationSink {
    std::function<void(const TokenEvent&)> on_token;
    std::function<void(const GenerationEnd&)> on_end;  // exactly once, last
};

}  // namespace moex
