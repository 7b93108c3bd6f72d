// The path from ASSIGN to READY: downloads that fail, wait or pause, or whose expert is released.
#include "tests/web-worker/stage.h"

namespace moex {
namespace {

TEST(ExpertLoaderTest, ExpertThatCannotBeFetchedIsRetried) {
    Stage stage;
    stage.fetches_failing = 3;
    stage.serve({2});

    EXPECT_EQ(stage.fetches, 4);
    EXPECT_EQ(stage.status().errors, 3u);
    EXPECT_EQ(stage.status().units_assigned, 1u);
    EXPECT_EQ(stage.status().phase, WorkerPhase::serving);
}

TEST(ExpertLoaderTest, AWeightSyncAssignsOneUnit) {
    Stage stage;
    stage.serve({1});
    stage.give(
        encode_weight_sync({.sequence_id = 3, .layer = 0, .expert = 6, .blob = hash_of(6)}, 96));

    EXPECT_EQ(decode_units(stage.next(FrameType::ready), stage.limits).value(),
              (std::vector<Unit>{{0, 6}}));
}

// Regression: when the hub reconnected and assigned other experts, the worker once answered "every
// slot is taken" without end.
TEST(ExpertLoaderTest, ExpertsOfAnEarlierShareMakeRoomForTheNext) {
    Stage stage(3 * stage_blob_bytes);  // memory for two experts, and for the lanes
    stage.serve({1, 4});

    stage.hang_up(1001, "restart");
    stage.welcome();
    stage.assign({2, 6});
}

// Regression: a paused worker once continued to download, and had no expert when it resumed.
TEST(ExpertLoaderTest, PauseStopsADownloadAndResumeContinuesIt) {
    Stage stage;
    stage.core->start();
    stage.welcome();
    stage.hold_fetches = true;
    stage.give(encode_assign(units_of({1, 2})));
    EXPECT_EQ(stage.held_fetches.size(), 2u);

    stage.core->pause();
    for (auto& arrive : std::exchange(stage.held_fetches, {})) arrive();
    stage.run_until(
        [&] { return !stage.phases.empty() && stage.phases.back() == WorkerPhase::paused; });

    EXPECT_EQ(stage.status().bytes_downloaded, 0u);
    EXPECT_EQ(stage.status().bytes_to_fetch, stage.status().bytes_fetched);

    stage.hold_fetches = false;
    stage.core->resume();
    stage.welcome();
    stage.assign({1, 2});
    EXPECT_EQ(stage.status().bytes_downloaded, 2 * stage_blob_bytes);
}

TEST(ExpertLoaderTest, ProgressCountsExpertsAssignedLater) {
    Stage stage;
    stage.core->start();
    stage.welcome();
    stage.give(encode_assign(units_of({1}), 2));
    stage.run_until([&] { return stage.status().units_ready == 1; });
    EXPECT_EQ(stage.status().units_assigned, 3u);
    EXPECT_EQ(stage.status().phase, WorkerPhase::downloading);
    EXPECT_EQ(stage.status().bytes_to_fetch - stage.status().bytes_fetched, 2 * stage_blob_bytes);

    stage.give(encode_assign(units_of({2}), 1));
    stage.run_until([&] { return stage.status().units_ready == 2; });
    EXPECT_EQ(stage.status().units_assigned, 3u);
    EXPECT_EQ(stage.status().phase, WorkerPhase::downloading);

    // An empty ASSIGN: no expert follows, as the third one went to another worker.
    stage.give(encode_assign({}));
    stage.run_until([&] { return stage.status().units_assigned == 2; });
    EXPECT_EQ(stage.status().phase, WorkerPhase::serving);
    EXPECT_EQ(stage.status().bytes_to_fetch, stage.status().bytes_fetched);
}

// Regression: the progress bar once stayed at 50 % after an expert was released between two
// attempts to download it.
TEST(ExpertLoaderTest, ExpertReleasedBetweenRetriesIsNotWaitedFor) {
    Stage stage;
    stage.serve({1});
    stage.fetches_failing = 1000;
    stage.give(encode_assign(units_of({2})));
    stage.run_until([&] { return stage.status().errors == 1; });

    stage.give(encode_release({{0, 2}}));
    EXPECT_EQ(stage.status().phase, WorkerPhase::serving);

    stage.long_waits = true;
    stage.run_until([&] { return stage.status().bytes_to_fetch == stage.status().bytes_fetched; });
    EXPECT_EQ(stage.fetches, 2);
}

}  // namespace
}  // namespace moex
