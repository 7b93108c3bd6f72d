// Events and time: connections come and go, heartbeats, drain, and the clock's ticks.
#include "hub/dispatch/core/swarm_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
std::uint32_t num_moe_layers(const SwarmOptions& options) {
    return static_cast<std::uint32_t>(std::count_if(options.layer_is_moe.begin(),
                                                    options.layer_is_moe.end(),
                                                    [](auto is_moe) { return is_moe != 0; }));
}

// Four blobs at once over a slow line are no reason to give up on who loads them.
UnitDirectoryOptions directory_options(const SwarmOptions& options) {
    constexpr std::uint64_t slow_line_bytes_per_s = 125'000, blobs_at_once = 4;
    const std::chrono::milliseconds slow_load(1000 * blobs_at_once * options.expert_blob_bytes /
                                              slow_line_bytes_per_s);
    const PlacementOptions placement{
        .num_units = num_moe_layers(options) * options.limits.num_experts,
        .layer_units = options.limits.num_experts,
        .replicas = std::max(1u, options.replicas),
        .seed = options.seed,
        .choice = options.placement};
    // A second or two of a good line: more would keep waiting what loses its last holder.
    constexpr std::uint64_t ahead_bytes = 16 << 20, ahead_min = 4;
    const std::uint64_t ahead = std::max(
        ahead_min, ahead_bytes / std::max<std::uint64_t>(1, options.expert_blob_bytes));
    // All copies could move within some eight minutes, or seconds: what lies outside of its group
    // keeps hints from leading by as many layers as there are groups.
    const double num_copies = static_cast<double>(placement.replicas) * placement.num_units;
    const bool grouped = placement.choice.rule == PlacementRule::groups;
    return {.placement = placement,
            .load_within = options.load_within + slow_load,
            .load_again_after = options.load_again_after,
            .return_within = options.return_within,
            .moves_per_s = std::max(16.0, num_copies / (grouped ? 8 : 500)),
            .moves_at_once = std::max(64.0, num_copies / (grouped ? 8 : 100)),
            .loads_ahead = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(ahead, placement.num_units)),
            .serves = [](const UnitHolder& holder) { return worker_of(&holder).health.serves(); }};
}

// times heartbeats_missed_max: nobody is there any more
constexpr std::uint32_t heartbeats_missed_close = 5;
// of a published peer, which says nothing between two batches of weights
constexpr Duration loading_silence_max = 10min;

// A proxy speaks from there, for anybody.
bool is_loopback(std::string_view address) {
    return address.starts_with("127.") || address == "::1" || address == "[::1]" ||
           address.starts_with("::ffff:127.");
}
}  // namespace

SwarmState::SwarmState(SwarmOptions given)
    : options(std::move(given)),
      trust(options.checks),
      gains(std::size_t{num_moe_layers(options)} * options.limits.num_experts),
      answer_memory(std::make_shared<AnswerMemory>()),
      row_reader(options.rounding, answer_memory, options.gathered_bytes_min),
      policy(options.hedge),
      directory(directory_options(options)),
      hot_experts(directory.num_units(), options.hot) {
    MOEX_CHECK(options.layer_is_moe.size() == options.limits.num_layers,
               text("layer_is_moe has ", options.layer_is_moe.size(), " layers, the limits say ",
                    options.limits.num_layers));

    for (std::uint32_t layer = 0; layer < options.limits.num_layers; ++layer) {
        const bool is_moe = options.layer_is_moe[layer] != 0;
        moe_index.push_back(is_moe ? static_cast<std::int32_t>(moe_layers.size()) : -1);
        if (is_moe) moe_layers.push_back(layer);
    }

    control_bytes_max = unauthenticated_frame_bytes_max +
                        std::min<std::uint64_t>(directory.num_units(), 65535) *
                            (sizeof(Unit) + sizeof(UnitTier));
}

void SwarmState::EventContext::send(Worker& worker, WireFrame frame) {
    worker.bytes_sent += frame.size_bytes();
    state.counts.bytes_sent += frame.size_bytes();
    ++state.counts.frames_sent;
    out.push_back(SendFrame{.worker = worker.id, .frame = std::move(frame)});
}

