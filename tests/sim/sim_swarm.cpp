#include "tests/sim/sim_swarm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "protocol/half.h"
#include "tests/sim/unit_ledger.h"

namespace moex::sim {
namespace {

constexpr std::uint32_t blob_bytes = 1000;
const char* const good_token = "sim-token";

std::uint64_t hash_bytes(std::uint64_t hash, ByteView bytes) {
    for (const std::byte b : bytes)
        hash = (hash ^ std::to_integer<std::uint8_t>(b)) * 0x100000001b3ull;
    return hash;
}

}  // namespace

void sim_expert(std::uint32_t layer, std::uint32_t expert, const float* x, float gate,
                std::uint32_t hidden_size, bool round_f16, float* y) {
    const float scale = 0.25f + 0.0625f * static_cast<float>(expert % 7),
                shift = 0.01f * static_cast<float>(layer + 1);
    for (std::uint32_t i = 0; i < hidden_size; ++i) {
        const float value = gate * (scale * x[i] + shift * x[(i + expert + 1) % hidden_size]);
        y[i] = round_f16 ? half_to_float(float_to_half(value)) : value;
    }
}

struct SimSwarm::State {
    struct SimWorker {
        WorkerId id = 0;
        Peer peer = Peer::ours;
        bool alive = true, stalled = false, compute_stalled = false, forgot = false;
        Duration compute{};
        Duration download{};
        TimePoint reads_at{};
        std::uint32_t pairs_max = std::numeric_limits<std::uint32_t>::max();
        bool overflows_f16 = false;
        Lie lie = Lie::none;
        std::uint32_t busy_ms = 0;
        std::string error_code;
        bool error_fatal = false;
        TimePoint free_at{}, last_to_worker{}, last_to_hub{};
        std::set<std::uint32_t> cancelled, computing;
        std::set<Unit> held;
        UnitLedger ledger;
        std::vector<Bytes> received;
        std::optional<CloseCode> closed;
        std::uint64_t frame_limit = unauthenticated_frame_bytes_max;
    };
    struct Event {
        TimePoint at;
        std::uint64_t order;
        std::function<void()> run;
        bool background;  // does not keep run_until_idle() going
        bool operator>(const Event& other) const {
            return std::tie(at, order) > std::tie(other.at, other.order);
        }
    };

    SimOptions options;
    WireLimits limits;
    std::unique_ptr<SwarmCore> core;
    std::mt19937_64 random;
    TimePoint now{1s};
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
    std::uint64_t order = 0, hash = 0xcbf29ce484222325ull, num_events = 0;
    std::size_t foreground = 0, in_flight_most = 0;
    std::map<WorkerId, SimWorker> workers;
    std::map<RoundId, RoundOutcome> outcomes;
    std::vector<std::string> violations, lines;
    std::vector<WorkerEvent> worker_events;
    std::set<WorkerId> removed_now;  // told to go: no answer of theirs may count any more
    std::optional<TimePoint> tick_at;

    double uniform() { return static_cast<double>(random() >> 11) * 0x1p-53; }
    bool strikes(double share) { return share > 0 && uniform() < share; }
    Duration jitter(Duration most) {
        return Duration(static_cast<std::int64_t>(uniform() * static_cast<double>(most.count())));
    }

