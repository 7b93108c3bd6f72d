#include "hub/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "hub/engine/kernels.h"

namespace moex {
namespace {

// One submitted request. Owned by the queue, then by the engine thread alone.
struct Generation {
    Generation(GenerationId number, GenerationRequest wanted, GenerationSink to)
        : id(number), request(std::move(wanted)), sink(std::move(to)), sampler(request.sampling, request.prompt), submitted(now_steady()) {
        stats.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    }
    bool prefilled() const { return kv->num_tokens() >= request.prompt.size(); }

    GenerationId id;
    GenerationRequest request;
    GenerationSink sink;
    Sampler sampler;
    std::unique_ptr<KvCache::Sequence> kv;    // from admission on
    TokenId last = 0;                         // sampled, not yet in the cache
    std::uint32_t step_tokens = 0;            // its rows in the current step; 0: not in it
    TimePoint submitted, admitted, first_token;
    GenerationStats stats;
    std::vector<float> prompt_nll;
};

// Rows of one sequence in a step that keeps the logits of all of them: bounds their memory.
constexpr std::uint32_t scored_rows_max = 64;

std::uint32_t budget_pages(const ModelConfig& config, const EngineOptions& options) {
    const KvCache probe(config, {options.page_tokens, 0});
    const std::uint64_t affordable = options.kv_bytes_max / probe.page_bytes();
    if (affordable == 0)
        throw std::runtime_error(text("a key/value budget of ", options.kv_bytes_max, " bytes is below one page of ", probe.page_bytes(), " bytes"));
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(affordable, std::uint64_t{options.sequences_max} * probe.pages_for(config.context_tokens)));
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::stop: return "stop";
        case FinishReason::length: return "length";
        case FinishReason::cancelled: return "cancelled";
        case FinishReason::error: return "error";
    }
    return "error";
}

struct Engine::State {
    State(Decoder& with, ExpertBackend& by, EngineOptions given)
        : decoder(with), experts(by), options(given), num_pages(budget_pages(with.config(), given)), cache(with.config(), {given.page_tokens, num_pages}) {
        counters.kv_pages = num_pages;
    }

    Decoder& decoder;
    ExpertBackend& experts;
    const EngineOptions options;
    const std::uint32_t num_pages;

    // The engine thread's own.
    KvCache cache;
    std::vector<std::unique_ptr<Generation>> running;   // in the order of admission
    std::size_t turn = 0;                               // whose decode row comes first

    mutable std::mutex mutex;                           // guards what follows; never held over a step or a sink
    std::condition_variable wake;
    std::deque<std::unique_ptr<Generation>> waiting;
    std::vector<std::unique_ptr<Generation>> dropped;   // cancelled while waiting; the engine thread ends them
    std::set<GenerationId> cancelled;                   // of running ones
    EngineCounters counters;
    GenerationId next_id = 1;
    std::uint32_t open = 0;                             // submitted, on_end not returned yet
    bool draining = false, stopping = false;

    std::thread thread;                                 // started last

    void run();
    bool begin_step();
    void admit();
    std::vector<StepRows> compose();
    void step();
    std::optional<FinishReason> take_token(Generation& generation, std::span<const float> logits);
    void end(std::unique_ptr<Generation> generation, FinishReason reason, Error error = {ErrorCode::internal, {}});
    void end_running(GenerationId id, FinishReason reason, Error error = {ErrorCode::internal, {}});
    void publish_gauges();
};

Engine::Engine(Decoder& decoder, ExpertBackend& experts, EngineOptions options) : state_(std::make_unique<State>(decoder, experts, options)) {
    state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Engine::~Engine() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->stopping = true;
    }
    state_->wake.notify_all();
    state_->thread.join();
}

