// Simulates the network, which loses, delays, duplicates and damages frames, and the workers, which
// load units, compute answers and lie.
#include <algorithm>
#include <cmath>

#include "protocol/half.h"
#include "tests/sim/sim_state.h"

namespace moex::sim {

// Flips one random bit of the frame's header. Bits of y are never flipped: a changed value of y is
// a valid frame that the hub cannot recognise as damaged. On a real network the checksum of TCP
// recognises it.
void SimState::flip(Bytes& frame) {
    const std::size_t end = std::min<std::size_t>(frame.size(), tensor_header_bytes);
    std::size_t byte = random() % end;
    // Do not flip the sequence id (bytes 12 to 15): the id of another attempt would be valid as
    // well.
    if (byte >= 12 && byte < 16) byte -= 12;
    frame[byte] ^= static_cast<std::byte>(1u << (random() % 8));
}

void SimState::carry(Bytes frame, Line& line, std::function<void(Bytes)> arrive) {
    const Faults& faults = options.faults;
    if (strikes(faults.loss)) return note("lost", 0, frame);

    TimePoint when = now;
    if (line.bytes_per_s > 0) {
        line.free_at = std::max(now, line.free_at) +
                       Duration(static_cast<std::int64_t>(1e9 * static_cast<double>(frame.size()) /
                                                          static_cast<double>(line.bytes_per_s)));
        when = line.free_at;
    }
    when += options.latency + jitter(options.latency);
    if (strikes(faults.delay)) when += jitter(faults.delay_max);
    // without reordering, a stream keeps the order of its frames
    if (!strikes(faults.reorder)) when = std::max(when, line.last);
    line.last = std::max(line.last, when);

    if (frame.size() > 1 && strikes(faults.truncation))
        frame.resize(1 + random() % (frame.size() - 1));
    if (strikes(faults.bit_flips)) flip(frame);
    if (strikes(faults.duplication)) at(when + jitter(20ms), [arrive, frame] { arrive(frame); });
    at(when, [arrive, frame = std::move(frame)]() mutable { arrive(std::move(frame)); });
}

void SimState::to_hub(WorkerId id, Bytes frame) {
    SimWorker& worker = workers.at(id);
    carry(std::move(frame), worker.to_hub, [this, id](Bytes arrived) { hub_reads(id, arrived); });
}

void SimState::hub_reads(WorkerId id, const Bytes& frame) {
    if (!workers.at(id).alive) return;
    note("hub reads", id, frame);
    // A real socket would close with code 1009 here. The check applies only to a network that keeps
    // order: a network that duplicates or loses frames delivers sequences that no stream delivers.
    if (frame.size() > workers.at(id).frame_limit && !network_reorders())
        violation(text("worker ", id, " sends ", frame.size(), " bytes, its limit is ",
                       workers.at(id).frame_limit));
    workers.at(id).ledger.hub_reads(frame, limits);
    std::vector<SwarmAction> actions;
    // As in a connection, answers are decoded before the core receives them. The core has to decode
    // every fourth frame itself.
    std::optional<WorkerAnswer> answer;
    if (core->welcomed(id) && num_frames_read++ % 4 != 0)
        answer = core->answer_reader(id).read(frame);
    if (answer)
        core->on_answer(now, id, *std::move(answer), actions);
    else
        core->on_frame(now, id, frame, actions);
    perform(actions);
}

void SimState::worker_reads(WorkerId id, Bytes frame) {
    SimWorker& worker = workers.at(id);
    if (!worker.alive || worker.stalled) return;
    if (now < worker.reads_at)
        return at(worker.reads_at,
                  [this, id, frame = std::move(frame)] { worker_reads(id, frame); });
    const Result<FrameHeader> header = decode_frame_header(frame);
    // The worker's decoder refuses the frame, so the worker reconnects. The hub sees this as a
    // leave.
    if (!header.ok()) return leave(id);
    switch (header->type) {
        case FrameType::welcome:
            if (options.reports_held) tell_held(worker);
            break;
        case FrameType::heartbeat: to_hub(id, encode_heartbeat(header->sequence_id)); break;
        case FrameType::assign: {
            const auto units = decode_assign(frame, limits);
            if (!units.ok()) return leave(id);
            if (worker.loading_stalled) break;
            std::vector<Unit> loaded;
            for (const AssignedUnit& unit : units->units)
                loaded.push_back({unit.layer, unit.expert});
            load(worker, std::move(loaded));
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
        case FrameType::prefetch: {
            const auto hints = decode_prefetch(frame, limits);
            if (!hints.ok()) return leave(id);
            std::vector<Unit> units;
            for (const PrefetchHint& hint : *hints) units.push_back(hint.unit);
            units.resize(std::min<std::size_t>(units.size(), worker.profile.slots));
            bring(worker, units, false);
            break;
        }
        case FrameType::span_assign:
        case FrameType::span_release:
        case FrameType::span_step:
        case FrameType::span_kv:
        case FrameType::span_end:
        case FrameType::span_state:
            if (!reads_span_frame(worker, header->type, frame)) return leave(id);
            break;
        case FrameType::group_dispatch:
        case FrameType::dispatch: begin_group(worker, *header, std::move(frame)); break;
        default: break;
    }
}

bool SimState::network_reorders() const {
    const Faults& faults = options.faults;
    return faults.loss > 0 || faults.duplication > 0 || faults.reorder > 0 || faults.bit_flips > 0;
}

void SimState::begin_group(SimWorker& worker, const FrameHeader& header, Bytes frame) {
    const WorkerId id = worker.id;
    if (worker.compute_stalled) return;
    for (const Unit& unit : units_asked(frame, limits)) {
        if (worker.held.contains(unit)) continue;
        // A call for a unit that the worker does not hold breaks an invariant, unless the network
        // loses, duplicates or reorders frames: then a RELEASE can overtake a call, or a
        // WEIGHT_SYNC can be lost. A stream does neither.
        if (!network_reorders() && !worker.forgot)
            violation(text("worker ", id, " is sent a call for layer ", unit.layer, " expert ",
                           unit.expert, ", which it does not hold"));
        return to_hub(id,
                      encode_error({.sequence_id = header.sequence_id,
                                    .code = std::string(error_code_name(ErrorCode::unknown_expert)),
                                    .fatal = false}));
    }
    if (worker.busy_ms > 0 || strikes(options.faults.busy))
        return to_hub(id,
                      encode_busy(header.sequence_id, worker.busy_ms > 0 ? worker.busy_ms : 30));
    if (!worker.error_code.empty() || strikes(options.faults.error))
        return to_hub(
            id, encode_error({.sequence_id = header.sequence_id,
                              .code = worker.error_code.empty() ? "device_lost" : worker.error_code,
                              .fatal = worker.error_fatal}));
    if (const auto call = decode_group_dispatch(frame, limits); call.ok()) {
        if (call->shape.num_pairs > worker.pairs_max)
            return to_hub(id, encode_error({.sequence_id = header.sequence_id,
                                            .code = "num_tokens_range",
                                            .wanted = text(worker.pairs_max),
                                            .fatal = false}));
        if (worker.overflows_f16 && call->shape.dtype == Dtype::f16)
            return to_hub(
                id, encode_error(
                        {.sequence_id = header.sequence_id, .code = "non_finite", .fatal = false}));
    }
    std::uint32_t num_pairs = 1;
    if (const auto call = decode_group_dispatch(frame, limits); call.ok())
        num_pairs = call->shape.num_pairs;
    if (strikes(worker.profile.never)) return;
    if (worker.profile.slots > 0) bring_for_group(worker, units_asked(frame, limits));
    worker.computing.insert(header.sequence_id);
    const TimePoint answered_at = answer_time(worker, units_asked(frame, limits), num_pairs);
    at(answered_at, [this, id, sequence_id = header.sequence_id, frame = std::move(frame)] {
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

void SimState::bring_for_group(SimWorker& worker, std::span<const Unit> units) {
    for (const Unit& unit : units) {
        const auto slot = worker.slots.find(unit);
        worker.missed += slot == worker.slots.end() || slot->second.there_at > now;
    }
    worker.free_at = std::max(worker.free_at, bring(worker, units, true));
}

TimePoint SimState::bring(SimWorker& worker, std::span<const Unit> units, bool urgent) {
    const Duration load = worker.profile.load;
    TimePoint all_there = now;

    // The newest request has priority, and calls have priority over hints: drop the loads for hints
    // that have not begun yet.
    const TimePoint begins_at = urgent ? now : std::max(now, worker.urgent_until);
    std::erase_if(worker.slots,
                  [&](const auto& one) { return one.second.there_at > begins_at + load; });
    worker.brings_until = std::clamp(worker.brings_until, begins_at, begins_at + load);

    for (const Unit& unit : units) {
        if (!worker.held.contains(unit)) continue;

        const auto [slot, is_new] = worker.slots.try_emplace(unit);
        if (is_new) {
            worker.brings_until += load;
            slot->second.there_at = worker.brings_until;
        }
        slot->second.wanted = ++worker.num_wanted;
        all_there = std::max(all_there, slot->second.there_at);

        if (worker.slots.size() <= worker.profile.slots) continue;
        worker.slots.erase(std::min_element(worker.slots.begin(), worker.slots.end(),
                                            [](const auto& one, const auto& other) {
                                                return one.second.wanted < other.second.wanted;
                                            }));
    }
    if (urgent) worker.urgent_until = all_there;
    return all_there;
}

// Sends the worker's first READY, which lists the units that the worker has cached and need not
// download.
void SimState::tell_held(const SimWorker& worker) {
    const std::set<Unit>& cached = caches[worker.key];
    to_hub(worker.id, encode_ready({cached.begin(), cached.end()}));
}

std::uint64_t SimState::download(SimWorker& worker, std::span<const Unit> units) {
    std::set<Unit>& cached = caches[worker.key];
    const std::size_t before = cached.size();
    cached.insert(units.begin(), units.end());
    bytes_downloaded += (cached.size() - before) * options.blob_bytes;
    return cached.size() - before;
}

// Loads `units` and reports them with READY. With a limited download rate, the units become ready
// one after the other; without a limit, all together.
void SimState::load(SimWorker& worker, std::vector<Unit> units) {
    // interval of READY, the same as in web-worker/expert_loader
    constexpr Duration told_every = 20ms;
    const WorkerId id = worker.id;
    worker.held.insert(units.begin(), units.end());
    const std::uint64_t bytes_per_s = worker.profile.down_bytes_per_s;
    if (bytes_per_s == 0) {
        download(worker, units);
        at(now + 50ms + jitter(100ms), [this, id, units = std::move(units)] {
            if (workers.at(id).alive) to_hub(id, encode_ready(units));
        });
        return;
    }

    worker.loaded_at = std::max(now, worker.loaded_at);
    const Duration each(static_cast<std::int64_t>(1e9 * static_cast<double>(options.blob_bytes) /
                                                  static_cast<double>(bytes_per_s)));
    std::vector<Unit> some;
    TimePoint told_at = worker.loaded_at;
    for (std::size_t i = 0; i < units.size(); ++i) {
        some.push_back(units[i]);
        if (download(worker, std::span(units).subspan(i, 1)) > 0) worker.loaded_at += each;
        if (i + 1 < units.size() && worker.loaded_at - told_at < told_every) continue;

        told_at = worker.loaded_at;
        at(told_at, [this, id, told = std::exchange(some, {})] {
            if (workers.at(id).alive && !workers.at(id).loading_stalled)
                to_hub(id, encode_ready(told));
        });
    }
}

Duration SimState::compute_time(const SimWorker& worker, std::uint32_t num_pairs) {
    const WorkerProfile& profile = worker.profile;
    const auto scaled = [](Duration time, double factor) {
        return Duration(static_cast<std::int64_t>(static_cast<double>(time.count()) * factor));
    };
    return profile.spread > 0
               ? scaled(profile.compute + num_pairs * profile.per_pair,
                        std::exp(profile.spread * normal()))
               : profile.compute + jitter(profile.compute) + num_pairs * profile.per_pair;
}

Duration SimState::stall_time(const SimWorker& worker) {
    const WorkerProfile& profile = worker.profile;
    Duration time{};
    if (strikes(profile.stall))
        time += profile.stall_min + jitter(profile.stall_max - profile.stall_min);
    if (strikes(options.faults.stall)) time += jitter(options.faults.stall_max);
    return time;
}

// Returns the time at which the worker answers a group. The worker computes one group at a time, so
// a stall also delays the groups that are queued behind it.
TimePoint SimState::answer_time(SimWorker& worker, std::span<const Unit> units,
                                std::uint32_t num_pairs) {
    const TimePoint usual = std::max(now, worker.free_at) + compute_time(worker, num_pairs);
    const Duration stall = stall_time(worker);
    if (stall > Duration{}) worker.stalls_until = usual + stall;

    if (options.foresees_stalls && worker.stalls_until > now)
        if (const auto others = time_of_others(worker, units, num_pairs)) {
            if (stall > Duration{}) worker.free_at = worker.stalls_until;
            return *others;
        }
    worker.free_at = usual + stall;
    return worker.free_at;
}

// Returns the time at which other holders of `units`, which do not stall, would have computed the
// group; nullopt if a unit has no such holder.
std::optional<TimePoint> SimState::time_of_others(const SimWorker& worker,
                                                  std::span<const Unit> units,
                                                  std::uint32_t num_pairs) {
    std::set<WorkerId> asked;
    for (const Unit& unit : units) {
        SimWorker* best = nullptr;
        for (auto& [id, other] : workers) {
            if (id == worker.id || !other.alive || other.stalls_until > now ||
                !other.held.contains(unit))
                continue;
            const auto rank = [&](const SimWorker& one) {
                return std::tuple(!asked.contains(one.id), one.free_at);
            };
            if (best == nullptr || rank(other) < rank(*best)) best = &other;
        }
        if (best == nullptr) return std::nullopt;
        asked.insert(best->id);
    }

    TimePoint last = now;
    for (const WorkerId id : asked) {
        SimWorker& other = workers.at(id);
        const auto each = static_cast<std::uint32_t>(num_pairs / asked.size());
        other.free_at = std::max(now, other.free_at) + compute_time(other, std::max(1u, each));
        last = std::max(last, other.free_at);
    }
    return last;
}

Lie SimState::next_lie(SimWorker& worker) {
    const WorkerProfile& profile = worker.profile;
    if (profile.lie == Lie::none || worker.num_answers++ < profile.honest_first) return Lie::none;
    return profile.lie_share >= 1 || strikes(profile.lie_share) ? profile.lie : Lie::none;
}

void SimState::say(SimWorker& worker, Lie lie, std::vector<float>& y) {
    if (lie == Lie::not_finite) y[0] = std::numeric_limits<float>::infinity();
    if (lie == Lie::huge) std::fill(y.begin(), y.end(), 60000.0f);
    tell_lie(lie, std::span(y), worker.previous, random);
}

Bytes SimState::compute_single(SimWorker& worker, const Bytes& frame) {
    const std::uint32_t hidden = limits.hidden_size;
    const auto call = decode_dispatch(frame, limits);
    if (!call.ok()) return {};

    const Lie lie = next_lie(worker);
    ExpertResult result{.sequence_id = call->sequence_id,
                        .layer = call->layer,
                        .expert = call->expert,
                        .dtype = call->dtype};
    result.y.resize(call->x.size());
    for (std::size_t row = 0; row < call->gates.size(); ++row)
        sim_expert(call->layer, call->expert + (lie == Lie::other_expert),
                   call->x.data() + row * hidden, half_to_float(call->gates[row]), hidden, true,
                   result.y.data() + row * hidden);
    if (lie == Lie::shape)
        result.layer = static_cast<std::uint16_t>((result.layer + 1) % limits.num_layers);
    say(worker, lie, result.y);
    if (worker.overflows_f16 && call->dtype == Dtype::f16)
        result.y[0] = std::numeric_limits<float>::infinity();
    return encode_result(result, hidden, false);
}

Bytes SimState::compute(SimWorker& worker, const Bytes& frame) {
    if (worker.peer == Peer::published) return compute_single(worker, frame);
    const std::uint32_t hidden = limits.hidden_size;
    const auto call = decode_group_dispatch(frame, limits);
    if (!call.ok()) return {};

    const Lie lie = next_lie(worker);
    const bool unsummed = call->shape.unsummed;
    GroupResult result{.sequence_id = call->sequence_id, .shape = call->shape};
    result.y.assign(std::size_t{unsummed ? call->shape.num_pairs : call->shape.num_tokens} * hidden,
                    0.0f);
    std::vector<float> one(hidden);
    std::size_t pair = 0;
    for (const GroupExpert& expert : call->experts)
        for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair) {
            const std::size_t row = call->rows[pair];
            sim_expert(call->shape.layer, expert.expert + (lie == Lie::other_expert),
                       call->x.data() + row * hidden, half_to_float(call->gates[pair]), hidden,
                       unsummed, one.data());
            float* out = result.y.data() + (unsummed ? pair : row) * hidden;
            for (std::uint32_t c = 0; c < hidden; ++c) out[c] += one[c];
        }
    if (lie == Lie::shape)
        result.shape.layer = static_cast<std::uint16_t>((result.shape.layer + 1) %
                                                        limits.num_layers);
    say(worker, lie, result.y);
    return encode_group_result(result, false);
}

void SimState::leave(WorkerId id) {
    SimWorker& worker = workers.at(id);
    if (!worker.alive) return;
    worker.alive = false;
    note("worker leaves", id);
    std::vector<SwarmAction> actions;
    core->on_disconnect(now, id, actions);
    perform(actions);
}

}  // namespace moex::sim
