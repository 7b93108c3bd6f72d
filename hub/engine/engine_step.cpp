#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include "hub/base/trace.h"
#include "hub/engine/engine_state.h"

namespace moex {
namespace {
// Most rows per step of a sequence that needs the logits of all its rows. The limit bounds the
// memory of these logits.
constexpr std::uint32_t scored_rows_max = 64;
// A worker may report during a round that it accepts fewer tokens at a time. The step is then begun
// again, in smaller parts, at most this many times in succession.
constexpr std::uint32_t steps_recut_max = 3;
// A prompt is short if at most this many of its tokens were not computed before. It takes only a
// few steps.
constexpr std::uint32_t short_prompt_tokens = 64;

bool is_long(const Generation* one) {
    return one->tokens.size() > std::size_t{one->stats.cached_tokens} + short_prompt_tokens;
}
}  // namespace

// Gives one row of the next step to every sequence that decodes, and the remaining rows to the
// prompts.
void EngineState::share_rows() {
    std::uint32_t rows_left = std::max(1u, options.step_rows_max);
    for (auto& generation : running) generation->step_tokens = 0;

    turn = turn >= running.size() ? 0 : turn;

    StepShape shape;
    std::vector<Generation*> prompts;
    for (std::size_t i = 0; i < running.size(); ++i) {
        Generation& generation = *running[(turn + i) % running.size()];
        if (generation.missing() > 1) {
            ++shape.num_prompts;
            if (generation.fetch == 0 && !waits_for_leader((turn + i) % running.size()))
                prompts.push_back(&generation);
        } else if (rows_left > 0) {
            generation.step_tokens = 1;
            --rows_left;
            ++shape.decode_rows;
        }
    }

    // The round-robin start matters only if not all decode rows fit into the step. The next step
    // then continues after the last sequence served.
    if (rows_left == 0) turn += shape.decode_rows;

    // Prompts keep at least half of the rows that are left.
    const std::uint32_t drafted = share_drafted_rows(prompts.empty() ? rows_left : rows_left / 2);
    shape.decode_rows += drafted;
    shape.drafted_rows = drafted;
    rows_left -= drafted;

    share_prompt_rows(std::move(prompts), rows_left, shape);
}

// Leaves out prompts for which the step has no second state: the last ones in the order of
// `prompts`. One of such states is for the first long prompt. A prompt of few rows needs none.
void EngineState::keep_room_for_states(std::vector<Generation*>& prompts) const {
    if (plan.second_states == 0) return;
    const auto needs_state = [](const Generation* one) {
        return one->missing() > delta_append_max;
    };
    const auto first_long = std::ranges::find_if(prompts, is_long);
    Generation* const kept = first_long == prompts.end() ? nullptr : *first_long;
    std::uint32_t left = plan.second_states - (kept && needs_state(kept) ? 1 : 0);
    std::erase_if(prompts, [&](const Generation* one) {
        if (one == kept || !needs_state(one)) return false;
        return left == 0 || left-- == 0;
    });
}

// Divides the remaining `rows_left` rows of a step among the prompts. Short prompts get rows first,
// one prompt after the other: if they shared the rows, all of them would end only with the last
// one. The long prompts share what remains, at least a quarter of the rows and of the time, the
// shortest first; what one long prompt does not use goes to the next. Long prompts that share the
// rows end late but together, and this costs less: until then none of them decodes beside the
// others, and a row is more expensive the fewer rows its chunk has. The time of the prompts' rows
// is limited only if the step also has decode rows.
void EngineState::share_prompt_rows(std::vector<Generation*> prompts, std::uint32_t rows_left,
                                    const StepShape& shape) {
    const bool is_timed = shape.decode_rows > 0;
    if (prompts.empty() || (is_timed && cost.wants_plain_step(shape.decode_rows))) return;

    Duration time_left{};
    if (is_timed) {
        time_left = cost.prompt_time(shape.decode_rows, shape.num_prompts, shape.drafted_rows);
        rows_left = std::min(rows_left, cost.prompt_rows_max());
    }

    const auto wants = [](const Generation& one) {
        if (one.scores_prompt()) return std::min(one.missing(), scored_rows_max);
        const std::uint32_t has = one.kv->num_tokens(), prompt = one.stats.prompt_tokens;
        // When a lossy generation is computed again, the rows of its answer and those of its prompt
        // are in different steps.
        return one.request.speculator && has < prompt ? prompt - has : one.missing();
    };
    const auto order = [&](const Generation* one) {
        return std::make_tuple(is_long(one), wants(*one), one->id);
    };
    std::sort(prompts.begin(), prompts.end(),
              [&](const Generation* a, const Generation* b) { return order(a) < order(b); });
    keep_room_for_states(prompts);

    const bool keeps_some = is_long(prompts.back());
    const std::uint32_t rows_kept = keeps_some ? rows_left / 4 : 0;
    const Duration time_kept = keeps_some ? time_left / 4 : Duration{};

    for (std::size_t i = 0; i < prompts.size() && rows_left > 0; ++i) {
        Generation& prompt = *prompts[i];
        const bool shares = is_long(&prompt);
        const bool leads = i == 0 || (shares && !is_long(prompts[i - 1]));
        const auto sharers = shares ? static_cast<std::uint32_t>(prompts.size() - i) : 1;

        const std::uint32_t kept = shares ? 0 : std::min(rows_kept, rows_left),
                            rows_offered = std::max(leads || shares ? 1u : 0u,
                                                    (rows_left - kept) / sharers);
        std::uint32_t rows = std::min(wants(prompt), rows_offered);
        if (is_timed) {
            const Duration time = (time_left - (shares ? Duration{} : time_kept)) / sharers;
            const std::uint32_t position = prompt.kv->num_tokens(),
                                in_time = cost.rows_within(time, position);
            rows = std::min(rows, leads ? std::max(cost.prompt_rows_min(), in_time) : in_time);
            time_left -= std::min(time_left, cost.rows_time(rows, position));
        }
        prompt.step_tokens = rows;
        rows_left -= rows;
    }
}

StepShape EngineState::shape_of_step() const {
    StepShape shape;
    for (const auto& generation : running) {
        const std::uint64_t rows = generation->step_tokens, first = generation->kv->num_tokens();
        if (generation->missing() > 1) ++shape.num_prompts;
        if (rows == 0) continue;
        if (generation->missing() == 1) {
            shape.decode_rows += generation->step_tokens;
            shape.drafted_rows += generation->drafts.num_rows;
            continue;
        }
        shape.prompt_rows += static_cast<std::uint32_t>(rows);
        shape.prompt_positions += rows * first + rows * rows / 2;
        shape.chunk_positions += first;
    }
    return shape;
}

// Reserves cache pages for the rows of this step. When the pages run out, drafted rows are dropped
// first. Then the sequence admitted last is preempted: it returns to the queue, keeps its tokens
// and loses its cache. The first sequence always continues: the engine accepts no request that
// exceeds the whole budget.
void EngineState::grow_pages() {
    const auto has_pages = [](Generation& one) {
        const std::uint32_t end = one.kv->num_tokens() + one.step_tokens;
        if (one.kv->reserve(end)) return true;
        one.kv->forget_unseen();  // also pages that the store was not offered yet
        return one.kv->reserve(end);
    };
    for (std::size_t i = 0; i < running.size(); ++i) {
        if (!has_pages(*running[i])) drop_drafted_rows(*running[i]);
        while (i < running.size() && !has_pages(*running[i])) {
            std::unique_ptr<Generation> last = std::move(running.back());
            running.pop_back();
            const std::lock_guard lock(mutex);
            return_to_queue(std::move(last));
        }
    }
}

// Returns the generations with rows in the next step, in the order of the step's rows. Generations
// with rows that take guessed experts are last, grouped by speculator.
std::vector<Generation*> EngineState::members_of_step() {
    share_rows();
    grow_pages();

    std::vector<Generation*> members;
    for (auto& generation : running)
        if (generation->step_tokens != 0) members.push_back(generation.get());
    const auto order = [](const Generation* one) {
        return std::make_pair(one->takes_guesses(), one->guesser());
    };
    std::stable_sort(members.begin(), members.end(), [&](const Generation* a, const Generation* b) {
        return std::less<>()(order(a), order(b));
    });
    return members;
}

std::vector<StepRows> EngineState::compose(std::span<Generation* const> members) const {
    std::vector<StepRows> batch;
    for (Generation* generation : members) {
        StepRows rows{.kv = generation->kv.get()};
        SequenceDrafts& drafts = generation->drafts;
        const bool has_drafts = drafts.num_rows > 0;
        if (has_drafts) {
            drafts.row_tokens.assign(1, generation->tokens.back());
            drafts.row_tokens.insert(drafts.row_tokens.end(), drafts.proposed.begin(),
                                     drafts.proposed.begin() + drafts.num_rows);
            rows.tokens = drafts.row_tokens;
        } else {
            rows.tokens = std::span<const TokenId>(generation->tokens)
                              .subspan(generation->kv->num_tokens(), generation->step_tokens);
        }

        const bool scores = generation->scores_prompt();
        rows.all_logits = scores || has_drafts;
        const bool embeds = generation->request.hidden_mean;
        rows.hidden = embeds || shows_rows(*generation);
        rows.no_logits = embeds ||
                         (!rows.all_logits && generation->step_tokens < generation->missing());
        if (!rows.no_logits && !scores) rows.likeliest = likeliest_of(*generation);

        rows.speculator = generation->guesser();
        if (!rows.speculator) rows.late_pairs_max = generation->late_pairs_left();
        rows.stays_here = generation->request.stays_here;
        rows.late_wait = generation->request.late_wait;

        batch.push_back(rows);
    }
    return batch;
}

// Returns how many of the likeliest tokens the device must find for the sampler of `generation`.
// Returns 0 if the sampler needs the logits instead.
std::uint32_t EngineState::likeliest_of(const Generation& generation) const {
    if (generation.request.logprobs) return 0;
    const std::uint32_t wanted = generation.sampler.num_likeliest();
    return wanted <= device.likeliest_max() ? wanted : 0;
}

Result<StepResult> EngineState::run_step(std::span<const StepRows> batch, const StepShape& shape) {
    std::stop_token stop;
    const TimePoint started = now_steady(), cost_from = options.clock();

    {
        const std::lock_guard lock(mutex);
        stepping = true;
        ++step_number;
        step_started = started;
        step_ids.clear();
        for (const auto& generation : running) step_ids.push_back(generation->id);
        step_stop = std::stop_source();
        stop = step_stop.get_token();
        if (stopping) step_stop.request_stop();
        if (!cancelled.empty()) watch_wake.notify_all();
    }

    // A worker that holds more experts than fit into its memory uses only the newest hint, and each
    // micro-batch would replace the hint of the one before. So a step is not cut while hints are
    // wanted.
    const bool stays_whole = options.micro_batches == 0 && experts.wants_hints();
    const std::uint32_t num_parts = stays_whole ? 1 : micro_batches.choose(shape);
    Result<StepResult> result = [&] {
        const TraceSpan span(Trace::Row::engine, "compute", {"micro_batches", num_parts});
        return device.run(batch, experts, num_parts, stop);
    }();
    if (result.ok()) {
        const Duration took = options.clock() - cost_from;
        if (options.on_step) options.on_step(shape, cost.expected(shape), took);
        cost.record(shape, took);
        if (shape.prompt_rows == 0)
            engine_drafts.budget.record(shape.decode_rows - shape.drafted_rows, shape.drafted_rows,
                                        took + engine_drafts.drafting);
        micro_batches.record(shape, num_parts, took, result->experts_waited);
    }

    const std::lock_guard lock(mutex);
    stepping = false;
    if (!cancelled.empty()) watch_wake.notify_all();

    const Duration step_time = now_steady() - started;
    ++counters.steps;
    counters.step_time += step_time;

    if (!result.ok()) return result;

    patience = patience_min;
    steps_recut = 0;
    counters.steps_multi_sequence += batch.size() >= 2;
    counters.steps_micro_batched += num_parts >= 2;
    counters.micro_batches = num_parts;
    counters.rows += result->rows.size();
    counters.experts_waited += result->experts_waited;

    ++counters.split.steps;
    counters.split.layers += step_time - result->wait_time - result->head_time;
    counters.split.waiting += result->wait_time;
    counters.split.head += result->head_time;
    return result;
}

// Handles a failed step: ends its generations, unless the step is begun again. It is begun again
// when it was stopped, when it must be cut finer, or after the device was lost.
void EngineState::on_failed_step(const Error& error, std::span<Generation* const> members) {
    for (const Generation* one : members) one->kv->abandon_step();
    // The step was stopped because one of its generations was cancelled. The next step begins
    // without that generation.
    if (error.code == ErrorCode::cancelled && step_stop.stop_requested()) {
        const std::lock_guard lock(mutex);
        ++counters.steps_stopped;
        patience *= 2;
        return;
    }
    {
        const std::lock_guard lock(mutex);
        patience = patience_min;
    }

    if (error.code == ErrorCode::num_tokens_range && ++steps_recut <= steps_recut_max) return;
    if (error.code == ErrorCode::device_lost) return begin_anew();

    std::vector<GenerationId> ids;
    for (const Generation* generation : members) ids.push_back(generation->id);
    for (const GenerationId id : ids) end_running(id, FinishReason::error, error);
}

// Recovers after the device was lost with all keys and values. All sequences return to the queue,
// in order of admission, with all their tokens so far. The new device computes the keys and values
// of these tokens again.
void EngineState::begin_anew() {
    for (auto& generation : running) {
        generation->kv.reset();
        generation->step_tokens = 0;
    }
    const Status renewed = device.renew();
    make_cache();

    while (!renewed.ok() && !running.empty())
        end_running(running.back()->id, FinishReason::error, renewed.error());

    const std::lock_guard lock(mutex);
    for (; !running.empty(); running.pop_back()) waiting.push_returned(std::move(running.back()));
}

// Frees the second states that prompts needed, once there has been no prompt for some steps. A
// prompt that follows soon finds them, and their memory need not be cleared again.
void EngineState::free_second_states(std::span<Generation* const> members) {
    constexpr std::uint32_t steps = 64;
    const bool has_prompt = std::any_of(members.begin(), members.end(), [](const Generation* one) {
        return one->step_tokens > delta_append_max;
    });
    steps_without_prompt = has_prompt ? 0 : steps_without_prompt + 1;
    if (steps_without_prompt == steps) cache->trim_states(options.sequences_max);
}

void EngineState::step() {
    const TraceSpan span(Trace::Row::engine, "step", {"sequences", running.size()});
    const std::vector<Generation*> members = members_of_step();
    if (members.empty()) return wait_for_pages();
    const std::vector<StepRows> batch = compose(members);
    Result<StepResult> result = run_step(batch, shape_of_step());
    if (!result.ok()) return on_failed_step(result.error(), members);

    free_second_states(members);
    std::vector<DueTokens> due = take_result(batch, members, *result);
    sample(due);
    const std::vector<FinishedGeneration> finished = settle(members, due, *result);
    device.recycle(*std::move(result));

    // generations that ended by an error first, then those that ended by a stop
    for (const FinishReason reason :
         {FinishReason::error, FinishReason::stop, FinishReason::length})
        for (const FinishedGeneration& one : finished) {
            if (one.reason != reason) continue;
            if (reason == FinishReason::error)
                end_running(one.id, reason,
                            {ErrorCode::non_finite,
                             "the model's logits are not finite: a weight or an expert's answer is "
                             "out of range"});
            else
                end_running(one.id, reason);
        }
}

// Uses the drawn tokens of a step. The rows of drafted tokens that were not drawn leave the cache
// before its pages are offered to other generations. Returns the generations that end.
std::vector<FinishedGeneration> EngineState::settle(std::span<Generation* const> members,
                                                    std::span<DueTokens> due,
                                                    const StepResult& result) {
    std::vector<FinishedGeneration> finished;
    std::size_t first_row = 0, next_due = 0;
    for (Generation* generation : members) {
        const bool is_due = next_due < due.size() && due[next_due].generation == generation;
        std::uint32_t num_rows = generation->step_tokens;
        if (generation->drafts.num_rows > 0) {
            const auto drawn = static_cast<std::uint32_t>(due[next_due].tokens.size());
            generation->kv->roll_back(generation->kv->num_tokens() - num_rows + drawn);
            num_rows = drawn;
        }
        take_rows(*generation, result, first_row, num_rows);
        show_rows(*generation, num_rows);
        if (is_due)
            if (const auto reason = take_tokens(due[next_due++]))
                finished.push_back({generation->id, *reason});
        offer_pages(*generation, result, first_row, num_rows);
        keep_state(*generation, !finished.empty() && finished.back().id == generation->id);
        store_pages(*generation);
        give_pages(*generation);
        forget_unseen(*generation);
        first_row += generation->step_tokens;
    }
    return finished;
}

// Finds each generation's rows in the step's results, and reads the hidden states and scores of its
// prompt. Returns the generations that can now draw tokens, in the order of `members`.
std::vector<DueTokens> EngineState::take_result(std::span<const StepRows> batch,
                                                std::span<Generation* const> members,
                                                const StepResult& result) {
    const std::size_t vocab_size = device.config().vocab_size,
                      hidden_size = device.config().hidden_size;
    std::size_t logits_at = 0, hidden_at = 0, likeliest_at = 0;
    std::vector<DueTokens> due;
    for (std::size_t i = 0; i < members.size(); ++i) {
        Generation& generation = *members[i];
        if (batch[i].hidden) {
            const std::size_t floats = generation.step_tokens * hidden_size;
            const auto rows = std::span(result.hidden).subspan(hidden_at, floats);
            hidden_at += floats;
            const bool embeds = generation.request.hidden_mean;
            if (embeds) add_hidden(generation, rows);
            if (embeds && generation.missing() == 0) due.push_back({.generation = &generation});
            if (!embeds) generation.drafts.hidden = rows;
        }
        if (batch[i].no_logits) continue;

        DueTokens one{.generation = &generation, .rows = 1 + generation.drafts.num_rows};
        if (batch[i].likeliest > 0) {
            one.likeliest = std::span(result.likeliest).subspan(likeliest_at, one.rows);
            likeliest_at += one.rows;
            due.push_back(std::move(one));
            continue;
        }

        const std::size_t count = batch[i].all_logits ? generation.step_tokens : 1;
        const auto logits =
            std::span<const float>(result.logits).subspan(logits_at, count * vocab_size);
        logits_at += logits.size();

        if (generation.scores_prompt()) score_prompt(generation, logits);
        // the rows of a prompt that are scored are more than those that draw
        one.logits = logits.last(one.rows * vocab_size);
        if (generation.kv->num_tokens() >= generation.tokens.size()) due.push_back(std::move(one));
    }
    return due;
}

void EngineState::add_hidden(Generation& generation, std::span<const float> rows) {
    const std::size_t hidden_size = rows.size() / generation.step_tokens;
    generation.hidden_sum.resize(hidden_size);
    std::uint32_t position = generation.kv->num_tokens() - generation.step_tokens;
    for (; !rows.empty(); rows = rows.subspan(hidden_size), ++position) {
        // this row was added to the sum before a preemption
        if (position != generation.hidden_rows) continue;
        ++generation.hidden_rows;
        if (generation.request.pooling == Pooling::last)
            std::fill(generation.hidden_sum.begin(), generation.hidden_sum.end(), 0.0);
        if (generation.request.pooling == Pooling::first && position > 0) continue;
        for (std::size_t i = 0; i < hidden_size; ++i) generation.hidden_sum[i] += rows[i];
    }
}

void EngineState::score_prompt(Generation& generation, std::span<const float> logits) const {
    const std::size_t vocab_size = device.config().vocab_size;
    const std::vector<TokenId>& prompt = generation.request.prompt;
    const std::uint32_t first = generation.kv->num_tokens() - generation.step_tokens;

    for (std::size_t row = 0; row < generation.step_tokens && first + row + 1 < prompt.size();
         ++row) {
        // The log-probability of this prompt token was already stored before a preemption.
        if (first + row != generation.prompt_logprobs.size()) continue;
        generation.prompt_logprobs.push_back(
            score(logits.subspan(row * vocab_size, vocab_size), prompt[first + row + 1],
                  generation.request.logprobs ? generation.request.top_logprobs : 0));
    }
}

// Draws the tokens of one generation. A row's token is drawn as in a step without drafts; the next
// row counts only if its drafted token is the token that was drawn.
void EngineState::draw(DueTokens& due) const {
    const GenerationRequest& request = due.generation->request;
    const std::vector<TokenId>& stop_ids = request.stop_ids;
    Sampler& sampler = due.generation->sampler;
    const std::uint32_t top = request.logprobs ? request.top_logprobs : 0,
                        left = request.max_tokens - due.generation->stats.completion_tokens;
    const std::size_t vocab_size = device.config().vocab_size;
    for (std::uint32_t row = 0; row < std::min(due.rows, left); ++row) {
        due.tokens.push_back(
            due.likeliest.empty()
                ? moex::sample(sampler, due.logits.subspan(row * vocab_size, vocab_size), top)
                : moex::sample(sampler, due.likeliest[row]));
        const SampledToken& token = due.tokens.back();
        if (!std::isfinite(token.logprob) ||
            std::find(stop_ids.begin(), stop_ids.end(), token.id) != stop_ids.end())
            return;
        sampler.accept(token.id);
        if (row + 1 < due.rows && token.id != due.generation->drafts.proposed[row]) return;
    }
}

// Draws the next tokens. Each sequence has its own sampler, so that a token does not depend on the
// sequences sampled beside it.
void EngineState::sample(std::span<DueTokens> due) {
    const TimePoint started = now_steady();
    device.threads().parallel_for(due.size(), 1, [&](std::size_t begin, std::size_t end) {
        for (DueTokens& one : due.subspan(begin, end - begin)) draw(one);
    });
    const TimePoint ended = now_steady();
    if (Trace* const trace = Trace::on(); trace != nullptr) {
        // Each sequence draws one token, and one more for each drafted token that was right.
        std::uint64_t rows = 0, tokens = 0;
        for (const DueTokens& one : due) {
            rows += one.rows;
            tokens += one.tokens.size();
        }
        trace->span(Trace::Row::engine, "draw", started, ended,
                    {{"sequences", due.size()}, {"rows", rows}, {"tokens", tokens}});
    }
    const std::lock_guard lock(mutex);
    counters.split.drawing += ended - started;
}

// Records, for the rows of one generation in the step, how the experts' answers were obtained and
// from which workers.
void EngineState::take_rows(Generation& generation, const StepResult& result, std::size_t first_row,
                            std::uint32_t num_rows) {
    GenerationStats& stats = generation.stats;
    for (std::size_t row = first_row; row < first_row + num_rows; ++row) {
        stats.pairs_remote += result.rows[row].pairs_remote;
        stats.pairs_local += result.rows[row].pairs_local;
        stats.pairs_hedged += result.rows[row].pairs_hedged;
        stats.pairs_verified += result.rows[row].pairs_verified;
        stats.pairs_proven += result.rows[row].pairs_proven;
        stats.pairs_late += result.rows[row].pairs_late;

        std::vector<std::uint64_t> workers;
        std::set_union(stats.workers.begin(), stats.workers.end(), result.row_workers[row].begin(),
                       result.row_workers[row].end(), std::back_inserter(workers));
        stats.workers = std::move(workers);
    }

    const auto prompt_part = [&](std::uint32_t tokens) {
        return std::min(tokens, stats.prompt_tokens);
    };

    const std::uint32_t reached = std::max(generation.furthest, generation.kv->num_tokens()),
                        added = prompt_part(reached) - prompt_part(generation.furthest);
    generation.furthest = reached;
    {
        const std::lock_guard lock(mutex);
        counters.prompt_tokens += added;
    }
    if (added > 0 && generation.sink.on_prompt)
        generation.sink.on_prompt({stats.prompt_tokens, stats.cached_tokens, prompt_part(reached),
                                   now_steady() - generation.admitted});
}

// Passes the drawn tokens of a generation to its caller. Returns the finish reason if the
// generation ends with them.
std::optional<FinishReason> EngineState::take_tokens(DueTokens& due) {
    Generation& generation = *due.generation;
    const TimePoint now = now_steady();
    if (generation.first_token == TimePoint{}) {
        generation.first_token = now;
        generation.stats.prefill = now - generation.admitted;
    }
    generation.stats.decode = now - generation.first_token;
    if (due.tokens.empty()) return FinishReason::length;

    std::vector<TokenId> drawn;
    for (const SampledToken& token : due.tokens) drawn.push_back(token.id);
    record_drafts(generation, drawn);

    for (SampledToken& token : due.tokens)
        if (const auto reason = take_token(generation, std::move(token))) return reason;
    return std::nullopt;
}

// Passes one token to the caller, which the sampler has accepted unless the token ends the answer.
std::optional<FinishReason> EngineState::take_token(Generation& generation, SampledToken token) {
    const GenerationRequest& request = generation.request;
    const TokenEvent event{std::move(token), generation.stats.completion_tokens};
    if (!std::isfinite(event.token.logprob)) return FinishReason::error;

    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), event.token.id) !=
        request.stop_ids.end())
        return FinishReason::stop;

    generation.tokens.push_back(event.token.id);
    ++generation.stats.completion_tokens;
    {
        const std::lock_guard lock(mutex);
        ++counters.generated_tokens;
    }

    if (generation.sink.on_token) generation.sink.on_token(event);
    if (generation.stats.completion_tokens >= request.max_tokens) return FinishReason::length;
    return std::nullopt;
}

}  // namespace moex
