// Popularity of units: requests and predictions of the hub decide which unit gets one more copy,
// and when it loses that copy. Counters that workers report are not used, so that no worker can
// move a unit.
#include "hub/dispatch/core/swarm_state.h"

namespace moex {

void SwarmPlacement::count_requested(EventContext& context, const ExpertBatch& batch) {
    if (!hot_experts_.is_on()) return;
    const std::uint32_t first = unit_of(batch.layer, 0);
    const std::size_t num_pairs = std::size_t{batch.num_tokens} * batch.top_k;
    for (const std::uint16_t expert : batch.expert_ids.first(num_pairs))
        hot_experts_.count(first + expert, 1);
    if (const auto at = hot_experts_.next_look(context.now))
        context.set_timer(*at, TimerKind::hot_experts, 0);
}

// Counts each prediction with its confidence as weight. A predicted expert is most likely requested
// a moment later, and that request is counted too.
void SwarmPlacement::count_predicted(EventContext& context, std::span<const ExpertHint> hints) {
    if (!hot_experts_.is_on()) return;
    for (const ExpertHint& hint : hints)
        if (is_unit({hint.layer, hint.expert}))
            hot_experts_.count(unit_of(hint.layer, hint.expert), hint.confidence / 255.0);
    if (const auto at = hot_experts_.next_look(context.now))
        context.set_timer(*at, TimerKind::hot_experts, 0);
}

void SwarmPlacement::update_hot_experts(EventContext& context) {
    const HotExperts::Verdict verdict = hot_experts_.look(context.now, directory_.extras());
    if (verdict.look_again)
        context.set_timer(context.now + hot_experts_.options().look_every, TimerKind::hot_experts,
                          0);
    if (swarm_.sessions.draining()) return;

    for (const std::uint32_t unit : verdict.cold) directory_.take_extra(unit);
    counts_.extras_taken += verdict.cold.size();
    for (const std::uint32_t unit : verdict.hot) {
        // add_extra() passes over workers that are already loading another copy
        if (!directory_.add_extra(unit)) continue;
        hot_experts_.given(unit, context.now);
        ++counts_.extras_given;
        directory_.settle(context.now);
    }
    directory_.settle(context.now);
    carry_out_orders(context);
}

}  // namespace moex