Result<GenerationId> Engine::submit(GenerationRequest request, GenerationSink sink) {
    State& state = *state_;
    const ModelConfig& config = state.decoder.config();
    if (request.prompt.empty()) return Error{ErrorCode::invalid_argument, "the prompt has no tokens"};
    for (const TokenId id : request.prompt)
        if (id >= config.vocab_size) return Error{ErrorCode::invalid_argument, text("token ", id, " in the prompt, the vocabulary has ", config.vocab_size)};
    const std::uint64_t budget_tokens = std::uint64_t{state.num_pages} * state.options.page_tokens;
    const std::uint64_t prompt_tokens = request.prompt.size(), room = std::min<std::uint64_t>(config.context_tokens, budget_tokens);
    if (prompt_tokens >= config.context_tokens)
        return Error{ErrorCode::invalid_argument, text("the prompt has ", prompt_tokens, " tokens, the context of this model is ", config.context_tokens,
                                                       " and must hold the answer too")};
    if (prompt_tokens >= room)
        return Error{ErrorCode::invalid_argument, text("the prompt has ", prompt_tokens, " tokens, this hub's key/value budget holds ", budget_tokens)};
    request.max_tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(request.max_tokens, room - prompt_tokens));

    GenerationId id = 0;
    {
        const std::lock_guard lock(state.mutex);
        if (state.draining || state.stopping) return Error{ErrorCode::unavailable, "the hub is shutting down"};
        if (state.waiting.size() >= state.options.queue_max)
            return Error{ErrorCode::overloaded, text("the queue is full: ", state.waiting.size(), " requests wait, at most ", state.options.queue_max)};
        id = state.next_id++;
        ++state.open;
        state.waiting.push_back(std::make_unique<Generation>(id, std::move(request), std::move(sink)));
        state.counters.waiting = static_cast<std::uint32_t>(state.waiting.size());
    }
    state.wake.notify_all();
    return id;
}

void Engine::cancel(GenerationId id) {
    State& state = *state_;
    {
        const std::lock_guard lock(state.mutex);
        const auto found = std::find_if(state.waiting.begin(), state.waiting.end(), [&](const auto& one) { return one->id == id; });
        if (found != state.waiting.end()) {  // its place in the queue is free at once
            state.dropped.push_back(std::move(*found));
            state.waiting.erase(found);
            state.counters.waiting = static_cast<std::uint32_t>(state.waiting.size());
        } else {
            state.cancelled.insert(id);
        }
    }
    state.wake.notify_all();
}

EngineCounters Engine::counters() const {
    const std::lock_guard lock(state_->mutex);
    return state_->counters;
}

void Engine::drain() {
    const std::lock_guard lock(state_->mutex);
    state_->draining = true;
}

bool Engine::idle() const {
    const std::lock_guard lock(state_->mutex);
    return state_->open == 0;
}

void Engine::State::run() {
    while (begin_step()) step();
    for (auto& generation : running) end(std::move(generation), FinishReason::cancelled);
    running.clear();
    std::unique_lock lock(mutex);
    while (!waiting.empty() || !dropped.empty()) {
        auto& from = waiting.empty() ? dropped.back() : waiting.front();
        std::unique_ptr<Generation> generation = std::move(from);
        waiting.empty() ? dropped.pop_back() : waiting.pop_front();
        lock.unlock();
        end(std::move(generation), FinishReason::cancelled);
        lock.lock();
    }
}

// Waits for work, ends what was cancelled and admits what fits. False: stop.
bool Engine::State::begin_step() {
    for (;;) {
        std::vector<std::unique_ptr<Generation>> ended;
        {
            std::unique_lock lock(mutex);
            wake.wait(lock, [&] { return stopping || !running.empty() || !waiting.empty() || !dropped.empty(); });
            if (stopping) return false;
            ended = std::move(dropped);
            dropped.clear();
            for (auto& generation : running)
                if (cancelled.count(generation->id)) ended.push_back(std::move(generation));
            std::erase(running, nullptr);
            cancelled.clear();  // ids that ended before are forgotten as well
            for (auto& generation : ended) generation->kv.reset();
            admit();
        }
        for (auto& generation : ended) end(std::move(generation), FinishReason::cancelled);
        publish_gauges();
        if (!running.empty()) return true;
    }
}

