// Connections of workers after their first frame: limits, heartbeats, drain and the end of each
// connection.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {
// The connection is closed after this many times heartbeats_missed_max missed heartbeats.
constexpr std::uint32_t heartbeats_missed_close = 5;
// A published peer sends nothing while it loads a batch of weights. This is the longest silence
// that the hub accepts.
constexpr Duration loading_silence_max = 10min;
// A worker whose step was late counts as silent this long after it was asked for a sign of life.
constexpr Duration sign_within = 1s;

// Returns true for a loopback address. Such a connection may come from a proxy, on behalf of any
// client.
bool is_loopback(std::string_view address) {
    return address.starts_with("127.") || address == "::1" || address == "[::1]" ||
           address.starts_with("::ffff:127.");
}
}  // namespace

SwarmSessions::SwarmSessions(SwarmState& swarm)
    : SwarmPart(swarm),
      control_bytes_max_(unauthenticated_frame_bytes_max +
                         std::min<std::uint64_t>(swarm.placement.directory().num_units(), 65535) *
                             (sizeof(Unit) + sizeof(UnitTier))) {}

WorkerId SwarmSessions::connect(EventContext& context, std::string address, bool authorized) {
    const WorkerId id = ++last_worker_;
    Worker& worker = pool_.add(id, options_.first_sequence_id);

    worker.prefix = address_prefix(address);
    worker.owner = address_owner(address);
    worker.trust_address = is_loopback(address) ? 0 : worker.prefix;
    worker.address = std::move(address);
    worker.authorized = authorized;
    worker.connected_at = context.now;

    if (draining_)
        refuse(context, worker, {ErrorCode::unavailable, "the hub is stopping; try again later"},
               CloseCode::going_away);
    // The count includes ghosts: lost connections that are removed only when their worker sends
    // HELLO again.
    else if (pool_.all().size() > 2 * std::size_t{options_.workers_max})
        refuse(context, worker,
               {ErrorCode::overloaded,
                text("the hub has its ", options_.workers_max, " workers; try again later")},
               CloseCode::going_away);
    else
        context.set_timer(context.now + options_.hello_within, TimerKind::hello, id);

    return id;
}

void SwarmSessions::on_hello_time(EventContext& context, WorkerId id) {
    Worker* worker = pool_.find(id);
    if (worker == nullptr || worker->welcomed()) return;
    refuse(context, *worker,
           {ErrorCode::timeout, text("no HELLO within ", options_.hello_within / 1ms, " ms")},
           CloseCode::policy);
}

void SwarmSessions::set_frame_limit(EventContext& context, Worker& worker) {
    // Answers of a span that was taken back may still be on their way.
    worker.span_answer_bytes_max = std::max(worker.span_answer_bytes_max,
                                            swarm_.spans.answer_bytes_max(worker));
    const std::uint64_t bytes = std::max(
        {control_bytes_max_, worker.ids.answer_bytes_max(), worker.span_answer_bytes_max});
    if (!worker.welcomed() || std::exchange(worker.frame_limit, bytes) == bytes) return;
    context.out.push_back(SetFrameLimit{.worker = worker.id, .bytes = bytes});
}

void SwarmSessions::refuse(EventContext& context, Worker& worker, const Error& error,
                           CloseCode code) {
    if (!worker.published_peer)
        context.send(worker, encode_error({.code = error_code_name(error.code),
                                           .found = error.message,
                                           .fatal = true}));
    remove_worker(context, worker.id, WorkerEvent::Kind::removed, error.message, code);
}

