// What an API is told, and whom it tells how answers went.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "hub/api/resumable.h"
#include "hub/api/text_pool.h"

namespace moex {

// What "speculative" costs, measured on text: the perplexity of the model's own answers and of
// those.
struct MeasuredLoss {
    double exact = 0, speculative = 0;
    double excess() const { return speculative / exact - 1; }
};

struct ApiOptions {
    std::uint32_t default_max_tokens = 0;  // 0: as far as the context reaches
    std::uint32_t n_max = 8;
    std::uint32_t body_bytes_max = 1u << 20;
    std::uint32_t context_tokens = 0;  // prompt plus answer; 0: the model's own
    // temperature 0 where the request names none (--deterministic does not set this)
    bool prefer_greedy = false;
    bool any_model_name = false;  // a request may name any model; this one answers
    TextPoolOptions texts;
    ResumableOptions resumable;
    bool speculative = false;  // where moex.experts says nothing
    // Why "speculative" is refused; empty: it is not, and the engine has a speculator.
    std::string no_speculation = "this hub has no speculator.";
    std::optional<MeasuredLoss> measured_loss;  // none: never measured of this package
};

// Totals for /metrics, and latency samples handed to `observe`.
struct ApiObserver {
    std::function<void(const char* finish_reason)> on_finished;
    std::function<void(double ttft_s, double e2e_s, double mean_inter_token_s, double queue_s)>
        on_latency;
    // Whether a worker was caught with a false answer, until now. Any thread.
    std::function<bool(std::uint64_t worker)> has_lied;
};

}  // namespace moex
