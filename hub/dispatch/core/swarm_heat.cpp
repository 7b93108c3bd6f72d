// What the hub asks for and foresees gives experts one more copy, and takes it back. Of what
// workers say nothing counts here: a worker's figures move no expert.
#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/core/swarm_state.h"

namespace moex {

void SwarmState::count_asked(Turn& turn, const ExpertBatch& batch) {
    if (!heat.is_on()) return;
    const std::uint32_t first = unit_of(batch.layer, 0);
    const std::size_t num_pairs = std::size_t{batch.num_tokens} * batch.top_k;
    for (const std::uint16_t expert : batch.expert_ids.first(num_pairs))
        heat.count(first + expert, 1);
    if (const auto at = heat.next_look(turn.now)) turn.set_timer(*at, TimerKind::heat, 0);
}

// As much as it is sure: what is named is asked for a moment later, most likely, and counts again.
void SwarmState::count_foreseen(Turn& turn, std::span<const ExpertHint> hints) {
    if (!heat.is_on()) return;
    for (const ExpertHint& hint : hints)
        if (is_unit({hint.layer, hint.expert}))
            heat.count(unit_of(hint.layer, hint.expert), hint.confidence / 255.0);
    if (const auto at = heat.next_look(turn.now)) turn.set_timer(*at, TimerKind::heat, 0);
}

void SwarmState::look_at_heat(Turn& turn) {
    const HotExperts::Verdict verdict = heat.look(turn.now, directory.extras());
    if (verdict.look_again)
        turn.set_timer(turn.now + heat.options().look_every, TimerKind::heat, 0);
    if (draining) return;

    for (const std::uint32_t unit : verdict.cold) directory.take_extra(unit);
    counts.extras_taken += verdict.cold.size();
    for (const std::uint32_t unit : verdict.hot) {
        // who has begun to load one is not given another in the same breath
        if (!directory.add_extra(unit)) continue;
        heat.given(unit, turn.now);
        ++counts.extras_given;
        directory.settle(turn.now);
    }
    directory.settle(turn.now);
    carry_out_orders(turn);
}

}  // namespace moex
