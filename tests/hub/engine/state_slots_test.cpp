// Numbers of recurrent states that a device stores: what a step reads and writes, roll-backs, and
// the room for copies.
#include "hub/engine/state_slots.h"

#include <deque>

#include <gtest/gtest.h>

#include "hub/engine/delta_rule.h"

namespace moex {
namespace {

constexpr std::uint32_t page_tokens = 16;

// Two sequences and `copies_max` copies of their states. A test keeps copies in `kept`.
class StateSlotsTest : public testing::Test {
  protected:
    explicit StateSlotsTest(std::uint32_t copies_max = 4)
        : slots_({.sequences_max = 2,
                  .copies_max = copies_max,
                  .slot_bytes = 1000,
                  .journal_bytes = 10},
                 [this] {
                     if (kept_.empty()) return false;
                     kept_.pop_front();
                     return true;
                 }) {}

    // Computes a step in runs of the given numbers of rows, and returns the runs.
    static std::vector<StateRun> step(SlotState& state, std::vector<std::uint32_t> rows) {
        std::uint32_t all = 0;
        for (const std::uint32_t count : rows) all += count;
        state.begin_step(all);
        std::vector<StateRun> runs;
        for (const std::uint32_t count : rows) runs.push_back(state.next_run(count));
        state.commit();
        return runs;
    }

