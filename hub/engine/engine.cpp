#include "hub/engine/engine.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "hub/engine/engine_state.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

// A recurrent state can be copied at the end of each chunk, which must be the end of a page; a
// device that stores the states copies them at the ends of its own pages. Pages in a store have no
// such copies.
EngineOptions usable_options(const StepDevice& device, EngineOptions options) {
    if (!device.config().has_delta_net()) return options;
    if (device.state_slots().sequences_max == 0) options.page_tokens = delta_chunk;
    options.page_store = nullptr;
    return options;
}

// Throws std::runtime_error if the memory does not suffice.
MemoryPlan plan_memory(const StepDevice& device, const EngineOptions& options, bool reads_rows) {
    const ModelConfig& config = device.config();
    const KvCache probe(config, {.page_tokens = options.page_tokens, .dtype = options.kv_dtype});
    MemoryNeeds needs{.bytes_max = options.kv_bytes_max,
                      .sequences_max = options.sequences_max,
                      .page_tokens = options.page_tokens,
                      .page_bytes = probe.page_bytes(),
                      .copy_bytes_max = options.state_bytes_max,
                      .slots = device.state_slots()};
    if (!options.prefix_cache) needs.copy_bytes_max = 0;
    for (const DraftSource* source : options.draft_sources) {
        if (source->reads_rows() && !reads_rows) continue;
        const DraftMemory drafts = source->memory_max();
        needs.drafts.sequence_bytes += drafts.sequence_bytes;
        needs.drafts.token_bytes += drafts.token_bytes;
        if (reads_rows) needs.companion_bytes += source->kept_bytes_max();
    }
    auto plan = MemoryPlan::make(config, needs);
    if (!plan.ok()) throw std::runtime_error(plan.error().message);
    return *plan;
}

// A backend that computes on this machine has no network latency that a second micro-batch could
// hide. So its steps are not cut.
MicroBatches micro_batches_for(const StepDevice& device, const ExpertBackend& experts,
                               const EngineOptions& options) {
    const std::uint32_t most = experts.works_elsewhere()
                                   ? std::min(options.micro_batches_max, device.micro_batches_max())
                                   : 1;
    return {most, std::min(options.micro_batches, device.micro_batches_max())};
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

void DraftStats::add(const DraftStats& other) {
    steps += other.steps;
    drafts += other.drafts;
    drafted_tokens += other.drafted_tokens;
    accepted_tokens += other.accepted_tokens;
    for (std::size_t i = 0; i < accepted_histogram.size(); ++i)
        accepted_histogram[i] += other.accepted_histogram[i];
    if (other.drafts > 0) kind = other.kind;
}

EngineState::EngineState(StepDevice& with, ExpertBackend& by, EngineOptions given)
    : device(with),
      experts(by),
      options(usable_options(with, given)),
      reads_rows(with.gives_hidden() &&
                 std::any_of(options.draft_sources.begin(), options.draft_sources.end(),
                             [](const DraftSource* source) { return source->reads_rows(); })),
      plan(plan_memory(with, options, reads_rows)),
      cost(given.step_stretch_max),
      micro_batches(micro_batches_for(with, by, given)) {
    engine_drafts.rates.assign(options.draft_sources.size(), DraftRates(256));
    make_cache();
    kv_tokens = cache->tokens_max(options.step_rows_max);
    counters.kv_pages = plan.num_pages;
    counters.memory_max = {.pages = cache->bytes_max(),
                           .states = plan.state_bytes_max(),
                           .state_copies = plan.copy_bytes_max};
    counters.draft_bytes_max = plan.draft_bytes_max;
    counters.kv_tokens = kv_tokens;
}

void EngineState::make_cache() {
    std::uint64_t companion_bytes = 0;
    for (const DraftSource* source : options.draft_sources)
        if (reads_rows) companion_bytes += source->kept_bytes_max();
    KvCacheOptions made{.page_tokens = options.page_tokens,
                        .num_pages = plan.num_pages,
                        .dtype = options.kv_dtype,
                        .mover = device.page_mover(),
                        .slots = device.state_slots(),
                        .snapshot_bytes_max = plan.copy_bytes_max,
                        .companion_bytes = companion_bytes,
                        .ended = options.sequence_ended,
                        .kept = options.sequence_kept,
                        .resumed = options.sequence_resumed};
    // Cores that replace a device with slots for windows have the bytes that it had.
    if (cache && made.mover.num_window_slots == 0 && cache->page_bytes() > 0)
        made.num_pages = static_cast<std::uint32_t>(std::min<std::uint64_t>(
            plan.num_pages, (cache_bytes_max + cache->page_bytes() - 1) / cache->page_bytes()));
    cache_pages = made.num_pages;
    cache.emplace(device.config(), std::move(made));
    if (cache_bytes_max == 0) cache_bytes_max = cache->bytes_max();
}

Engine::Engine(StepDevice& device, ExpertBackend& experts, EngineOptions options)
    : state_(std::make_unique<EngineState>(device, experts, options)) {
    state_->thread = std::thread([state = state_.get()] { state->run(); });
    state_->watcher = std::thread([state = state_.get()] { state->watch_cancels(); });
}

Engine::~Engine() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->stopping = true;
    }
    state_->wake.notify_all();
    state_->watch_wake.notify_all();
    state_->watcher.join();
    state_->thread.join();
    if (KvPageStore* store = state_->options.page_store) store->drop_fetches();
}