void SwarmState::count_frame(Worker& worker, std::uint64_t frame_bytes) {
    ++counts.frames_received;
    counts.bytes_received += frame_bytes;
    worker.bytes_received += frame_bytes;
}

void SwarmState::on_sign_of_life(Worker& worker, TimePoint now) {
    worker.cancels_since_heard = 0;
    worker.heard_at = heard_at = now;
    unanswered.clear();
    if (std::exchange(all_silent, false)) capacity_freed = true;
}

void SwarmState::tell_frame_limit(EventContext& context, Worker& worker) {
    const std::uint64_t bytes = std::max(control_bytes_max, worker.ids.answer_bytes_max());
    if (!worker.welcomed() || std::exchange(worker.frame_limit, bytes) == bytes) return;
    context.out.push_back(SetFrameLimit{.worker = worker.id, .bytes = bytes});
}

void SwarmState::EventContext::event(const Worker& worker, WorkerEvent::Kind kind,
                                     std::string detail) {
    out.push_back(WorkerEvent{.kind = kind,
                              .worker = worker.id,
                              .detail = std::move(detail),
                              .view = std::make_shared<const WorkerView>(state.view_of(worker))});
}

void SwarmState::remove_worker(EventContext& context, WorkerId id, WorkerEvent::Kind kind,
                               std::string reason, std::optional<CloseCode> code) {
    const std::unique_ptr<Worker> worker = pool.take(id);
    if (!worker) return;
    if (worker->on_demand) --num_on_demand;
    set_pairs_max(*worker, std::numeric_limits<std::uint32_t>::max());
    if (code) context.out.push_back(CloseWorker{.worker = id, .code = *code, .reason = reason});

    if (worker->welcomed()) {
        context.event(*worker, kind, std::move(reason));
        std::get<WorkerEvent>(context.out.back()).code = code;
    }
    if (worker->welcomed() && kind == WorkerEvent::Kind::removed) ++counts.removed;

    // one that was thrown out, or said that it leaves, is not waited for
    const bool may_return = kind == WorkerEvent::Kind::left && !worker->worker_key.empty() &&
                            !worker->leaving() && !draining &&
                            options.return_within > Duration::zero();
    if (!worker->units.empty()) directory.leave(*worker, may_return, context.now);

    std::vector<RoundId> touched;
    const auto live = worker->ids.live();
    for (const SequenceIds::Live& one : live) {
        Attempt& attempt = *find_attempt(one.attempt);
        touched.push_back(attempt.round);
        drop_attempt(context, attempt, Failure::disconnect);
    }

    if (kind == WorkerEvent::Kind::removed) {
        // What it said in rounds still open is not believed either.
        drop_held(context, id, touched);
        for (auto& [round_id, round] : rounds)
            if (round->reject_answers_of(id) > 0) touched.push_back(round_id);
    }

    // at the end nobody takes over
    if (!draining || drain_at > context.now) directory.settle(context.now);
    carry_out_orders(context);

    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const RoundId round_id : touched)
        if (Round* round = find_round(round_id)) dispatch(context, *round);
    capacity_freed = true;
}

void SwarmState::send_heartbeat(EventContext& context, Worker& worker,
                                std::vector<std::uint32_t> units) {
    const std::uint32_t id = worker.next_heartbeat_id++;
    worker.heartbeats.push_back({.id = id, .sent_at = context.now, .units = std::move(units)});
    context.send(worker, encode_heartbeat(id));
}

void SwarmState::on_heartbeat_time(EventContext& context, Worker& worker) {
    worker.ids.expire(context.now);

    tell_frame_limit(context, worker);
    check_loading(context, worker);

    if (worker.loading_in_order() && context.now - worker.heard_at < loading_silence_max) {
        // lest the one echo that it is waited for be lost: seven in ten minutes
        const TimePoint first = worker.heartbeats.front().sent_at,
                        last = worker.heartbeats.back().sent_at;
        if (context.now - last >= 2 * (last - first)) send_heartbeat(context, worker, {});
        context.set_timer(context.now + options.heartbeat_every, TimerKind::heartbeat, worker.id);
        return;
    }

    worker.heartbeats_missed = static_cast<std::uint32_t>(worker.heartbeats.size());
    if (worker.heartbeats_missed >= heartbeats_missed_close * options.heartbeats_missed_max) {
        remove_worker(context, worker.id, WorkerEvent::Kind::left,
                      text("no heartbeat for ", worker.heartbeats_missed, " periods"),
                      CloseCode::going_away);
        return;
    }

    if (worker.heartbeats_missed >= options.heartbeats_missed_max) on_silence(context, worker);

    send_heartbeat(context, worker, {});
    context.set_timer(context.now + options.heartbeat_every, TimerKind::heartbeat, worker.id);
}

