// Tests the unit directory without a swarm: which units workers are ordered to hold, and when they
// are ordered to release them.
#include "hub/dispatch/placement/unit_directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

namespace moex {
namespace {

constexpr std::uint32_t num_units = 48;

// A unit directory, and workers that carry out their orders when the test calls for it.
struct UnitDirectoryTest : testing::Test {
    UnitDirectoryTest() { open(2); }
    void open(std::uint32_t replicas, std::uint32_t loads_ahead = num_units) {
        directory = std::make_unique<UnitDirectory>(UnitDirectoryOptions{
            .placement = {.num_units = num_units, .replicas = replicas, .seed = 3},
            .loads_ahead = loads_ahead,
            .serves = [this](const UnitHolder& holder) { return !out.contains(holder.id); }});
    }

    UnitHolder& join(std::uint32_t capacity_units = num_units, std::uint64_t ring_key = 0) {
        holders.push_back(std::make_unique<UnitHolder>(UnitHolder{.id = ++last_id}));
        directory->join(*holders.back(),
                        {.worker = last_id,
                         .ring_key = ring_key != 0 ? ring_key : last_id * 77,
                         .capacity_units = capacity_units,
                         .address_prefix = last_id},
                        now);
        directory->settle(now);
        read_orders();
        return *holders.back();
    }
    void leave(UnitHolder& holder, bool may_return = false) {
        left.insert(holder.id);
        directory->leave(holder, may_return, now);
        directory->settle(now);
        read_orders();
    }
    // Advances the clock by `time`, and runs the directory at each of its deadlines.
    void wait(Duration time) {
        const TimePoint until = now + time;
        while (directory->wake_at() && *directory->wake_at() <= until) {
            now = std::max(now, *directory->wake_at());
            directory->wake(now);
            read_orders();
        }
        now = until;
    }
    // Returns the units that the holder was ordered to load and has not reported READY yet.
    std::vector<std::uint32_t> open_of(const UnitHolder& holder) const {
        std::vector<std::uint32_t> units;
        for (std::uint32_t unit = 0; unit < num_units; ++unit)
            if (holder.has(unit, UnitHolder::assigned) && !holder.has(unit, UnitHolder::ready))
                units.push_back(unit);
        return units;
    }
    void load(UnitHolder& holder) {
        directory->on_ready(holder, open_of(holder), now);
        directory->settle(now);
        read_orders();
    }
    void load_all() {
        for (const auto& holder : holders)
            if (!holder->units.empty()) load(*holder);
    }
    void read_orders() {
        for (UnitOrder& order : directory->take_orders()) {
            (order.release ? num_released : num_assigned) += order.units.size();
            orders.push_back(std::move(order));
        }
        for (const auto& holder : holders)
            for (const std::string& wrong : directory->check(*holder, !left.contains(holder->id)))
                ADD_FAILURE() << "worker " << holder->id << ": " << wrong;
    }
    std::size_t num_uncovered() const {
        std::size_t count = 0;
        for (std::uint32_t unit = 0; unit < num_units; ++unit)
            count += directory->ready(unit).empty();
        return count;
    }