    void note(const char* what, std::uint64_t id, ByteView bytes = {}) {
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
    void violation(std::string what) {
        violations.push_back(text("at ", to_ms(now.time_since_epoch()), " ms: ", what));
    }

    void at(TimePoint when, std::function<void()> run, bool background = false) {
        events.push({when, order++, std::move(run), background});
        if (!background) ++foreground;
    }

    // ---- the hub's side
    void perform(std::vector<SwarmAction>& actions) {
        for (SwarmAction& action : actions) std::visit([&](auto& what) { act(what); }, action);
        check_bounds();
        const auto next = core->next_deadline();
        if (next && (!tick_at || *next < *tick_at)) {
            tick_at = *next;
            at(
                std::max(now, *next),
                [this] {
                    tick_at.reset();
                    std::vector<SwarmAction> more;
                    core->on_tick(now, more);
                    perform(more);
                },
                true);
        }
    }
    void act(SendFrame& action) {
        note("hub sends", action.worker, action.frame);
        const auto found = workers.find(action.worker);
        if (found == workers.end())
            return violation(text("a frame to the unknown worker ", action.worker));
        if (!found->second.alive) return;
        if (const auto unit = found->second.ledger.hub_sends(action.frame, limits))
            violation(text("worker ", action.worker, " is asked for layer ", unit->layer,
                           " expert ", unit->expert,
                           ", which it was not assigned or never said ready"));
        if (options.log) found->second.received.push_back(action.frame);
        carry(std::move(action.frame), found->second.last_to_worker,
              [this, id = action.worker](Bytes frame) { worker_reads(id, std::move(frame)); });
    }
    void act(CloseWorker& action) {
        note("hub closes", action.worker);
        SimWorker& worker = workers.at(action.worker);
        worker.closed = action.code;
        worker.alive = false;
        removed_now.insert(action.worker);
    }
    void act(SetFrameLimit& action) {
        const auto found = workers.find(action.worker);
        if (found == workers.end())
            return violation(text("a frame limit for the unknown worker ", action.worker));
        found->second.frame_limit = action.bytes;
    }
    void act(ComputeLocally& action) {
        note("local computes", action.attempt);
        std::vector<float> y(action.rows.size() * limits.hidden_size);
        std::size_t pair = 0;
        for (const GroupExpert& expert : action.experts)
            for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair)
                sim_expert(action.layer, expert.expert,
                           action.x->data() + std::size_t{action.rows[pair]} * limits.hidden_size,
                           action.gates[pair], limits.hidden_size,
                           options.swarm.rounding.deterministic,
                           y.data() + pair * limits.hidden_size);
        at(now + 5ms,
           [this, round = action.round, attempt = action.attempt, y = std::move(y)]() mutable {
               std::vector<SwarmAction> actions;
               core->on_local(now, round, attempt, std::move(y), actions);
               perform(actions);
           });
    }
    void act(RoundDone& action) {
        note(action.answer.ok() ? "round done" : "round failed", action.round,
             std::as_bytes(std::span(action.y)));
        RoundOutcome& outcome = outcomes[action.round];
        if (++outcome.times_done > 1)
            violation(text("round ", action.round, " was answered ", outcome.times_done, " times"));
        if (outcome.cancelled)
            violation(text("round ", action.round, " was answered after its cancel"));
        outcome.y = std::move(action.y);
        outcome.answer = std::move(action.answer);
        if (!outcome.answer->ok()) return;
        for (const WorkerId worker : (*outcome.answer)->workers)
            if (removed_now.contains(worker) && worker_events_removed(worker))
                violation(text("round ", action.round, " uses removed worker ", worker));
        if (!outcome.want.empty()) check_value(action.round, outcome);
    }
    void act(WorkerEvent& action) {
        note("worker event", action.worker * 8 + static_cast<std::uint64_t>(action.kind));
        if (options.log) lines.back() += text(" ", action.detail);
        worker_events.push_back(std::move(action));
    }
    bool worker_events_removed(WorkerId worker) const {
        return std::any_of(worker_events.begin(), worker_events.end(), [&](const auto& event) {
            return event.worker == worker && event.kind == WorkerEvent::Kind::removed;
        });
    }
    void check_value(RoundId round, RoundOutcome& outcome) {
        double largest = 1e-3, worst = 0;
        for (std::size_t i = 0; i < outcome.want.size(); ++i) {
            largest = std::max(largest, std::fabs(static_cast<double>(outcome.want[i])));
            worst = std::max(worst, std::fabs(static_cast<double>(outcome.y[i]) - outcome.want[i]));
        }
        outcome.error_max = worst / largest;
        const bool exact = options.swarm.rounding.deterministic;
        if (exact ? worst != 0 : outcome.error_max > 4e-3)
            violation(text("round ", round, " has a wrong sum, off by ", outcome.error_max));
    }
    void check_bounds() {
        const SwarmCounters counts = core->counters();
        if (counts.rounds_waiting > options.swarm.rounds_waiting_max)
            violation(text(counts.rounds_waiting, " rounds wait"));
        for (const WorkerView& view : core->workers()) {
            const std::size_t bound = options.swarm.queue_depth *
                                      (view.published_peer ? limits.num_experts : 1);
            in_flight_most = std::max<std::size_t>(in_flight_most, view.in_flight);
            if (view.in_flight > bound)
                violation(
                    text("worker ", view.id, " has ", view.in_flight, " groups, at most ", bound));
        }
    }