void SwarmState::on_silence(EventContext& context, Worker& worker) {
    if (!worker.health.on(HealthEvent::silence, context.now)) return;
    context.event(worker, WorkerEvent::Kind::unhealthy,
                  text(worker.heartbeats_missed, " heartbeats missed"));
}

void SwarmState::on_sign_of_work(EventContext& context, Worker& worker, TimePoint sent_at) {
    worker.answered_at = context.now;
    worker.answered_sent_at = sent_at;
    worker.busy_in_row = 0;
    worker.probed_at.reset();
    worker.stalls_until = TimePoint{};
    worker.stalls_for = Duration{};
    const bool was_probing = worker.health.state() == Health::probing;
    if (worker.health.on(HealthEvent::answer, context.now) && was_probing)
        context.event(worker, WorkerEvent::Kind::healthy, "it answers again");
}

// Where there is no local backend half of the swarm goes on being asked whatever it does: that all
// are broken is less likely than that what they were asked is.
bool SwarmState::may_eject_one_more() const {
    if (options.local_fallback) return true;
    std::size_t num_out = 1, num_loaded = 0;
    for (const auto& [id, worker] : pool.all()) {
        num_out += worker->state() == WorkerState::unhealthy;
        num_loaded += worker->state() == WorkerState::unhealthy ||
                      worker->state() == WorkerState::active;
    }
    return 2 * num_out <= num_loaded;
}

void SwarmState::add_failure(EventContext& context, Worker& worker, const char* why) {
    const bool changed = worker.health.failed(context.now, may_eject_one_more(), options.health);
    if (!changed || worker.health.state() != Health::ejected) return;

    worker.probed_at.reset();
    context.set_timer(worker.health.ejected_until(), TimerKind::health, worker.id);
    context.event(
        worker, WorkerEvent::Kind::unhealthy,
        text(worker.health.failures_in_row(), " failures in a row, the last: ", why,
             "; not asked for ", (worker.health.ejected_until() - context.now) / 1s, " s"));
}

// One worker that is silent is slow or gone. Three at once, or all that there are, of which
// nothing was heard since they were asked, and nothing of anybody else: the network is gone.
void SwarmState::watch_for_silence(EventContext& context, const Attempt& late) {
    constexpr std::size_t enough = 3;
    if (!options.local_fallback || all_silent || late.sent_at < heard_at) return;
    if (std::find(unanswered.begin(), unanswered.end(), late.worker) == unanswered.end())
        unanswered.push_back(late.worker);

    const auto num_asked = static_cast<std::size_t>(
        std::count_if(pool.all().begin(), pool.all().end(), [](const auto& entry) {
            return entry.second->ids.num_live() > 0 || entry.second->health.serves();
        }));
    if (unanswered.size() < std::min(enough, num_asked)) return;

    all_silent = true;
    std::vector<RoundId> open;
    for (const auto& [id, round] : rounds) open.push_back(id);
    std::sort(open.begin(), open.end());
    for (const RoundId id : open)
        if (Round* round = find_round(id)) dispatch(context, *round);
}