    // out: workers that get no requests. left: workers that have left; their place may still be
    // kept
    std::set<WorkerId> out, left;
    std::unique_ptr<UnitDirectory> directory;
    std::vector<std::unique_ptr<UnitHolder>> holders;
    std::vector<UnitOrder> orders;
    std::size_t num_assigned = 0, num_released = 0;
    WorkerId last_id = 0;
    TimePoint now{100s};
};

TEST_F(UnitDirectoryTest, FirstWorkerHoldsAllAndTheNextSecondCopies) {
    UnitHolder& first = join();
    EXPECT_EQ(first.num_assigned, num_units);
    EXPECT_EQ(first.num_ready, 0u);
    load(first);
    EXPECT_EQ(first.num_ready, num_units);
    EXPECT_EQ(join().num_assigned, num_units);
    EXPECT_EQ(num_assigned, 2 * num_units);
    EXPECT_EQ(num_released, 0u);
}

TEST_F(UnitDirectoryTest, CopyIsReleasedWhenTheNewHoldersAreReady) {
    join();
    join();
    load_all();
    UnitHolder& third = join();
    EXPECT_GT(third.num_assigned, 0u);
    EXPECT_EQ(num_released, 0u);

    const std::vector<std::uint32_t> some(1, open_of(third).front());
    directory->on_ready(third, some, now);
    directory->settle(now);
    read_orders();
    EXPECT_EQ(num_released, 1u);
    EXPECT_EQ(directory->ready(some[0]).size(), 2u);

    load(third);
    EXPECT_EQ(num_released, third.num_assigned);
    EXPECT_EQ(num_uncovered(), 0u);
}

TEST_F(UnitDirectoryTest, CopyOfAnUnusedWorkerReleasesNoOther) {
    join();
    join();
    load_all();
    UnitHolder& third = join();
    out.insert(third.id);
    load(third);
    EXPECT_EQ(num_released, 0u);
}

TEST_F(UnitDirectoryTest, ReleasesOfOneMomentAreOneOrder) {
    join();
    join();
    load_all();
    UnitHolder& third = join();
    orders.clear();
    load(third);
    EXPECT_LE(orders.size(), 2u);
}

TEST_F(UnitDirectoryTest, UnitsOfALeaverAreOrderedFromOthersAtOnce) {
    join();
    UnitHolder& second = join();
    UnitHolder& third = join();
    load_all();
    const std::size_t before = num_assigned, held = second.num_assigned;
    leave(second);
    EXPECT_EQ(num_assigned - before, held);
    EXPECT_EQ(directory->held_until(0) == TimePoint{} || directory->held_until(0) == now, true);
    load(third);
    load_all();
    for (std::uint32_t unit = 0; unit < num_units; ++unit)
        EXPECT_EQ(directory->ready(unit).size(), 2u) << unit;
}

TEST_F(UnitDirectoryTest, QuickReturnKeepsThePlaceAndOrdersNothing) {
    for (int i = 0; i < 4; ++i) join();
    load_all();
    wait(10s);
    load_all();
    UnitHolder& gone = *holders[1];
    std::set<std::uint32_t> held;
    for (std::uint32_t unit = 0; unit < num_units; ++unit)
        if (gone.has(unit, UnitHolder::ready)) held.insert(unit);
    const std::size_t assigned_before = num_assigned, released_before = num_released;

    leave(gone, true);
    wait(15s);
    EXPECT_EQ(num_assigned, assigned_before);
    UnitHolder& back = join(num_units, gone.ring_key);
    wait(30s);
    EXPECT_EQ(num_assigned - assigned_before, held.size());
    for (const std::uint32_t unit : held) EXPECT_TRUE(back.has(unit, UnitHolder::assigned)) << unit;
    EXPECT_EQ(num_released, released_before);
}

TEST_F(UnitDirectoryTest, SoleUnitsDoNotWaitForAnAbsentWorker) {
    open(1);
    for (int i = 0; i < 4; ++i) join();
    load_all();
    UnitHolder& gone = *holders[0];
    leave(gone, true);
    wait(1s);
    ASSERT_GT(num_uncovered(), 0u);
    wait(2s);
    load_all();
    EXPECT_EQ(num_uncovered(), 0u);
}

TEST_F(UnitDirectoryTest, AbsentWorkerLosesItsPlaceAfterATime) {
    for (int i = 0; i < 4; ++i) join();
    load_all();
    wait(10s);
    load_all();
    leave(*holders[1], true);
    wait(21s);
    load_all();
    for (std::uint32_t unit = 0; unit < num_units; ++unit)
        EXPECT_EQ(directory->ready(unit).size(), 2u) << unit;
}

TEST_F(UnitDirectoryTest, MassLeaveIsNotWaitedFor) {
    for (int i = 0; i < 8; ++i) join();
    load_all();
    for (int i = 0; i < 4; ++i) leave(*holders[static_cast<std::size_t>(i)], true);
    wait(300ms);  // time for which the directory waits for more workers to leave
    load_all();
    EXPECT_EQ(num_uncovered(), 0u);
    EXPECT_FALSE(directory->wake_at() && *directory->wake_at() > now + 1s);
}

// Workers leave one by one. Some units have lost their last holder when the last of these workers
// leaves, and are needed early. They must be loaded before units that the first leaver held, and
// before second copies.
TEST_F(UnitDirectoryTest, AfterAMassLeaveLostUnitsAreOrderedFirst) {
    for (int i = 0; i < 8; ++i) join();
    load_all();
    orders.clear();
    for (std::size_t i = 0; i < 3; ++i) leave(*holders[i], true);
    std::set<std::uint32_t> uncovered, ordered;
    for (std::uint32_t unit = 0; unit < num_units; ++unit)
        if (directory->ready(unit).empty()) uncovered.insert(unit);
    ASSERT_FALSE(uncovered.empty());
    for (const UnitOrder& order : orders) EXPECT_TRUE(order.release || order.units.empty());

    wait(300ms);
    for (const UnitOrder& order : orders) {
        if (order.release) continue;
        EXPECT_TRUE(std::ranges::is_partitioned(
            order.units, [&](std::uint32_t unit) { return uncovered.contains(unit); }));
        ordered.insert(order.units.begin(), order.units.end());
    }
    EXPECT_TRUE(std::ranges::includes(ordered, uncovered));

    load_all();
    for (std::uint32_t unit = 0; unit < num_units; ++unit)
        EXPECT_EQ(directory->ready(unit).size(), 2u) << unit;
}

// A worker that takes seconds to download the units that were ordered ahead gets smaller orders.
TEST_F(UnitDirectoryTest, SlowLoaderGetsTwoUnitsAtATime) {
    open(2, 8);
    UnitHolder& first = join();
    std::size_t told_most = 0;
    for (int i = 0; i < 24; ++i) {
        const std::vector<std::uint32_t> some = open_of(first);
        ASSERT_FALSE(some.empty());
        wait(2s);
        directory->on_ready(first, {some.data(), 1}, now);
        directory->settle(now);
        if (i >= 16) told_most = std::max<std::size_t>(told_most, first.num_loading());
    }
    EXPECT_EQ(told_most, 2u);
}

TEST_F(UnitDirectoryTest, UnitsWithoutAHolderAreOrderedByNeed) {
    directory->needs_layer_of(20);
    join();
    ASSERT_EQ(orders.size(), 1u);
    ASSERT_EQ(orders[0].units.size(), std::size_t{num_units});
    for (std::uint32_t i = 0; i < num_units; ++i)
        EXPECT_EQ(orders[0].units[i], (20 + i) % num_units);
}

TEST_F(UnitDirectoryTest, OrdersStayWithinLoadsAheadUntilAllAreSent) {
    open(2, 8);
    UnitHolder& first = join();
    EXPECT_EQ(first.num_assigned, 8u);
    EXPECT_TRUE(directory->is_awaited(num_units - 1));
    const std::vector<std::uint32_t> some = open_of(first);
    for (std::size_t i = 0; i < 4; ++i) {
        wait(100ms);
        directory->on_ready(first, {&some[i], 1}, now);
        directory->settle(now);
        EXPECT_EQ(first.num_assigned, i < 3 ? 8u : 12u);
    }
    for (int i = 0; i < 8; ++i) load(first);
    EXPECT_EQ(first.num_ready, num_units);
    EXPECT_EQ(first.num_later, 0u);
}

TEST_F(UnitDirectoryTest, LoadsAheadFollowTheLoadingSpeed) {
    open(2, 4);
    UnitHolder& first = join();
    EXPECT_EQ(first.num_loading(), 4u);
    load(first);
    EXPECT_EQ(first.num_loading(), 8u);
    wait(100ms);
    load(first);
    EXPECT_EQ(first.num_loading(), 16u);
    wait(2s);
    load(first);
    EXPECT_EQ(first.num_loading(), 8u);
}

// From the first order on the worker knows how many units it will load, so that its progress bar
// has an end, even if that end changes later.
TEST_F(UnitDirectoryTest, AWorkerKnowsHowManyUnitsAreToCome) {
    open(1, 8);
    UnitHolder& first = join();
    EXPECT_EQ(first.num_assigned, 8u);
    EXPECT_EQ(first.told_later, num_units - 8);

    orders.clear();
    UnitHolder& second = join();
    EXPECT_EQ(first.num_planned() + second.num_planned(), num_units);
    EXPECT_LT(first.told_later, num_units - 8);
    EXPECT_TRUE(std::ranges::any_of(orders, [&](const UnitOrder& order) {
        return order.worker == first.id && !order.release;
    }));
    for (int i = 0; i < 8; ++i) load_all();
    EXPECT_EQ(first.told_later + second.told_later, 0u);
    EXPECT_EQ(first.num_ready + second.num_ready, num_units);
}

// The worker's memory limit is lowered. The worker has nothing to load or release, since only units
// that were to be ordered later are cancelled.
TEST_F(UnitDirectoryTest, WorkerIsSentAReducedNumberOfUnitsToCome) {
    open(1, 8);
    directory->needs_layer_of(20);
    UnitHolder& first = join();
    ASSERT_EQ(first.told_later, num_units - 8);

    orders.clear();
    directory->on_budget(first, 40, {}, now);
    read_orders();
    EXPECT_EQ(first.told_later, 40u - 8);
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].worker, first.id);
    EXPECT_FALSE(orders[0].release);
    EXPECT_TRUE(orders[0].units.empty());
}