    // ---- the network
    // Flips strike headers alone: a flipped value of y looks like an
    // answer, and no check of today can tell (TCP's checksum does).
    void flip(Bytes& frame) {
        const std::size_t end = std::min<std::size_t>(frame.size(), tensor_header_bytes);
        std::size_t byte = random() % end;
        // another attempt's sequence id would be as good as its own
        if (byte >= 12 && byte < 16) byte -= 12;
        frame[byte] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    void carry(Bytes frame, TimePoint& last, std::function<void(Bytes)> arrive) {
        const Faults& faults = options.faults;
        if (strikes(faults.loss)) return note("lost", 0, frame);
        TimePoint when = now + options.latency + jitter(options.latency);
        if (strikes(faults.delay)) when += jitter(faults.delay_max);
        if (!strikes(faults.reorder)) when = std::max(when, last);  // a stream keeps its order
        last = std::max(last, when);
        if (frame.size() > 1 && strikes(faults.truncation))
            frame.resize(1 + random() % (frame.size() - 1));
        if (strikes(faults.bit_flips)) flip(frame);
        if (strikes(faults.duplication))
            at(when + jitter(20ms), [arrive, frame] { arrive(frame); });
        at(when, [arrive, frame = std::move(frame)]() mutable { arrive(std::move(frame)); });
    }
    void to_hub(WorkerId id, Bytes frame) {
        SimWorker& worker = workers.at(id);
        carry(std::move(frame), worker.last_to_hub,
              [this, id](Bytes arrived) { hub_reads(id, arrived); });
    }
    void hub_reads(WorkerId id, const Bytes& frame) {
        if (!workers.at(id).alive) return;
        note("hub reads", id, frame);
        // A socket would have ended here with 1009. A network that doubles frames or loses the
        // question delivers what a stream never could.
        if (frame.size() > workers.at(id).frame_limit && !network_reorders())
            violation(text("worker ", id, " sends ", frame.size(), " bytes, its limit is ",
                           workers.at(id).frame_limit));
        workers.at(id).ledger.hub_reads(frame, limits);
        std::vector<SwarmAction> actions;
        core->on_frame(now, id, frame, actions);
        perform(actions);
    }

    // ---- a worker's side
    void worker_reads(WorkerId id, Bytes frame) {
        SimWorker& worker = workers.at(id);
        if (!worker.alive || worker.stalled) return;
        if (now < worker.reads_at)
            return at(worker.reads_at,
                      [this, id, frame = std::move(frame)] { worker_reads(id, frame); });
        const Result<FrameHeader> header = decode_frame_header(frame);
        // its own decoder refuses: it reconnects, which to the hub is a leave
        if (!header.ok()) return leave(id);
        switch (header->type) {
            case FrameType::heartbeat: to_hub(id, encode_heartbeat(header->sequence_id)); break;
            case FrameType::assign: {
                const auto units = decode_assign(frame, limits);
                if (!units.ok()) return leave(id);
                std::vector<Unit> loaded;
                for (const AssignedUnit& unit : *units) {
                    worker.held.insert({unit.layer, unit.expert});
                    loaded.push_back({unit.layer, unit.expert});
                }
                at(now + 50ms + jitter(100ms), [this, id, loaded = std::move(loaded)] {
                    if (workers.at(id).alive) to_hub(id, encode_ready(loaded));
                });
                break;
            }
            case FrameType::weight_sync: {
                const auto sync = decode_weight_sync(frame, limits);
                if (!sync.ok()) return leave(id);
                worker.held.insert({sync->layer, sync->expert});
                worker.reads_at = now + worker.download;
                break;
            }
            case FrameType::release: {
                const auto units = decode_units(frame, limits);
                if (!units.ok()) return leave(id);
                for (const Unit& unit : *units) worker.held.erase(unit);
                break;
            }
            case FrameType::cancel:
                if (worker.computing.contains(header->sequence_id))
                    worker.cancelled.insert(header->sequence_id);
                break;
            case FrameType::group_dispatch:
            case FrameType::dispatch: begin_group(worker, *header, std::move(frame)); break;
            default: break;
        }
    }
    bool network_reorders() const {
        const Faults& faults = options.faults;
        return faults.loss > 0 || faults.duplication > 0 || faults.reorder > 0 ||
               faults.bit_flips > 0;
    }
    void begin_group(SimWorker& worker, const FrameHeader& header, Bytes frame) {
        const WorkerId id = worker.id;
        if (worker.compute_stalled) return;
        for (const Unit& unit : units_asked(frame, limits)) {
            if (worker.held.contains(unit)) continue;
            // A RELEASE may overtake a call, and a WEIGHT_SYNC be lost, where
            // the network loses, doubles or reorders; a stream does neither.
            if (!network_reorders() && !worker.forgot)
                violation(text("worker ", id, " is asked for layer ", unit.layer, " expert ",
                               unit.expert, ", which it does not hold"));
            return to_hub(
                id, encode_error({.sequence_id = header.sequence_id,
                                  .code = std::string(error_code_name(ErrorCode::unknown_expert)),
                                  .fatal = false}));
        }
        if (worker.busy_ms > 0 || strikes(options.faults.busy))
            return to_hub(
                id, encode_busy(header.sequence_id, worker.busy_ms > 0 ? worker.busy_ms : 30));
        if (!worker.error_code.empty() || strikes(options.faults.error))
            return to_hub(id, encode_error({.sequence_id = header.sequence_id,
                                            .code = worker.error_code.empty() ? "device_lost"
                                                                              : worker.error_code,
                                            .fatal = worker.error_fatal}));
        if (const auto call = decode_group_dispatch(frame, limits); call.ok()) {
            if (call->shape.num_pairs > worker.pairs_max)
                return to_hub(id, encode_error({.sequence_id = header.sequence_id,
                                                .code = "num_tokens_range",
                                                .wanted = text(worker.pairs_max),
                                                .fatal = false}));
            if (worker.overflows_f16 && call->shape.dtype == Dtype::f16)
                return to_hub(id, encode_error({.sequence_id = header.sequence_id,
                                                .code = "non_finite",
                                                .fatal = false}));
        }
        worker.free_at = std::max(now, worker.free_at) + worker.compute + jitter(worker.compute);
        if (strikes(options.faults.stall)) worker.free_at += jitter(options.faults.stall_max);
        worker.computing.insert(header.sequence_id);
        at(worker.free_at, [this, id, sequence_id = header.sequence_id, frame = std::move(frame)] {
            SimWorker& now_worker = workers.at(id);
            now_worker.computing.erase(sequence_id);
            if (now_worker.cancelled.erase(sequence_id) > 0 || !now_worker.alive ||
                now_worker.stalled || now_worker.compute_stalled)
                return;
            Bytes answer = compute(now_worker, frame);
            if (answer.empty()) return leave(id);
            to_hub(id, std::move(answer));
        });
    }
    Bytes compute(SimWorker& worker, const Bytes& frame) {
        const std::uint32_t hidden = limits.hidden_size;
        if (worker.peer == Peer::published) {
            const auto call = decode_dispatch(frame, limits);
            if (!call.ok()) return {};
            ExpertResult result{.sequence_id = call->sequence_id,
                                .layer = call->layer,
                                .expert = call->expert,
                                .dtype = call->dtype};
            result.y.resize(call->x.size());
            for (std::size_t row = 0; row < call->gates.size(); ++row)
                sim_expert(call->layer, call->expert, call->x.data() + row * hidden,
                           half_to_float(call->gates[row]), hidden, true,
                           result.y.data() + row * hidden);
            if (worker.lie == Lie::shape)
                result.layer = static_cast<std::uint16_t>((result.layer + 1) % limits.num_layers);
            if (worker.lie == Lie::not_finite ||
                (worker.overflows_f16 && call->dtype == Dtype::f16))
                result.y[0] = std::numeric_limits<float>::infinity();
            if (worker.lie == Lie::huge) std::fill(result.y.begin(), result.y.end(), 60000.0f);
            return encode_result(result, hidden, false);
        }
        const auto call = decode_group_dispatch(frame, limits);
        if (!call.ok()) return {};
        GroupResult result{.sequence_id = call->sequence_id, .shape = call->shape};
        result.y.assign(
            std::size_t{call->shape.unsummed ? call->shape.num_pairs : call->shape.num_tokens} *
                hidden,
            0.0f);
        std::vector<float> one(hidden);
        std::size_t pair = 0;
        for (const GroupExpert& expert : call->experts)
            for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair) {
                const std::size_t row = call->rows[pair];
                const bool unsummed = call->shape.unsummed;
                sim_expert(call->shape.layer, expert.expert, call->x.data() + row * hidden,
                           half_to_float(call->gates[pair]), hidden, unsummed, one.data());
                float* out = result.y.data() + (unsummed ? pair : row) * hidden;
                for (std::uint32_t c = 0; c < hidden; ++c) out[c] += one[c];
            }
        if (worker.lie == Lie::shape)
            result.shape.layer = static_cast<std::uint16_t>((result.shape.layer + 1) %
                                                            limits.num_layers);
        if (worker.lie == Lie::not_finite) result.y[0] = std::numeric_limits<float>::infinity();
        if (worker.lie == Lie::huge) std::fill(result.y.begin(), result.y.end(), 60000.0f);
        return encode_group_result(result, false);
    }
    void leave(WorkerId id) {
        SimWorker& worker = workers.at(id);
        if (!worker.alive) return;
        worker.alive = false;
        note("worker leaves", id);
        std::vector<SwarmAction> actions;
        core->on_disconnect(now, id, actions);
        perform(actions);
    }

