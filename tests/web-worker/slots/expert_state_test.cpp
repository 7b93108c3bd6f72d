// Tests that the table of transitions between the states of an expert is complete and consistent.
#include <gtest/gtest.h>

#include <set>

#include "web-worker/slots/slot_cache.h"

namespace moex {
namespace {

using enum ExpertState;

std::vector<ExpertState> all_states() {
    std::vector<ExpertState> states;
    for (std::size_t i = 0; i < num_expert_states; ++i)
        states.push_back(static_cast<ExpertState>(i));
    return states;
}
std::vector<ExpertEvent> all_events() {
    std::vector<ExpertEvent> events;
    for (std::size_t i = 0; i < num_expert_events; ++i)
        events.push_back(static_cast<ExpertEvent>(i));
    return events;
}

// Returns the state to which `events` lead from `absent`. The test fails if a state does not accept
// an event.
ExpertState after(std::initializer_list<ExpertEvent> events) {
    ExpertState state = absent;
    for (const ExpertEvent event : events) {
        const std::optional<ExpertState> next = next_state(state, event);
        EXPECT_TRUE(next) << state_name(state) << " refuses event " << static_cast<int>(event);
        state = next.value_or(state);
    }
    return state;
}

TEST(ExpertStateTest, EveryListedTransitionIsTaken) {
    std::set<std::pair<ExpertState, ExpertEvent>> listed;
    for (const ExpertTransition& one : expert_transitions) {
        EXPECT_TRUE(listed.insert({one.from, one.event}).second) << state_name(one.from);
        EXPECT_EQ(next_state(one.from, one.event), one.to) << state_name(one.from);
    }
}

TEST(ExpertStateTest, EveryOtherEventIsRefusedExceptKeepAndForget) {
    std::set<std::pair<ExpertState, ExpertEvent>> listed;
    for (const ExpertTransition& one : expert_transitions) listed.insert({one.from, one.event});
    for (const ExpertState state : all_states()) {
        EXPECT_EQ(next_state(state, ExpertEvent::forget), absent);
        EXPECT_EQ(next_state(state, ExpertEvent::keep), state == absent ? stored : state);
        for (const ExpertEvent event : all_events()) {
            if (event == ExpertEvent::keep || event == ExpertEvent::forget) continue;
            EXPECT_EQ(next_state(state, event).has_value(), listed.contains({state, event}))
                << state_name(state) << " at event " << static_cast<int>(event);
        }
    }
}

TEST(ExpertStateTest, EveryStateIsReachedFromAbsent) {
    std::set<ExpertState> reached{absent};
    for (std::size_t before = 0; before != reached.size();) {
        before = reached.size();
        for (const ExpertState state : std::set(reached))
            for (const ExpertEvent event : all_events())
                if (const auto next = next_state(state, event)) reached.insert(*next);
    }
    EXPECT_EQ(reached.size(), num_expert_states);
    for (const ExpertState state : all_states()) EXPECT_STRNE(state_name(state), "unknown");
}

TEST(ExpertStateTest, HintedExpertIsFetchedPlacedUsedAndEvicted) {
    using enum ExpertEvent;
    EXPECT_EQ(after({keep, fetch, arrive}), fetched);
    EXPECT_EQ(after({keep, fetch, arrive, discard}), stored);
    EXPECT_EQ(after({keep, fetch, fail, fetch, fetch, arrive, put}), in_slot);
    EXPECT_EQ(after({keep, put, use, use, unuse}), in_slot);
    EXPECT_EQ(after({keep, put, use, unuse, evict}), stored);
}

TEST(ExpertStateTest, GroupMayUseAnExpertBeforeItsCopyEnds) {
    using enum ExpertEvent;
    EXPECT_EQ(after({keep, copy, copied, use}), in_use);
    EXPECT_EQ(after({keep, copy, use}), copying_in_use);
    EXPECT_EQ(after({keep, copy, use, copied}), in_use);
    EXPECT_EQ(after({keep, copy, use, unuse}), copying);
    EXPECT_EQ(after({keep, copy, use, unuse, copied}), in_slot);
}

// The unit store holds an expert from `put` or `copy` until `evict` or `forget`.
TEST(ExpertStateTest, OnlyPutAndCopyGiveASlot) {
    for (const ExpertState state : all_states())
        for (const ExpertEvent event : all_events()) {
            const auto next = next_state(state, event);
            if (!next) continue;
            const bool gives = event == ExpertEvent::put || event == ExpertEvent::copy;
            const bool takes = event == ExpertEvent::evict || event == ExpertEvent::forget;
            EXPECT_EQ(has_slot(*next), gives || (has_slot(state) && !takes)) << state_name(state);
            EXPECT_TRUE(!is_used(*next) || has_slot(*next)) << state_name(*next);
        }
}

}  // namespace
}  // namespace moex