void SwarmState::on_timer(EventContext& context, const Timer& timer) {
    switch (timer.kind) {
        case TimerKind::hello:
            if (Worker* worker = pool.find(timer.id); worker != nullptr && !worker->welcomed())
                refuse(context, *worker,
                       {ErrorCode::timeout,
                        text("no HELLO within ", options.hello_within / 1ms, " ms")},
                       CloseCode::policy);
            break;
        case TimerKind::heartbeat:
            if (Worker* worker = pool.find(timer.id)) on_heartbeat_time(context, *worker);
            break;

        case TimerKind::busy: capacity_freed = true; break;

        case TimerKind::health:
            if (Worker* worker = pool.find(timer.id);
                worker != nullptr && worker->health.ejected_until() <= context.now &&
                worker->health.on(HealthEvent::time_over, context.now))
                probing.push_back(worker->id);
            break;

        case TimerKind::attempt:
            if (Attempt* attempt = find_attempt(timer.id);
                attempt != nullptr && attempt->deadline <= context.now)
                on_attempt_late(context, *attempt);
            break;

        case TimerKind::place:
            if (Worker* worker = pool.find(timer.id)) place(context, *worker, {});
            break;

        case TimerKind::units:
            units_timer_at.reset();
            if (!draining) directory.wake(context.now);
            carry_out_orders(context);
            break;

        case TimerKind::hot_experts: update_hot_experts(context); break;

        case TimerKind::hedge:
            if (Attempt* attempt = find_attempt(timer.id)) on_hedge_time(context, *attempt);
            break;

        case TimerKind::round:
            if (Round* round = find_round(timer.id)) on_round_time(context, *round);
            break;

        case TimerKind::drain:
            if (timer.id != 0) {
                remove_worker(context, timer.id, WorkerEvent::Kind::left,
                              "it drained, its time is over", CloseCode::going_away);
                break;
            }

            if (!draining || drain_at > context.now) break;
            while (!pool.all().empty())
                remove_worker(context, pool.all().begin()->first, WorkerEvent::Kind::left,
                              "the hub stops", CloseCode::going_away);
            break;
    }
}

void SwarmState::close_drained(EventContext& context) {
    settle_without_witness(context);
    std::erase_if(leavers, [&](WorkerId id) {
        const Worker* worker = pool.find(id);
        if (worker != nullptr && worker->ids.num_live() > 0) return false;
        remove_worker(context, id, WorkerEvent::Kind::left, "it drained", CloseCode::going_away);
        return true;
    });
    serve_waiting(context);
}

namespace {

// An answer of f32 rows, one per pair, has to fit into one frame; so has the question.
SwarmOptions with_frames_that_fit(SwarmOptions options) {
    WireLimits& limits = options.limits;
    const std::uint64_t tables = 64 + std::uint64_t{4} * limits.num_experts,
                        per_pair = std::uint64_t{4} * limits.hidden_size + 4;
    const auto fits = static_cast<std::uint32_t>(
        std::max<std::uint64_t>(1, (frame_bytes_max - tables) / per_pair));
    limits.num_pairs_max = std::min(limits.num_pairs_max, fits);
    limits.num_tokens_max = std::min(limits.num_tokens_max, fits);
    return options;
}

}  // namespace

SwarmCore::SwarmCore(SwarmOptions options)
    : state_(std::make_unique<SwarmState>(with_frames_that_fit(std::move(options)))) {}
SwarmCore::~SwarmCore() = default;

WorkerId SwarmCore::on_connect(TimePoint now, std::string address, bool authorized,
                               std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    SwarmState::EventContext context{state, now, actions};
    const WorkerId id = ++state.last_worker;
    Worker& worker = state.pool.add(id, state.options.first_sequence_id);

    worker.prefix = address_prefix(address);
    worker.owner = address_owner(address);
    worker.trust_address = is_loopback(address) ? 0 : worker.prefix;
    worker.address = std::move(address);
    worker.authorized = authorized;
    worker.connected_at = now;

    if (state.draining)
        state.refuse(context, worker,
                     {ErrorCode::unavailable, "the hub is stopping; try again later"},
                     CloseCode::going_away);
    // ghosts among them: judged when it says who it is
    else if (state.pool.all().size() > 2 * std::size_t{state.options.workers_max})
        state.refuse(context, worker,
                     {ErrorCode::overloaded, text("the hub has its ", state.options.workers_max,
                                                  " workers; try again later")},
                     CloseCode::going_away);
    else
        context.set_timer(now + state.options.hello_within, SwarmState::TimerKind::hello, id);

    return id;
}

void SwarmCore::on_frame(TimePoint now, WorkerId id, ByteView frame,
                         std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    SwarmState::EventContext context{state, now, actions};
    Worker* worker = state.pool.find(id);
    if (worker == nullptr) return;  // closed meanwhile

    state.count_frame(*worker, frame.size());
    state.on_frame(context, *worker, frame);
    if (Worker* still = state.pool.find(id)) state.tell_frame_limit(context, *still);
    state.close_drained(context);
}

