// Hints (PREFETCH frames) list experts that the next layers are predicted to need. They are sent to
// holders that do not have all of their units in memory. Hints are advice: no round waits for them,
// and no answer depends on them.
#include <algorithm>
#include <map>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/core/swarm_state.h"

namespace moex {

bool SwarmCore::wants_hints() const { return state_->pool.num_on_demand() > 0; }

void SwarmCore::on_hints(TimePoint now, std::span<const ExpertHint> hints,
                         std::vector<SwarmAction>& actions) {
    // Layers whose experts the hub computes itself have no units.
    std::vector<ExpertHint> known;
    std::ranges::copy_if(hints, std::back_inserter(known), [&](const ExpertHint& hint) {
        return state_->placement.is_unit({hint.layer, hint.expert});
    });
    EventContext context{*state_, now, actions};
    state_->placement.count_predicted(context, known);
    state_->placement.send_hints(context, known);
}

// Returns the time in ms after which the worker need not begin to load the hinted expert, because
// by then the round is over, or another worker computes the expert.
std::uint16_t SwarmPlacement::deadline_of(const ExpertHint& hint) const {
    const double group_ms = to_ms(swarm_.times.group_latency.p50());
    if (hint.deadline_ms > 0 || group_ms == 0) return hint.deadline_ms;

    constexpr double least_ms = 100, time_factor = 4;
    const double layer_ms = group_ms + swarm_.times.load_window.window(1, 0).hub_ms;
    const int num_layers = static_cast<int>(moe_layers_.size());
    int lead = moe_index_[hint.layer] - swarm_.times.last_moe_index;
    // A layer that is behind the current layer by half of all layers or more belongs to the next
    // token. A layer that is less far behind is already late.
    if (lead <= -num_layers / 2) lead += num_layers;
    lead = std::max(lead, 1);
    return static_cast<std::uint16_t>(std::clamp(time_factor * lead * layer_ms, least_ms, 65535.0));
}

// Sends the hints to all holders that might be asked for the expert. The router chooses among these
// holders only when the layer is reached. Holders that may have the expert in memory already are
// included: only the holder itself knows, and a hint keeps the expert in its memory.
void SwarmPlacement::send_hints(EventContext& context, std::span<const ExpertHint> hints) {
    if (pool_.num_on_demand() == 0) return;

    std::map<WorkerId, std::vector<PrefetchHint>> hints_of;
    for (const ExpertHint& hint : hints)
        for (UnitHolder* holder : directory_.ready(unit_of(hint.layer, hint.expert)))
            if (worker_of(holder).on_demand && hints_of[holder->id].size() < prefetch_hints_max)
                hints_of[holder->id].push_back({.unit = {hint.layer, hint.expert},
                                                .deadline_ms = deadline_of(hint),
                                                .confidence = hint.confidence});

    for (const auto& [id, units] : hints_of) {
        Worker& worker = *pool_.find(id);
        for (const PrefetchHint& hint : units)
            worker.slot_guess.use(unit_of(hint.unit.layer, hint.unit.expert));
        context.send(worker, encode_prefetch(worker.next_hint_id++, units));
        counts_.hints_sent += units.size();
    }
}

}  // namespace moex