// First come, first served: one that does not fit yet holds back those behind it. What is admitted owns its worst case of pages,
// so a running sequence never lacks one.
void Engine::State::admit() {
    while (!waiting.empty() && running.size() < options.sequences_max) {
        Generation& next = *waiting.front();
        auto kv = std::make_unique<KvCache::Sequence>(cache);
        if (!kv->reserve(next.stats.prompt_tokens + next.request.max_tokens)) break;
        next.kv = std::move(kv);
        next.admitted = now_steady();
        next.stats.queued = next.admitted - next.submitted;
        running.push_back(std::move(waiting.front()));
        waiting.pop_front();
    }
}

void Engine::State::publish_gauges() {
    const std::lock_guard lock(mutex);
    counters.running = static_cast<std::uint32_t>(running.size());
    counters.running_max = std::max(counters.running_max, counters.running);
    counters.waiting = static_cast<std::uint32_t>(waiting.size());
    counters.kv_pages_used = num_pages - cache.pages_free();
}

// One row for every sequence that decodes, then prompts in the order they came until the step is full.
std::vector<StepRows> Engine::State::compose() {
    std::vector<StepRows> batch;
    std::uint32_t rows_left = std::max(1u, options.step_rows_max);
    for (auto& generation : running) generation->step_tokens = 0;
    turn = turn >= running.size() ? 0 : turn;
    std::size_t decoding = 0;
    for (std::size_t i = 0; i < running.size() && rows_left > 0; ++i) {
        Generation& generation = *running[(turn + i) % running.size()];
        if (!generation.prefilled()) continue;
        generation.step_tokens = 1;
        --rows_left;
        ++decoding;
    }
    // Only where not all fit does the turn matter; it goes on behind the last one served.
    if (rows_left == 0) turn += decoding;
    for (auto& generation : running) {
        if (rows_left == 0) break;
        if (generation->prefilled()) continue;
        const auto missing = static_cast<std::uint32_t>(generation->request.prompt.size() - generation->kv->num_tokens());
        generation->step_tokens = std::min(missing, rows_left);
        if (generation->request.prompt_logprobs) generation->step_tokens = std::min(generation->step_tokens, scored_rows_max);
        rows_left -= generation->step_tokens;
    }
    for (auto& generation : running) {
        if (generation->step_tokens == 0) continue;
        StepRows rows{.kv = generation->kv.get()};
        if (generation->prefilled()) {
            rows.tokens = {&generation->last, 1};
        } else {
            const std::uint32_t done = generation->kv->num_tokens();
            rows.tokens = std::span<const TokenId>(generation->request.prompt).subspan(done, generation->step_tokens);
            rows.all_logits = generation->request.prompt_logprobs;
            rows.no_logits = !rows.all_logits && done + generation->step_tokens < generation->request.prompt.size();
        }
        batch.push_back(rows);
    }
    return batch;
}

