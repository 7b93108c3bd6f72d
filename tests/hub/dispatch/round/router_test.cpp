#include "hub/dispatch/round/router.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace moex {
namespace {

struct CallSlice {
    std::uint32_t num_pairs = 0;
    std::vector<std::uint32_t> takers;
};
// number of each worker -> its slices, ascending
using Cover = std::map<std::uint32_t, std::vector<std::uint32_t>>;

Cover cover_of(Router& router, const std::vector<RouteWorker>& workers,
               const std::vector<CallSlice>& slices) {
    router.begin();
    for (const RouteWorker& worker : workers) router.add_worker(worker);
    for (std::uint32_t i = 0; i < slices.size(); ++i)
        router.add_slice(i, slices[i].num_pairs, slices[i].takers);
    for (std::uint32_t i = 0; i < workers.size(); ++i) router.set_pace(i, workers[i].pace_ms);

    Cover cover;
    for (const RouteGroup& group : router.cover()) {
        std::vector<std::uint32_t> given = group.slices;
        std::sort(given.begin(), given.end());
        cover[group.worker] = given;
    }
    return cover;
}

// A slow reference implementation of the router: for each group it examines every worker and every
// slice again.
class PlainRouter {
  public:
    PlainRouter(const std::vector<RouteWorker>& workers, const std::vector<CallSlice>& slices)
        : workers_(workers),
          slices_(slices),
          given_(slices.size()) {
        std::vector<double> paces;
        for (const CallSlice& slice : slices) total_ += slice.num_pairs;
        for (const RouteWorker& worker : workers) paces.push_back(worker.pace_ms);
        std::sort(paces.begin(), paces.end());
        middle_ = paces.empty() ? 0 : paces[(paces.size() - 1) / 2];
        for (const RouteWorker& worker : workers)
            if (!is_slow(worker)) speed_ += 1 / worker.pace_ms;
        speed_ = std::max(1e-9, speed_);
    }
    Cover cover() {
        for (const bool slow : {false, true}) {
            while (const auto best = best_of(slow)) take(*best);
            give_rest();
        }
        return cover_;
    }

  private:
    bool is_slow(const RouteWorker& worker) const {
        return worker.stalls || worker.pace_ms > 3 * middle_;
    }
    bool takes(std::uint32_t worker, std::uint32_t slice) const {
        const auto& takers = slices_[slice].takers;
        return !given_[slice] && std::find(takers.begin(), takers.end(), worker) != takers.end();
    }
    std::uint32_t gain(std::uint32_t worker) const {
        std::uint32_t pairs = 0;
        for (std::uint32_t i = 0; i < slices_.size(); ++i)
            if (takes(worker, i)) pairs += slices_[i].num_pairs;
        return pairs;
    }
    std::uint32_t share(std::uint32_t worker) const {
        const double share = std::ceil(total_ / workers_[worker].pace_ms / speed_);
        return std::max(Router::share_pairs_min,
                        static_cast<std::uint32_t>(std::min<double>(total_, share)));
    }
    std::optional<std::uint32_t> best_of(bool slow) const {
        std::optional<std::uint32_t> best;
        const auto key = [&](std::uint32_t w) {
            return std::tuple(~std::min(gain(w), share(w)), workers_[w].num_live, workers_[w].work,
                              workers_[w].id);
        };
        for (std::uint32_t w = 0; w < workers_.size(); ++w)
            if (is_slow(workers_[w]) == slow && !cover_.contains(w) && gain(w) > 0 &&
                (!best || key(w) < key(*best)))
                best = w;
        return best;
    }
    std::uint32_t pairs_of(std::uint32_t worker) {
        std::uint32_t pairs = 0;
        for (const std::uint32_t i : cover_[worker]) pairs += slices_[i].num_pairs;
        return pairs;
    }
    void take(std::uint32_t worker) {
        for (std::uint32_t i = 0; i < slices_.size(); ++i) {
            if (!takes(worker, i)) continue;
            const std::uint32_t so_far = pairs_of(worker);
            if (so_far > 0 && so_far + slices_[i].num_pairs > share(worker)) continue;
            cover_[worker].push_back(i);
            given_[i] = true;
        }
    }
    void give_rest() {
        for (std::uint32_t i = 0; i < slices_.size(); ++i) {
            std::optional<std::uint32_t> least;
            for (const std::uint32_t w : slices_[i].takers)
                if (takes(w, i) && cover_.contains(w) && (!least || pairs_of(w) < pairs_of(*least)))
                    least = w;
            if (!least) continue;
            cover_[*least].push_back(i);
            std::sort(cover_[*least].begin(), cover_[*least].end());
            given_[i] = true;
        }
    }

