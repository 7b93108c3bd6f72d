// The private state of Engine. Its functions are divided over five files: engine.cpp (threads,
// queue, ends of generations), engine_step.cpp (batches and their results), engine_prefix.cpp
// (common prefixes), engine_store.cpp (pages that outlive the cache) and engine_draft.cpp (drafted
// tokens). Private to hub/engine.
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

#include "hub/engine/draft_budget.h"
#include "hub/engine/draft_rates.h"
#include "hub/engine/draft_source.h"
#include "hub/engine/engine_types.h"
#include "hub/engine/generation.h"
#include "hub/engine/memory_plan.h"
#include "hub/engine/micro_batches.h"
#include "hub/engine/step_cost.h"
#include "hub/engine/step_device.h"
#include "hub/engine/turn_queue.h"

namespace moex {

// The drafts of one sequence. They are stored apart from the sequence's tokens: preemption, common
// prefixes, penalties and the caller see drawn tokens only.
struct SequenceDrafts {
    struct Source {
        std::unique_ptr<Draft> draft;  // null: this source has no drafts for the sequence
        DraftRates rates{32};
    };
    std::vector<Source> sources;  // [EngineOptions::draft_sources]; empty before the first draft
    // the proposed tokens for the current step, with their source and class
    std::vector<TokenId> proposed;  // empty until the sources that cost time are asked
    std::size_t source = 0;
    std::uint32_t proposal_class = 0;
    // [i]: probability that tokens 0 to i of the proposal are all accepted
    std::vector<double> gains;
    std::uint32_t num_rows = 0;       // proposed tokens that have a row in the current step
    std::vector<TokenId> row_tokens;  // tokens of the step's rows: the last drawn, then the drafted
    // [step_tokens, hidden_size]: the step's rows after the final norm, part of the step's result;
    // empty if no source reads them
    std::span<const float> hidden;
};

// What the engine learns about drafts over all sequences.
struct EngineDrafts {
    std::vector<DraftRates> rates;  // [EngineOptions::draft_sources]
    DraftBudget budget;
    Duration drafting{};  // time of the proposals for the current step
};

// The engine's record of a submitted request. The queue owns it while it waits; after that only the
// engine thread uses it.
struct Generation {
    Generation(GenerationRequest wanted, GenerationSink to)
        : request(std::move(wanted)),
          sink(std::move(to)),
          sampler(request.sampling, request.prompt, request.max_tokens),
          tokens(request.prompt),
          submitted(now_steady()) {
        pages_given = request.pages_from.value_or(0);
        stats.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
        stats.speculative = request.speculator != nullptr;
        stats.completion_tokens = static_cast<std::uint32_t>(request.answer.size());
        tokens.insert(tokens.end(), request.answer.begin(), request.answer.end());
        for (const TokenId id : request.answer) sampler.accept(id);
    }
    // Number of tokens of this generation that have no keys and values in the cache yet: 1 during
    // decode, whatever is drafted; more while the prompt, or the tokens from before a preemption,
    // are computed.
    std::uint32_t missing() const {
        return static_cast<std::uint32_t>(tokens.size()) - kv->num_tokens();
    }
    std::uint32_t tokens_max() const { return stats.prompt_tokens + request.max_tokens; }
    // Returns true if the next rows of this generation take experts that a speculator guessed. In
    // one step either all rows of a generation do so, or none.
    bool takes_guesses() const {
        return request.speculator && kv->num_tokens() >= stats.prompt_tokens;
    }
    // Returns the speculator for the next rows of this generation; null if these rows are exact.
    ExpertSpeculator* guesser() const { return takes_guesses() ? request.speculator : nullptr; }
    // Returns true if the rows of the answer may differ from what the model computes.
    bool is_lossy() const { return request.speculator || request.late_pairs_max > 0; }
    // Number of experts' answers that the next row of this generation need not wait for.
    std::uint32_t late_pairs_left() const {
        if (step_tokens != 1 || kv->num_tokens() < stats.prompt_tokens) return 0;
        return request.late_pairs_max - static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                            request.late_pairs_max, stats.pairs_late));
    }
    bool scores_prompt() const {
        return request.prompt_logprobs && prompt_logprobs.size() + 1 < request.prompt.size();
    }

    const std::string& scope() const {
        return request.scope.empty() ? request.client : request.scope;
    }

    GenerationId id = 0;  // id, assigned when the generation enters the queue
    GenerationRequest request;
    GenerationSink sink;
    Sampler sampler;
    std::vector<TokenId> tokens;  // the tokens of the prompt, then the sampled tokens
    // the generation's sequence in the KV cache; set while the generation runs
    std::unique_ptr<KvCache::Sequence> kv;
    std::uint32_t step_tokens = 0;  // rows of the generation in the current step; may be 0
    SequenceDrafts drafts;
    // The most tokens of this generation that were ever in the cache. Statistics do not count
    // tokens before this position a second time.
    std::uint32_t furthest = 0;
    // For each page of `kv`: the workers that computed experts for the page's rows.
    std::vector<std::vector<std::uint64_t>> page_workers;
    // false once a worker that computed for the generation's pages has lost its trust
    bool offers_pages = true;
    // Number of the fetch of stored pages that this generation waits for; 0: none.
    std::uint64_t fetch = 0;
    std::uint32_t state_kept = 0;             // tokens at the latest copy of the recurrent state
    std::unique_ptr<TextMemory> text_memory;  // of the page store; may be null
    std::uint32_t pages_stored = 0;  // number of the first pages already offered to the page store
    std::uint32_t pages_given = 0;   // index of the next page for GenerationSink::on_page
    // This generation waits while the generation with the id `follows` computes their common prefix
    // of `follow_tokens` tokens.
    GenerationId follows = 0;
    std::uint32_t follow_tokens = 0;
    TimePoint submitted, admitted{}, first_token;
    GenerationStats stats;
    std::vector<SampledToken> prompt_logprobs;
    // Sum of the hidden states of the prompt's rows so far. Rows are added one by one, so that the
    // size of prefill chunks changes no bit.
    std::vector<double> hidden_sum;  // [hidden_size]
    std::uint32_t hidden_rows = 0;
};

