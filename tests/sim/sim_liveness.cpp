// Checks liveness under faults: what must happen in spite of all faults, and what must never
// happen. The checks use the true state of the simulated workers and the frames that they sent.
// They do not use the core's own view of the workers.
#include <algorithm>

#include "tests/sim/sim_state.h"

namespace moex::sim {
namespace {

// Time within which a unit must get a holder. The hub notices a lost ASSIGN after half a minute, at
// the next heartbeat.
constexpr Duration covered_within = 45s;
constexpr Duration watched_every = 1s;
// Least time for which the hub sends no call to an ejected worker.
constexpr Duration ejected_for_min = 5s;

}  // namespace

// Returns true if the worker answers every call correctly.
bool SimState::is_sound(const SimWorker& worker) const {
    return worker.alive && !worker.stalled && !worker.compute_stalled && !worker.loading_stalled &&
           !worker.forgot && worker.profile.lie == Lie::none && worker.error_code.empty() &&
           worker.busy_ms == 0;
}

void SimState::watch_liveness() {
    at(
        now + watched_every,
        [this] {
            check_coverage();
            check_budget();
            watch_liveness();
        },
        true);
}

// Checks that every unit gets a holder within `covered_within` if the sound workers have memory for
// two copies of each unit. One copy is not enough, since some workers may get no new units for a
// while after a lost ASSIGN.
void SimState::check_coverage() {
    std::uint64_t room = 0;
    for (const auto& [id, worker] : workers) {
        const std::uint32_t own = worker.profile.budget_experts;
        if (is_sound(worker) && core->welcomed(id))
            room += std::min(limits.num_layers * limits.num_experts,
                             own != 0 ? own : options.budget_experts);
    }
    const bool has_room = room >= 2ull * limits.num_layers * limits.num_experts;

    const std::vector<std::uint16_t> replicas = core->replicas();
    uncovered_since.resize(replicas.size());
    for (std::size_t unit = 0; unit < replicas.size(); ++unit) {
        auto& since = uncovered_since[unit];
        if (!has_room || replicas[unit] > 0) {
            since.reset();
        } else if (!since) {
            since = now;
        } else if (now - *since > covered_within) {
            violation(text("layer ", unit / limits.num_experts, " expert ",
                           unit % limits.num_experts, " has had no holder for ",
                           to_ms(now - *since) / 1000, " s, the workers have memory for ", room));
            since = now;
        }
    }
}

// Checks that second attempts stay within their budget: a twentieth of the first attempts, plus
// five per second. The constant 20 covers the allowance that was saved up, and groups that were
// split in two, for which the policy pays afterwards.
void SimState::check_budget() {
    if (options.swarm.hedge.mode != HedgeMode::delayed) return;
    const SwarmCounters counts = core->counters();
    const double seconds = to_ms(now.time_since_epoch()) / 1000,
                 allowed = 0.05 * static_cast<double>(counts.groups_sent) + 5 * seconds + 20;
    if (static_cast<double>(counts.hedges_sent) > allowed)
        violation(text(counts.hedges_sent, " second attempts, the budget is ", allowed));
}

// Checks that an ejected worker is sent no call. The check applies only with a local backend:
// without one, the hub may have to use an ejected worker because no other worker holds the unit.
void SimState::check_not_ejected(const SimWorker& worker) {
    if (!core->options().local_fallback || !worker.ejected_at) return;
    // If both happen at the same instant, the order of the call and the ejection is unknown.
    if (now > *worker.ejected_at && now < *worker.ejected_at + ejected_for_min)
        violation(text("worker ", worker.id, " is sent a call ", to_ms(now - *worker.ejected_at),
                       " ms after it was ejected"));
}

void SimState::remember_holders(RoundId round, std::uint32_t layer,
                                const std::vector<std::uint16_t>& experts) {
    auto& holders = holders_of[round];
    for (const std::uint16_t expert : experts) {
        const Unit unit{static_cast<std::uint16_t>(layer), expert};
        auto& of_unit = holders[unit];
        if (!of_unit.empty()) continue;
        for (const auto& [id, worker] : workers)
            if (is_sound(worker) && worker.held.contains(unit) && worker.ledger.is_ready(unit))
                of_unit.push_back(id);
    }
}

// Adds a violation if a round failed although each of its units had a sound holder from the begin
// of the round to its end.
void SimState::check_failure(RoundId round, const Error& error) {
    if (!options.watches_liveness || error.code == ErrorCode::overloaded) return;
    const auto found = holders_of.find(round);
    if (found == holders_of.end()) return;

    const auto is_still_held = [&](const auto& entry) {
        return std::any_of(entry.second.begin(), entry.second.end(), [&](WorkerId id) {
            const SimWorker& worker = workers.at(id);
            return is_sound(worker) && worker.held.contains(entry.first) &&
                   worker.ledger.is_ready(entry.first);
        });
    };
    if (!std::all_of(found->second.begin(), found->second.end(), is_still_held)) return;

    std::string holders;
    for (const auto& [unit, ids] : found->second) {
        holders += text(holders.empty() ? "" : ", ", unit.expert, " at");
        for (const WorkerId id : ids) holders += text(' ', id);
    }
    violation(text("round ", round,
                   " failed, though each of its experts had a holder all the time (", holders,
                   "): ", error.message));
}

}  // namespace moex::sim
