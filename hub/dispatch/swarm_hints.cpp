// What coming layers may be asked for, told to those who hold it without having all of it in
// memory (PREFETCH). Advice: nothing waits for it, and no answer depends on it.
#include <map>

#include "hub/dispatch/swarm_core.h"
#include "hub/dispatch/swarm_state.h"

namespace moex {

bool SwarmCore::wants_hints() const { return state_->num_on_demand > 0; }

void SwarmCore::on_hints(TimePoint now, std::span<const ExpertHint> hints,
                         std::vector<SwarmAction>& actions) {
    SwarmState::Turn turn{*state_, now, actions};
    state_->send_hints(turn, hints);
}

// To everybody who might be asked: which of them it will be is decided when the layer is reached.
// Also where an expert may lie in memory already, which only its holder knows: a hint keeps it
// there.
void SwarmState::send_hints(Turn& turn, std::span<const ExpertHint> hints) {
    if (num_on_demand == 0) return;

    std::map<WorkerId, std::vector<PrefetchHint>> told;
    for (const ExpertHint& hint : hints)
        for (UnitHolder* holder : directory.ready(unit_of(hint.layer, hint.expert)))
            if (worker_of(holder).on_demand && told[holder->id].size() < prefetch_hints_max)
                told[holder->id].push_back({.unit = {hint.layer, hint.expert},
                                            .deadline_ms = hint.deadline_ms,
                                            .confidence = hint.confidence});

    for (const auto& [id, units] : told) {
        Worker& worker = *pool.find(id);
        for (const PrefetchHint& hint : units)
            worker.slot_guess.use(unit_of(hint.unit.layer, hint.unit.expert));
        turn.send(worker, encode_prefetch(worker.next_hint_id++, units));
        counts.hints_sent += units.size();
    }
}

}  // namespace moex
