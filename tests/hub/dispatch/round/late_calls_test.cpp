// Tests rounds in which some rows have a latency budget and do not wait for all of their answers,
// while other rows wait. A round ends without its late answers if all of them may be left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

// A swarm of two workers, a slow and a quick one. Each expert is held by only one of them.
class LateCallsTest : public testing::Test {
  protected:
    LateCallsTest() : swarm_(options()) {
        EXPECT_TRUE(swarm_.run_until_ready());
        for (const WorkerId worker : swarm_.workers_alive())
            for (const Bytes& frame : swarm_.frames_to(worker))
                if (const auto told = decode_assign(frame, swarm_.core().options().limits);
                    told.ok())
                    for (const AssignedUnit& unit : told->units)
                        if (unit.layer == 0) held_[worker].push_back(unit.expert);
        const auto workers = swarm_.workers_alive();
        slow_ = workers[0], quick_ = workers[1];
        EXPECT_GE(of(slow_).size(), 4u);
        EXPECT_GE(of(quick_).size(), 4u);
        swarm_.stall_compute(slow_);
    }
    static SimOptions options() {
        SimOptions options{.num_workers = 2, .seed = 9, .check_whole_every = 1, .log = true};
        options.swarm.replicas = 1;
        options.swarm.placement = {.rule = PlacementRule::hash};
        options.swarm.local_fallback = false;
        options.swarm.checks.on = false;
        return options;
    }
    const std::vector<std::uint16_t>& of(WorkerId worker) { return held_[worker]; }
    // Returns the experts of one row: `num_slow` experts of the slow worker, the others of the
    // quick one.
    std::vector<std::uint16_t> row(std::size_t num_slow) {
        std::vector<std::uint16_t> ids(of(slow_).begin(),
                                       of(slow_).begin() + static_cast<std::ptrdiff_t>(num_slow));
        for (std::size_t i = 0; ids.size() < 4; ++i) ids.push_back(of(quick_)[i]);
        return ids;
    }
    RoundId submit(const std::vector<std::vector<std::uint16_t>>& rows,
                   std::vector<RowPatience> patience) {
        RoundSpec spec{.layer = 0,
                       .num_tokens = static_cast<std::uint32_t>(rows.size()),
                       .patience = std::move(patience)};
        for (const auto& one : rows)
            spec.expert_ids.insert(spec.expert_ids.end(), one.begin(), one.end());
        return swarm_.submit(spec);
    }
    std::set<std::pair<std::uint32_t, std::uint16_t>> late_of(RoundId round) {
        std::set<std::pair<std::uint32_t, std::uint16_t>> late;
        for (const LatePair& pair : (*swarm_.outcome(round).answer)->late)
            late.insert({pair.row, pair.expert});
        return late;
    }
    Duration took(RoundId round) {
        return swarm_.outcome(round).done_at - swarm_.outcome(round).asked_at;
    }
    void TearDown() override {
        EXPECT_TRUE(swarm_.violations().empty()) << swarm_.violations().front();
    }

    SimSwarm swarm_;
    std::map<WorkerId, std::vector<std::uint16_t>> held_;
    WorkerId slow_ = 0, quick_ = 0;
};

TEST_F(LateCallsTest, OnlyLateCallsAreLeftOutAtTheRowsDeadline) {
    const RoundId round = submit({row(2)}, {{.row = 0, .wait = 60ms, .pairs_max = 4}});
    ASSERT_TRUE(swarm_.run_until_answered(round));
    EXPECT_EQ(took(round), 60ms);
    EXPECT_EQ(late_of(round), (std::set<std::pair<std::uint32_t, std::uint16_t>>{
                                  {0, of(slow_)[0]}, {0, of(slow_)[1]}}));
    EXPECT_FALSE(swarm_.outcome(round).wrong) << "the other two are its sum";
    const RowProvenance from = (*swarm_.outcome(round).answer)->rows.at(0);
    EXPECT_EQ(from.pairs_late, 2);
    EXPECT_EQ(from.pairs_remote, 2);
    EXPECT_EQ(swarm_.core().counters().pairs_late, 2u);
    EXPECT_EQ(swarm_.core().num_rounds_open(), 0u);
    EXPECT_EQ(swarm_.core().in_flight(slow_), 0u) << "CANCEL was sent";
}

