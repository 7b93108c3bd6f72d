// Tests which layers workers get to compute whole, and what follows when a holder leaves or lies.
// The workers of this test load at once, and answer no step.
#include <gtest/gtest.h>

#include <map>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/span/span_board.h"
#include "protocol/text.h"

namespace moex {
namespace {

class SwarmSpansTest : public testing::Test {
  protected:
    using Range = std::pair<std::uint32_t, std::uint32_t>;
    SwarmSpansTest() { set_sizes(); }
    // Sets the options that follow from the sizes of the model.
    void set_sizes() {
        layer_bytes = num_experts * blob_bytes + layer_blob_bytes;
        layers_max_ = num_layers;
        options_.limits = {.hidden_size = 32, .num_layers = num_layers, .num_experts = num_experts};
        options_.expert_shape = {.hidden_size = 32, .moe_intermediate_size = 32, .group_size = 32};
        options_.top_k = 2;
        options_.expert_blob_bytes = blob_bytes;
        options_.layer_is_moe.assign(num_layers, 1);
        options_.blob_hash = [](std::uint32_t layer, std::uint32_t expert) {
            Sha256 hash{};
            hash[0] = static_cast<std::byte>(layer);
            hash[1] = static_cast<std::byte>(expert);
            return hash;
        };
        options_.token_ok = [](std::string_view) { return true; };
        options_.checks.on = true;
        options_.spans.on = true;
        options_.spans.kv_size = kv_size;
        options_.spans.context_tokens = 1024;
        options_.spans.layer_of = [this](std::uint32_t layer) -> std::optional<SpanAssign::Layer> {
            SpanAssign::Layer blob{.size_bytes = layer_blob_bytes};
            blob.blob[0] = static_cast<std::byte>(layer);
            return blob;
        };
    }

    // Connects a worker with room for `layers` layers.
    WorkerId join(std::uint32_t layers, const std::string& key,
                  const std::vector<std::string>& caps = {span_cap}) {
        if (!core_) core_.emplace(options_);
        const WorkerId id = core_->on_connect(now_, "10.0.0.1", true, actions_);
        Hello hello;
        hello.caps.insert(hello.caps.end(), caps.begin(), caps.end());
        hello.worker_key = key;
        // The hub plans with four fifths of it. The rest is for the buffers of a step, which a hub
        // without experts counts.
        hello.span_bytes = (layers * layer_bytes * 5 + 3) / 4;
        const std::uint64_t rest = hello.span_bytes - layers * layer_bytes;
        step_bytes_[id] = options_.local_fallback ? 0 : std::min<std::uint64_t>(rest, 128 << 20);
        hello.device = {.backend = "test", .budget_bytes = budget_bytes_ + step_bytes_[id]};
        hello.span_kv_bytes = kv_bytes_;
        if (std::count(caps.begin(), caps.end(), span_once_cap) > 0) can_take_once_.insert(id);
        core_->on_frame(now_, id, encode_hello(hello), actions_);
        perform();
        return id;
    }
    // The next worker is the first one of another hub.
    void start_anew() {
        core_.emplace(options_);
        held_.clear();
        units_.clear();
        can_take_once_.clear();
        take_once_.clear();
    }
    void leave(WorkerId id) {
        core_->on_disconnect(now_, id, actions_);
        held_.erase(id);
        perform();
    }
    // Lets heartbeats pass.
    void wait() {
        for (int i = 0; i < 100; ++i) {
            now_ += 100ms;
            core_->on_tick(now_, actions_);
            perform();
        }
    }
    std::optional<Range> layers_of(WorkerId id) const {
        const auto found = held_.find(id);
        if (found == held_.end()) return std::nullopt;
        return Range(found->second.first_layer,
                     found->second.first_layer + found->second.layers.size());
    }
    std::uint32_t span_of(WorkerId id) const { return held_.at(id).span; }

