// Tests how groups of workers settle with a large model: how often experts are loaded, and how long
// it takes until every layer is held by its group alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "hub/dispatch/placement/unit_directory.h"

namespace moex {
namespace {

// A directory with workers that have memory for all units. They load a fixed number of units per
// second, in the order in which they were ordered.
struct GroupsSettleTest : testing::Test {
    static constexpr std::uint32_t layer_units = 128, num_units = 48 * layer_units;
    static constexpr Duration turn = 50ms;
    static constexpr double loads_per_s = 400;
    struct Loader {
        UnitHolder holder;
        std::deque<std::uint32_t> queue;
        double may_load = 0;
    };

    GroupsSettleTest()
        : directory({.placement = {.num_units = num_units,
                                   .layer_units = layer_units,
                                   .replicas = 1,
                                   .choice = parse_placement("groups 4").value()},
                     .moves_per_s = num_units / 8.0,  // the same rate as in SwarmCore
                     .moves_at_once = num_units / 8.0,
                     .loads_ahead = 16,
                     .serves = [](const UnitHolder&) { return true; }}) {}

    void join() {
        loaders.push_back(std::make_unique<Loader>());
        UnitHolder& holder = loaders.back()->holder;
        holder.id = loaders.size();
        directory.join(holder,
                       {.worker = holder.id,
                        .ring_key = 77 * holder.id,
                        .capacity_units = num_units,
                        .address_prefix = holder.id},
                       now);
        directory.settle(now);
        read_orders();
    }
    void run(Duration time) {
        for (const TimePoint until = now + time; now < until; now += turn) {
            if (directory.wake_at() && *directory.wake_at() <= now) directory.wake(now);
            read_orders();
            for (const auto& loader : loaders) load(*loader);
        }
    }
    void load(Loader& loader) {
        loader.may_load += loads_per_s * to_ms(turn) / 1000;
        std::vector<std::uint32_t> loaded;
        for (; loader.may_load >= 1 && !loader.queue.empty(); loader.may_load -= 1) {
            loaded.push_back(loader.queue.front());
            loader.queue.pop_front();
        }
        loader.may_load = std::min(loader.may_load, 1.0);
        num_loaded += loaded.size();
        directory.on_ready(loader.holder, loaded, now);
        directory.settle(now);
        read_orders();
    }
    void read_orders() {
        for (const UnitOrder& order : directory.take_orders()) {
            std::deque<std::uint32_t>& queue = loaders[order.worker - 1]->queue;
            num_told += order.release ? 0 : order.units.size();
            for (const std::uint32_t unit : order.units)
                if (order.release)
                    std::erase(queue, unit);
                else
                    queue.push_back(unit);
        }
    }
    bool is_settled() const {
        const bool each_has_its_own = std::ranges::all_of(loaders, [](const auto& loader) {
            return loader->holder.num_planned() == loader->holder.num_ready;
        });
        return each_has_its_own && directory.placement().num_away() == 0 &&
               std::ranges::all_of(loaders, [](const auto& loader) {
                   return loader->holder.num_ready == num_units / 8;
               });
    }
    // Returns the number of seconds from now until all groups have settled, at most 60.
    double seconds_to_settle() {
        const TimePoint from = now;
        while (!is_settled() && now - from < 60s) run(turn);
        return to_ms(now - from) / 1000;
    }

    UnitDirectory directory;
    std::vector<std::unique_ptr<Loader>> loaders;
    std::size_t num_told = 0, num_loaded = 0;
    TimePoint now{100s};
};

TEST_F(GroupsSettleTest, WorkersThatAreStartedTogetherLoadEachExpertOnce) {
    for (int i = 0; i < 8; ++i) {
        join();
        run(300ms);
    }
    EXPECT_LE(seconds_to_settle(), 4);
    EXPECT_EQ(num_loaded, num_units);
    EXPECT_EQ(num_told, num_units);
}

// The workers join at intervals of 1.5 s. In 1.5 s one worker loads a tenth of all units.
TEST_F(GroupsSettleTest, WorkersJoiningOneByOneLoadLittleTwice) {
    for (int i = 0; i < 8; ++i) {
        join();
        run(1500ms);
    }
    EXPECT_LE(seconds_to_settle(), 10);
    EXPECT_LE(num_loaded, num_units * 8 / 5);
}

}  // namespace
}  // namespace moex
