// The entry points of the dispatch core: each event is passed to the part that handles it.
#include "hub/dispatch/core/swarm_core.h"

#include <algorithm>
#include <utility>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {

SwarmState::SwarmState(SwarmOptions given)
    : options(std::move(given)),
      answer_memory(std::make_shared<AnswerMemory>()),
      row_reader(options.rounding, answer_memory, options.gathered_bytes_min),
      placement(*this),
      sessions(*this),
      health(*this),
      checks(*this),
      attempts(*this),
      reserve(*this),
      cover(*this),
      rounds(*this),
      spans(*this),
      frames(*this) {}

void EventContext::send(Worker& worker, WireFrame frame) {
    worker.bytes_sent += frame.size_bytes();
    state.counts.bytes_sent += frame.size_bytes();
    ++state.counts.frames_sent;
    out.push_back(SendFrame{.worker = worker.id, .frame = std::move(frame)});
}

void EventContext::event(const Worker& worker, WorkerEvent::Kind kind, std::string detail) {
    out.push_back(WorkerEvent{.kind = kind,
                              .worker = worker.id,
                              .detail = std::move(detail),
                              .view = std::make_shared<const WorkerView>(state.view_of(worker))});
}

void SwarmState::on_timer(EventContext& context, const SwarmTimer& timer) {
    switch (timer.kind) {
        case TimerKind::hello: sessions.on_hello_time(context, timer.id); break;
        case TimerKind::heartbeat:
            if (Worker* worker = pool.find(timer.id)) sessions.on_heartbeat_time(context, *worker);
            break;
        case TimerKind::busy: rounds.free_capacity(); break;
        case TimerKind::health:
            if (Worker* worker = pool.find(timer.id)) health.on_ejection_over(context, *worker);
            break;
        case TimerKind::attempt:
            if (Attempt* attempt = in_flight.find_attempt(timer.id);
                attempt != nullptr && attempt->deadline <= context.now)
                attempts.on_attempt_late(context, *attempt);
            break;
        case TimerKind::place:
            if (Worker* worker = pool.find(timer.id)) placement.place(context, *worker, {});
            break;
        case TimerKind::units: placement.on_units_time(context); break;
        case TimerKind::hot_experts: placement.update_hot_experts(context); break;
        case TimerKind::hedge:
            if (Attempt* attempt = in_flight.find_attempt(timer.id))
                attempts.on_hedge_time(context, *attempt);
            break;
        case TimerKind::round:
            if (Round* round = in_flight.find_round(timer.id))
                rounds.on_round_time(context, *round);
            break;
        case TimerKind::drain: sessions.on_drain_time(context, timer.id); break;
        case TimerKind::sign:
            if (Worker* worker = pool.find(timer.id)) sessions.on_sign_time(context, *worker);
            break;
    }
}

void SwarmState::end_event(EventContext& context) {
    checks.settle_without_witness(context);
    sessions.close_leavers(context);
    rounds.serve_waiting(context);
}

namespace {

// Lowers the limits so that the largest request, and an answer with one f32 row per pair, each fit
// into one frame.
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
    EventContext context{*state_, now, actions};
    return state_->sessions.connect(context, std::move(address), authorized);
}

void SwarmCore::on_frame(TimePoint now, WorkerId id, ByteView frame,
                         std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    EventContext context{state, now, actions};
    Worker* worker = state.pool.find(id);
    if (worker == nullptr) return;  // the connection is already closed

    state.frames.count_frame(*worker, frame.size());
    state.frames.on_frame(context, *worker, frame);
    if (Worker* still = state.pool.find(id)) state.sessions.set_frame_limit(context, *still);
    state.end_event(context);
}

void SwarmCore::on_answer(TimePoint now, WorkerId id, WorkerAnswer answer,
                          std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    EventContext context{state, now, actions};
    Worker* worker = state.pool.find(id);
    if (worker == nullptr || !worker->welcomed()) return;  // its connection is closed already

    state.frames.count_frame(*worker, answer.frame_bytes);
    state.health.on_sign_of_life(*worker, now);
    state.frames.on_answer(context, *worker, std::move(answer));
    if (Worker* still = state.pool.find(id)) state.sessions.set_frame_limit(context, *still);
    state.end_event(context);
}