    // Answers as workers that load at once.
    void perform() {
        while (!actions_.empty()) {
            const std::vector<SwarmAction> actions = std::exchange(actions_, {});
            for (const SwarmAction& action : actions) {
                if (const auto* event = std::get_if<WorkerEvent>(&action))
                    events_[event->worker].push_back(event->kind);
                if (const auto* limit = std::get_if<SetFrameLimit>(&action))
                    frame_limits_[limit->worker] = limit->bytes;
                if (const auto* close = std::get_if<CloseWorker>(&action))
                    closed_.insert(close->worker);
                if (const auto* send = std::get_if<SendFrame>(&action))
                    receive(send->worker, WireFrame(send->frame).whole());
            }
        }
    }
    void receive(WorkerId id, const Bytes& frame) {
        const FrameHeader header = *decode_frame_header(frame);
        const auto reply = [&](const Bytes& bytes) { core_->on_frame(now_, id, bytes, actions_); };
        if (header.type == FrameType::assign) {
            std::vector<Unit> units;
            const Assign assigned = *decode_assign(frame, options_.limits);
            for (const AssignedUnit& unit : assigned.units)
                units.push_back({unit.layer, unit.expert});
            units_[id].insert(units_[id].end(), units.begin(), units.end());
            reply(encode_ready(units));
        }
        if (header.type == FrameType::welcome) {
            // This model's sizes are not those of real experts, which decode_welcome() requires.
            const std::string text(reinterpret_cast<const char*>(frame.data()), frame.size());
            if (can_take_once_.contains(id) && text.find(span_once_cap) != std::string::npos)
                take_once_.insert(id);
        }
        if (header.type == FrameType::release) {
            const std::vector<Unit> units = *decode_units(frame, options_.limits);
            for (const Unit& unit : units) num_released_[id] += std::erase(units_[id], unit);
        }
        if (header.type == FrameType::group_dispatch || header.type == FrameType::dispatch)
            calls_.insert(id);
        if (header.type == FrameType::heartbeat) heartbeats_[id] = header.sequence_id;
        if (header.type == FrameType::heartbeat && id != mute_)
            reply(encode_heartbeat(header.sequence_id));
        if (header.type == FrameType::span_release) {
            held_.erase(id);  // the holder's memory is free
            reply(encode_budget({.budget_bytes = budget_bytes_ + step_bytes_[id]}));
        }
        if (header.type != FrameType::span_assign || !loads_) return;
        const SpanAssign assign = *decode_span_assign(frame, options_.limits);
        if (assign.layers.size() > layers_max_)
            return reply(encode_span_ready({.span = assign.span}));
        held_[id] = assign;
        std::uint64_t bytes = assign.layers.size() * layer_bytes + assign.kv_bytes_max;
        if (take_once_.contains(id))
            bytes -= blob_bytes *
                     std::count_if(units_[id].begin(), units_[id].end(), [&](const Unit& unit) {
                         const Range range = *layers_of(id);
                         return unit.layer >= range.first && unit.layer < range.second;
                     });
        Budget budget{.budget_bytes = budget_bytes_ - std::min(budget_bytes_, bytes)};
        for (std::vector<Unit>& units = units_[id]; units.size() * blob_bytes > budget.budget_bytes;
             units.pop_back())
            budget.dropped.push_back(units.back());
        reply(encode_budget(budget));
        reply(encode_span_ready(
            {.span = assign.span, .num_pages = 8, .page_tokens = 128, .rows_max = 64}));
    }