namespace {

// Checks that the tokens of a request are tokens of the model.
Status check_tokens(const GenerationRequest& request, std::uint32_t vocab_size) {
    const auto check = [&](std::span<const TokenId> ids, const char* part) -> Status {
        for (const TokenId id : ids)
            if (id >= vocab_size)
                return Error{
                    ErrorCode::invalid_argument,
                    text("token ", id, " in the ", part, ", the vocabulary has ", vocab_size)};
        return {};
    };
    MOEX_TRY(check(request.prompt, "prompt"));
    return check(request.answer, "answer");
}

}  // namespace

Result<GenerationId> Engine::submit(GenerationRequest request, GenerationSink sink) {
    EngineState& state = *state_;
    const ModelConfig& config = state.device.config();

    if (request.prompt.empty())
        return Error{ErrorCode::invalid_argument, "the prompt has no tokens"};

    if (request.hidden_mean && !state.device.gives_hidden())
        return Error{ErrorCode::unsupported,
                     "the device of this hub returns logits only, and computes no embeddings"};

    if (request.speculator && !state.device.takes_speculators())
        return Error{ErrorCode::unsupported,
                     "a hub that runs its layers on a GPU (--gpu) gives no lossy answers"};

    const auto has_window = [](const LayerPlan& plan) { return plan.window > 0; };
    if (request.pages_from && (config.has_delta_net() ||
                               std::any_of(config.layers.begin(), config.layers.end(), has_window)))
        return Error{ErrorCode::unsupported,
                     "pages of a model with windows or recurrent states are not handed off"};

    MOEX_TRY(check_tokens(request, config.vocab_size));

    const std::uint64_t budget_tokens = state.kv_tokens;
    const std::uint64_t prompt_tokens = request.prompt.size(),
                        room = std::min<std::uint64_t>(config.context_tokens, budget_tokens);

    if (prompt_tokens >= config.context_tokens)
        return Error{
            ErrorCode::invalid_argument,
            text("the prompt has ", prompt_tokens, " tokens, the context of this model is ",
                 config.context_tokens, " and must hold the answer too")};

    if (prompt_tokens >= room)
        return Error{ErrorCode::invalid_argument,
                     text("the prompt has ", prompt_tokens,
                          " tokens, this hub's key/value budget holds ", budget_tokens)};

    request.max_tokens = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(request.max_tokens, room - prompt_tokens));
    if (request.hidden_mean || request.pages_from) request.max_tokens = 0;
    if (request.answer.size() > request.max_tokens)
        return Error{ErrorCode::invalid_argument,
                     text("the answer has ", request.answer.size(), " tokens already, at most ",
                          request.max_tokens)};
    if (request.pages_from) request.stays_here = true;

    // Construct the generation before taking the lock: this copies and sorts a long prompt.
    auto generation = std::make_unique<Generation>(std::move(request), std::move(sink));
    GenerationId id = 0;
    {
        const std::lock_guard lock(state.mutex);

        if (state.draining || state.stopping)
            return Error{ErrorCode::unavailable, "the hub is shutting down"};

        if (state.waiting.size() >= state.options.queue_max)
            return Error{ErrorCode::overloaded,
                         text("the queue is full: ", state.waiting.size(),
                              " requests wait, at most ", state.options.queue_max)};

        id = generation->id = state.next_id++;
        ++state.open;
        const std::string client = generation->request.client;
        state.waiting.push(client, std::move(generation));
        state.counters.waiting = static_cast<std::uint32_t>(state.waiting.size());
    }
    state.wake.notify_all();
    return id;
}