void SwarmCore::on_disconnect(TimePoint now, WorkerId worker, std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->sessions.remove_worker(context, worker, WorkerEvent::Kind::left, "disconnected",
                                   std::nullopt);
    state_->end_event(context);
}

RoundId SwarmCore::on_round(TimePoint now, const ExpertBatch& batch,
                            std::vector<SwarmAction>& actions) {
    return on_round(now, batch, state_->row_reader.read(batch), actions);
}

RoundId SwarmCore::on_round(TimePoint now, const ExpertBatch& batch, RoundRows rows,
                            std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    return state_->rounds.open_round(context, batch, std::move(rows));
}

void SwarmCore::on_cancel_round(TimePoint now, RoundId id, std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    Round* round = state_->in_flight.find_round(id);
    if (round == nullptr) return;

    state_->rounds.close_round(context, *round);
    state_->end_event(context);
}

void SwarmCore::on_span_frame(TimePoint now, std::uint32_t span, std::uint32_t step, Bytes frame,
                              std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->spans.send(context, span, step, std::move(frame));
}

void SwarmCore::on_span_lie(TimePoint now, std::uint32_t span, const std::string& why,
                            std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->spans.on_lie(context, span, why);
    state_->end_event(context);
}

void SwarmCore::on_span_set_aside(TimePoint now, std::uint32_t span, const std::string& why,
                                  std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->spans.on_set_aside(context, span, why);
    state_->end_event(context);
}

void SwarmCore::on_span_late(TimePoint now, std::uint32_t span, TimePoint sent_at,
                             std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->spans.on_late(context, span, sent_at);
    state_->end_event(context);
}

std::shared_ptr<SpanBoard> SwarmCore::span_board() const { return state_->spans.board(); }

void SwarmCore::on_local(TimePoint now, RoundId, std::uint64_t attempt_id,
                         Result<std::vector<float>> y, std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->attempts.on_local(context, attempt_id, std::move(y));
}

void SwarmCore::on_local_measured(TimePoint now, std::uint32_t num_pairs, Duration took) {
    state_->reserve.on_local_measured(num_pairs, took, now);
}

void SwarmCore::on_judgement(TimePoint now, std::uint64_t sample, const Judgement& judgement,
                             std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->checks.on_judgement(context, sample, judgement);
    state_->end_event(context);
}

void SwarmCore::on_drain(TimePoint now, Duration deadline, std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->sessions.drain(context, deadline);
}

void SwarmCore::on_tick(TimePoint now, std::vector<SwarmAction>& actions) {
    SwarmState& state = *state_;
    EventContext context{state, now, actions};
    while (!state.timers.empty() && state.timers.top().at <= now) {
        const SwarmTimer timer = state.timers.top();
        state.timers.pop();
        state.on_timer(context, timer);
    }
    state.end_event(context);
}

std::optional<TimePoint> SwarmCore::next_deadline() const {
    // Drop timers of attempts and rounds that have ended, so that an idle swarm does not wake its
    // driver.
    auto& timers = state_->timers;
    while (!timers.empty()) {
        const SwarmTimer& timer = timers.top();
        const bool dead = timer.kind == TimerKind::attempt || timer.kind == TimerKind::hedge
                              ? state_->in_flight.find_attempt(timer.id) == nullptr
                          : timer.kind == TimerKind::round
                              ? state_->in_flight.find_round(timer.id) == nullptr
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
    state_->attempts.set_hedge(policy);
}
void SwarmCore::set_local_fallback(bool on) {
    state_->options.local_fallback = on;
    // without a local backend only the workers can compute
    if (!on) state_->health.forget_silence();
}
const RowReader& SwarmCore::row_reader() const { return state_->row_reader; }
AnswerReader SwarmCore::answer_reader(WorkerId id) const {
    if (const Worker* worker = state_->pool.find(id)) return state_->frames.reader_of(*worker);
    return {state_->options.limits, state_->answer_memory, std::make_shared<AskedGroups>()};
}
const SwarmOptions& SwarmCore::options() const { return state_->options; }

}  // namespace moex
