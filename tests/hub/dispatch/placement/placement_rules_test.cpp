// Tests the placement rules that an operator may choose instead of the default (few workers per
// layer).
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "hub/dispatch/placement/placement.h"

namespace moex {
namespace {

using Changes = std::vector<PlacementChange>;
constexpr std::uint32_t all_moves = 1u << 30;
constexpr std::uint32_t num_layers = 12, layer_units = 32, num_units = num_layers * layer_units;

struct Swarm {
    Placement placement;
    Changes changes;

    Swarm(const char* choice, std::uint32_t replicas,
          std::function<bool(WorkerId, std::uint32_t)> is_loaded = {})
        : placement({.num_units = num_units,
                     .layer_units = layer_units,
                     .replicas = replicas,
                     .choice = parse_placement(choice).value(),
                     .is_loaded = std::move(is_loaded)}) {}
    void join(WorkerId id, std::uint32_t capacity = num_units) {
        placement.join(
            {.worker = id, .ring_key = 31 * id, .capacity_units = capacity, .address_prefix = id},
            changes);
        placement.rebalance(all_moves, changes);
    }
    void leave(WorkerId id) {
        placement.leave(id, changes);
        placement.rebalance(all_moves, changes);
    }
    std::set<WorkerId> holders(std::uint32_t layer) const {
        std::set<WorkerId> all;
        for (std::uint32_t i = 0; i < layer_units; ++i)
            for (const WorkerId id : placement.owners(layer * layer_units + i)) all.insert(id);
        return all;
    }
    std::uint32_t of_layer(WorkerId id, std::uint32_t layer) const {
        std::uint32_t count = 0;
        for (std::uint32_t i = 0; i < layer_units; ++i)
            count += std::ranges::count(placement.owners(layer * layer_units + i), id);
        return count;
    }
};

TEST(PlacementRuleTest, NamesAreParsedAndPrinted) {
    for (const char* choice : {"fan-out", "hash", "groups 1", "groups 64"})
        EXPECT_EQ(placement_text(parse_placement(choice).value()), choice);
    EXPECT_EQ(parse_placement("groups:4").value().num_groups, 4u);
    for (const char* choice : {"", "fan", "groups", "groups ", "groups 0", "groups 65", "groups 4x",
                               "groups -1", "groups4", "balance"})
        EXPECT_FALSE(parse_placement(choice).ok()) << choice;
}

TEST(PlacementRuleTest, HashedLayerIsSpreadAndANewcomerTakesItsShare) {
    Swarm few("fan-out", 1), hashed("hash", 1);
    for (WorkerId id = 1; id <= 6; ++id) {
        hashed.changes.clear();
        few.join(id);
        hashed.join(id);
        const auto moved = std::ranges::count_if(hashed.changes,
                                                 [](const auto& one) { return !one.added; });
        EXPECT_LE(moved, id == 1 ? 0 : 1.2 * num_units / static_cast<double>(id)) << id;
    }
    EXPECT_EQ(hashed.placement.workers_per_layer(), 6);
    EXPECT_LE(few.placement.workers_per_layer(), 2);
    for (WorkerId id = 1; id <= 6; ++id) EXPECT_NEAR(hashed.placement.load(id), 64, 7);
    EXPECT_TRUE(hashed.placement.check().empty());
}

TEST(PlacementGroupsTest, LayerIsSpreadEvenlyOverItsGroupAlone) {
    Swarm swarm("groups 4", 1);
    for (WorkerId id = 1; id <= 8; ++id) swarm.join(id);

    for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
        EXPECT_EQ(swarm.holders(layer), swarm.holders(layer % 4)) << layer;
        ASSERT_EQ(swarm.holders(layer).size(), 2u) << layer;
        for (const WorkerId id : swarm.holders(layer)) EXPECT_EQ(swarm.of_layer(id, layer), 16u);
    }
    for (std::uint32_t group = 1; group < 4; ++group)
        EXPECT_FALSE(swarm.holders(0) == swarm.holders(group));
    EXPECT_EQ(swarm.placement.num_away(), 0u);
    EXPECT_TRUE(swarm.placement.check().empty());
}

TEST(PlacementGroupsTest, CopiesStayInTheGroup) {
    Swarm swarm("groups 2", 2);
    for (WorkerId id = 1; id <= 6; ++id) swarm.join(id);
    for (std::uint32_t layer = 0; layer < num_layers; ++layer)
        EXPECT_EQ(swarm.holders(layer), swarm.holders(layer % 2)) << layer;
    for (std::uint32_t unit = 0; unit < num_units; ++unit)
        EXPECT_EQ(swarm.placement.owners(unit).size(), 2u);
    EXPECT_TRUE(swarm.placement.check().empty());
}

TEST(PlacementGroupsTest, EveryUnitHasAHolderWithFewerWorkersThanGroups) {
    Swarm swarm("groups 4", 1);
    swarm.join(1);
    for (std::uint32_t unit = 0; unit < num_units; ++unit)
        ASSERT_EQ(swarm.placement.owners(unit).size(), 1u);
    EXPECT_EQ(swarm.placement.num_away(), num_units / 4 * 3);

    swarm.join(2);
    EXPECT_EQ(swarm.placement.num_away(), num_units / 2);
    EXPECT_TRUE(swarm.placement.check().empty());
}

// When a worker leaves, its layers stay with the other worker of its group. If the groups would
// become uneven, a worker of the larger group moves to the smaller one.
TEST(PlacementGroupsTest, GroupKeepsItsLayersAndStaysEvenAfterALeave) {
    Swarm swarm("groups 2", 1);
    for (WorkerId id = 1; id <= 4; ++id) swarm.join(id);
    const std::set<WorkerId> group = swarm.holders(0);
    const WorkerId first = *group.begin(), second = *group.rbegin();

    swarm.leave(first);
    EXPECT_EQ(swarm.holders(0), std::set<WorkerId>{second});
    EXPECT_EQ(swarm.placement.num_away(), 0u);

    swarm.leave(second);
    EXPECT_EQ(swarm.holders(0).size(), 1u) << "one of the other group's two";
    EXPECT_EQ(swarm.holders(1).size(), 1u);
    EXPECT_NE(swarm.holders(0), swarm.holders(1));
    EXPECT_EQ(swarm.placement.num_away(), 0u);
    EXPECT_TRUE(swarm.placement.check().empty());
}

TEST(PlacementGroupsTest, UnitsBeyondAGroupsMemoryAreHeldElsewhere) {
    Swarm swarm("groups 2", 1);
    swarm.join(1, 100);
    swarm.join(2);
    EXPECT_EQ(swarm.placement.load(1) + swarm.placement.load(2), num_units);
    EXPECT_EQ(swarm.placement.num_away(), num_units / 2 - 100);
    EXPECT_TRUE(swarm.placement.check().empty());

    swarm.placement.resize(1, num_units, {}, swarm.changes);
    swarm.placement.rebalance(all_moves, swarm.changes);
    EXPECT_EQ(swarm.placement.num_away(), 0u);
}

TEST(PlacementGroupsTest, LoadedUnitsMoveHomeAtTheAllowedRate) {
    Swarm swarm("groups 2", 1, [](WorkerId, std::uint32_t) { return true; });
    swarm.join(1);
    swarm.changes.clear();
    swarm.placement.join({.worker = 2, .ring_key = 62, .capacity_units = num_units}, swarm.changes);
    std::uint32_t turns = 0;
    for (; swarm.placement.unbalanced(); ++turns)
        EXPECT_LE(swarm.placement.rebalance(10, swarm.changes), 10u);
    EXPECT_EQ(turns, num_units / 2 / 10 + 1);
    EXPECT_EQ(swarm.placement.num_away(), 0u);
}

}  // namespace
}  // namespace moex