void Engine::cancel(GenerationId id) {
    EngineState& state = *state_;
    {
        const std::lock_guard lock(state.mutex);
        auto found = state.waiting.take_if([&](const Generation& one) { return one.id == id; });
        // a cancelled generation that still waits frees its queue slot at once
        if (!found.empty()) {
            state.dropped.push_back(std::move(found.front()));
            state.counters.waiting = static_cast<std::uint32_t>(state.waiting.size());
        } else {
            state.cancelled.insert(id);
        }
    }
    state.wake.notify_all();
    state.watch_wake.notify_all();
}

EngineCounters Engine::counters() const {
    EngineCounters counters;
    {
        const std::lock_guard lock(state_->mutex);
        counters = state_->counters;
    }
    if (const KvPageStore* store = state_->options.page_store)
        counters.page_store = store->counters();
    return counters;
}

void Engine::forget_worker(std::uint64_t worker) {
    if (KvPageStore* store = state_->options.page_store) store->forget_worker(worker);
    const std::lock_guard lock(state_->mutex);
    state_->forgotten_workers.push_back(worker);
}

void Engine::compute_again_without(std::uint64_t worker) {
    forget_worker(worker);
    const std::lock_guard lock(state_->mutex);
    state_->rejected_workers.push_back(worker);
}

void Engine::drain() {
    const std::lock_guard lock(state_->mutex);
    state_->draining = true;
}

bool Engine::idle() const {
    const std::lock_guard lock(state_->mutex);
    return state_->open == 0;
}

void EngineState::run() {
    name_thread("engine");
    while (begin_step()) step();
    for (auto& generation : running) end(std::move(generation), FinishReason::cancelled);
    running.clear();

    std::unique_lock lock(mutex);
    while (!waiting.empty() || !dropped.empty()) {
        std::unique_ptr<Generation> generation;
        if (waiting.empty()) {
            generation = std::move(dropped.back());
            dropped.pop_back();
        } else {
            generation = waiting.pop();
        }

        lock.unlock();
        end(std::move(generation), FinishReason::cancelled);
        lock.lock();
    }
}

// Stops the step in progress when the engine ends, or when a generation of the step was cancelled
// and the step has already lasted longer than `patience`.
void EngineState::watch_cancels() {
    name_thread("cancels");
    std::unique_lock lock(mutex);

    const auto wanted = [&] {
        return stepping && !step_stop.stop_requested() &&
               std::any_of(step_ids.begin(), step_ids.end(),
                           [&](GenerationId id) { return cancelled.count(id) != 0; });
    };

    for (;;) {
        watch_wake.wait(lock, [&] { return stopping || wanted(); });

        const std::uint64_t number = step_number;
        watch_wake.wait_until(lock, step_started + patience,
                              [&] { return stopping || !stepping || step_number != number; });

        if (stopping || (stepping && step_number == number)) step_stop.request_stop();
        if (stopping) return;
    }
}