    std::deque<StateSlotPtr> kept_;
    StateSlots slots_;
};

TEST_F(StateSlotsTest, StepWritesAnotherSlotThanItReads) {
    SlotState state(slots_, page_tokens);
    const auto prompt = step(state, {20});
    EXPECT_EQ(prompt[0].from, nullptr);
    EXPECT_EQ(prompt[0].after[0], 20u);
    EXPECT_EQ(prompt[0].after[1], 16u);
    ASSERT_NE(state.border(), nullptr);
    EXPECT_EQ(state.border()->num_tokens, 16u);

    const auto token = step(state, {1});
    EXPECT_EQ(token[0].from, prompt[0].to[0]);
    EXPECT_NE(token[0].to[0]->number, token[0].from->number);
    EXPECT_EQ(token[0].num_replayed, 0u);
    EXPECT_EQ(state.kept_from(), 21u);
}

TEST_F(StateSlotsTest, RowsThatStayAreReplayed) {
    SlotState state(slots_, page_tokens);
    step(state, {13});
    const auto drafted = step(state, {4});
    EXPECT_TRUE(drafted[0].keeps_rows);
    EXPECT_EQ(drafted[0].to[0], nullptr);
    state.roll_back(15);

    // The page ends among the replayed rows.
    const auto next = step(state, {2, 3});
    EXPECT_EQ(next[0].from, drafted[0].from);
    EXPECT_EQ(next[0].position, 13u);
    EXPECT_EQ(next[0].num_replayed, 2u);
    EXPECT_EQ(next[0].after[0], 2u);
    EXPECT_EQ(next[0].after[1], 0u);
    EXPECT_EQ(next[1].from, next[0].to[0]);
    EXPECT_EQ(next[1].position, 15u);
    EXPECT_EQ(next[1].num_replayed, 2u);
    EXPECT_EQ(next[1].to[0], nullptr);

    state.roll_back(18);
    const auto last = step(state, {1});
    EXPECT_EQ(last[0].position, 15u);
    EXPECT_EQ(last[0].num_replayed, 3u);
    EXPECT_EQ(last[0].after[0], 4u);
    EXPECT_EQ(last[0].after[1], 1u);
    EXPECT_EQ(state.border()->num_tokens, 16u);
    EXPECT_EQ(state.kept_from(), 19u);
}

TEST_F(StateSlotsTest, LongStepInPartsGoesOnInItsOwnSlot) {
    SlotState state(slots_, page_tokens);
    const auto runs = step(state, {10, 30});
    EXPECT_EQ(runs[0].after[0], 10u);
    EXPECT_EQ(runs[1].from, runs[0].to[0]);
    EXPECT_EQ(runs[1].to[0], runs[0].to[0]);
    EXPECT_EQ(runs[1].after[0], 30u);
    EXPECT_EQ(runs[0].to[1], nullptr);
    EXPECT_EQ(runs[1].after[1], 22u);
    EXPECT_EQ(state.border()->num_tokens, 32u);
}

TEST_F(StateSlotsTest, StepThatFailedChangesNothing) {
    SlotState state(slots_, page_tokens);
    step(state, {20});
    const std::uint64_t bytes = slots_.state_bytes(), copies = slots_.copy_bytes();
    state.begin_step(1);
    const std::uint32_t read = state.next_run(1).from->number;
    EXPECT_EQ(slots_.state_bytes(), bytes + 1000);
    state.abandon_step();
    EXPECT_EQ(slots_.state_bytes(), bytes);
    EXPECT_EQ(state.kept_from(), 20u);
    EXPECT_EQ(step(state, {1})[0].from->number, read);
    EXPECT_EQ(slots_.state_bytes(), bytes);
    EXPECT_EQ(slots_.copy_bytes(), copies);
}

TEST_F(StateSlotsTest, TextsThatBeginAlikeReadOneSlot) {
    SlotState first(slots_, page_tokens), second(slots_, page_tokens);
    step(first, {16});
    const StateSlotPtr copy = first.border();
    second.restore(copy);
    EXPECT_EQ(second.kept_from(), 16u);
    const auto one = step(first, {1}), other = step(second, {1});
    EXPECT_EQ(one[0].from, copy);
    EXPECT_EQ(other[0].from, copy);
    EXPECT_NE(one[0].to[0]->number, other[0].to[0]->number);
    // Two states, and the copy that both texts began with.
    EXPECT_EQ(slots_.state_bytes(), 2'000u);
    EXPECT_EQ(slots_.copy_bytes(), 1'000u);
}

TEST_F(StateSlotsTest, CopiesLeaveForLaterOnes) {
    for (std::uint32_t i = 0; i < 10; ++i) {
        SlotState state(slots_, page_tokens);
        step(state, {20});
        ASSERT_NE(state.border(), nullptr) << i;
        kept_.push_back(state.border());
        EXPECT_LE(slots_.copy_bytes(), 4'000u);
    }
    EXPECT_EQ(kept_.size(), 4u);
    EXPECT_EQ(slots_.state_bytes(), 0u);
    SlotState state(slots_, page_tokens);
    step(state, {2});
    EXPECT_EQ(slots_.state_bytes(), 10u) << "a journal, and no state of an empty text";
    kept_.clear();
    EXPECT_EQ(slots_.copy_bytes(), 0u);
}

class FewCopiesTest : public StateSlotsTest {
  protected:
    FewCopiesTest() : StateSlotsTest(2) {}
};

// One of two copies is for texts that have ended.
TEST_F(FewCopiesTest, RunningTextsHoldHalfOfTheCopies) {
    SlotState first(slots_, page_tokens), second(slots_, page_tokens);
    step(first, {20});
    EXPECT_NE(first.border(), nullptr);
    step(second, {20});
    EXPECT_EQ(second.border(), nullptr);
    step(first, {1});
    EXPECT_EQ(first.border(), nullptr);
    step(second, {20});
    EXPECT_NE(second.border(), nullptr);
}

class NoCopiesTest : public StateSlotsTest {
  protected:
    NoCopiesTest() : StateSlotsTest(0) {}
};

TEST_F(NoCopiesTest, NoStateIsKept) {
    SlotState state(slots_, page_tokens);
    for (int i = 0; i < 4; ++i) step(state, {16});
    EXPECT_EQ(state.border(), nullptr);
    EXPECT_EQ(state.kept_from(), 64u);
}

}  // namespace
}  // namespace moex