    const std::vector<RouteWorker>& workers_;
    const std::vector<CallSlice>& slices_;
    std::vector<bool> given_;
    Cover cover_;
    std::uint32_t total_ = 0;
    double middle_ = 0, speed_ = 0;
};

std::vector<RouteWorker> even_workers(std::uint32_t count) {
    std::vector<RouteWorker> workers;
    for (std::uint32_t i = 0; i < count; ++i) workers.push_back({.id = i + 1, .pace_ms = 5});
    return workers;
}

TEST(RouterTest, FewRowsGoToTheWorkerThatTakesMost) {
    Router router;
    const std::vector<CallSlice> slices{{1, {0, 1}}, {1, {1, 2}}, {1, {1}}, {1, {0, 1}}};
    EXPECT_EQ(cover_of(router, even_workers(3), slices), (Cover{{1, {0, 1, 2, 3}}}));
}

TEST(RouterTest, TiesGoToLessLoadThenToLessWork) {
    Router router;
    std::vector<RouteWorker> workers = even_workers(3);
    workers[0].num_live = 1;
    workers[1].work = 2;
    EXPECT_EQ(cover_of(router, workers, {{1, {0, 1, 2}}}), (Cover{{2, {0}}}));
    workers[2].num_live = 1;
    EXPECT_EQ(cover_of(router, workers, {{1, {0, 1, 2}}}), (Cover{{1, {0}}}));
}

TEST(RouterTest, ALargeRoundIsSharedBySpeed) {
    Router router;
    std::vector<RouteWorker> workers = even_workers(2);
    workers[1].pace_ms = 10;  // the second worker is half as fast
    const Cover cover = cover_of(router, workers,
                                 std::vector<CallSlice>(30, CallSlice{10, {0, 1}}));
    EXPECT_EQ(cover.at(0).size(), 20u);
    EXPECT_EQ(cover.at(1).size(), 10u);
}

TEST(RouterTest, SlowOrOverdueWorkerComputesOnlyUnitsWithoutAlternative) {
    Router router;
    std::vector<RouteWorker> workers = even_workers(4);
    workers[0].pace_ms = 16;
    workers[1].stalls = true;
    const std::vector<CallSlice> slices{{1, {0, 1, 2}}, {1, {0, 3}}, {1, {1}}, {1, {0}}};
    EXPECT_EQ(cover_of(router, workers, slices), (Cover{{0, {3}}, {1, {2}}, {2, {0}}, {3, {1}}}));
}

TEST(RouterTest, SlicesWithoutAWorkerAreLeft) {
    Router router;
    EXPECT_EQ(cover_of(router, even_workers(1), {{1, {}}, {1, {0}}, {1, {}}}), (Cover{{0, {1}}}));
    std::vector<std::uint32_t> left;
    router.append_left(left);
    EXPECT_EQ(left, (std::vector<std::uint32_t>{0, 2}));
}

RC_GTEST_PROP(RouterProperty, CoverEqualsThatOfThePlainTwin, ()) {
    Router router;
    // several rounds, because the router reuses its vectors
    for (int round = 0; round < 3; ++round) {
        std::vector<RouteWorker> workers = even_workers(*rc::gen::inRange<std::uint32_t>(1, 12));
        for (RouteWorker& worker : workers) {
            worker.num_live = *rc::gen::inRange<std::uint32_t>(0, 3);
            worker.work = *rc::gen::inRange(0, 4);
            worker.pace_ms = *rc::gen::element(1.0, 2.0, 5.0, 20.0);
            worker.stalls = *rc::gen::inRange(0, 8) == 0;
        }
        std::vector<CallSlice> slices(*rc::gen::inRange<std::size_t>(0, 40));
        for (CallSlice& slice : slices) {
            slice.num_pairs = *rc::gen::inRange<std::uint32_t>(1, 60);
            for (std::uint32_t w = 0; w < workers.size(); ++w)
                if (*rc::gen::inRange(0, 3) == 0) slice.takers.push_back(w);
        }
        RC_ASSERT(cover_of(router, workers, slices) == PlainRouter(workers, slices).cover());
    }
}

}  // namespace
}  // namespace moex