void SwarmSessions::remove_worker(EventContext& context, WorkerId id, WorkerEvent::Kind kind,
                                  std::string reason, std::optional<CloseCode> code) {
    const std::unique_ptr<Worker> worker = pool_.take(id);
    if (!worker) return;
    swarm_.spans.on_leave(id, context.now);
    if (code) context.out.push_back(CloseWorker{.worker = id, .code = *code, .reason = reason});

    if (worker->welcomed()) {
        context.event(*worker, kind, std::move(reason));
        std::get<WorkerEvent>(context.out.back()).code = code;
    }
    if (worker->welcomed() && kind == WorkerEvent::Kind::removed) ++counts_.removed;

    // The placement keeps no place for a worker that was removed, or that announced its departure
    // with DRAIN.
    const bool may_return = kind == WorkerEvent::Kind::left && !worker->worker_key.empty() &&
                            !worker->leaving() && !worker->hands_over && !draining_ &&
                            options_.return_within > Duration::zero();
    if (!worker->units.empty()) swarm_.placement.leave(*worker, may_return, context.now);

    std::vector<RoundId> touched;
    const auto live = worker->ids.live();
    for (const SequenceIds::Live& one : live) {
        Attempt& attempt = *in_flight_.find_attempt(one.attempt);
        touched.push_back(attempt.round);
        swarm_.attempts.drop_attempt(context, attempt, AttemptFailure::disconnect);
    }

    if (kind == WorkerEvent::Kind::removed) {
        // The removed worker's answers in open rounds are not trusted any more, so drop them too.
        swarm_.checks.drop_held(context, id, touched);
        for (const auto& [round_id, round] : in_flight_.rounds())
            if (round->reject_answers_of(id) > 0) touched.push_back(round_id);
    }

    // after the deadline of the hub's own drain, no other worker takes over the units
    swarm_.placement.settle(context, !draining_ || drain_at_ > context.now);

    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const RoundId round_id : touched)
        if (Round* round = in_flight_.find_round(round_id)) swarm_.rounds.dispatch(context, *round);
    swarm_.rounds.free_capacity();
    end_hand_overs(context);
}

void SwarmSessions::send_heartbeat(EventContext& context, Worker& worker,
                                   std::vector<std::uint32_t> units) {
    const std::uint32_t id = worker.next_heartbeat_id++;
    worker.heartbeats.push_back({.id = id, .sent_at = context.now, .units = std::move(units)});
    context.send(worker, encode_heartbeat(id));
}

void SwarmSessions::ask_for_sign(EventContext& context, Worker& worker) {
    if (worker.cancels_since_heard >= worker.cancels_since_heard_max()) return;  // asked already
    worker.cancels_since_heard = worker.cancels_since_heard_max();
    if (worker.heartbeats.size() < options_.heartbeats_missed_max)
        send_heartbeat(context, worker, {});
    worker.sign_asked_at = context.now;
    context.set_timer(context.now + sign_within, TimerKind::sign, worker.id);
}

void SwarmSessions::on_sign_time(EventContext& context, Worker& worker) {
    if (worker.heard_at < worker.sign_asked_at)
        swarm_.health.on_silence(context, worker, "it answers no heartbeat after a late step");
}

void SwarmSessions::on_heartbeat_time(EventContext& context, Worker& worker) {
    worker.ids.expire(context.now);

    set_frame_limit(context, worker);
    swarm_.placement.check_loading(context, worker);
    swarm_.spans.consider(context, worker);

    if (worker.loading_in_order() && context.now - worker.heard_at < loading_silence_max) {
        // The worker's echo is still awaited. Repeat the heartbeat, in case an echo is lost: seven
        // times in ten minutes.
        const TimePoint first = worker.heartbeats.front().sent_at,
                        last = worker.heartbeats.back().sent_at;
        if (context.now - last >= 2 * (last - first)) send_heartbeat(context, worker, {});
        context.set_timer(context.now + options_.heartbeat_every, TimerKind::heartbeat, worker.id);
        return;
    }

    worker.heartbeats_missed = static_cast<std::uint32_t>(worker.heartbeats.size());
    if (worker.heartbeats_missed >= heartbeats_missed_close * options_.heartbeats_missed_max) {
        remove_worker(context, worker.id, WorkerEvent::Kind::left,
                      text("no heartbeat for ", worker.heartbeats_missed, " periods"),
                      CloseCode::going_away);
        return;
    }

    if (worker.heartbeats_missed >= options_.heartbeats_missed_max)
        swarm_.health.on_silence(context, worker,
                                 text(worker.heartbeats_missed, " heartbeats missed"));

    send_heartbeat(context, worker, {});
    context.set_timer(context.now + options_.heartbeat_every, TimerKind::heartbeat, worker.id);
}