    std::uint32_t num_layers = 10, num_experts = 4, kv_size = 8;
    std::uint64_t blob_bytes = 1000, layer_blob_bytes = 500, layer_bytes = 0;
    // Of workers that join. A worker with spans has the memory of their steps besides.
    std::uint64_t budget_bytes_ = 1u << 30, kv_bytes_ = 1u << 30;
    std::map<WorkerId, std::uint64_t> step_bytes_;
    SwarmOptions options_;
    std::optional<SwarmCore> core_;
    TimePoint now_ = TimePoint{} + 1h;
    std::vector<SwarmAction> actions_;
    std::map<WorkerId, SpanAssign> held_;
    std::map<WorkerId, std::vector<WorkerEvent::Kind>> events_;
    std::set<WorkerId> closed_;
    std::map<WorkerId, std::uint64_t> frame_limits_;
    std::map<WorkerId, std::vector<Unit>> units_;  // experts that the worker holds
    std::map<WorkerId, std::size_t> num_released_;
    std::size_t layers_max_ = 0;
    bool loads_ = true;         // whether workers load spans
    std::set<WorkerId> calls_;  // workers that were sent calls of experts
    // Workers with span_once, and among these the ones that found it in WELCOME.
    std::set<WorkerId> can_take_once_, take_once_;
    WorkerId mute_ = 0;                             // answers no heartbeat
    std::map<WorkerId, std::uint32_t> heartbeats_;  // the newest one of each worker
};

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

// What is left beside the shorter span is room in which it can grow.
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
    kv_bytes_ = 7 * 512 * span_kv_bytes(1, 1, kv_size);
    for (const auto& [seed, range] : {std::pair(3u, Range(2, 5)), std::pair(77u, Range(6, 9))}) {
        options_.seed = seed;
        start_anew();
        budget_bytes_ = kv_bytes_ + num_layers * num_experts * blob_bytes / 2;
        join(0, "first");
        join(0, "second");
        budget_bytes_ = kv_bytes_ + 4 * layer_bytes + layer_blob_bytes;
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
    budget_bytes_ = kv_bytes_ + num_layers * num_experts * blob_bytes + 2 * layer_bytes;

    // Both have room for 7 layers. The first holds every expert, too, and the second releases those
    // that stand in the way of five layers.
    const WorkerId first = join(7, "first");
    EXPECT_EQ(layers_of(first), Range(2, 4));
    const WorkerId second = join(7, "second");
    wait();
    EXPECT_EQ(layers_of(second), Range(4, 9));
    EXPECT_EQ(units_[first].size(), num_layers * num_experts);
    EXPECT_LE(units_[second].size() * blob_bytes, budget_bytes_ - kv_bytes_ - 5 * layer_bytes);
    EXPECT_EQ(num_released_[second], 14u);
}

// The memory beside all experts has room for what two layers have beside their experts: the blob of
// the layer, and four pages of keys and values.
TEST_F(SwarmSpansTest, ExpertsThatTheHolderHasAreCountedOnce) {
    options_.local_fallback = false;
    const std::uint64_t kv_layer_bytes = 4 * 128 * span_kv_bytes(1, 1, kv_size);
    budget_bytes_ = num_layers * num_experts * blob_bytes + 2 * (layer_blob_bytes + kv_layer_bytes);
    kv_bytes_ = 10 * kv_layer_bytes;
    const WorkerId once = join(7, "once", {span_cap, span_once_cap});
    wait();
    EXPECT_EQ(layers_of(once), Range(2, 4));
    EXPECT_EQ(held_.at(once).kv_bytes_max, 2 * kv_layer_bytes);
    EXPECT_EQ(units_[once].size(), num_layers * num_experts);
    EXPECT_EQ(num_released_[once], 0u);

    // A worker that holds these experts a second time in the span has room for one layer.
    start_anew();
    const WorkerId twice = join(7, "twice");
    wait();
    EXPECT_EQ(layers_of(twice), Range(2, 3));
    EXPECT_EQ(units_[twice].size(), num_layers * num_experts);
}

// 8,192 tokens of keys and values come before a further layer, 512 only where no layer would fit.
TEST_F(SwarmSpansTest, KeysAndValuesComeBeforeAFurtherLayer) {
    options_.local_fallback = false;
    const std::uint64_t experts = num_layers * num_experts * blob_bytes,
                        token_bytes = span_kv_bytes(1, 1, kv_size);
    budget_bytes_ = experts + 2 * (layer_bytes + 8192 * token_bytes);
    const WorkerId wide = join(7, "wide");
    wait();
    EXPECT_EQ(layers_of(wide), Range(2, 4));
    EXPECT_EQ(held_.at(wide).kv_bytes_max, 2 * 8192 * token_bytes);

    start_anew();
    budget_bytes_ = experts + 2 * (layer_bytes + 512 * token_bytes);
    const WorkerId narrow = join(7, "narrow");
    wait();
    EXPECT_EQ(layers_of(narrow), Range(2, 4));
    EXPECT_EQ(held_.at(narrow).kv_bytes_max, 2 * 512 * token_bytes);

    start_anew();
    budget_bytes_ = experts + 7 * layer_bytes + 100'000 * 7 * token_bytes;
    const WorkerId much = join(7, "much");
    wait();
    EXPECT_EQ(layers_of(much), Range(2, 9));
    EXPECT_EQ(held_.at(much).kv_bytes_max, 7 * 32768 * token_bytes) << "the rest is for experts";
}

// A span that takes more than the experts leave costs the only holder of some of them.
TEST_F(SwarmSpansTest, BuffersOfAStepAreCounted) {
    options_.local_fallback = false;
    budget_bytes_ = num_layers * num_experts * blob_bytes + layer_bytes +
                    512 * span_kv_bytes(1, 1, kv_size);
    const WorkerId fits = join(7, "fits");
    wait();
    EXPECT_EQ(layers_of(fits), Range(2, 3));

    start_anew();
    --budget_bytes_;
    const WorkerId lacks = join(7, "lacks");
    wait();
    EXPECT_EQ(layers_of(lacks), std::nullopt);
    EXPECT_EQ(units_[lacks].size(), num_layers * num_experts);
}

// The first worker of a swarm holds every expert, and has little room beside them.
TEST_F(SwarmSpansTest, SpanGrowsOnceOthersHaveItsHoldersExperts) {
    options_.local_fallback = false;
    options_.replicas = 1;
    kv_bytes_ = 7 * 512 * span_kv_bytes(1, 1, kv_size);
    budget_bytes_ = kv_bytes_ + num_layers * num_experts * blob_bytes + 2 * layer_bytes;
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
    num_layers = 48, num_experts = 128, kv_size = 512;
    blob_bytes = 2'506'752, layer_blob_bytes = 19'000'000;
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
                  8192 * span_kv_bytes(1, layers->second - layers->first, kv_size));
    }
    EXPECT_GE(held, 43u) << "of 45";
}

