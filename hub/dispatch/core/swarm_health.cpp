// Failures of workers, probes of ejected workers, and silence of the whole swarm, with their
// effects.
#include <algorithm>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {

void SwarmHealth::on_sign_of_life(Worker& worker, TimePoint now) {
    worker.cancels_since_heard = 0;
    worker.heard_at = heard_at_ = now;
    unanswered_.clear();
    if (std::exchange(all_silent_, false)) swarm_.rounds.free_capacity();
}

void SwarmHealth::on_sign_of_work(EventContext& context, Worker& worker, TimePoint sent_at) {
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

void SwarmHealth::on_silence(EventContext& context, Worker& worker, std::string why) {
    if (worker.health.on(HealthEvent::silence, context.now))
        context.event(worker, WorkerEvent::Kind::unhealthy, std::move(why));
}

// Without a local backend, half of the swarm stays in service however often its workers fail. If
// most workers fail, the requests are more likely at fault than all of the workers.
bool SwarmHealth::may_eject_one_more() const {
    if (options_.local_fallback) return true;
    std::size_t num_out = 1, num_loaded = 0;
    for (const auto& [id, worker] : pool_.all()) {
        num_out += worker->state() == WorkerState::unhealthy;
        num_loaded += worker->state() == WorkerState::unhealthy ||
                      worker->state() == WorkerState::active;
    }
    return 2 * num_out <= num_loaded;
}

void SwarmHealth::add_failure(EventContext& context, Worker& worker, const char* why) {
    const bool changed = worker.health.failed(context.now, may_eject_one_more(), options_.health);
    if (!changed || worker.health.state() != Health::ejected) return;

    worker.probed_at.reset();
    context.set_timer(worker.health.ejected_until(), TimerKind::health, worker.id);
    context.event(
        worker, WorkerEvent::Kind::unhealthy,
        text(worker.health.failures_in_row(), " failures in a row, the last: ", why,
             "; no requests for ", (worker.health.ejected_until() - context.now) / 1s, " s"));
}

// A single silent worker is slow or gone; that says nothing about the network. The network is
// considered down if three workers (or all, if there are fewer) have timed out, and no frame from
// any worker has arrived since their requests were sent.
void SwarmHealth::watch_for_silence(EventContext& context, const Attempt& late) {
    constexpr std::size_t enough = 3;
    if (!options_.local_fallback || all_silent_ || late.sent_at < heard_at_) return;
    if (std::find(unanswered_.begin(), unanswered_.end(), late.worker) == unanswered_.end())
        unanswered_.push_back(late.worker);

    const auto num_asked = static_cast<std::size_t>(
        std::count_if(pool_.all().begin(), pool_.all().end(), [](const auto& entry) {
            return entry.second->ids.num_live() > 0 || entry.second->health.serves();
        }));
    if (unanswered_.size() < std::min(enough, num_asked)) return;

    all_silent_ = true;
    std::vector<RoundId> open;
    for (const auto& [id, round] : in_flight_.rounds()) open.push_back(id);
    std::sort(open.begin(), open.end());
    for (const RoundId id : open)
        if (Round* round = in_flight_.find_round(id)) swarm_.rounds.dispatch(context, *round);
}

void SwarmHealth::on_ejection_over(EventContext& context, Worker& worker) {
    if (worker.health.ejected_until() <= context.now &&
        worker.health.on(HealthEvent::time_over, context.now))
        probing_.push_back(worker.id);
}

// Sends probes to half-open workers. After its ejection a worker is half-open: it is sent a copy of
// a request that other workers compute. It serves again when it has answered the copy, and is
// ejected for longer if it does not answer in time.
void SwarmHealth::send_probes(EventContext& context, Round& round) {
    if (probing_.empty() || all_silent_) return;
    constexpr Duration probe_within = 5s;
    const std::vector<WorkerId> ids = probing_;
    for (const WorkerId id : ids) {
        Worker* worker = pool_.find(id);
        if (worker == nullptr || worker->health.state() != Health::probing) {
            std::erase(probing_, id);
        } else if (!worker->probed_at) {
            if (swarm_.cover.eligible(*worker, context.now) &&
                swarm_.attempts.send_probe(context, round, *worker, worker->pairs_max))
                worker->probed_at = context.now;
        } else if (context.now - *worker->probed_at >= probe_within) {
            add_failure(context, *worker, "no answer to a probe");
        }
    }
}

}  // namespace moex
