// The inside of Engine, divided over three files: engine (threads, queue, ends), engine_step
// (batches and their results) and engine_prefix (common prefixes). Private to this room.
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

// A submitted request on its path through the engine. Owned by the queue, then by the engine
// thread alone.
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
    // Number of tokens that the cache lacks: 1 during decode; more while the prompt, or the tokens
    // from before a preemption, are computed.
    std::uint32_t missing() const {
        return static_cast<std::uint32_t>(tokens.size()) - kv->num_tokens();
    }
    std::uint32_t tokens_max() const { return stats.prompt_tokens + request.max_tokens; }
    // Returns true if the next rows of this generation take guessed experts. All rows of one
    // generation in a step are of the same kind.
    bool takes_guesses() const {
        return request.speculator && kv->num_tokens() >= stats.prompt_tokens;
    }
    // Returns the speculator of the next rows; null: these rows are exact.
    ExpertSpeculator* guesser() const { return takes_guesses() ? request.speculator : nullptr; }
    // Returns true if the rows of the answer may differ from what the model computes.
    bool is_lossy() const { return request.speculator || request.late_pairs_max > 0; }
    // Number of expert answers that the next row need not wait for.
    std::uint32_t late_pairs_left() const {
        if (step_tokens != 1 || kv->num_tokens() < stats.prompt_tokens) return 0;
        return request.late_pairs_max - static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                            request.late_pairs_max, stats.pairs_late));
    }
    bool scores_prompt() const {
        return request.prompt_logprobs && prompt_logprobs.size() + 1 < request.prompt.size();
    }

    GenerationId id = 0;  // assigned when the generation enters the queue
    GenerationRequest request;
    GenerationSink sink;
    Sampler sampler;
    std::vector<TokenId> tokens;            // the prompt, then what was sampled
    std::unique_ptr<KvCache::Sequence> kv;  // set while the generation runs
    std::uint32_t step_tokens = 0;          // its rows in the current step; 0: none
    // The most tokens that its cache ever held. Tokens before this position are not counted twice.
    std::uint32_t furthest = 0;
    // The workers that computed the rows of each page of `kv`.
    std::vector<std::vector<std::uint64_t>> page_workers;
    bool offers_pages = true;  // false once a worker of its pages is no longer trusted
    // The generation waits while the generation `follows` computes their common prefix of
    // `follow_tokens` tokens.
    GenerationId follows = 0;
    std::uint32_t follow_tokens = 0;
    TimePoint submitted, admitted{}, first_token;
    GenerationStats stats;
    std::vector<SampledToken> prompt_logprobs;
    // Sum over the prompt's rows so far, added one row after the other, so that chunks change no
    // bit.
    std::vector<double> hidden_sum;  // [hidden_size]
    std::uint32_t hidden_rows = 0;
};

// A generation for whose next token a step has the logits.
struct DueToken {
    Generation* generation = nullptr;
    std::span<const float> logits;  // [vocab_size], part of the step's result
    // used instead of logits; part of the step's result
    const LikeliestTokens* likeliest = nullptr;
    SampledToken token;  // left empty where no token is drawn
};

// The time that a step may still last when one of its members was cancelled. The limit doubles with
// each step that is stopped, until one step ends by itself. So repeated cancels make the others
// wait at most twice as long as the step that they need.
inline constexpr Duration patience_min = 40ms;

struct EngineState {
    EngineState(StepDevice& with, ExpertBackend& by, EngineOptions given);

    StepDevice& device;
    ExpertBackend& experts;
    const EngineOptions options;
    const std::uint32_t num_pages;

    // Owned by the engine thread.
    // always set; created again when the device is replaced
    std::optional<KvCache> cache;
    std::vector<std::unique_ptr<Generation>> running;  // in the order of admission
    // round-robin start: index of the first decode row
    std::size_t turn = 0;
    std::uint32_t steps_recut = 0;  // consecutive steps that were cut again
    StepCost cost;
    MicroBatches micro_batches;

    // Guards the members below; never held over a step or a sink.
    mutable std::mutex mutex;
    std::condition_variable wake;
    TurnQueue<Generation> waiting;
    // Generations that were cancelled while they waited; the engine thread ends them.
    std::vector<std::unique_ptr<Generation>> dropped;
    std::set<GenerationId> cancelled;  // ids of running generations
    std::vector<std::uint64_t> forgotten_workers;
    EngineCounters counters;
    GenerationId next_id = 1;
    std::uint32_t open = 0;  // submitted generations whose on_end has not returned yet
    bool draining = false, stopping = false;

    // The step in progress, for threads that want to stop it.
    bool stepping = false;
    std::uint64_t step_number = 0;
    TimePoint step_started{};
    std::vector<GenerationId> step_ids;  // generations that ran when the step began
    std::stop_source step_stop;
    Duration patience = patience_min;
    std::condition_variable watch_wake;

    std::thread thread, watcher;  // started last

    // ---- engine.cpp: threads, queue, ends
    void run();
    void watch_cancels();
    bool begin_step();
    void wait_for_arrivals(std::unique_lock<std::mutex>& lock);
    void admit();
    bool has_room(const Generation& next);
    void end(std::unique_ptr<Generation> generation, FinishReason reason,
             Error error = {ErrorCode::internal, {}});
    void end_running(GenerationId id, FinishReason reason, Error error = {ErrorCode::internal, {}});
    void publish_gauges();
    void make_cache();

    // ---- engine_prefix.cpp: prefixes that generations take over from other generations
    void forget(std::span<const std::uint64_t> workers);
    void take_prefix(Generation& generation);
    void choose_leader(Generation& generation, std::size_t before);
    bool waits_for_leader(std::size_t index);
    void offer_pages(Generation& generation, const StepResult& result, std::size_t first_row);

    // ---- engine_step.cpp: the rows of a step, and how its results are used
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