// A worker whose connection broke returns within 20 s, or its layers go to others.
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
    kv_bytes_ = 7 * 512 * span_kv_bytes(1, 1, kv_size);
    budget_bytes_ = kv_bytes_ + num_layers * num_experts * blob_bytes + 4 * layer_bytes;
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
    const std::uint64_t layer_kv = 512 * span_kv_bytes(1, 1, kv_size);
    budget_bytes_ = num_layers * num_experts * blob_bytes + 7 * (layer_bytes + layer_kv);
    const WorkerId first = join(7, "first");
    wait();
    ASSERT_EQ(layers_of(first), Range(2, 9));
    ASSERT_EQ(held_.at(first).kv_bytes_max, 7 * layer_kv);

    const std::uint64_t taken = 7 * (layer_bytes + layer_kv);
    budget_bytes_ += 7 * 16 * layer_kv;
    core_->on_frame(now_, first, encode_budget({.budget_bytes = budget_bytes_ - taken}), actions_);
    wait();
    EXPECT_EQ(layers_of(first), Range(2, 9));
    EXPECT_EQ(held_.at(first).kv_bytes_max, 7 * 17 * layer_kv);
}

// Of workers that join within a moment the last ones get no experts at once, because loaded experts
// move slowly.
TEST_F(SwarmSpansTest, NewcomerWithoutExpertsGetsLayers) {
    options_.local_fallback = false;
    options_.replicas = 1;
    const WorkerId first = join(0, "first");
    wait();
    ASSERT_TRUE(core_->on_order(now_, first, WorkerOrder::pin, actions_).ok());
    const WorkerId second = join(3, "second");
    wait();
    EXPECT_TRUE(units_[second].empty());
    EXPECT_EQ(units_[first].size(), num_layers * num_experts);
    EXPECT_EQ(layers_of(second), Range(2, 5));
    EXPECT_EQ(core_->workers()[1].state, WorkerState::active);
}

