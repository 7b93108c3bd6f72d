// What coming layers may be asked for, told to those who hold it without having all of it in
// memory (PREFETCH). Advice: nothing waits for it, and no answer depends on it.
#include <algorithm>
#include <map>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/core/swarm_state.h"

namespace moex {

bool SwarmCore::wants_hints() const { return state_->pool.num_on_demand() > 0; }

void SwarmCore::on_hints(TimePoint now, std::span<const ExpertHint> hints,
                         std::vector<SwarmAction>& actions) {
    EventContext context{*state_, now, actions};
    state_->placement.count_predicted(context, hints);
    state_->placement.send_hints(context, hints);
}

// Who has not brought it by then need not begin: its round is over, or somebody else's by now.
std::uint16_t SwarmPlacement::deadline_of(const ExpertHint& hint) const {
    const double group_ms = to_ms(swarm_.times.group_latency.p50());
    if (hint.deadline_ms > 0 || group_ms == 0) return hint.deadline_ms;

    constexpr double least_ms = 100, patience = 4;
    const double layer_ms = group_ms + swarm_.times.load_window.window(1, 0).hub_ms;
    const int num_layers = static_cast<int>(moe_layers_.size());
    int lead = moe_index_[hint.layer] - swarm_.times.last_moe_index;
    // Half of the layers or more behind it is the next token's, nearer it has come too late.
    if (lead <= -num_layers / 2) lead += num_layers;
    lead = std::max(lead, 1);
    return static_cast<std::uint16_t>(std::clamp(patience * lead * layer_ms, least_ms, 65535.0));
}

// To everybody who might be asked: which of them it will be is decided when the layer is reached.
// Also where an expert may lie in memory already, which only its holder knows: a hint keeps it
// there.
void SwarmPlacement::send_hints(EventContext& context, std::span<const ExpertHint> hints) {
    if (pool_.num_on_demand() == 0) return;

    std::map<WorkerId, std::vector<PrefetchHint>> told;
    for (const ExpertHint& hint : hints)
        for (UnitHolder* holder : directory_.ready(unit_of(hint.layer, hint.expert)))
            if (worker_of(holder).on_demand && told[holder->id].size() < prefetch_hints_max)
                told[holder->id].push_back({.unit = {hint.layer, hint.expert},
                                            .deadline_ms = deadline_of(hint),
                                            .confidence = hint.confidence});

    for (const auto& [id, units] : told) {
        Worker& worker = *pool_.find(id);
        for (const PrefetchHint& hint : units)
            worker.slot_guess.use(unit_of(hint.unit.layer, hint.unit.expert));
        context.send(worker, encode_prefetch(worker.next_hint_id++, units));
        counts_.hints_sent += units.size();
    }
}

}  // namespace moex
