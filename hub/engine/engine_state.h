// The inside of Engine, over three files: engine (threads, queue, ends), engine_step (batches and
// their results) and engine_prefix (common beginnings). Private to this room.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "hub/engine/engine_types.h"
#include "hub/engine/generation.h"
#include "hub/engine/micro_batches.h"
#include "hub/engine/step_cost.h"
#include "hub/engine/step_device.h"
#include "hub/engine/turn_queue.h"

namespace moex {

// One submitted request as it goes through the engine.
// Owned by the queue, then by the engine thread alone.
struct Generation {
    Generation(GenerationRequest wanted, GenerationSink to)
        : request(std::move(wanted)),
          sink(std::move(to)),
          sampler(request.sampling, request.prompt, request.max_tokens),
          tokens(request.prompt),
          submitted(now_steady()) {
        stats.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
        stats.speculative = request.speculator != nullptr;
    }
    // Tokens that the cache lacks: 1 while it decodes, more while its
    // prompt, or what it had before it was preempted, is computed.
    std::uint32_t missing() const {
        return static_cast<std::uint32_t>(tokens.size()) - kv->num_tokens();
    }
    std::uint32_t tokens_max() const { return stats.prompt_tokens + request.max_tokens; }
    // Of the rows that come next: those of a step are all of one kind.
    bool takes_guesses() const {
        return request.speculator && kv->num_tokens() >= stats.prompt_tokens;
    }
    // Whose; null: nobody's.
    ExpertSpeculator* guesser() const { return takes_guesses() ? request.speculator : nullptr; }
    // Whether some of its rows are not what the model computes: those of the answer.
    bool is_lossy() const { return request.speculator || request.late_pairs_max > 0; }
    // The answers that its next row need not wait for.
    std::uint32_t late_pairs_left() const {
        if (step_tokens != 1 || kv->num_tokens() < stats.prompt_tokens) return 0;
        return request.late_pairs_max - static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                            request.late_pairs_max, stats.pairs_late));
    }
    bool scores_prompt() const {
        return request.prompt_logprobs && prompt_logprobs.size() + 1 < request.prompt.size();
    }

    GenerationId id = 0;  // given with its place in the queue
    GenerationRequest request;
    GenerationSink sink;
    Sampler sampler;
    std::vector<TokenId> tokens;            // the prompt, then what was sampled
    std::unique_ptr<KvCache::Sequence> kv;  // while it runs
    std::uint32_t step_tokens = 0;          // its rows in the current step; 0: not in it
    // The most tokens that its cache ever held: what lies before is not counted twice.
    std::uint32_t furthest = 0;
    // Who computed the rows of each page of `kv`.
    std::vector<std::vector<std::uint64_t>> page_workers;
    bool offers_pages = true;  // until one who computed them turns out not to be trusted
    // Waits while the generation `follows` computes their common beginning of `follow_tokens`.
    GenerationId follows = 0;
    std::uint32_t follow_tokens = 0;
    TimePoint submitted, admitted{}, first_token;
    GenerationStats stats;
    std::vector<SampledToken> prompt_logprobs;
    // Of the prompt's rows so far, one after the other, so that chunks change no bit.
    std::vector<double> hidden_sum;  // [hidden_size]
    std::uint32_t hidden_rows = 0;
};

// Whose next token a step has the logits for.
struct DueToken {
    Generation* generation = nullptr;
    std::span<const float> logits;               // [vocab_size], the step's
    const LikeliestTokens* likeliest = nullptr;  // instead of logits, the step's
    SampledToken token;                          // left empty where no token is asked for
};

// How long a step may last when one of its members was cancelled. Doubles with
// each step that is stopped, until one ends by itself: cancelling again and
// again makes the others wait at most twice as long as the step they need.
inline constexpr Duration patience_min = 40ms;

struct EngineState {
    EngineState(StepDevice& with, ExpertBackend& by, EngineOptions given);

    StepDevice& device;
    ExpertBackend& experts;
    const EngineOptions options;
    const std::uint32_t num_pages;

    // The engine thread's own.
    std::optional<KvCache> cache;                      // always there; made anew with a device
    std::vector<std::unique_ptr<Generation>> running;  // in the order of admission
    std::size_t turn = 0;                              // whose decode row comes first
    std::uint32_t steps_recut = 0;                     // in a row
    StepCost cost;
    MicroBatches micro_batches;

    // guards what follows; never held over a step or a sink
    mutable std::mutex mutex;
    std::condition_variable wake;
    TurnQueue<Generation> waiting;
    // cancelled while waiting; the engine thread ends them
    std::vector<std::unique_ptr<Generation>> dropped;
    std::set<GenerationId> cancelled;  // of running ones
    std::vector<std::uint64_t> forgotten_workers;
    EngineCounters counters;
    GenerationId next_id = 1;
    std::uint32_t open = 0;  // submitted, on_end not returned yet
    bool draining = false, stopping = false;

    // The step in progress, for those who want to stop it.
    bool stepping = false;
    std::uint64_t step_number = 0;
    TimePoint step_started{};
    std::vector<GenerationId> step_ids;  // running when it began
    std::stop_source step_stop;
    Duration patience = patience_min;
    std::condition_variable watch_wake;

    std::thread thread, watcher;  // started last

    // ---- engine.cpp: threads, queue, ends
    void run();
    void watch_cancels();
    bool begin_step();
    void wait_for_company(std::unique_lock<std::mutex>& lock);
    void admit();
    bool has_room(const Generation& next);
    void end(std::unique_ptr<Generation> generation, FinishReason reason,
             Error error = {ErrorCode::internal, {}});
    void end_running(GenerationId id, FinishReason reason, Error error = {ErrorCode::internal, {}});
    void publish_gauges();
    void make_cache();

    // ---- engine_prefix.cpp: what generations take over from others
    void forget(std::span<const std::uint64_t> workers);
    void take_prefix(Generation& generation);
    void choose_leader(Generation& generation, std::size_t before);
    bool waits_for_leader(std::size_t index);
    void offer_pages(Generation& generation, const StepResult& result, std::size_t first_row);

    // ---- engine_step.cpp: which rows a step has, and what becomes of them
    void share_rows();
    void share_prompt_rows(std::vector<Generation*> prompts, std::uint32_t rows_left,
                           const StepShape& shape);
    void grow_pages();
    StepShape shape_of_step() const;
    std::vector<Generation*> members_of_step();
    std::vector<StepRows> compose(std::span<Generation* const> members) const;
    std::uint32_t likeliest_of(const Generation& generation) const;
    void step();
    void on_failed_step(const Error& error, std::span<Generation* const> members);
    void begin_anew();
    Result<StepResult> run_step(std::span<const StepRows> batch, const StepShape& shape);
    void take_rows(Generation& generation, const StepResult& result, std::size_t first_row);
    void score_prompt(Generation& generation, std::span<const float> logits) const;
    static void add_hidden(Generation& generation, std::span<const float> rows);
    std::vector<DueToken> take_result(std::span<const StepRows> batch,
                                      std::span<Generation* const> members,
                                      const StepResult& result);
    void sample(std::span<DueToken> due);
    std::optional<FinishReason> take_token(Generation& generation, SampledToken token);
};

}  // namespace moex