void SwarmCore::on_answer(TimePoint now, WorkerId id, WorkerAnswer answer,
                          std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    SwarmState::EventContext context{state, now, actions};
    Worker* worker = state.pool.find(id);
    if (worker == nullptr || !worker->welcomed()) return;  // closed meanwhile

    state.count_frame(*worker, answer.frame_bytes);
    state.on_sign_of_life(*worker, now);
    state.on_answer(context, *worker, std::move(answer));
    if (Worker* still = state.pool.find(id)) state.tell_frame_limit(context, *still);
    state.close_drained(context);
}

void SwarmCore::on_disconnect(TimePoint now, WorkerId worker, std::vector<SwarmAction>& actions) {
    SwarmState::EventContext context{*state_, now, actions};
    state_->remove_worker(context, worker, WorkerEvent::Kind::left, "disconnected", std::nullopt);
    state_->close_drained(context);
}

RoundId SwarmCore::on_round(TimePoint now, const ExpertBatch& batch,
                            std::vector<SwarmAction>& actions) {
    return on_round(now, batch, state_->row_reader.read(batch), actions);
}

RoundId SwarmCore::on_round(TimePoint now, const ExpertBatch& batch, RoundRows rows,
                            std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    SwarmState::EventContext context{state, now, actions};

    MOEX_CHECK(batch.layer < state.moe_index.size() && state.moe_index[batch.layer] >= 0,
               text("layer ", batch.layer, " has no experts"));
    MOEX_CHECK(batch.hidden_size == state.options.limits.hidden_size && batch.num_tokens <= 65535,
               text("a batch of [", batch.num_tokens, ", ", batch.hidden_size, "] for hidden_size ",
                    state.options.limits.hidden_size));
    MOEX_CHECK(batch.expert_ids.size() >= std::size_t{batch.num_tokens} * batch.top_k &&
                   batch.expert_weights.size() >= std::size_t{batch.num_tokens} * batch.top_k,
               "the batch's spans are shorter than its sizes say");

    std::unique_ptr<Round> fresh;
    if (state.round_reserve.empty()) {
        fresh = std::make_unique<Round>();
    } else {
        fresh = std::move(state.round_reserve.back());
        state.round_reserve.pop_back();
    }

    Round& round = *fresh;
    round.id = ++state.last_round;
    const RoundId id = round.id;
    round.started = now;
    round.deadline = now + state.options.round_deadline;
    state.rounds[id] = std::move(fresh);
    ++state.counts.rounds;
    state.last_moe_index = state.moe_index[batch.layer];
    state.load_window.on_round_begin(static_cast<std::uint32_t>(state.moe_index[batch.layer]),
                                     batch.num_tokens, now);
    state.directory.needs_layer_of(state.unit_of(batch.layer, 0));

    const RoundOptions options{.limits = state.options.limits,
                               .rounding = state.options.rounding,
                               .unit_base = state.unit_of(batch.layer, 0),
                               .copies = state.policy.attempts_at_once()};
    const Status opened = round.open(batch, std::move(rows), options,
                                     state.slice_pairs_max(batch.layer));
    if (!opened.ok()) {
        round.attempts.clear();
        state.fail_round(context, round, opened.error());
        return id;
    }

    std::vector<bool> called(state.options.limits.num_experts);
    for (const CallSlice& slice : round.slices) {
        if (!called[slice.expert]) ++state.counts.calls;
        called[slice.expert] = true;
    }

    context.set_timer(round.deadline, SwarmState::TimerKind::round, id);
    // Each time is one at which it may end; what comes later looks again.
    for (TimePoint last{}; const RowPatience& one : round.patience)
        if (const TimePoint at = now + one.wait;
            at != std::exchange(last, at) && at < round.deadline)
            context.set_timer(at, SwarmState::TimerKind::round, id);
    state.count_requested(context, batch);
    state.dispatch(context, round);
    return id;
}

void SwarmCore::on_cancel_round(TimePoint now, RoundId id, std::vector<SwarmAction>& actions) {
    SwarmState::EventContext context{*state_, now, actions};
    Round* round = state_->find_round(id);
    if (round == nullptr) return;

    state_->close_round(context, *round);
    state_->close_drained(context);
}