void SwarmSessions::on_heartbeat(EventContext& context, Worker& worker, const FrameHeader& header) {
    const auto echoed = std::find_if(
        worker.heartbeats.begin(), worker.heartbeats.end(),
        [&](const auto& beat) { return beat.id == header.sequence_id; });
    if (echoed == worker.heartbeats.end()) return;  // the heartbeat is not an echo

    const TimePoint sent_at = echoed->sent_at;
    std::vector<std::uint32_t> loaded;
    for (auto beat = worker.heartbeats.begin(); beat <= echoed; ++beat)
        loaded.insert(loaded.end(), beat->units.begin(), beat->units.end());
    // The worker handles frames in order, so this echo also answers the earlier heartbeats.

    worker.heartbeats.erase(worker.heartbeats.begin(), echoed + 1);
    worker.heartbeats_missed = 0;

    if (worker.health.state() == Health::silent && sent_at >= worker.health.since()) {
        worker.health.on(HealthEvent::echo, context.now);
        context.event(worker, WorkerEvent::Kind::healthy, "it answers heartbeats again");
    }

    swarm_.placement.mark_ready(context, worker, loaded);
    swarm_.rounds.free_capacity();  // the worker was silent and may be sent groups again
}

// Handles DRAIN: the worker leaves. Its units are assigned to other workers now. Where the hub has
// no local backend, the worker serves until they have the units that only it had ready; its
// deadline ends the wait.
void SwarmSessions::on_worker_drain(EventContext& context, Worker& worker, ByteView frame) {
    constexpr Duration hand_over_max = 10s;
    const Result<std::uint32_t> deadline_ms = decode_drain(frame);
    if (!deadline_ms.ok()) {
        ++counts_.bad_frames;
        refuse(context, worker, deadline_ms.error(), close_code_for(deadline_ms.error().code));
        return;
    }
    if (worker.leaving() || worker.hands_over) return;

    const Duration deadline = std::chrono::milliseconds(*deadline_ms);
    context.set_timer(context.now + deadline, TimerKind::drain, worker.id);
    swarm_.spans.retire(worker.id);
    if (options_.local_fallback || draining_ || !worker.health.serves())
        return begin_leaving(context, worker);

    context.set_timer(context.now + hand_over_max, TimerKind::drain, worker.id);
    worker.hands_over = true;
    handing_over_.push_back(worker.id);
    swarm_.placement.hand_over(context, worker);
    end_hand_overs(context);
}

void SwarmSessions::end_hand_overs(EventContext& context) {
    const std::vector<WorkerId> all = handing_over_;
    for (const WorkerId id : all) {
        Worker* worker = pool_.find(id);
        if (worker == nullptr)
            std::erase(handing_over_, id);
        else if (!swarm_.placement.directory().is_handing_over(*worker))
            begin_leaving(context, *worker);
    }
}

// Sends the worker no further requests. close_leavers() closes the connection after its last
// answer.
void SwarmSessions::begin_leaving(EventContext& context, Worker& worker) {
    std::erase(handing_over_, worker.id);
    worker.health.on(HealthEvent::drain, context.now);
    leavers_.push_back(worker.id);
    swarm_.placement.leave(worker, false, context.now);
    swarm_.placement.settle(context, !draining_);
}

void SwarmSessions::close_leavers(EventContext& context) {
    if (leavers_.empty()) return;
    std::vector<WorkerId> done;
    std::erase_if(leavers_, [&](WorkerId id) {
        const Worker* worker = pool_.find(id);
        if (worker != nullptr && (worker->ids.num_live() > 0 || swarm_.spans.has_steps(id)))
            return false;
        done.push_back(id);
        return true;
    });
    for (const WorkerId id : done)
        remove_worker(context, id, WorkerEvent::Kind::left, "it drained", CloseCode::going_away);
}

void SwarmSessions::drain(EventContext& context, Duration deadline) {
    draining_ = true;
    drain_at_ = context.now + deadline;

    const auto deadline_ms = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(deadline / 1ms, 0, 0xffffffff));
    for (const auto& [id, worker] : pool_.all())
        if (worker->welcomed() && !worker->published_peer)
            context.send(*worker, encode_drain(deadline_ms));

    if (deadline > Duration::zero()) {
        context.set_timer(drain_at_, TimerKind::drain, 0);
    } else {
        on_drain_time(context, 0);
    }
}

void SwarmSessions::on_drain_time(EventContext& context, WorkerId id) {
    if (id != 0) {
        remove_worker(context, id, WorkerEvent::Kind::left, "it drained; its deadline has passed",
                      CloseCode::going_away);
        return;
    }

    if (!draining_ || drain_at_ > context.now) return;
    while (!pool_.all().empty())
        remove_worker(context, pool_.all().begin()->first, WorkerEvent::Kind::left, "the hub stops",
                      CloseCode::going_away);
}

}  // namespace moex
