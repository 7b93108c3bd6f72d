// What an API is told, and whom it tells how answers went.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/resumable.h"
#include "hub/api/text_pool.h"
#include "hub/engine/expert_speculator.h"

namespace moex {

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
    std::string experts = "exact";  // where moex.experts says nothing; a way that is found
    // The lossy way of a name, from any thread; invalid_argument: no way is called so, other
    // errors say why this hub has not got it. Empty: it has none, as `no_ways` says.
    std::function<Result<ExpertWay>(std::string_view name)> find_way;
    std::string no_ways = "this hub has no lossy ways.";
    std::vector<std::string> ways;             // that /v1/models offers
    std::map<std::string, double> perplexity;  // by way, "exact" among them; empty: not measured
    // The most expert calls that an answer may go without (moex.late_ms); 0: every one is waited
    // for.
    std::uint32_t late_calls_max = 0;
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
