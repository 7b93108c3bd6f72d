// Tests a layer with experts spread over several workers, so that no worker holds all of them. Only
// holders compute a round, and each pair is computed once, even if a worker leaves during the
// round.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/sim/sim_swarm.h"
#include "tests/sim/unit_ledger.h"

namespace moex::sim {
namespace {

constexpr std::uint32_t story_layer = 1, story_experts = 16;

SimOptions part_holders() {
    // A model of 48 units, 16 per layer, held in two copies.
    SimOptions options{.num_workers = 8, .seed = 11, .budget_experts = 14, .log = true};
    options.swarm.rounding.deterministic = true;
    options.swarm.local_fallback = false;
    return options;
}

// Returns, for each worker, the experts of the layer that the worker was ordered to hold and not
// ordered to release.
std::map<WorkerId, std::set<std::uint32_t>> held_of_layer(const SimSwarm& swarm,
                                                          const WireLimits& limits) {
    std::map<WorkerId, std::set<std::uint32_t>> held;
    for (const WorkerId worker : swarm.workers_alive())
        for (const Bytes& frame : swarm.frames_to(worker)) {
            const FrameHeader header = *decode_frame_header(frame);
            if (header.type == FrameType::assign) {
                const auto units = decode_assign(frame, limits);
                for (const AssignedUnit& unit : units->units)
                    if (unit.layer == story_layer) held[worker].insert(unit.expert);
            } else if (header.type == FrameType::release) {
                const auto units = decode_units(frame, limits);
                for (const Unit& unit : *units)
                    if (unit.layer == story_layer) held[worker].erase(unit.expert);
            }
        }
    std::erase_if(held, [](const auto& entry) { return entry.second.empty(); });
    return held;
}

// Returns a round of four rows with four experts each, so that every expert of the layer is
// requested once.
RoundSpec all_experts_once() {
    RoundSpec spec{.layer = story_layer, .num_tokens = 4};
    for (std::uint16_t expert = 0; expert < story_experts; ++expert)
        spec.expert_ids.push_back(expert);
    return spec;
}

TEST(UnitStoryTest, LayerSpreadOverSeveralIsCoveredOnceByHoldersOnlyWhenOneLeavesMidRound) {
    SimSwarm swarm(part_holders());
    ASSERT_TRUE(swarm.run_until_ready());
    WireLimits limits{.hidden_size = 32, .num_layers = 3, .num_experts = story_experts};
    const auto held = held_of_layer(swarm, limits);
    ASSERT_GE(held.size(), 3u);

    std::map<std::uint32_t, int> copies;
    for (const auto& [worker, experts] : held) {
        EXPECT_GT(experts.size(), 0u);
        EXPECT_LT(experts.size(), std::size_t{story_experts})
            << "worker " << worker << " holds the whole layer";
        for (const std::uint32_t expert : experts) ++copies[expert];
    }

    for (std::uint32_t expert = 0; expert < story_experts; ++expert)
        ASSERT_EQ(copies[expert], 2) << "expert " << expert;

    std::map<WorkerId, std::size_t> frames_before;
    for (const WorkerId worker : swarm.workers_alive())
        frames_before[worker] = swarm.frames_to(worker).size();
    const RoundId round = swarm.submit(all_experts_once());
    swarm.run_for(1ms);
    WorkerId leaver = 0;

    for (const WorkerView& view : swarm.core().workers())
        if (view.in_flight > 0) leaver = view.id;
    ASSERT_NE(leaver, 0u);

    swarm.leave(leaver);
    ASSERT_TRUE(swarm.run_until_idle());

    const RoundOutcome& outcome = swarm.outcome(round);
    ASSERT_TRUE(outcome.answer && outcome.answer->ok());
    EXPECT_EQ(outcome.times_done, 1u);
    EXPECT_EQ(outcome.y, outcome.want);
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();

    for (const RowProvenance& row : (*outcome.answer)->rows) {
        EXPECT_EQ(row.pairs_remote, 4u);
        EXPECT_EQ(row.pairs_local, 0u);
    }
    for (const WorkerId worker : swarm.answered_by(round)) EXPECT_NE(worker, leaver);
    // Each expert was requested once from a worker that stayed. The experts of the worker that left
    // were requested from their other holder.
    std::map<std::uint32_t, int> asked_of_stayers;
    for (const auto& [worker, begin] : frames_before) {
        const std::vector<Bytes> frames = swarm.frames_to(worker);
        for (std::size_t i = begin; i < frames.size(); ++i)
            for (const Unit& unit : units_asked(frames[i], limits)) {
                EXPECT_TRUE(held.at(worker).contains(unit.expert))
                    << "worker " << worker << " was asked for expert " << unit.expert;
                if (worker != leaver) ++asked_of_stayers[unit.expert];
            }
    }

    for (std::uint32_t expert = 0; expert < story_experts; ++expert)
        EXPECT_EQ(asked_of_stayers[expert], 1) << "expert " << expert;
    EXPECT_GT(swarm.core().counters().redispatched, 0u);
    EXPECT_EQ(swarm.core().counters().calls_local, 0u);
}

}  // namespace
}  // namespace moex::sim
