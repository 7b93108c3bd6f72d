// The options of an Api, and the observer that it reports finished answers to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/resumable.h"
#include "hub/api/text_pool.h"
#include "hub/engine/expert_speculator.h"
#include "protocol/kv_page.h"

namespace moex {

class StreamFleet;
class TakenPages;

struct ApiOptions {
    // `max_tokens` of requests that set none; 0: up to the end of the context.
    std::uint32_t default_max_tokens = 0;
    std::uint32_t n_max = 8;
    std::uint32_t body_bytes_max = 1u << 20;
    // Tokens of a prompt and its answer; 0: the context of the model.
    std::uint32_t context_tokens = 0;
    // Use temperature 0 for requests that name no temperature (--deterministic does not set this).
    bool prefer_greedy = false;
    bool any_model_name = false;  // accept any model name in a request
    TextPoolOptions texts;
    ResumableOptions resumable;
    // The expert mode of requests without moex.experts: "exact", or a mode that find_mode() knows.
    std::string experts = "exact";
    // Finds a lossy mode by its name; called on any thread. Error invalid_argument: there is no
    // mode of that name; other errors say why this hub does not offer that mode. An empty function:
    // the hub has no lossy modes, for the reason in `no_modes`.
    std::function<Result<ExpertMode>(std::string_view name)> find_mode;
    std::string no_modes = "this hub has no lossy modes.";
    std::vector<std::string> modes;  // lossy modes that /v1/models lists
    // Perplexity of each mode, "exact" included; empty: not measured.
    std::map<std::string, double> perplexity;
    // The source of the engine's pages of keys and values, of which whole ones make a page of the
    // stream (prefill_job.h). Empty: this hub hands off no pages.
    std::optional<KvSource> kv_source;
    // Keeps pages that clients send; null: this hub takes none. It outlives the Api.
    TakenPages* taken = nullptr;
    bool drafts = true;  // the engine drafts tokens, and requests may choose how many
    // The most late expert calls of one answer that default vectors may replace (moex.late_ms); 0:
    // the hub waits for every call.
    std::uint32_t late_calls_max = 0;
    // The hubs that go on with this one's streams; null: this hub is alone. It outlives the Api.
    StreamFleet* fleet = nullptr;
    // Names what determines the bits of a text besides the package: two hubs with the same name
    // give the same text.
    std::string arithmetic;
};

// Callbacks that receive totals for /metrics and latency samples. Each callback may be empty.
struct ApiObserver {
    std::function<void(const char* finish_reason)> on_finished;
    std::function<void(double ttft_s, double e2e_s, double mean_inter_token_s, double queue_s)>
        on_latency;
    // Returns true if the worker has been caught with a false answer so far. Any thread may call
    // it.
    std::function<bool(std::uint64_t worker)> has_lied;
};

}  // namespace moex