// A generation that can draw its next tokens, because the step has computed the logits of `rows`
// rows: one, and one for each drafted token.
struct DueTokens {
    Generation* generation = nullptr;
    std::uint32_t rows = 1;
    std::span<const float> logits;  // [rows, vocab_size], part of the step's result
    // [rows], the most likely tokens, used instead of logits; part of the step's result
    std::span<const LikeliestTokens> likeliest;
    std::vector<SampledToken> tokens;  // the drawn tokens; empty if none is drawn
};

struct FinishedGeneration {
    GenerationId id = 0;
    FinishReason reason = FinishReason::stop;
};

// Initial limit of a step's duration once one of the step's generations was cancelled: a longer
// step is stopped. The limit doubles with each stopped step, until a step ends by itself. So
// repeated cancels delay the other generations by at most twice the duration of the step that they
// need.
inline constexpr Duration patience_min = 40ms;

// Adds the ids of `more` to `to`; both are distinct and sorted.
void add_workers(std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& more);

struct EngineState {
    EngineState(StepDevice& with, ExpertBackend& by, EngineOptions given);

    StepDevice& device;
    ExpertBackend& experts;
    const EngineOptions options;
    const bool reads_rows;  // true if a source of drafts reads rows after the final norm
    const MemoryPlan plan;
    std::uint64_t cache_bytes_max = 0;  // of the first device's cache
    std::uint32_t cache_pages = 0;      // of the present one

    // Only the engine thread uses the members down to the mutex. `cache` is always set, and is
    // created again when the device is replaced.
    std::optional<KvCache> cache;
    std::uint64_t kv_tokens = 0;  // most tokens of one sequence in the cache; constant
    // running generations, in the order of admission
    std::vector<std::unique_ptr<Generation>> running;
    // round-robin start: index of the decode row that the next step serves first
    std::size_t turn = 0;
    // number of consecutive steps that were begun again in smaller parts
    std::uint32_t steps_recut = 0;
    std::uint32_t steps_without_prompt = 0;  // in succession
    StepCost cost;
    EngineDrafts engine_drafts;
    MicroBatches micro_batches;

    // Workers that were forgotten while the store read pages. It may still return pages with their
    // rows, which are left out.
    std::vector<std::uint64_t> distrusted;

    // Guards the members below. No thread holds it while a step runs or a callback of a sink is
    // called.
    mutable std::mutex mutex;
    std::condition_variable wake;
    TurnQueue<Generation> waiting;
    // Generations that were cancelled while they waited in the queue; the engine thread ends them.
    std::vector<std::unique_ptr<Generation>> dropped;
    std::set<GenerationId> cancelled;  // ids of cancelled generations that are running
    std::vector<std::uint64_t> forgotten_workers;
    std::vector<std::uint64_t> rejected_workers;  // running generations compute their rows again
    std::vector<FetchedPages> fetched;            // pages that the store has read
    EngineCounters counters;
    GenerationId next_id = 1;
    std::uint32_t open = 0;  // number of submitted generations whose on_end has not returned yet
    bool draining = false, stopping = false;