    bool step(TimePoint limit) {
        if (events.empty() || events.top().at > limit) return false;
        Event event = std::move(const_cast<Event&>(events.top()));
        events.pop();
        if (!event.background) --foreground;
        now = std::max(now, event.at);
        event.run();
        return true;
    }
};

SimSwarm::SimSwarm(SimOptions given) : state_(std::make_unique<State>()) {
    State& state = *state_;
    state.random.seed(given.seed);
    SwarmOptions& swarm = given.swarm;
    swarm.limits.hidden_size = given.hidden_size;
    swarm.limits.num_layers = given.num_layers;
    swarm.limits.num_experts = given.num_experts;
    swarm.model_name = "sim";
    swarm.package_sha256 = std::string(64, '0');
    swarm.expert_shape = {
        .hidden_size = given.hidden_size, .moe_intermediate_size = 32, .group_size = 32};
    swarm.top_k = given.top_k;
    swarm.expert_blob_bytes = blob_bytes;
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
    for (std::uint32_t i = 0; i < state.options.num_workers; ++i)
        join(state.strikes(state.options.published_share) ? Peer::published : Peer::ours,
             text("10.0.", i % 4, ".", 1 + i % 250));
}
SimSwarm::~SimSwarm() = default;

WorkerId SimSwarm::connect(bool authorized, std::string address) {
    State& state = *state_;
    std::vector<SwarmAction> actions;
    const WorkerId id = state.core->on_connect(state.now, std::move(address), authorized, actions);
    State::SimWorker& worker = state.workers[id];
    worker.id = id;
    worker.compute = state.options.compute;
    state.note("worker connects", id);
    state.perform(actions);
    return id;
}

WorkerId SimSwarm::join(Peer peer, std::string address, std::string key) {
    const WorkerId id = connect(peer == Peer::published, std::move(address));
    State& state = *state_;
    state.workers.at(id).peer = peer;
    const std::uint64_t budget = std::uint64_t{state.options.budget_experts} * blob_bytes;
    if (state.strikes(state.options.faults.liars))
        state.workers.at(id).lie = static_cast<Lie>(1 + state.random() % 3);
    if (peer == Peer::published) {
        state.hub_reads(
            id, encode_heartbeat(
                    0, text("{\"device\":{\"backend\":\"sim\",\"budget_bytes\":", budget, "}}")));
    } else {
        Hello hello;
        hello.token = good_token;
        hello.device = {.backend = "sim", .budget_bytes = budget};
        hello.client = "sim";
        hello.worker_key = key.empty() ? text("key-", id) : std::move(key);
        state.hub_reads(id, encode_hello(hello));
    }
    return id;
}

void SimSwarm::say(WorkerId worker, Bytes frame) { state_->hub_reads(worker, frame); }
void SimSwarm::resize(WorkerId worker, std::uint32_t budget_experts) {
    std::set<Unit>& held = state_->workers.at(worker).held;
    Budget budget{.budget_bytes = std::uint64_t{budget_experts} * blob_bytes};
    while (held.size() > budget_experts) {
        budget.dropped.push_back(*held.rbegin());
        held.erase(budget.dropped.back());
    }
    say(worker, encode_budget(budget));
}
void SimSwarm::leave(WorkerId worker) { state_->leave(worker); }
void SimSwarm::slow_down(WorkerId worker, Duration compute) {
    state_->workers.at(worker).compute = compute;
}
void SimSwarm::stall(WorkerId worker, bool stalled) {
    state_->workers.at(worker).stalled = stalled;
}
void SimSwarm::stall_compute(WorkerId worker, bool stalled) {
    state_->workers.at(worker).compute_stalled = stalled;
}
void SimSwarm::forget_weights(WorkerId worker) {
    state_->workers.at(worker).held.clear();
    state_->workers.at(worker).forgot = true;
}
void SimSwarm::slow_download(WorkerId worker, Duration per_unit) {
    state_->workers.at(worker).download = per_unit;
}
void SimSwarm::take_at_most(WorkerId worker, std::uint32_t num_pairs) {
    state_->workers.at(worker).pairs_max = num_pairs;
}
void SimSwarm::overflow_f16(WorkerId worker) { state_->workers.at(worker).overflows_f16 = true; }
void SimSwarm::lie(WorkerId worker, Lie lie) { state_->workers.at(worker).lie = lie; }
void SimSwarm::answer_busy(WorkerId worker, std::uint32_t retry_ms) {
    state_->workers.at(worker).busy_ms = retry_ms;
}
void SimSwarm::answer_error(WorkerId worker, std::string code, bool fatal) {
    state_->workers.at(worker).error_code = std::move(code);
    state_->workers.at(worker).error_fatal = fatal;
}

RoundId SimSwarm::submit(RoundSpec spec) {
    State& state = *state_;
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
    // What it must be: each answer rounded, summed in f32 by ascending expert.
    const bool exact = state.options.swarm.rounding.deterministic;
    std::vector<float> want(x.size(), 0.0f), rounded = x, one(hidden);
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
        }
    }
    const ExpertBatch batch{.layer = spec.layer,
                            .num_tokens = spec.num_tokens,
                            .hidden_size = hidden,
                            .top_k = top_k,
                            .x = x,
                            .expert_ids = spec.expert_ids,
                            .expert_weights = weights};
    std::vector<SwarmAction> actions;
    const RoundId id = state.core->on_round(state.now, batch, actions);
    state.note("round opens", id);
    state.outcomes[id].want = std::move(want);
    state.perform(actions);
    return id;
}