TEST_F(UnitDirectoryTest, CancelledLoadsMakeRoomForTheRemainingOrders) {
    open(2, 8);
    UnitHolder& first = join();
    for (int i = 0; i < 8; ++i) load(first);
    UnitHolder& second = join();
    ASSERT_EQ(second.num_assigned, 8u);
    // Workers that join later take over many of the units that the first worker was ordered to
    // load.
    for (int i = 0; i < 4; ++i) join();
    for (int i = 0; i < 40; ++i) {
        load_all();
        wait(300ms);
    }
    for (const auto& holder : holders) EXPECT_EQ(holder->num_later, 0u) << holder->id;
    for (std::uint32_t unit = 0; unit < num_units; ++unit)
        EXPECT_EQ(directory->ready(unit).size(), 2u) << unit;
}

// A worker still has second copies to load when the only holder of other units leaves.
TEST_F(UnitDirectoryTest, LostUnitsAreOrderedBeforeQueuedSecondCopies) {
    open(2, 8);
    UnitHolder& gone = join();
    for (int i = 0; i < 8; ++i) load(gone);
    UnitHolder& other = join();
    ASSERT_EQ(other.num_assigned, 8u);
    const std::vector<std::uint32_t> before = open_of(other);

    directory->needs_layer_of(0);
    leave(gone);
    EXPECT_EQ(other.num_assigned, 8u);
    wait(500ms);
    orders.clear();
    load(other);
    ASSERT_EQ(orders.size(), 1u);
    std::vector<std::uint32_t> next;
    for (std::uint32_t unit = 0; next.size() < 8; ++unit)
        if (std::ranges::find(before, unit) == before.end()) next.push_back(unit);
    EXPECT_EQ(orders[0].units, next);
}

