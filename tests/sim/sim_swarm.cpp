#include "tests/sim/sim_swarm.h"

#include <algorithm>
#include <cmath>

#include "protocol/half.h"
#include "tests/sim/sim_state.h"

namespace moex::sim {
namespace {

const char* const good_token = "sim-token";

std::uint64_t hash_bytes(std::uint64_t hash, ByteView bytes) {
    for (const std::byte b : bytes)
        hash = (hash ^ std::to_integer<std::uint8_t>(b)) * 0x100000001b3ull;
    return hash;
}

}  // namespace

void SimState::note(const char* what, std::uint64_t id, ByteView bytes) {
    ++num_events;
    const std::int64_t at = now.time_since_epoch().count();
    hash = hash_bytes(hash, as_byte_view(what));
    for (const std::uint64_t value :
         {static_cast<std::uint64_t>(at), id, static_cast<std::uint64_t>(bytes.size())})
        hash = (hash ^ value) * 0x100000001b3ull;
    hash = hash_bytes(hash, bytes);
    if (!options.log) return;

    std::string line = text(static_cast<double>(at) / 1e6, " ms ", what, " id=", id);
    if (bytes.size() >= frame_header_bytes) {
        ByteReader in(bytes);
        in.take(6);
        const auto type = static_cast<FrameType>(in.u16());
        in.u32();
        line += text(" type=", frame_type_name(type), " sequence_id=", in.u32(),
                     " bytes=", bytes.size());
    }
    lines.push_back(std::move(line));
}

bool SimState::step(TimePoint limit) {
    if (events.empty() || events.top().at > limit) return false;
    Event event = std::move(const_cast<Event&>(events.top()));
    events.pop();
    if (!event.background) --foreground;
    now = std::max(now, event.at);
    event.run();
    return true;
}

void SimState::say_hello(WorkerId id) {
    const SimWorker& worker = workers.at(id);
    const std::uint32_t experts = worker.profile.budget_experts != 0 ? worker.profile.budget_experts
                                                                     : options.budget_experts;
    const std::uint64_t budget = experts * options.blob_bytes;
    if (worker.peer == Peer::published) {
        hub_reads(id,
                  encode_heartbeat(
                      0, text("{\"device\":{\"backend\":\"sim\",\"budget_bytes\":", budget, "}}")));
        return;
    }
    Hello hello;
    hello.token = good_token;
    hello.device = {.backend = "sim", .budget_bytes = budget};
    hello.client = "sim";
    hello.worker_key = worker.key;
    hello.caps.push_back(x_int8_cap);
    if (options.reports_held) hello.caps.push_back("held");
    if (worker.profile.slots > 0) hello.caps.push_back(on_demand_cap);
    if (worker.profile.span_layers > 0) {
        // The hub plans with four fifths of what a worker reports.
        hello.caps.push_back(span_cap);
        hello.span_bytes = worker.profile.span_layers * 5 / 4 *
                               (limits.num_experts * options.blob_bytes + sim_layer_bytes) +
                           sim_layer_bytes;
        hello.span_kv_bytes = 1ull << 30;
    }
    hub_reads(id, encode_hello(hello));
}

SimSwarm::SimSwarm(SimOptions given) : state_(std::make_unique<SimState>()) {
    SimState& state = *state_;
    state.random.seed(given.seed);
    SwarmOptions& swarm = given.swarm;
    swarm.limits.hidden_size = given.hidden_size;
    swarm.limits.num_layers = given.num_layers;
    swarm.limits.num_experts = given.num_experts;
    swarm.gathered_bytes_min = given.gathered_bytes_min;
    swarm.model_name = "sim";
    swarm.package_sha256 = std::string(64, '0');
    swarm.expert_shape.hidden_size = given.hidden_size;
    swarm.expert_shape.moe_intermediate_size = swarm.expert_shape.group_size = 32;
    swarm.top_k = given.top_k;
    swarm.expert_blob_bytes = given.blob_bytes;
    swarm.layer_is_moe.assign(given.num_layers, 1);
    swarm.blob_hash = [](std::uint32_t layer, std::uint32_t expert) {
        Sha256 hash{};
        hash[0] = static_cast<std::byte>(layer);
        hash[1] = static_cast<std::byte>(expert);
        return hash;
    };
    swarm.token_ok = [](std::string_view token) { return token == good_token; };
    state.limits = swarm.limits;
    state.core = std::make_unique<SwarmCore>(swarm);
    state.options = std::move(given);
    if (state.options.watches_liveness) state.watch_liveness();
    for (std::uint32_t i = 0; i < state.options.num_workers; ++i)
        join(state.strikes(state.options.published_share) ? Peer::published : Peer::ours,
             text("10.0.", i % 4, ".", 1 + i % 250));
}
SimSwarm::~SimSwarm() = default;

WorkerId SimSwarm::connect(bool authorized, std::string address) {
    SimState& state = *state_;
    std::vector<SwarmAction> actions;
    const WorkerId id = state.core->on_connect(state.now, address, authorized, actions);
    SimState::SimWorker& worker = state.workers[id];
    worker.id = id;
    worker.address = std::move(address);
    worker.profile.compute = state.options.compute;
    state.note("worker connects", id);
    state.perform(actions);
    return id;
}

WorkerId SimSwarm::join(Peer peer, std::string address, std::string key) {
    const WorkerId id = connect(peer == Peer::published, std::move(address));
    SimState& state = *state_;
    state.workers.at(id).peer = peer;
    state.workers.at(id).key = key.empty() ? text("key-", id) : std::move(key);
    if (state.strikes(state.options.faults.liars))
        state.workers.at(id).profile.lie = static_cast<Lie>(
            1 + state.random() % (state.options.swarm.checks.on ? 14 : 3));
    state.say_hello(id);
    return id;
}

WorkerId SimSwarm::join_as(const WorkerProfile& profile, std::string address, std::string key) {
    const WorkerId id = connect(false, std::move(address));
    set_profile(id, profile);
    state_->workers.at(id).key = key.empty() ? text("key-", id) : std::move(key);
    state_->say_hello(id);
    return id;
}

void SimSwarm::set_profile(WorkerId id, const WorkerProfile& profile) {
    SimState::SimWorker& worker = state_->workers.at(id);
    worker.profile = profile;
    worker.to_hub.bytes_per_s = profile.up_bytes_per_s;
    worker.to_worker.bytes_per_s = profile.down_bytes_per_s;
}

void SimSwarm::go_dark(const std::string& address_begin, bool dark) {
    for (auto& [id, worker] : state_->workers)
        if (worker.address.starts_with(address_begin)) worker.stalled = dark;
}

void SimSwarm::jump_clock(Duration leap) { state_->now += leap; }

bool SimSwarm::run_until_answered(RoundId round, Duration limit) {
    const TimePoint until = state_->now + limit;
    const RoundOutcome& outcome = state_->outcomes.at(round);
    while (!outcome.answer && state_->step(until)) {}
    return outcome.answer && outcome.answer->ok();
}

void SimSwarm::say(WorkerId worker, Bytes frame) { state_->hub_reads(worker, frame); }
void SimSwarm::resize(WorkerId worker, std::uint32_t budget_experts) {
    std::set<Unit>& held = state_->workers.at(worker).held;
    Budget budget{.budget_bytes = std::uint64_t{budget_experts} * state_->options.blob_bytes};
    while (held.size() > budget_experts) {
        budget.dropped.push_back(*held.rbegin());
        held.erase(budget.dropped.back());
    }
    say(worker, encode_budget(budget));
}
void SimSwarm::leave(WorkerId worker) { state_->leave(worker); }
void SimSwarm::slow_down(WorkerId worker, Duration compute) {
    state_->workers.at(worker).profile.compute = compute;
}
void SimSwarm::slow_down_hub(Duration compute) { state_->options.local_compute = compute; }
void SimSwarm::stall(WorkerId worker, bool stalled) {
    state_->workers.at(worker).stalled = stalled;
}
void SimSwarm::stall_compute(WorkerId worker, bool stalled) {
    state_->workers.at(worker).compute_stalled = stalled;
}
void SimSwarm::stall_loading(WorkerId worker, bool stalled) {
    state_->workers.at(worker).loading_stalled = stalled;
}
void SimSwarm::forget_weights(WorkerId worker) {
    state_->workers.at(worker).held.clear();
    state_->caches.erase(state_->workers.at(worker).key);
    state_->workers.at(worker).forgot = true;
}
void SimSwarm::slow_download(WorkerId worker, Duration per_unit) {
    state_->workers.at(worker).download = per_unit;
}
void SimSwarm::take_at_most(WorkerId worker, std::uint32_t num_pairs) {
    state_->workers.at(worker).pairs_max = num_pairs;
}
void SimSwarm::overflow_f16(WorkerId worker) { state_->workers.at(worker).overflows_f16 = true; }
void SimSwarm::lie_in_spans(WorkerId worker, SpanLie lie, double share) {
    state_->workers.at(worker).spans.lie = lie;
    state_->workers.at(worker).spans.lie_share = share;
}
void SimSwarm::fail_spans(WorkerId worker, bool fails) {
    state_->workers.at(worker).spans.fails = fails;
}
void SimSwarm::lie(WorkerId worker, Lie lie) { state_->workers.at(worker).profile.lie = lie; }
void SimSwarm::answer_busy(WorkerId worker, std::uint32_t retry_ms) {
    state_->workers.at(worker).busy_ms = retry_ms;
}
void SimSwarm::answer_error(WorkerId worker, std::string code, bool fatal) {
    state_->workers.at(worker).error_code = std::move(code);
    state_->workers.at(worker).error_fatal = fatal;
}

RoundId SimSwarm::submit(RoundSpec spec) {
    SimState& state = *state_;
    const std::uint32_t hidden = state.limits.hidden_size, top_k = state.options.top_k;
    std::vector<float> x(std::size_t{spec.num_tokens} * hidden),
        weights(std::size_t{spec.num_tokens} * top_k);
    for (float& value : x) value = static_cast<float>(state.uniform() * 2 - 1);
    for (float& value : weights) value = static_cast<float>(state.uniform());
    if (spec.expert_ids.empty()) {
        std::vector<std::uint16_t> all(state.limits.num_experts);
        for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
        for (std::uint32_t row = 0; row < spec.num_tokens; ++row) {
            for (std::uint32_t k = 0; k < top_k; ++k)
                std::swap(all[k], all[k + state.random() % (all.size() - k)]);
            spec.expert_ids.insert(spec.expert_ids.end(), all.begin(), all.begin() + top_k);
        }
    }
    // Compute the right sum of the round: round each expert's answer, then add the answers in f32
    // by ascending expert.
    const bool exact = state.options.swarm.rounding.deterministic;
    std::vector<float> want(x.size(), 0.0f), rounded = x, one(hidden);
    std::vector<PairValue> parts;
    if (exact) round_rows(Dtype::f16, rounded, hidden);
    for (std::uint32_t row = 0; row < spec.num_tokens; ++row) {
        std::vector<std::uint32_t> by_expert(top_k);
        for (std::uint32_t k = 0; k < top_k; ++k) by_expert[k] = k;
        const std::uint16_t* ids = spec.expert_ids.data() + std::size_t{row} * top_k;
        std::sort(by_expert.begin(), by_expert.end(),
                  [&](auto a, auto b) { return ids[a] < ids[b]; });
        for (const std::uint32_t k : by_expert) {
            float gate = weights[std::size_t{row} * top_k + k];
            if (exact) gate = half_to_float(float_to_half(gate));
            sim_expert(spec.layer, ids[k], rounded.data() + std::size_t{row} * hidden, gate, hidden,
                       exact, one.data());
            for (std::uint32_t i = 0; i < hidden; ++i)
                want[std::size_t{row} * hidden + i] += one[i];
            if (!spec.patience.empty()) parts.push_back({.row = row, .expert = ids[k], .y = one});
        }
    }
    const ExpertBatch batch{.layer = spec.layer,
                            .num_tokens = spec.num_tokens,
                            .hidden_size = hidden,
                            .top_k = top_k,
                            .x = x,
                            .expert_ids = spec.expert_ids,
                            .expert_weights = weights,
                            .y = {},
                            .patience = spec.patience};
    std::vector<SwarmAction> actions;
    const RoundId id = state.core->on_round(state.now, batch, actions);
    state.note("round opens", id);
    if (state.options.watches_liveness) state.remember_holders(id, spec.layer, spec.expert_ids);
    state.outcomes[id].want = std::move(want);
    state.outcomes[id].patience = std::move(spec.patience);
    state.outcomes[id].parts = std::move(parts);
    state.outcomes[id].asked_at = state.now;
    state.perform(actions);
    return id;
}

void SimSwarm::cancel(RoundId round) {
    state_->outcomes.at(round).cancelled = true;
    std::vector<SwarmAction> actions;
    state_->core->on_cancel_round(state_->now, round, actions);
    state_->drop_local(round);
    state_->perform(actions);
}

void SimSwarm::forget(RoundId round) { state_->outcomes.erase(round); }

void SimSwarm::drain(Duration deadline) {
    std::vector<SwarmAction> actions;
    state_->core->on_drain(state_->now, deadline, actions);
    state_->perform(actions);
}

void SimSwarm::hint(const std::vector<ExpertHint>& hints) {
    std::vector<SwarmAction> actions;
    state_->core->on_hints(state_->now, hints, actions);
    state_->perform(actions);
}

std::uint64_t SimSwarm::experts_missed(WorkerId worker) const {
    return state_->workers.at(worker).missed;
}

Status SimSwarm::order(WorkerId worker, WorkerOrder order) {
    std::vector<SwarmAction> actions;
    Status done = state_->core->on_order(state_->now, worker, order, actions);
    state_->perform(actions);
    return done;
}

void SimSwarm::run_for(Duration time) {
    const TimePoint until = state_->now + time;
    while (state_->step(until)) {}
    state_->now = until;
}

bool SimSwarm::run_until_idle(Duration limit) {
    const TimePoint until = state_->now + limit;
    while ((state_->core->num_rounds_open() > 0 || state_->foreground > 0) && state_->step(until)) {
    }
    return state_->core->num_rounds_open() == 0;
}

bool SimSwarm::run_until_ready(Duration limit) {
    const TimePoint until = state_->now + limit;
    const auto all_ready = [&] {
        // some worker still loads units, or its READY is in flight
        if (state_->foreground > 0) return false;
        for (const WorkerView& view : state_->core->workers())
            if (view.units_ready < view.units_assigned || view.units_assigned == 0) return false;
        return true;
    };
    while (!all_ready() && state_->step(until)) {}
    return all_ready();
}

SwarmCore& SimSwarm::core() { return *state_->core; }
TimePoint SimSwarm::now() const { return state_->now; }
const RoundOutcome& SimSwarm::outcome(RoundId round) const { return state_->outcomes.at(round); }
std::vector<WorkerId> SimSwarm::answered_by(RoundId round) const {
    const RoundOutcome& outcome = state_->outcomes.at(round);
    if (!outcome.answer || !outcome.answer->ok()) return {};
    std::vector<WorkerId> workers = (*outcome.answer)->workers;
    const auto& rows = (*outcome.answer)->rows;
    if (std::any_of(rows.begin(), rows.end(),
                    [](const RowProvenance& row) { return row.pairs_local > 0; }))
        workers.insert(workers.begin(), 0);
    return workers;
}
std::optional<CloseCode> SimSwarm::closed_with(WorkerId worker) const {
    return state_->workers.at(worker).closed;
}
std::uint64_t SimSwarm::frame_limit(WorkerId worker) const {
    return state_->workers.at(worker).frame_limit;
}
std::vector<Bytes> SimSwarm::frames_to(WorkerId worker) const {
    return state_->workers.at(worker).received;
}
std::uint64_t SimSwarm::bytes_downloaded() const { return state_->bytes_downloaded; }
std::vector<WorkerId> SimSwarm::workers_alive() const {
    std::vector<WorkerId> alive;
    for (const auto& [id, worker] : state_->workers)
        if (worker.alive) alive.push_back(id);
    return alive;
}
std::uint64_t SimSwarm::event_hash() const { return state_->hash; }
std::uint64_t SimSwarm::num_events() const { return state_->num_events; }
std::uint64_t SimSwarm::num_gathered() const { return state_->num_gathered; }
std::size_t SimSwarm::frames_at_once_max() const { return state_->in_flight_most; }
const std::vector<std::string>& SimSwarm::violations() const { return state_->violations; }
const std::vector<std::string>& SimSwarm::log() const { return state_->lines; }
const std::vector<WorkerEvent>& SimSwarm::worker_events() const { return state_->worker_events; }

}  // namespace moex::sim
