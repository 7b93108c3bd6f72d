// Tests which workers a hub asks to join another hub.
#include "hub/net/fleet/worker_moves.h"

#include <gtest/gtest.h>

#include <random>

namespace moex::net {
namespace {

Member hub_of(const std::string& id, std::uint64_t workers, std::int64_t left_ms = 9000,
              const std::string& package = "p") {
    return {.hub_id = id,
            .address = "http://" + id,
            .package_sha256 = package,
            .workers = workers,
            .left_ms = left_ms};
}

std::vector<WorkerView> workers_of(std::size_t count) {
    std::vector<WorkerView> workers(count);
    for (std::size_t i = 0; i < count; ++i) {
        workers[i].id = i + 1;
        workers[i].state = WorkerState::active;
        workers[i].reads_hubs = true;
        workers[i].joined_at = TimePoint{} + std::chrono::seconds(i + 1);
    }
    return workers;
}

TEST(WorkerMovesTest, PlacesAreLivingHubsOfThePackageTheFewestWorkersFirst) {
    const Member self = hub_of("aaaaaaaa", 1);
    const Member members[] = {self, hub_of("bbbbbbbb", 5), hub_of("cccccccc", 0, -1),
                              hub_of("dddddddd", 2), hub_of("eeeeeeee", 0, 9000, "other")};
    const FleetPlaces places = places_of(self, members);
    EXPECT_EQ(places.own, "aaaaaaaa");
    EXPECT_EQ(places.others, (std::vector<HubPlace>{{"dddddddd", "http://dddddddd"},
                                                    {"bbbbbbbb", "http://bbbbbbbb"}}));
}

TEST(WorkerMovesTest, TheNewestWorkerGoesToTheHubWithTheFewest) {
    const Member self = hub_of("aaaaaaaa", 4);
    const Member members[] = {self, hub_of("bbbbbbbb", 3), hub_of("cccccccc", 0)};
    const auto move = choose_move(self, members, workers_of(4), {}, 0);
    ASSERT_TRUE(move);
    EXPECT_EQ(move->worker, 4u);
    EXPECT_EQ(move->hub, (HubPlace{"cccccccc", "http://cccccccc"}));
    EXPECT_EQ(choose_move(self, members, workers_of(4), {4, 3}, 0)->worker, 2u);
}

TEST(WorkerMovesTest, WorkersWithAReasonToStayAreNotAsked) {
    const Member self = hub_of("aaaaaaaa", 5);
    const Member members[] = {self, hub_of("bbbbbbbb", 0)};
    auto workers = workers_of(5);
    workers[4].reads_hubs = false;
    workers[3].pinned = true;
    workers[2].drained = true;
    workers[1].state = WorkerState::draining;
    EXPECT_EQ(choose_move(self, members, workers, {}, 0)->worker, 1u);
    EXPECT_FALSE(choose_move(self, members, workers, {1}, 0));
}

// Each of the workers that may go takes a holder of the same expert with it, at worst.
TEST(WorkerMovesTest, AnExpertKeepsAHolderWhateverLeaves) {
    const auto can_spare = [](std::uint32_t holders, std::span<const WorkerView> workers,
                              const std::set<WorkerId>& asked) {
        return can_spare_one({.units = 4, .covered = 4, .replicas_min = holders}, workers, asked);
    };
    auto workers = workers_of(3);
    EXPECT_FALSE(can_spare(0, workers, {}));
    EXPECT_FALSE(can_spare(1, workers, {})) << "a worker alone holds an expert";
    EXPECT_TRUE(can_spare(2, workers, {}));
    EXPECT_FALSE(can_spare(2, workers, {2}));
    EXPECT_TRUE(can_spare(2, workers, {7})) << "it has left";
    EXPECT_TRUE(can_spare(3, workers, {2}));
    workers[0].state = WorkerState::draining;
    EXPECT_FALSE(can_spare(2, workers, {}));
    EXPECT_TRUE(can_spare(3, workers, {1})) << "the same worker";
    EXPECT_FALSE(can_spare(3, workers, {2}));
}

TEST(WorkerMovesTest, ADifferenceOfOneStaysAsItIs) {
    const auto moves = [](std::uint64_t own, std::uint64_t other) {
        const Member self = hub_of("aaaaaaaa", own);
        const Member members[] = {self, hub_of("bbbbbbbb", other)};
        return choose_move(self, members, workers_of(own), {}, 0).has_value();
    };
    EXPECT_FALSE(moves(1, 0));
    EXPECT_TRUE(moves(2, 0));
    EXPECT_FALSE(moves(5, 4));
    EXPECT_FALSE(moves(4, 5));
    EXPECT_FALSE(choose_move(hub_of("aaaaaaaa", 9), {}, workers_of(9), {}, 0)) << "alone";
}

// 20 hubs, each of which acts by itself on the members of the last look.
TEST(WorkerMovesTest, AFleetFindsItsBalanceAndKeepsIt) {
    std::vector<Member> members;
    for (int i = 0; i < 20; ++i) members.push_back(hub_of(text("hub", i), i == 0 ? 0 : 50));
    std::minstd_rand random(7);
    std::uint64_t moved = 0, least = 0, most = 0;
    for (int look = 0; look < 200; ++look) {
        std::vector<Member> next = members;
        for (std::size_t i = 0; i < members.size(); ++i) {
            const auto move = choose_move(members[i], members, workers_of(members[i].workers), {},
                                          std::generate_canonical<double, 32>(random));
            if (!move) continue;
            ++moved;
            --next[i].workers;
            ++std::ranges::find(next, move->hub.id, &Member::hub_id)->workers;
        }
        members = next;
        const auto [few, many] = std::ranges::minmax(members, {}, &Member::workers);
        least = few.workers;
        most = many.workers;
    }
    EXPECT_LE(most - least, 2u);
    EXPECT_LT(moved, 80u) << "48 workers have to move";
}

}  // namespace
}  // namespace moex::net
