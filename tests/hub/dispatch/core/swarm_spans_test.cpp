// Tests which layers workers get to compute whole, and when they get others.
#include "tests/hub/dispatch/core/swarm_spans_stage.h"

namespace moex {
namespace {

TEST_F(SwarmSpansTest, LayersWithoutAHolderComeFirstThenStandbys) {
    const WorkerId a = join(4, "a"), b = join(2, "b"), c = join(3, "c"), d = join(4, "d"),
                   none = join(0, "none");
    wait();
    // The hub keeps the layers 0, 1 and 9.
    EXPECT_EQ(layers_of(a), Range(2, 6));
    EXPECT_EQ(layers_of(b), Range(6, 8));
    EXPECT_EQ(layers_of(c), Range(8, 9));
    EXPECT_EQ(layers_of(d), Range(2, 6));
    EXPECT_EQ(layers_of(none), std::nullopt);
    EXPECT_EQ(core_->span_board()->ready().size(), 4u);
    const WorkerId e = join(2, "e");
    wait();
    EXPECT_EQ(layers_of(e), Range(6, 8));
}

// The shorter span can grow into the layers that are left beside it.
TEST_F(SwarmSpansTest, LayersBesideAShorterSpanAreLeftToIt) {
    const WorkerId a = join(2, "a"), b = join(3, "b"), c = join(2, "c");
    wait();
    EXPECT_EQ(layers_of(a), Range(2, 4));
    EXPECT_EQ(layers_of(b), Range(6, 9));
    EXPECT_EQ(layers_of(c), Range(4, 6));
}

// A worker has room for the longest range where it holds the experts already. With these seeds that
// is in the middle of the gap, and has four layers.
TEST_F(SwarmSpansTest, GapIsNotCutForAQuarterOfTheLayers) {
    options_.local_fallback = false;
    options_.replicas = 1;
    kv_bytes_ = 7 * 512 * span_kv_bytes(1, 1, kv_size_);
    for (const auto& [seed, range] : {std::pair(3u, Range(2, 5)), std::pair(77u, Range(6, 9))}) {
        options_.seed = seed;
        start_anew();
        budget_bytes_ = kv_bytes_ + num_layers_ * num_experts_ * blob_bytes_ / 2;
        join(0, "first");
        join(0, "second");
        budget_bytes_ = kv_bytes_ + 4 * layer_bytes_ + layer_blob_bytes_;
        const WorkerId third = join(7, "third", {span_cap, span_once_cap});
        wait();
        EXPECT_EQ(layers_of(third), range);
    }
}

TEST_F(SwarmSpansTest, LayersOfVersion2GoToWorkersThatKnowIt) {
    options_.spans.layer_version = 2;
    const WorkerId older = join(4, "older"), newer = join(4, "newer", {span_cap, span2_cap}),
                   confused = join(4, "confused", {span2_cap});
    wait();
    EXPECT_EQ(layers_of(older), std::nullopt);
    EXPECT_EQ(layers_of(newer), Range(2, 6));
    EXPECT_EQ(layers_of(confused), std::nullopt);
    // A worker without spans computes experts.
    EXPECT_FALSE(units_[older].empty());
}

TEST_F(SwarmSpansTest, LayersOfVersion3GoToWorkersThatKnowIt) {
    options_.spans.layer_version = 3;
    const WorkerId older = join(4, "older", {span_cap, span2_cap}),
                   newer = join(4, "newer", {span_cap, span2_cap, span3_cap});
    wait();
    EXPECT_EQ(layers_of(older), std::nullopt);
    EXPECT_EQ(layers_of(newer), Range(2, 6));
}

TEST_F(SwarmSpansTest, HubWithoutExpertsGivesSpansTheRoomThatExpertsLeave) {
    options_.local_fallback = false;
    kv_bytes_ = 100'000;
    budget_bytes_ = kv_bytes_ + num_layers_ * num_experts_ * blob_bytes_ + 2 * layer_bytes_;

    // Both have room for 7 layers. The first holds every expert, too, and the second releases those
    // that stand in the way of five layers.
    const WorkerId first = join(7, "first");
    EXPECT_EQ(layers_of(first), Range(2, 4));
    const WorkerId second = join(7, "second");
    wait();
    EXPECT_EQ(layers_of(second), Range(4, 9));
    EXPECT_EQ(units_[first].size(), num_layers_ * num_experts_);
    EXPECT_LE(units_[second].size() * blob_bytes_, budget_bytes_ - kv_bytes_ - 5 * layer_bytes_);
    EXPECT_EQ(num_released_[second], 14u);
}

// The memory beside all experts has room for what two layers have beside their experts: the blob of
// the layer, and four pages of keys and values.
TEST_F(SwarmSpansTest, ExpertsThatTheHolderHasAreCountedOnce) {
    options_.local_fallback = false;
    const std::uint64_t kv_layer_bytes = 4 * 128 * span_kv_bytes(1, 1, kv_size_);
    budget_bytes_ = num_layers_ * num_experts_ * blob_bytes_ +
                    2 * (layer_blob_bytes_ + kv_layer_bytes);
    kv_bytes_ = 10 * kv_layer_bytes;
    const WorkerId once = join(7, "once", {span_cap, span_once_cap});
    wait();
    EXPECT_EQ(layers_of(once), Range(2, 4));
    EXPECT_EQ(held_.at(once).kv_bytes_max, 2 * kv_layer_bytes);
    EXPECT_EQ(units_[once].size(), num_layers_ * num_experts_);
    EXPECT_EQ(num_released_[once], 0u);

    // A worker that holds these experts a second time in the span has room for one layer.
    start_anew();
    const WorkerId twice = join(7, "twice");
    wait();
    EXPECT_EQ(layers_of(twice), Range(2, 3));
    EXPECT_EQ(units_[twice].size(), num_layers_ * num_experts_);
}

// 8,192 tokens of keys and values come before a further layer, 512 only where no layer would fit.
TEST_F(SwarmSpansTest, KeysAndValuesComeBeforeAFurtherLayer) {
    options_.local_fallback = false;
    const std::uint64_t token_bytes = span_kv_bytes(1, 1, kv_size_);
    // Returns the layers of a worker with this memory beside the experts, and of that what is for
    // keys and values.
    const auto hold = [&](std::uint64_t beside_bytes) {
        start_anew();
        budget_bytes_ = num_layers_ * num_experts_ * blob_bytes_ + beside_bytes;
        const WorkerId worker = join(7, "worker");
        wait();
        return std::pair(layers_of(worker), held_.at(worker).kv_bytes_max);
    };
    EXPECT_EQ(hold(2 * (layer_bytes_ + 8192 * token_bytes)),
              std::pair(std::optional(Range(2, 4)), 2 * 8192 * token_bytes));
    EXPECT_EQ(hold(2 * (layer_bytes_ + 512 * token_bytes)),
              std::pair(std::optional(Range(2, 4)), 2 * 512 * token_bytes));
    EXPECT_EQ(hold(7 * (layer_bytes_ + 100'000 * token_bytes)),
              std::pair(std::optional(Range(2, 9)), 7 * 32768 * token_bytes))
        << "the rest is for experts";
}

// A span that takes more than the experts leave costs the only holder of some of them.
TEST_F(SwarmSpansTest, BuffersOfAStepAreCounted) {
    options_.local_fallback = false;
    budget_bytes_ = num_layers_ * num_experts_ * blob_bytes_ + layer_bytes_ +
                    512 * span_kv_bytes(1, 1, kv_size_);
    const WorkerId fits = join(7, "fits");
    wait();
    EXPECT_EQ(layers_of(fits), Range(2, 3));

    start_anew();
    --budget_bytes_;
    const WorkerId lacks = join(7, "lacks");
    wait();
    EXPECT_EQ(layers_of(lacks), std::nullopt);
    EXPECT_EQ(units_[lacks].size(), num_layers_ * num_experts_);
}

// The first worker of a swarm holds every expert, and has little room beside them.
TEST_F(SwarmSpansTest, SpanGrowsOnceOthersHaveItsHoldersExperts) {
    options_.local_fallback = false;
    options_.replicas = 1;
    kv_bytes_ = 7 * 512 * span_kv_bytes(1, 1, kv_size_);
    budget_bytes_ = kv_bytes_ + num_layers_ * num_experts_ * blob_bytes_ + 2 * layer_bytes_;
    const WorkerId first = join(7, "first");
    wait();
    ASSERT_EQ(layers_of(first), Range(2, 4));
    const std::uint32_t span = span_of(first);
    core_->span_board()->set_used({span});

    join(0, "experts alone");
    wait();
    wait();
    wait();
    // The other worker took half of the experts, which is the memory of four layers more.
    EXPECT_EQ(layers_of(first), Range(2, 8));
    EXPECT_EQ(core_->span_board()->ready().size(), 1u);
    const std::uint32_t grown = span_of(first);
    EXPECT_NE(grown, span);
    for (int i = 0; i < 12; ++i) wait();
    EXPECT_EQ(span_of(first), grown) << "it grows once";
}

// Four workers that lend 8 GB each, of which the first one holds half of the experts when the
// others join. The model is as large as Qwen3-30B-A3B.
TEST_F(SwarmSpansTest, WorkersThatJoinOneAfterTheOtherHoldNearlyAllLayers) {
    num_layers_ = 48, num_experts_ = 128, kv_size_ = 512;
    blob_bytes_ = 2'506'752, layer_blob_bytes_ = 19'000'000;
    set_sizes();
    for (const std::uint32_t layer : {0, 1, 47}) options_.layer_is_moe[layer] = 0;  // the hub's
    options_.local_fallback = false;
    options_.replicas = 1;
    budget_bytes_ = 7'500'000'000, kv_bytes_ = 1'600'000'000;
    std::vector<WorkerId> workers;
    for (const char* key : {"a", "b", "c", "d"}) {
        workers.push_back(join(12, key, {span_cap, span_once_cap}));
        wait();
    }
    for (int i = 0; i < 20; ++i) wait();
    std::uint32_t held = 0;
    for (const WorkerId worker : workers) {
        const auto layers = layers_of(worker);
        ASSERT_TRUE(layers);
        held += layers->second - layers->first;
        EXPECT_GE(held_.at(worker).kv_bytes_max,
                  8192 * span_kv_bytes(1, layers->second - layers->first, kv_size_));
    }
    EXPECT_GE(held, 43u) << "of 45";
}

// A span grows 20 s after a holder left at the earliest, because that holder may return.
TEST_F(SwarmSpansTest, LayersOfAHolderThatMayReturnAreLeftToIt) {
    const WorkerId a = join(4, "a"), b = join(7, "b");
    wait();
    ASSERT_EQ(layers_of(b), Range(6, 9));
    wait();
    wait();
    leave(a);
    wait();
    EXPECT_EQ(layers_of(b), Range(6, 9));
    const WorkerId again = join(4, "a");
    wait();
    EXPECT_EQ(layers_of(again), Range(2, 6));
    EXPECT_EQ(layers_of(b), Range(6, 9));
    leave(again);
    wait();
    wait();
    wait();
    EXPECT_EQ(layers_of(b), Range(2, 9));
}

TEST_F(SwarmSpansTest, HolderThatCannotGrowKeepsAsManyLayersAsItHad) {
    options_.local_fallback = false;
    options_.replicas = 1;
    kv_bytes_ = 7 * 512 * span_kv_bytes(1, 1, kv_size_);
    budget_bytes_ = kv_bytes_ + num_layers_ * num_experts_ * blob_bytes_ + 4 * layer_bytes_;
    layers_max_ = 4;
    const WorkerId first = join(7, "first");
    wait();
    ASSERT_EQ(layers_of(first), Range(2, 6));
    join(0, "experts alone");
    const std::uint32_t before = span_of(first);
    for (int i = 0; i < 6; ++i) wait();
    const std::uint32_t refused = span_of(first);
    EXPECT_EQ(layers_of(first), Range(2, 6));
    EXPECT_GT(refused, before + 1);
    for (int i = 0; i < 6; ++i) wait();
    EXPECT_EQ(span_of(first), refused) << "it is asked once";
}

TEST_F(SwarmSpansTest, SpanWithFewKeysAndValuesGetsMoreOnceItsHolderLendsMore) {
    options_.local_fallback = false;
    const std::uint64_t layer_kv = 512 * span_kv_bytes(1, 1, kv_size_);
    budget_bytes_ = num_layers_ * num_experts_ * blob_bytes_ + 7 * (layer_bytes_ + layer_kv);
    const WorkerId first = join(7, "first");
    wait();
    ASSERT_EQ(layers_of(first), Range(2, 9));
    ASSERT_EQ(held_.at(first).kv_bytes_max, 7 * layer_kv);

    const std::uint64_t taken = 7 * (layer_bytes_ + layer_kv);
    budget_bytes_ += 7 * 16 * layer_kv;
    core_->on_frame(now_, first, encode_budget({.budget_bytes = budget_bytes_ - taken}), actions_);
    wait();
    EXPECT_EQ(layers_of(first), Range(2, 9));
    EXPECT_EQ(held_.at(first).kv_bytes_max, 7 * 17 * layer_kv);
}

// Loaded experts move slowly, so that the last of several newcomers has none for a while.
TEST_F(SwarmSpansTest, NewcomerWithoutExpertsGetsLayers) {
    options_.local_fallback = false;
    options_.replicas = 1;
    const WorkerId first = join(0, "first");
    wait();
    ASSERT_TRUE(core_->on_order(now_, first, WorkerOrder::pin, actions_).ok());
    const WorkerId second = join(3, "second");
    wait();
    EXPECT_TRUE(units_[second].empty());
    EXPECT_EQ(units_[first].size(), num_layers_ * num_experts_);
    EXPECT_EQ(layers_of(second), Range(2, 5));
    EXPECT_EQ(core_->workers()[1].state, WorkerState::active);
}

TEST_F(SwarmSpansTest, WorkerWhoseMemoryIsFullOfLayersIsActive) {
    kv_bytes_ = 100'000;
    budget_bytes_ = kv_bytes_ + 3 * layer_bytes_;
    const WorkerId full = join(3, "full");
    wait();
    EXPECT_EQ(layers_of(full), Range(2, 5));
    ASSERT_EQ(core_->workers().size(), 1u);
    EXPECT_EQ(core_->workers()[0].units_ready, 0u);
    EXPECT_EQ(core_->workers()[0].state, WorkerState::active);
}

TEST_F(SwarmSpansTest, StandbyMovesToLayersThatLostTheirHolder) {
    const WorkerId a = join(4, "a"), b = join(3, "b"), standby = join(4, "c");
    wait();
    EXPECT_EQ(layers_of(standby), Range(2, 6));
    core_->span_board()->set_used({span_of(a), span_of(b)});
    leave(b);
    wait();
    EXPECT_EQ(layers_of(standby), Range(6, 9));
    EXPECT_EQ(layers_of(a), Range(2, 6));
    // Every layer has a holder again, and nothing moves.
    const std::uint32_t span = span_of(standby);
    wait();
    EXPECT_EQ(span_of(standby), span);
    EXPECT_EQ(core_->span_board()->ready().size(), 2u);
}

// Beside its span a worker has the memory for one more layer when it has to move.
TEST_F(SwarmSpansTest, StandbyMovesToAsManyLayersAsItCouldHoldBefore) {
    options_.local_fallback = false;
    options_.replicas = 4;  // so that the first worker keeps every expert
    kv_bytes_ = 100'000;
    budget_bytes_ = kv_bytes_ + num_layers_ * num_experts_ * blob_bytes_;
    const WorkerId experts = join(0, "experts");
    const std::uint64_t kv_layer_bytes = 4 * 128 * span_kv_bytes(1, 1, kv_size_);
    budget_bytes_ = kv_bytes_ + 5 * layer_bytes_ + kv_layer_bytes;
    const WorkerId a = join(4, "a"), b = join(3, "b"), standby = join(4, "c");
    wait();
    ASSERT_EQ(units_[experts].size(), num_layers_ * num_experts_);
    ASSERT_EQ(layers_of(standby), Range(2, 6));
    core_->span_board()->set_used({span_of(a), span_of(b)});
    leave(b);
    wait();
    EXPECT_EQ(layers_of(standby), Range(6, 9));
    EXPECT_EQ(layers_of(a), Range(2, 6));
}

TEST_F(SwarmSpansTest, HolderInUseDoesNotMove) {
    const WorkerId a = join(4, "a"), b = join(3, "b"), standby = join(4, "c");
    wait();
    core_->span_board()->set_used({span_of(standby), span_of(b)});
    leave(b);
    wait();
    EXPECT_EQ(layers_of(standby), Range(2, 6));
    EXPECT_EQ(layers_of(a), Range(6, 9));
}

TEST_F(SwarmSpansTest, OnlyHolderKeepsItsLayers) {
    const WorkerId a = join(4, "a"), b = join(3, "b");
    wait();
    const std::uint32_t span = span_of(a);
    leave(b);
    wait();
    EXPECT_EQ(layers_of(a), Range(2, 6));
    EXPECT_EQ(span_of(a), span);
}

TEST_F(SwarmSpansTest, WorkerThatCannotHoldItsLayersGetsHalfAsMany) {
    layers_max_ = 2;
    const WorkerId a = join(5, "a");
    wait();
    EXPECT_EQ(layers_of(a), Range(2, 4));
    layers_max_ = 0;
    const WorkerId b = join(5, "b");
    wait();
    EXPECT_EQ(layers_of(b), std::nullopt);
}

// Hubs of a fleet move no worker if layers in use would lose their only holder.
TEST_F(SwarmSpansTest, CopiesCountLayersThatNoOtherHolderCanTakeOver) {
    const WorkerId a = join(4, "a"), b = join(3, "b"), standby = join(4, "c");
    wait();
    const auto layers = [&](WorkerId id, const std::set<WorkerId>& leaving = {}) {
        const UnitCopies::Share share = core_->copies(leaving).shares.at(id);
        return std::tuple(share.layers, share.layers_used, share.layers_alone);
    };
    EXPECT_EQ(layers(a), std::tuple(4u, 0u, 0u)) << "there was no step";
    const std::set used{span_of(a), span_of(b)};
    core_->span_board()->set_used(used, used);
    EXPECT_EQ(layers(a), std::tuple(4u, 4u, 4u)) << "the standby has no record";
    EXPECT_EQ(layers(b), std::tuple(3u, 3u, 3u));
    EXPECT_EQ(layers(standby), std::tuple(4u, 0u, 0u));

    core_->span_board()->set_used(used, {span_of(a), span_of(b), span_of(standby)});
    EXPECT_EQ(layers(a), std::tuple(4u, 4u, 0u));
    EXPECT_EQ(layers(b), std::tuple(3u, 3u, 3u));
    EXPECT_EQ(layers(a, {standby}), std::tuple(4u, 4u, 4u)) << "the standby leaves";

    // Steps with many rows use no span.
    for (std::uint64_t i = 1; i < SpanBoard::recent_steps; ++i) core_->span_board()->set_used({});
    EXPECT_EQ(layers(b), std::tuple(3u, 3u, 3u));
    core_->span_board()->set_used({});
    EXPECT_EQ(layers(b), std::tuple(3u, 0u, 0u));
}

// A hub without answers gives its holders away, too.
TEST_F(SwarmSpansTest, LayersOfAnIdleHubAreNotInUse) {
    const WorkerId a = join(4, "a");
    wait();
    const auto board = core_->span_board();
    const TimePoint start = now_steady();
    const auto is_used_at = [&](Duration later) {
        board->note_time(start + later);
        return board->was_used(span_of(a));
    };
    board->set_used({span_of(a)});
    EXPECT_TRUE(is_used_at(0s));
    EXPECT_TRUE(is_used_at(59s));
    EXPECT_FALSE(is_used_at(60s));
    board->set_used({span_of(a)});
    EXPECT_TRUE(is_used_at(61s));
    EXPECT_TRUE(is_used_at(120s));
}

}  // namespace
}  // namespace moex