TEST_F(SwarmSpansTest, WorkerWhoseMemoryIsFullOfLayersIsActive) {
    kv_bytes_ = 100'000;
    budget_bytes_ = kv_bytes_ + 3 * layer_bytes;
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
    budget_bytes_ = kv_bytes_ + num_layers * num_experts * blob_bytes;
    const WorkerId experts = join(0, "experts");
    const std::uint64_t kv_layer_bytes = 4 * 128 * span_kv_bytes(1, 1, kv_size);
    budget_bytes_ = kv_bytes_ + 5 * layer_bytes + kv_layer_bytes;
    const WorkerId a = join(4, "a"), b = join(3, "b"), standby = join(4, "c");
    wait();
    ASSERT_EQ(units_[experts].size(), num_layers * num_experts);
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

TEST_F(SwarmSpansTest, LeaverAnswersItsStepsAndAStandbyGetsTheNext) {
    const WorkerId a = join(4, "a"), b = join(3, "b"), standby = join(4, "c");
    wait();
    const auto board = core_->span_board();
    board->set_used({span_of(a), span_of(b)}, {span_of(a), span_of(b), span_of(standby)});
    const auto is_ready = [&](WorkerId id) {
        const auto ready = board->ready();
        return std::ranges::find(ready, id, &ReadySpan::worker) != ready.end();
    };
    board->expect(7, span_of(a));
    core_->on_span_frame(now_, span_of(a), 7, Bytes(frame_header_bytes), actions_);
    core_->on_frame(now_, a, encode_drain(60'000), actions_);
    EXPECT_FALSE(is_ready(a));
    EXPECT_TRUE(is_ready(standby));
    EXPECT_FALSE(board->poll(7)) << "the step is in flight";

    const SpanAnswer answer{.step = 7, .span = span_of(a), .verdict = SpanVerdict::failed};
    core_->on_frame(now_, a, encode_span_answer(answer, 32), actions_);
    EXPECT_TRUE(board->poll(7));
    EXPECT_TRUE(std::ranges::any_of(actions_, [&](const SwarmAction& action) {
        const auto* close = std::get_if<CloseWorker>(&action);
        return close != nullptr && close->worker == a;
    }));
}

// Layers that no other worker has are used until their holder leaves, and a standby that leaves is
// not taken into use.
TEST_F(SwarmSpansTest, LeaverServesLayersThatOnlyItHas) {
    const WorkerId a = join(4, "a"), b = join(3, "b"), standby = join(4, "c");
    wait();
    const auto board = core_->span_board();
    const std::set used{span_of(a), span_of(b)};
    board->set_used(used, used);
    for (const WorkerId id : {b, standby}) {
        const std::uint32_t step = static_cast<std::uint32_t>(id), span = span_of(id);
        board->expect(step, span);
        core_->on_span_frame(now_, span, step, Bytes(frame_header_bytes), actions_);
        core_->on_frame(now_, id, encode_drain(60'000), actions_);
    }
    std::set<WorkerId> ready;
    for (const ReadySpan& span : board->ready()) ready.insert(span.worker);
    EXPECT_EQ(ready, (std::set{a, b}));
}

TEST_F(SwarmSpansTest, WorkerThatLoadsASpanIsLoading) {
    loads_ = false;
    const WorkerId a = join(4, "a");
    wait();
    EXPECT_TRUE(core_->copies().shares.at(a).is_loading);
    EXPECT_EQ(core_->copies().shares.at(a).layers, 0u);
}

// The memory of the workers is full of layers, so that they have no expert ready.
TEST_F(SwarmSpansTest, UnitsOfWholeLayersAreNotMissingWhereTheHubHasExperts) {
    kv_bytes_ = 100'000;
    budget_bytes_ = kv_bytes_ + 3 * layer_bytes;
    const WorkerId a = join(3, "a");
    wait();
    ASSERT_EQ(layers_of(a), Range(2, 5));
    UnitCopies copies = core_->copies();
    EXPECT_EQ(copies.missing, (num_layers - 3) * num_experts);
    EXPECT_EQ(copies.shares.at(a).alone, 3 * num_experts);
    const WorkerId b = join(3, "b");
    wait();
    ASSERT_EQ(layers_of(b), Range(5, 8));
    copies = core_->copies();
    EXPECT_EQ(copies.missing, (num_layers - 6) * num_experts);
    EXPECT_EQ(copies.shares.at(b).alone, 3 * num_experts);
    EXPECT_EQ(core_->copies({b}).missing, (num_layers - 3) * num_experts);
}

TEST_F(SwarmSpansTest, LeaverFailsItsStepsAtOnce) {
    const WorkerId a = join(4, "a");
    wait();
    const auto board = core_->span_board();
    board->expect(7, span_of(a));
    leave(a);
    const auto answer = board->poll(7);
    ASSERT_TRUE(answer.has_value());
    EXPECT_FALSE(answer->answer.ok());
    EXPECT_TRUE(board->ready().empty());
}

TEST_F(SwarmSpansTest, HolderThatIsLateAndSilentIsSentNoCallsUntilItSendsAFrame) {
    options_.local_fallback = false;
    kv_bytes_ = 1u << 20;
    const WorkerId a = join(4, "a"), b = join(4, "b");
    wait();
    // Returns the workers that four rounds are sent to.
    const auto called = [&] {
        calls_.clear();
        const std::vector<float> x(32, 0.5f), weights{0.5f, 0.5f};
        const std::vector<std::uint16_t> experts{0, 1};
        for (int i = 0; i < 4; ++i) {
            const RoundId round = core_->on_round(now_,
                                                  {.layer = 4,
                                                   .num_tokens = 1,
                                                   .hidden_size = 32,
                                                   .top_k = 2,
                                                   .x = x,
                                                   .expert_ids = experts,
                                                   .expert_weights = weights},
                                                  actions_);
            perform();
            core_->on_cancel_round(now_, round, actions_);
            perform();
        }
        return calls_;
    };
    EXPECT_EQ(called(), (std::set{a, b}));

    mute_ = a;
    heartbeats_.clear();
    const TimePoint sent_at = now_ += 10ms;
    core_->on_span_late(now_ += 300ms, span_of(a), sent_at, actions_);
    perform();
    ASSERT_TRUE(heartbeats_.contains(a));
    EXPECT_EQ(called(), std::set{b});

    mute_ = 0;
    core_->on_frame(now_, a, encode_heartbeat(heartbeats_[a]), actions_);
    EXPECT_TRUE(called().contains(a));

    // Without a frame for a second it counts as silent, so that others get its experts.
    mute_ = a;
    now_ += 300ms;
    core_->on_span_late(now_, span_of(a), now_ - 1ms, actions_);
    perform();
    for (int i = 0; i < 12; ++i, perform()) core_->on_tick(now_ += 100ms, actions_);
    EXPECT_EQ(std::count(events_[a].begin(), events_[a].end(), WorkerEvent::Kind::unhealthy), 1);
    // It answers the next heartbeat.
    mute_ = 0;
    wait();
    EXPECT_EQ(events_[a].back(), WorkerEvent::Kind::healthy);

    // A holder that sent something meanwhile is slow, and is sent calls as before.
    heartbeats_.erase(a);
    core_->on_span_late(now_, span_of(a), now_ - 5s, actions_);
    perform();
    EXPECT_FALSE(heartbeats_.contains(a));
}

TEST_F(SwarmSpansTest, LiarIsBannedAndItsLayersGoToOthers) {
    const WorkerId liar = join(4, "liar"), standby = join(4, "other");
    wait();
    core_->on_span_lie(now_, span_of(liar), "it lied", actions_);
    perform();
    const std::vector<WorkerEvent::Kind>& events = events_[liar];
    for (const auto kind : {WorkerEvent::Kind::lied, WorkerEvent::Kind::banned})
        EXPECT_EQ(std::count(events.begin(), events.end(), kind), 1);
    EXPECT_TRUE(closed_.contains(liar));
    ASSERT_EQ(core_->span_board()->ready().size(), 1u);
    EXPECT_EQ(core_->span_board()->ready().front().worker, standby);
    const WorkerId again = join(4, "liar");
    EXPECT_TRUE(closed_.contains(again));
}

// Answers of its span may still be on their way, and must not end its connection.
TEST_F(SwarmSpansTest, HolderThatIsSetAsideMaySendTheAnswersThatAreOnTheirWay) {
    options_.spans.kv_size = 2048;
    const WorkerId apart = join(4, "apart");
    wait();
    const std::uint64_t limit = frame_limits_[apart];
    EXPECT_GT(limit, 4 * 64 * 2 * 2 * 2048u) << "four layers, 64 rows, keys and values as f16";
    core_->on_span_set_aside(now_, span_of(apart), "an answer differs", actions_);
    wait();
    EXPECT_EQ(frame_limits_[apart], limit);
}

// A holder that is set aside goes on with experts, gets no layers any more, also after it has
// returned with its key, and is not banned.
TEST_F(SwarmSpansTest, HolderThatIsSetAsideGoesOnWithExperts) {
    const WorkerId apart = join(4, "apart"), standby = join(4, "other");
    wait();
    core_->on_span_set_aside(now_, span_of(apart), "an answer differs", actions_);
    perform();
    const std::vector<WorkerEvent::Kind>& events = events_[apart];
    EXPECT_EQ(std::count(events.begin(), events.end(), WorkerEvent::Kind::set_aside), 1);
    for (const auto kind : {WorkerEvent::Kind::lied, WorkerEvent::Kind::banned})
        EXPECT_EQ(std::count(events.begin(), events.end(), kind), 0);
    EXPECT_FALSE(closed_.contains(apart));
    EXPECT_EQ(core_->counters().bans, 0u);
    EXPECT_EQ(core_->counters().lies, 0u);
    wait();
    EXPECT_FALSE(layers_of(apart));
    EXPECT_FALSE(units_[apart].empty());
    ASSERT_EQ(core_->span_board()->ready().size(), 1u);
    EXPECT_EQ(core_->span_board()->ready().front().worker, standby);

    leave(apart);
    const WorkerId again = join(4, "apart");
    wait();
    EXPECT_FALSE(closed_.contains(again));
    EXPECT_FALSE(layers_of(again));
    EXPECT_FALSE(units_[again].empty());
}

TEST_F(SwarmSpansTest, LiarGetsNoOtherLayersWhereAnswersAreNotChecked) {
    options_.checks.on = false;
    const WorkerId liar = join(4, "liar");
    wait();
    core_->on_span_lie(now_, span_of(liar), "it lied", actions_);
    perform();
    EXPECT_FALSE(closed_.contains(liar));
    wait();
    EXPECT_FALSE(layers_of(liar));
    const WorkerId again = join(4, "liar");
    wait();
    EXPECT_FALSE(layers_of(again));
}

}  // namespace
}  // namespace moex