// Waits a moment for more requests while nothing runs. Requests arrive in bursts, from a batch or
// from agents. If the first request of a burst began alone, all others would wait for the step of
// its prompt. So the first request waits while further requests arrive less than a 64th of a step's
// duration apart, for a 16th of a step's duration in all, as long as one step has room for all of
// them.
void EngineState::wait_for_arrivals(std::unique_lock<std::mutex>& lock) {
    constexpr int apart_share = 64, share = 16;
    const Duration step_time = cost.expected({.decode_rows = 1});
    const TimePoint until = now_steady() + step_time / share;
    std::size_t count = 0;
    while (waiting.size() > count && waiting.size() < options.sequences_max &&
           waiting.front().tokens.size() < options.step_rows_max) {
        count = waiting.size();
        wake.wait_until(lock, std::min(until, now_steady() + step_time / apart_share),
                        [&] { return stopping || !dropped.empty() || waiting.size() != count; });
    }
}

// Waits for work, ends cancelled generations and admits those that fit. Returns false when the
// engine stops.
bool EngineState::begin_step() {
    for (;;) {
        std::vector<std::unique_ptr<Generation>> ended;
        std::vector<FetchedPages> arrived;
        std::vector<std::uint64_t> forgotten;
        {
            std::unique_lock lock(mutex);

            while (!wake.wait_for(lock, options.rest_every, [&] {
                return stopping || !running.empty() || !waiting.empty() || !dropped.empty();
            })) {
                lock.unlock();
                if (options.rested) options.rested();
                lock.lock();
            }

            if (running.empty() && !waiting.empty()) wait_for_arrivals(lock);
            if (stopping) return false;

            ended = std::move(dropped);
            dropped.clear();

            for (auto& generation : running)
                if (cancelled.count(generation->id)) ended.push_back(std::move(generation));
            std::erase(running, nullptr);

            // These generations were cancelled and then preempted, so they are in the queue again.
            for (auto& generation : waiting.take_if(
                     [&](const Generation& one) { return cancelled.count(one.id) != 0; }))
                ended.push_back(std::move(generation));

            // also drops ids of generations that ended before their cancel was handled
            cancelled.clear();

            for (auto& generation : ended) generation->kv.reset();
            forgotten = std::exchange(forgotten_workers, {});
            forget(forgotten);
            for (const std::uint64_t worker : std::exchange(rejected_workers, {}))
                compute_again_without(worker);
            arrived = std::exchange(fetched, {});
            admit();
        }

        // The step before may have offered further pages since the store forgot the worker.
        if (options.page_store)
            for (const std::uint64_t worker : forgotten) options.page_store->forget_worker(worker);
        for (auto& generation : ended) end(std::move(generation), FinishReason::cancelled);
        for (FetchedPages& pages : arrived) take_stored(pages);
        end_looks();
        publish_gauges();
        if (!running.empty()) return true;
    }
}

// Admits generations in queue order. If the first generation in the queue does not fit yet, the
// generations behind it wait, too.
void EngineState::admit() {
    while (!waiting.empty() && running.size() < options.sequences_max) {
        Generation& next = waiting.front();
        const GenerationStats stats = next.stats;
        const std::uint32_t furthest = next.furthest;

        next.kv = std::make_unique<KvCache::Sequence>(*cache, next.scope());
        next.page_workers.clear();
        next.offers_pages = true;
        next.fetch = 0;
        next.pages_stored = 0;
        take_prefix(next);
        choose_leader(next, running.size());

        // release the pages taken over: they may be evicted before there is room for this
        // generation
        if (!has_room(next)) {
            next.kv.reset();
            next.stats = stats;
            next.furthest = furthest;
            break;
        }
        counters.cached_tokens += next.stats.cached_tokens - stats.cached_tokens;
        if (next.follows == 0) ask_store(next);

        if (next.admitted == TimePoint{}) {
            next.admitted = now_steady();
            next.stats.queued = next.admitted - next.submitted;
        }

        running.push_back(waiting.pop());
    }
}