TEST_F(LateCallsTest, PunctualAnswersAreNotLeftOut) {
    swarm_.stall_compute(slow_, false);
    const RoundId round = submit({row(2)}, {{.row = 0, .wait = 5s, .pairs_max = 4}});
    ASSERT_TRUE(swarm_.run_until_answered(round));
    EXPECT_LT(took(round), 5s);
    EXPECT_TRUE(late_of(round).empty());
    EXPECT_EQ(swarm_.core().counters().pairs_late, 0u);
}

TEST_F(LateCallsTest, ARowThatLacksMoreThanItMayWaits) {
    const RoundId round = submit({row(2)}, {{.row = 0, .wait = 60ms, .pairs_max = 1}});
    swarm_.run_for(1s);
    EXPECT_EQ(swarm_.outcome(round).times_done, 0u);
    swarm_.stall_compute(slow_, false);
    ASSERT_TRUE(swarm_.run_until_answered(round));
    EXPECT_TRUE(late_of(round).empty());
    EXPECT_FALSE(swarm_.outcome(round).wrong);
}

TEST_F(LateCallsTest, RowsWithoutABudgetWaitAsUsual) {
    // Row 1 has no budget and needs the slow worker, so the round continues. Answers that arrive
    // meanwhile count for row 0 as well.
    const RoundId both = submit({row(1), row(1)}, {{.row = 0, .wait = 60ms, .pairs_max = 4}});
    swarm_.run_for(1s);
    EXPECT_EQ(swarm_.outcome(both).times_done, 0u);
    swarm_.stall_compute(slow_, false);
    ASSERT_TRUE(swarm_.run_until_answered(both));
    EXPECT_TRUE(late_of(both).empty());
    EXPECT_FALSE(swarm_.outcome(both).wrong);

    // Row 1 needs only the quick worker: none of its answers is late.
    swarm_.stall_compute(slow_);
    const RoundId one = submit({row(2), row(0)}, {{.row = 0, .wait = 60ms, .pairs_max = 4}});
    ASSERT_TRUE(swarm_.run_until_answered(one));
    EXPECT_EQ(took(one), 60ms);
    for (const auto& [row, expert] : late_of(one)) EXPECT_EQ(row, 0u);
    EXPECT_FALSE(swarm_.outcome(one).wrong);
    EXPECT_EQ((*swarm_.outcome(one).answer)->rows.at(1).pairs_remote, 4);
}

TEST_F(LateCallsTest, EachRowHasATimeOfItsOwn) {
    const RoundId round = submit({row(1), row(2)}, {{.row = 0, .wait = 50ms, .pairs_max = 4},
                                                    {.row = 1, .wait = 300ms, .pairs_max = 4}});
    ASSERT_TRUE(swarm_.run_until_answered(round));
    EXPECT_EQ(took(round), 300ms) << "until the more patient one's is over";
    EXPECT_EQ(late_of(round).size(), 3u);
}

// The last answer that is required arrives after the deadline of the answers that may be left out.
TEST_F(LateCallsTest, RoundEndsWithTheLastRequiredAnswer) {
    swarm_.slow_down(quick_, 400ms);
    const RoundId round = submit({row(2), row(0)}, {{.row = 0, .wait = 60ms, .pairs_max = 2}});
    ASSERT_TRUE(swarm_.run_until_answered(round));
    EXPECT_GT(took(round), 60ms);
    EXPECT_LT(took(round), 3s);
    EXPECT_EQ(late_of(round).size(), 2u);
}

}  // namespace
}  // namespace moex::sim
