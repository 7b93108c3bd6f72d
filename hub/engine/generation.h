// One generation as its caller sees it: what is asked, what comes back, and how it ends.
// hub/engine/engine.h takes these; what it keeps of one while it runs is its own.
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
    std::vector<TokenId> prompt;  // at least one
    // Whose it is: clients take turns where several wait, and only requests of one client share
    // what was computed of a common beginning.
    std::string client;
    std::uint32_t max_tokens = 256;
    SamplingOptions sampling;
    std::uint32_t top_logprobs = 0;
    bool logprobs = false;  // fill TokenEvent::token.logprob and top
    // Echo: fill GenerationEnd::prompt_logprobs; no TokenEvent is sent for prompt tokens.
    bool prompt_logprobs = false;
    // An embedding: no token is drawn, GenerationEnd::hidden_mean is filled.
    bool hidden_mean = false;
    // Whose guesses the answer's rows take for true, a lossy way; the prompt's do not, so that
    // others may take them over. Outlives the engine; null: the answer is exact.
    ExpertSpeculator* speculator = nullptr;
    // Of the answer's rows, as they are written first: an expert's answer that is not there after
    // `late_wait` is not waited for, so many in all (what stands in for them is the backend's). 0:
    // all are waited for. The prompt's are, and those of rows that are computed again.
    Duration late_wait{};
    std::uint32_t late_pairs_max = 0;
    // End-of-sequence ids: end the generation without a TokenEvent of their own.
    std::vector<TokenId> stop_ids;
};

enum class FinishReason { stop, length, cancelled, error };
const char* finish_reason_name(FinishReason reason);

// What the answers of one generation came from, summed over its steps.
struct GenerationStats {
    std::uint32_t prompt_tokens = 0, completion_tokens = 0;
    bool speculative = false;
    std::uint32_t cached_tokens = 0;  // of the prompt: computed earlier, for another generation
    Duration queued{}, prefill{}, decode{};  // decode: first token to last
    // distinct ids that contributed; those that computed the cached tokens, too
    std::vector<std::uint64_t> workers;
    std::uint64_t pairs_remote = 0, pairs_local = 0, pairs_hedged = 0, pairs_verified = 0,
                  pairs_proven = 0, pairs_late = 0;
};
struct TokenEvent {
    SampledToken token;
    std::uint32_t index = 0;  // 0 for the first
};
struct GenerationEnd {
    FinishReason reason = FinishReason::stop;
    Error error{ErrorCode::internal, {}};  // for FinishReason::error
    GenerationStats stats;
    // with prompt_logprobs: prompt[1 ...], [prompt_tokens - 1], each as the model expected it
    std::vector<SampledToken> prompt_logprobs;
    // with hidden_mean: [hidden_size], the mean over the prompt of its rows behind the final norm
    std::vector<float> hidden_mean;
};

// Called on the engine thread, possibly before submit() has returned; must
// not block: post to your own strand. May call submit() and cancel().
struct GenerationSink {
    std::function<void(const TokenEvent&)> on_token;
    std::function<void(const GenerationEnd&)> on_end;  // exactly once, last
};

}  // namespace moex
