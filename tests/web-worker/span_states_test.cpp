// Tests which slots, journals and replayed rows the steps of a span's sequences get, without a GPU.
#include "web-worker/spans/span_states.h"

#include <gtest/gtest.h>

#include <set>

namespace moex {
namespace {

constexpr std::uint32_t none = DeltaRun::no_slot;

DeltaRun step(SpanStates& states, const SpanSequence& rows) {
    EXPECT_EQ(states.check({&rows, 1}), SpanVerdict::done);
    return states.begin({&rows, 1}).front();
}

TEST(SpanStatesTest, TextGoesOnAndBackWithinTheRowsOfAStep) {
    SpanStates states(2);
    const DeltaRun prompt = step(states, {5, 0, 20});
    EXPECT_EQ(prompt.from_slot, none);
    EXPECT_EQ(prompt.store_after[0], 20u);
    EXPECT_EQ(prompt.keeps_rows, 0u);
    // Nothing is stored where the slot has the state before the rows.
    const DeltaRun one = step(states, {5, 20, 1});
    EXPECT_EQ(one.from_slot, prompt.to_slots[0]);
    EXPECT_EQ(one.num_replayed, 0u);
    EXPECT_EQ(one.store_after[0], 0u);
    EXPECT_EQ(one.keeps_rows, 1u);
    const DeltaRun drafts = step(states, {5, 21, 4});
    EXPECT_EQ(drafts.from_slot, prompt.to_slots[0]);
    EXPECT_EQ(drafts.position, 20u);
    EXPECT_EQ(drafts.num_replayed, 1u);
    EXPECT_EQ(drafts.store_after[0], 1u);
    // Two of four drafts were rejected.
    const DeltaRun next = step(states, {5, 23, 1});
    EXPECT_EQ(next.from_slot, drafts.to_slots[0]);
    EXPECT_EQ(next.position, 21u);
    EXPECT_EQ(next.num_replayed, 2u);
    EXPECT_EQ(next.num_rows, 1u);
    EXPECT_NE(next.to_slots[0], next.from_slot);
    // A repeated step begins where it began.
    const DeltaRun again = step(states, {5, 23, 1});
    EXPECT_EQ(again.from_slot, next.to_slots[0]);
    EXPECT_EQ(again.num_replayed, 0u);
    for (const std::uint32_t before : {20u, 22u, 25u}) {
        const SpanSequence rows{5, before, 1};
        EXPECT_EQ(states.check({&rows, 1}), SpanVerdict::unknown_sequence) << before;
    }
    EXPECT_EQ(step(states, {5, 0, 3}).from_slot, none);
}

TEST(SpanStatesTest, RowsOfSeveralSequencesFollowEachOther) {
    SpanStates states(2);
    const SpanSequence rows[] = {{1, 0, 3}, {2, 0, 12}};
    EXPECT_EQ(states.check(rows), SpanVerdict::done);
    const std::vector<DeltaRun> runs = states.begin(rows);
    EXPECT_EQ(runs[0].first_row, 0u);
    EXPECT_EQ(runs[1].first_row, 3u);
    EXPECT_NE(runs[0].journal, runs[1].journal);
    const SpanSequence third{3, 0, 1};
    EXPECT_EQ(states.check({&third, 1}), SpanVerdict::no_pages);
    EXPECT_EQ(states.bring(3, 40), std::nullopt);
}

TEST(SpanStatesTest, BroughtStateIsGoneOnFromBehindIt) {
    SpanStates states(1);
    const auto slot = states.bring(7, 40);
    ASSERT_TRUE(slot.has_value());
    EXPECT_EQ(states.bring(7, 40), slot) << "the next layer's state has the same place";
    const SpanSequence before{7, 39, 1}, behind{7, 41, 1};
    EXPECT_EQ(states.check({&before, 1}), SpanVerdict::unknown_sequence);
    EXPECT_EQ(states.check({&behind, 1}), SpanVerdict::unknown_sequence);
    EXPECT_EQ(step(states, {7, 40, 1}).from_slot, *slot);
}

// No place is lost, and what ends is given back to be cleared, earlier states too.
TEST(SpanStatesTest, EndedSequencesGiveEverythingBack) {
    SpanStates states(2);
    for (std::uint32_t round = 0; round < 50; ++round) {
        std::set<std::uint32_t> written;
        std::uint32_t at = 0;
        for (const std::uint32_t count : {12u, 1u, 1u, 5u, 20u}) {
            const DeltaRun run = step(states, {round, at, count});
            if (run.store_after[0] > 0) written.insert(run.to_slots[0]);
            at += count;
        }
        SpanStates::Freed freed;
        states.end(round, freed);
        states.end(round, freed);
        EXPECT_EQ(std::set<std::uint32_t>(freed.slots.begin(), freed.slots.end()), written);
        EXPECT_EQ(freed.journals.size(), 1u);
    }
    EXPECT_TRUE(states.bring(1, 5) && states.bring(2, 5));
    SpanStates::Freed freed;
    states.end_all(freed);
    EXPECT_EQ(freed.journals.size(), 2u);
    EXPECT_TRUE(states.bring(3, 5) && states.bring(4, 5));
}

}  // namespace
}  // namespace moex