void SimSwarm::cancel(RoundId round) {
    state_->outcomes.at(round).cancelled = true;
    std::vector<SwarmAction> actions;
    state_->core->on_cancel_round(state_->now, round, actions);
    state_->perform(actions);
}

void SimSwarm::drain(Duration deadline) {
    std::vector<SwarmAction> actions;
    state_->core->on_drain(state_->now, deadline, actions);
    state_->perform(actions);
}

void SimSwarm::run_for(Duration time) {
    const TimePoint until = state_->now + time;
    while (state_->step(until)) {}
    state_->now = until;
}

bool SimSwarm::run_until_idle(Duration limit) {
    const TimePoint until = state_->now + limit;
    while ((state_->core->counters().rounds_open > 0 || state_->foreground > 0) &&
           state_->step(until)) {}
    return state_->core->counters().rounds_open == 0;
}

bool SimSwarm::run_until_ready(Duration limit) {
    const TimePoint until = state_->now + limit;
    const auto all_ready = [&] {
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
std::vector<WorkerId> SimSwarm::workers_alive() const {
    std::vector<WorkerId> alive;
    for (const auto& [id, worker] : state_->workers)
        if (worker.alive) alive.push_back(id);
    return alive;
}
std::uint64_t SimSwarm::event_hash() const { return state_->hash; }
std::uint64_t SimSwarm::num_events() const { return state_->num_events; }
std::size_t SimSwarm::frames_at_once_max() const { return state_->in_flight_most; }
const std::vector<std::string>& SimSwarm::violations() const { return state_->violations; }
const std::vector<std::string>& SimSwarm::log() const { return state_->lines; }
const std::vector<WorkerEvent>& SimSwarm::worker_events() const { return state_->worker_events; }

}  // namespace moex::sim