TEST_F(UnitDirectoryTest, CachedUnitsAreOrderedAtOnce) {
    open(2, 8);
    holders.push_back(std::make_unique<UnitHolder>(UnitHolder{.id = ++last_id}));
    PlacementMember member{
        .worker = last_id, .ring_key = 5, .capacity_units = num_units, .address_prefix = 1};
    member.cached.assign(num_units, false);
    for (std::uint32_t unit = 0; unit < 30; ++unit) member.cached[unit] = true;
    directory->join(*holders.back(), member, now);
    directory->settle(now);
    read_orders();
    EXPECT_GE(holders.back()->num_assigned, 30u);
    for (std::uint32_t unit = 0; unit < 30; ++unit)
        EXPECT_TRUE(holders.back()->has(unit, UnitHolder::assigned)) << unit;
}

TEST_F(UnitDirectoryTest, StuckLoaderLosesItsUnitsAndMayRetryLater) {
    open(1);
    UnitHolder& stuck = join(30);
    UnitHolder& other = join(num_units);
    load(other);
    ASSERT_GT(num_uncovered(), 0u);

    now += 29s;
    directory->check_loading(stuck, 30, now);
    EXPECT_GT(stuck.num_assigned, 0u);
    now += 1s;
    directory->check_loading(stuck, 30, now);
    read_orders();
    EXPECT_EQ(stuck.num_assigned, 0u);
    load(other);
    EXPECT_EQ(num_uncovered(), 0u);

    now += 60s;
    directory->check_loading(stuck, 30, now);
    read_orders();
    EXPECT_GT(stuck.num_assigned, 0u);
}

TEST_F(UnitDirectoryTest, NoSpaceReleasesUnloadedUnitsOnly) {
    UnitHolder& full = join();
    const std::vector<std::uint32_t> some{0, 1, 2, 3};
    directory->on_ready(full, some, now);
    directory->on_no_space(full, now);
    read_orders();
    EXPECT_EQ(full.num_assigned, 4u);
    EXPECT_EQ(full.num_ready, 4u);
}

TEST_F(UnitDirectoryTest, MissingUnitIsNoRouteUntilReadyAgain) {
    UnitHolder& holder = join();
    load(holder);
    const std::vector<std::uint32_t> lost{7};
    orders.clear();
    directory->on_missing(holder, lost, true, now);
    read_orders();
    EXPECT_TRUE(directory->ready(7).empty());
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].units, lost);

    directory->on_missing(holder, lost, false, now);
    read_orders();
    EXPECT_EQ(orders.size(), 1u);
    load(holder);
    EXPECT_EQ(directory->ready(7).size(), 1u);
}

TEST_F(UnitDirectoryTest, AMoveWaitsForRoomWhereThereIsNone) {
    open(1);
    UnitHolder& first = join(24);
    UnitHolder& second = join(24);
    load_all();
    EXPECT_EQ(num_uncovered(), 0u);

    // Reduce the memory of a worker. The units that it drops go to no other worker, since no other
    // worker has memory left.
    const std::vector<std::uint32_t> dropped = [&] {
        std::vector<std::uint32_t> units;
        for (std::uint32_t unit = 0; unit < num_units && units.size() < 4; ++unit)
            if (first.has(unit, UnitHolder::ready)) units.push_back(unit);
        return units;
    }();
    directory->on_budget(first, 20, dropped, now);
    read_orders();
    EXPECT_EQ(num_uncovered(), 4u);

    directory->on_budget(second, 28, {}, now);
    read_orders();
    load(second);
    EXPECT_EQ(num_uncovered(), 0u);
}

}  // namespace
}  // namespace moex
