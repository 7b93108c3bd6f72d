// What the hub asks for and foresees gives experts one more copy, and takes it back. Of what
// workers say nothing counts here: a worker's figures move no expert.
#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/core/swarm_state.h"

namespace moex {

void SwarmState::count_requested(EventContext& context, const ExpertBatch& batch) {
    if (!hot_experts.is_on()) return;
    const std::uint32_t first = unit_of(batch.layer, 0);
    const std::size_t num_pairs = std::size_t{batch.num_tokens} * batch.top_k;
    for (const std::uint16_t expert : batch.expert_ids.first(num_pairs))
        hot_experts.count(first + expert, 1);
    if (const auto at = hot_experts.next_look(context.now))
        context.set_timer(*at, TimerKind::hot_experts, 0);
}

// As much as it is sure: what is named is asked for a moment later, most likely, and counts again.
void SwarmState::count_predicted(EventContext& context, std::span<const ExpertHint> hints) {
    if (!hot_experts.is_on()) return;
    for (const ExpertHint& hint : hints)
        if (is_unit({hint.layer, hint.expert}))
            hot_experts.count(unit_of(hint.layer, hint.expert), hint.confidence / 255.0);
    if (const auto at = hot_experts.next_look(context.now))
        context.set_timer(*at, TimerKind::hot_experts, 0);
}

void SwarmState::update_hot_experts(EventContext& context) {
    const HotExperts::Verdict verdict = hot_experts.look(context.now, directory.extras());
    if (verdict.look_again)
        context.set_timer(context.now + hot_experts.options().look_every, TimerKind::hot_experts,
                          0);
    if (draining) return;

    for (const std::uint32_t unit : verdict.cold) directory.take_extra(unit);
    counts.extras_taken += verdict.cold.size();
    for (const std::uint32_t unit : verdict.hot) {
        // who has begun to load one is not given another in the same breath
        if (!directory.add_extra(unit)) continue;
        hot_experts.given(unit, context.now);
        ++counts.extras_given;
        directory.settle(context.now);
    }
    directory.settle(context.now);
    carry_out_orders(context);
}

}  // namespace moex