    // State of the step in progress, for other threads that want to stop the step.
    bool stepping = false;
    std::uint64_t step_number = 0;
    TimePoint step_started{};
    std::vector<GenerationId> step_ids;  // ids of the generations that ran when the step began
    std::stop_source step_stop;
    Duration patience = patience_min;
    std::condition_variable watch_wake;

    std::thread thread, watcher;  // started last

    // ---- The following functions run threads and queue, and end generations (engine.cpp).
    void run();
    void watch_cancels();
    bool begin_step();
    void wait_for_arrivals(std::unique_lock<std::mutex>& lock);
    void admit();
    KvRoom room_of_running() const;
    bool has_room(const Generation& next);
    void end(std::unique_ptr<Generation> generation, FinishReason reason,
             Error error = {ErrorCode::internal, {}});
    void end_looks();
    void end_running(GenerationId id, FinishReason reason, Error error = {ErrorCode::internal, {}});
    void publish_gauges();
    void make_cache();

    // ---- The following functions let generations share prefixes (engine_prefix.cpp).
    void forget(std::span<const std::uint64_t> workers);
    void compute_again_without(std::uint64_t worker);
    // Returns a running generation to the queue. It keeps its tokens and loses its cache. The
    // caller holds `mutex`.
    void return_to_queue(std::unique_ptr<Generation> generation);
    void take_prefix(Generation& generation);
    static std::uint32_t count_cached(Generation& generation);
    bool may_share(const Generation& generation) const;
    void choose_leader(Generation& generation, std::size_t before);
    bool waits_for_leader(std::size_t index);
    void keep_state(Generation& generation, bool is_ended);
    void offer_pages(Generation& generation, const StepResult& result, std::size_t first_row,
                     std::uint32_t num_rows);

    // ---- The following functions keep and fetch stored pages (engine_store.cpp).
    void ask_store(Generation& generation);
    void take_stored(FetchedPages& fetched);
    void store_pages(Generation& generation) const;
    void give_pages(Generation& generation) const;
    void forget_unseen(Generation& generation) const;
    void wait_for_pages();

    // ---- The following functions choose and count drafted tokens (engine_draft.cpp).
    void begin_drafts(Generation& generation) const;
    bool shows_rows(Generation& generation) const;
    void drop_rows(Generation& generation) const;
    void show_rows(Generation& generation, std::uint32_t num_rows) const;
    CompanionPtr keep_drafts(const Generation& generation, std::uint32_t num_tokens) const;
    void resume_drafts(Generation& generation, const CompanionPtr& companion) const;
    std::uint32_t drafts_allowed(const Generation& generation) const;
    std::optional<std::uint32_t> wanted_drafts(const Generation& generation) const;
    bool prefer(SequenceDrafts& drafts, std::size_t source, std::uint32_t proposal_class,
                std::size_t count) const;
    std::vector<DraftCall> ask(std::size_t source, std::span<Generation* const> asked,
                               const std::function<std::uint32_t(Generation&)>& most);
    std::uint32_t choose_drafted_rows(std::span<Generation* const> decoding,
                                      std::uint32_t rows_left);
    void propose(std::span<Generation* const> decoding);
    std::uint32_t share_drafted_rows(std::uint32_t rows_left);
    static void drop_drafted_rows(Generation& generation);
    void record_drafts(Generation& generation, std::span<const TokenId> drawn);

    // ---- The following functions share out a step's rows and use its results (engine_step.cpp).
    void share_rows();
    void keep_room_for_states(std::vector<Generation*>& prompts) const;
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
    void free_second_states(std::span<Generation* const> members);
    Result<StepResult> run_step(std::span<const StepRows> batch, const StepShape& shape);
    std::vector<FinishedGeneration> settle(std::span<Generation* const> members,
                                           std::span<DueTokens> due, const StepResult& result);
    void take_rows(Generation& generation, const StepResult& result, std::size_t first_row,
                   std::uint32_t num_rows);
    void score_prompt(Generation& generation, std::span<const float> logits) const;
    static void add_hidden(Generation& generation, std::span<const float> rows);
    std::vector<DueTokens> take_result(std::span<const StepRows> batch,
                                       std::span<Generation* const> members,
                                       const StepResult& result);
    void draw(DueTokens& due) const;
    void sample(std::span<DueTokens> due);
    std::optional<FinishReason> take_tokens(DueTokens& due);
    std::optional<FinishReason> take_token(Generation& generation, SampledToken token);
};

}  // namespace moex