// Returns the room that running generations need for their prompts, and at least one page for each.
// Only with windows do they not hold the pages of their prompts from the begin on.
KvRoom EngineState::room_of_running() const {
    const auto num_running = static_cast<std::uint32_t>(running.size());
    if (!cache->has_windows()) return {num_running, num_running};
    KvRoom all;
    for (const auto& one : running) {
        if (one->request.only_looks) continue;
        const KvRoom missing = one->kv->missing_for(
            std::min(static_cast<std::uint32_t>(one->tokens.size()) + 1, one->tokens_max()),
            one->follows != 0 ? one->follow_tokens : 0, options.step_rows_max);
        all.pages += std::max(1u, missing.pages);
        all.slots += std::max(1u, missing.slots);
    }
    return all;
}

// Returns true if the cache has room for the tokens of `next` beside what running generations need.
// That is enough to admit `next`: an answer rarely becomes as long as its limit. A generation that
// follows another takes over the leader's pages when they are published.
bool EngineState::has_room(const Generation& next) {
    if (next.request.only_looks) return true;
    const std::uint32_t tokens = std::min(static_cast<std::uint32_t>(next.tokens.size()) + 1,
                                          next.tokens_max());
    const std::uint32_t rows = options.step_rows_max;
    if (!cache->has_room(tokens, next.follow_tokens, rows, room_of_running())) return false;
    // A sequence with windows never needs whole pages for all of its tokens at once.
    const std::uint32_t reserved = cache->has_windows()
                                       ? std::min(tokens, next.kv->num_tokens() + rows)
                                       : tokens;
    if (next.follows == 0) next.kv->reserve(reserved);
    return true;
}

void EngineState::publish_gauges() {
    const std::lock_guard lock(mutex);
    counters.running = static_cast<std::uint32_t>(running.size());
    counters.running_max = std::max(counters.running_max, counters.running);
    counters.waiting = static_cast<std::uint32_t>(waiting.size());
    counters.kv_pages = cache_pages;
    counters.kv_pages_used = cache_pages - cache->pages_free();
    counters.kv_pages_cached = cache->pages_cached();
    counters.memory = cache->memory();
    counters.draft_bytes = 0;
    for (const DraftSource* source : options.draft_sources)
        counters.draft_bytes += source->used_bytes();
}

// Ends the generations that only look, once they have all pages that are known of their prompt.
void EngineState::end_looks() {
    std::vector<GenerationId> ids;
    for (const auto& one : running)
        if (one->request.only_looks && one->fetch == 0) {
            give_pages(*one);
            ids.push_back(one->id);
        }
    for (const GenerationId id : ids) end_running(id, FinishReason::length);
}

void EngineState::end_running(GenerationId id, FinishReason reason, Error error) {
    const auto found = std::find_if(running.begin(), running.end(),
                                    [&](const auto& one) { return one->id == id; });

    std::unique_ptr<Generation> generation = std::move(*found);
    running.erase(found);
    generation->kv.reset();

    publish_gauges();  // publish before on_end, so that the callback already sees the freed room
    end(std::move(generation), reason, std::move(error));
}

void EngineState::end(std::unique_ptr<Generation> generation, FinishReason reason, Error error) {
    const bool is_mean = generation->request.pooling == Pooling::mean;
    std::vector<float> mean;
    for (const double sum : generation->hidden_sum)
        mean.push_back(static_cast<float>(is_mean ? sum / generation->hidden_rows : sum));
    if (generation->sink.on_end)
        generation->sink.on_end({reason, std::move(error), std::move(generation->stats),
                                 std::move(generation->prompt_logprobs), std::move(mean)});

    const std::lock_guard lock(mutex);
    --open;
}

}  // namespace moex