void Engine::State::step() {
    const std::vector<StepRows> batch = compose();
    const TimePoint started = now_steady();
    std::vector<Generation*> members;
    std::uint64_t prompt_rows = 0, num_rows = 0;
    for (auto& generation : running) {
        if (generation->step_tokens == 0) continue;
        members.push_back(generation.get());
        num_rows += generation->step_tokens;
        if (!generation->prefilled()) prompt_rows += generation->step_tokens;
    }
    const Result<StepResult> result = decoder.step(batch, experts);
    {
        const std::lock_guard lock(mutex);
        ++counters.steps;
        counters.steps_multi_sequence += batch.size() >= 2;
        counters.rows += num_rows;
        counters.prompt_tokens += prompt_rows;
        counters.step_time += now_steady() - started;
        if (result.ok()) counters.experts_waited += result->experts_waited;
    }
    if (!result.ok()) {
        std::vector<GenerationId> ids;
        for (const Generation* generation : members) ids.push_back(generation->id);
        for (const GenerationId id : ids) end_running(id, FinishReason::error, result.error());
        return;
    }

    std::size_t logits_at = 0, row_at = 0;
    const std::size_t vocab_size = decoder.config().vocab_size;
    std::vector<GenerationId> finished_stop, finished_length, broken;
    for (std::size_t i = 0; i < members.size(); ++i) {
        Generation& generation = *members[i];
        GenerationStats& stats = generation.stats;
        for (std::uint32_t row = 0; row < generation.step_tokens; ++row, ++row_at) {
            stats.pairs_remote += result->rows[row_at].pairs_remote;
            stats.pairs_local += result->rows[row_at].pairs_local;
            stats.pairs_hedged += result->rows[row_at].pairs_hedged;
            stats.pairs_verified += result->rows[row_at].pairs_verified;
        }
        std::vector<std::uint64_t> workers;
        std::set_union(stats.workers.begin(), stats.workers.end(), result->workers.begin(), result->workers.end(), std::back_inserter(workers));
        stats.workers = std::move(workers);

        if (batch[i].no_logits) continue;
        const std::size_t count = batch[i].all_logits ? generation.step_tokens : 1;
        const auto logits = std::span(result->logits).subspan(logits_at, count * vocab_size);
        logits_at += logits.size();
        if (batch[i].all_logits && generation.prompt_nll.size() + 1 < generation.request.prompt.size()) {
            const std::uint32_t first = generation.kv->num_tokens() - generation.step_tokens;
            for (std::size_t row = 0; row < count && first + row + 1 < generation.request.prompt.size(); ++row) {
                const auto one = logits.subspan(row * vocab_size, vocab_size);
                generation.prompt_nll.push_back(log_sum_exp(one) - one[generation.request.prompt[first + row + 1]]);
            }
        }
        if (!generation.prefilled()) continue;
        if (const auto reason = take_token(generation, logits.last(vocab_size)))
            (*reason == FinishReason::stop ? finished_stop : *reason == FinishReason::error ? broken : finished_length).push_back(generation.id);
    }
    for (const GenerationId id : broken)
        end_running(id, FinishReason::error, {ErrorCode::non_finite, "the model's logits are not finite: a weight or an expert's answer is out of range"});
    for (const GenerationId id : finished_stop) end_running(id, FinishReason::stop);
    for (const GenerationId id : finished_length) end_running(id, FinishReason::length);
}

// Samples the next token of one sequence and hands it on; the reason when that was its end.
std::optional<FinishReason> Engine::State::take_token(Generation& generation, std::span<const float> logits) {
    const TimePoint now = now_steady();
    const GenerationRequest& request = generation.request;
    if (generation.stats.completion_tokens == 0) {
        generation.first_token = now;
        generation.stats.prefill = now - generation.admitted;
    }
    generation.stats.decode = now - generation.first_token;
    if (request.max_tokens == 0) return FinishReason::length;
    TokenEvent event{generation.sampler.sample(logits, request.logprobs ? request.top_logprobs : 0), generation.stats.completion_tokens};
    if (!std::isfinite(event.token.logprob)) return FinishReason::error;
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), event.token.id) != request.stop_ids.end()) return FinishReason::stop;
    generation.last = event.token.id;
    generation.sampler.accept(event.token.id);
    ++generation.stats.completion_tokens;
    {
        const std::lock_guard lock(mutex);
        ++counters.generated_tokens;
    }
    if (generation.sink.on_token) generation.sink.on_token(event);
    if (generation.stats.completion_tokens >= request.max_tokens) return FinishReason::length;
    return std::nullopt;
}

void Engine::State::end_running(GenerationId id, FinishReason reason, Error error) {
    const auto found = std::find_if(running.begin(), running.end(), [&](const auto& one) { return one->id == id; });
    std::unique_ptr<Generation> generation = std::move(*found);
    running.erase(found);
    generation->kv.reset();
    publish_gauges();  // before the sink hears of it: what it frees is free
    end(std::move(generation), reason, std::move(error));
}

void Engine::State::end(std::unique_ptr<Generation> generation, FinishReason reason, Error error) {
    if (generation->sink.on_end)
        generation->sink.on_end({reason, std::move(error), std::move(generation->stats), std::move(generation->prompt_nll)});
    const std::lock_guard lock(mutex);
    --open;
}

}  // namespace moex