void SwarmCore::on_local(TimePoint now, RoundId, std::uint64_t attempt_id,
                         Result<std::vector<float>> y, std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    SwarmState::EventContext context{state, now, actions};
    Attempt* attempt = state.find_attempt(attempt_id);
    if (attempt == nullptr || attempt->worker != 0) return;  // its round has ended

    Round& round = *state.find_round(attempt->round);
    if (!y.ok()) {
        state.fail_round(context, round, y.error());
        return;
    }

    MOEX_CHECK(y->size() == std::size_t{attempt->num_pairs} * round.hidden_size,
               text("local answer has ", y->size(), " values for ", attempt->num_pairs,
                    " pairs of ", round.hidden_size));

    if (!within_norm_bound(round, *attempt, square_sums_of(*y, round.hidden_size), true,
                           std::numeric_limits<double>::max())) {
        state.fail_round(
            context, round,
            {ErrorCode::non_finite,
             text("layer ", round.layer, ": the local backend's answer is not finite")});
        return;
    }

    state.local_latency[size_class_of(attempt->num_pairs)].record(now - attempt->sent_at, now);
    state.accept_answer(context, *attempt, std::move(y).value(), true, Evidence::verified);
    state.close_drained(context);
}

void SwarmCore::on_judgement(TimePoint now, std::uint64_t sample, const Judgement& judgement,
                             std::vector<SwarmAction>& actions) {
    SwarmState::EventContext context{*state_, now, actions};
    state_->on_judgement(context, sample, judgement);
    state_->close_drained(context);
}

void SwarmCore::on_drain(TimePoint now, Duration deadline, std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    SwarmState::EventContext context{state, now, actions};

    state.draining = true;
    state.drain_at = now + deadline;

    const auto deadline_ms = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(deadline / 1ms, 0, 0xffffffff));
    for (const auto& [id, worker] : state.pool.all())
        if (worker->welcomed() && !worker->published_peer)
            context.send(*worker, encode_drain(deadline_ms));

    if (deadline > Duration::zero()) {
        context.set_timer(state.drain_at, SwarmState::TimerKind::drain, 0);
    } else {
        state.on_timer(context, {now, SwarmState::TimerKind::drain, 0});
    }
}

void SwarmCore::on_tick(TimePoint now, std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    SwarmState::EventContext context{state, now, actions};
    while (!state.timers.empty() && state.timers.top().at <= now) {
        const SwarmState::Timer timer = state.timers.top();
        state.timers.pop();
        state.on_timer(context, timer);
    }
    state.close_drained(context);
}

std::optional<TimePoint> SwarmCore::next_deadline() const {
    // Timers of attempts that were answered are dropped here,
    // so that a swarm at rest does not wake its driver.
    auto& timers = state_->timers;
    while (!timers.empty()) {
        const SwarmState::Timer& timer = timers.top();
        const bool dead = timer.kind == SwarmState::TimerKind::attempt ||
                                  timer.kind == SwarmState::TimerKind::hedge
                              ? state_->find_attempt(timer.id) == nullptr
                          : timer.kind == SwarmState::TimerKind::round
                              ? state_->find_round(timer.id) == nullptr
                              : false;
        if (!dead) return timer.at;
        timers.pop();
    }
    return std::nullopt;
}

bool SwarmCore::welcomed(WorkerId id) const {
    const Worker* worker = state_->pool.find(id);
    return worker != nullptr && worker->welcomed();
}

void SwarmCore::set_hedge(const HedgePolicy& policy) {
    state_->options.hedge = policy;
    state_->policy.set(policy);
}
void SwarmCore::set_local_fallback(bool on) {
    state_->options.local_fallback = on;
    if (!on) state_->all_silent = false;  // then the workers are all there is
}
const RowReader& SwarmCore::row_reader() const { return state_->row_reader; }
AnswerReader SwarmCore::answer_reader(WorkerId id) const {
    if (const Worker* worker = state_->pool.find(id)) return state_->reader_of(*worker);
    return {state_->options.limits, state_->answer_memory, std::make_shared<AskedGroups>()};
}
const SwarmOptions& SwarmCore::options() const { return state_->options; }

}  // namespace moex
