// Tests the memory of a whole worker that is promoted to a span, on a Vulkan device (lavapipe if
// there is no GPU): experts of the span's layers that it holds are loaded once, and are answered
// before, during and after the span.
#include "web-worker/spans/span_worker.h"
#include "tests/hub/gpu/local_spans.h"
#include "tests/support/repository.h"
#include "tests/web-worker/stage.h"

namespace moex {
namespace {

const SpannedModel& demo_model() {
    static const SpannedModel model(must(ModelPackage::open(repository() / "static/models/demo")));
    return model;
}

// The most bytes of the uniforms of arenas, which stay.
constexpr std::uint64_t places_bytes = 1024;

WorkerOptions with_spans() {
    WorkerOptions options;
    options.make_spans = make_span_worker;
    return options;
}

// A worker at a hub with the demo model. Its downloads come from the package.
class SpanStage : public Stage {
  public:
    explicit SpanStage(std::uint64_t budget_bytes,
                       std::vector<std::string> caps = {"budget", span_cap, span_once_cap})
        : Stage(budget_bytes, with_spans()) {
        limits.hidden_size = config_.hidden_size;
        limits.num_layers = config_.num_layers;
        limits.num_experts = config_.num_experts;
        core->start();
        reported_bytes_ = decode_hello(next(FrameType::hello))->device.budget_bytes;
        give(encode_welcome({.worker_id = 7,
                             .model_name = "demo",
                             .package_sha256 = std::string(64, 'a'),
                             .limits = limits,
                             .expert_shape = model_.package->expert_shape(),
                             .top_k = config_.top_k,
                             .expert_blob_bytes = blob_bytes(),
                             .dtype = Dtype::f32,
                             .caps = std::move(caps)}));
    }
    void fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool,
                    std::function<void(std::uint64_t, bool)> progress,
                    std::function<void(Result<Bytes>)> done) override {
        const auto give_blob = [this, hash, size_bytes, progress = std::move(progress),
                                done = std::move(done)] {
            progress(size_bytes, false);
            if (const auto layer = model_.layers->find(hash)) return done(Bytes(*layer));
            const ByteView blob = must(model_.package->blob(hash));
            done(Bytes(blob.begin(), blob.end()));
        };
        if (holds_experts && !model_.layers->find(hash))
            held_experts.push_back(give_blob);
        else
            set_timer(0, give_blob);
    }
    // Ends the downloads of experts that are held.
    void give_experts() {
        for (const auto& give_one : std::exchange(held_experts, {})) give_one();
    }
    void accept_layer(const Sha256&, const Signature&, std::function<void(bool)> done) override {
        done(true);
    }

    std::uint64_t blob_bytes() const { return model_.package->expert_blob_bytes(); }
    std::uint64_t device_bytes() const { return device->counters().buffer_bytes; }
    // Runs `change`. Returns by how much the memory grew above its size before, at most.
    template <class Change>
    std::uint64_t growth_during(Change change) {
        const std::uint64_t before = device->peak_bytes = device_bytes();
        change();
        return device->peak_bytes - before;
    }
    Unit unit(std::uint32_t layer, std::uint32_t expert) const {
        return {static_cast<std::uint16_t>(layer), static_cast<std::uint16_t>(expert)};
    }
    // Assigns all experts of all layers, and runs until they are ready.
    void assign_all() {
        Assign assign;
        for (std::uint32_t layer = 0; layer < config_.num_layers; ++layer)
            for (std::uint32_t expert = 0; expert < config_.num_experts; ++expert)
                assign.units.push_back({static_cast<std::uint16_t>(layer),
                                        static_cast<std::uint16_t>(expert),
                                        model_.package->blob_hash(layer, expert)});
        give(encode_assign(assign.units));
        for (std::size_t ready = 0; ready < assign.units.size();)
            ready += decode_ready(next(FrameType::ready), limits)->units.size();
    }
    SpanReady promote(Range range, std::uint64_t kv_bytes) {
        begin_span(range, kv_bytes);
        return must(decode_span_ready(next(FrameType::span_ready)));
    }
    void begin_span(Range range, std::uint64_t kv_bytes) {
        SpanAssign assign{.span = ++spans_,
                          .first_layer = range.first,
                          .end_layer = range.second,
                          .context_tokens = 512,
                          .kv_bytes_max = kv_bytes};
        for (std::uint32_t layer = range.first; layer < range.second; ++layer)
            assign.layers.push_back(*model_.layers->layer(layer));
        give(encode_span_assign(assign));
    }
    // Returns the limit of the newest BUDGET in `sent`.
    std::uint64_t last_budget() const {
        std::uint64_t bytes = 0;
        for (const Bytes& frame : sent)
            if (decode_frame_header(frame)->type == FrameType::budget)
                bytes = must(decode_budget(frame, limits)).budget_bytes;
        return bytes;
    }
    // Returns the answer of an expert to two rows.
    std::vector<float> answer(Unit of) {
        GroupDispatch group{.sequence_id = ++calls_};
        group.shape = {.layer = of.layer,
                       .num_tokens = 2,
                       .hidden_dim = config_.hidden_size,
                       .dtype = Dtype::f32,
                       .unsummed = false,
                       .num_pairs = 2,
                       .num_experts = 1};
        group.experts = {{of.expert, 2}};
        group.rows = {0, 1};
        group.gates = {float_to_half(0.5f), float_to_half(0.25f)};
        for (std::uint32_t i = 0; i < 2 * config_.hidden_size; ++i)
            group.x.push_back(0.02f * static_cast<float>(static_cast<int>(i * 37 % 101) - 50));
        give(encode_group_dispatch(group, false));
        return must(decode_group_result(next(FrameType::group_result), limits)).y;
    }
    // The answers of an expert of each layer.
    std::vector<std::vector<float>> answers() {
        std::vector<std::vector<float>> all;
        for (std::uint32_t layer = 0; layer < config_.num_layers; ++layer)
            all.push_back(answer(unit(layer, layer)));
        return all;
    }

    const SpannedModel& model_ = demo_model();
    const ModelConfig& config_ = model_.package->config();
    std::uint64_t reported_bytes_ = 0;
    bool holds_experts = false;  // downloads of experts wait for give_experts()
    std::vector<std::function<void()>> held_experts;

  private:
    std::uint32_t spans_ = 0, calls_ = 0;
};

// The memory has room for all experts and for half as many bytes, which is less than the experts of
// the span's five layers of eight.
TEST(SpanWorkerTest, PromotedWorkerLoadsNoExpertTwice) {
    const ModelConfig& config = demo_model().package->config();
    const std::uint64_t num_units = config.num_layers * config.num_experts,
                        experts = num_units * demo_model().package->expert_blob_bytes();
    constexpr Range range{2, 7};
    SpanStage stage(experts * 2);  // a quarter is for calls in flight
    ASSERT_GE(stage.reported_bytes_, experts);
    const std::uint64_t span_experts = 5 * config.num_experts * stage.blob_bytes();
    ASSERT_LT(stage.reported_bytes_, experts + span_experts);
    stage.assign_all();
    const auto wanted = stage.answers();
    const std::uint64_t before = stage.device_bytes();

    const SpanReady ready = stage.promote(range, 4 << 20);
    ASSERT_GT(ready.num_pages, 0u);
    std::cout << experts << " bytes of experts, " << stage.device_bytes() - before
              << " bytes more with a span of " << span_experts << " bytes of experts and "
              << ready.num_pages << " pages\n";
    // A worker without experts takes as much more for the same span as its experts have bytes.
    SpanStage alone(experts * 2);
    alone.run_until_phase(WorkerPhase::serving);
    const std::uint64_t before_alone = alone.device_bytes();
    EXPECT_EQ(alone.promote(range, 4 << 20).num_pages, ready.num_pages);
    EXPECT_EQ(stage.device_bytes() - before, alone.device_bytes() - before_alone - span_experts);
    EXPECT_LE(stage.status().weights_bytes, experts);
    // No expert was dropped: the budget has room for all, and all are answered as before.
    for (const Bytes& frame : stage.sent)
        if (decode_frame_header(frame)->type == FrameType::budget) {
            const Budget budget = must(decode_budget(frame, stage.limits));
            EXPECT_TRUE(budget.dropped.empty());
            EXPECT_GE(budget.budget_bytes, experts);
        }
    EXPECT_EQ(stage.status().units_ready, num_units);
    EXPECT_EQ(stage.answers(), wanted);

    // The span is taken back: its experts stay, the memory is that from before, and the hub learns
    // that experts may use all of it again.
    stage.sent.clear();
    stage.give(encode_span_release(1));
    ASSERT_TRUE(stage.has_sent(FrameType::budget));
    const Budget whole = must(decode_budget(stage.next(FrameType::budget), stage.limits));
    EXPECT_EQ(whole.budget_bytes / stage.blob_bytes(), stage.reported_bytes_ / stage.blob_bytes());
    EXPECT_TRUE(whole.dropped.empty());
    EXPECT_EQ(stage.status().units_ready, num_units);
    EXPECT_EQ(stage.answers(), wanted);
    EXPECT_NEAR(static_cast<double>(stage.device_bytes()), static_cast<double>(before),
                static_cast<double>(places_bytes));
}

// A worker without room beside its experts drops some of other layers and says so.
TEST(SpanWorkerTest, WorkerWithoutRoomReportsWhatItDropped) {
    const ModelConfig& config = demo_model().package->config();
    const std::uint64_t num_units = config.num_layers * config.num_experts,
                        experts = num_units * demo_model().package->expert_blob_bytes();
    SpanStage stage((experts + (1u << 20)) * 4 / 3);
    ASSERT_GE(stage.reported_bytes_, experts);
    stage.assign_all();
    const auto wanted = stage.answers();
    ASSERT_GE(stage.promote({2, 4}, 4 << 20).num_pages, 4u);
    std::set<Unit> dropped;
    for (const Bytes& frame : stage.sent)
        if (decode_frame_header(frame)->type == FrameType::budget)
            for (const Unit& unit : must(decode_budget(frame, stage.limits)).dropped)
                dropped.insert(unit);
    EXPECT_FALSE(dropped.empty());
    EXPECT_EQ(stage.status().units_ready, num_units - dropped.size());
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        if (const Unit unit = stage.unit(layer, layer); !dropped.contains(unit))
            EXPECT_EQ(stage.answer(unit), wanted[layer]) << layer;
}

// A worker that a span of five layers leaves, with all experts of the model.
class SpanEndTest : public testing::Test {
  protected:
    void SetUp() override {
        stage_.assign_all();
        wanted_ = stage_.answers();
        before_ = stage_.device_bytes();
        begin();
    }
    void begin() { ASSERT_GT(stage_.promote(range, 4 << 20).num_pages, 0u); }
    void end() {
        stage_.sent.clear();
        stage_.give(encode_span_release(++spans_ended_));
        stage_.run_until([&] { return stage_.has_sent(FrameType::budget); });
    }
    // All experts are still held, and the memory is that from before the span.
    void expect_experts_only() {
        stage_.run_until_shown();
        EXPECT_EQ(stage_.status().units_ready, num_units);
        EXPECT_EQ(stage_.answers(), wanted_);
        EXPECT_LE(stage_.device_bytes(), before_ + places_bytes);
    }

    static constexpr Range range{2, 7};
    const ModelConfig& config_ = demo_model().package->config();
    const std::uint32_t num_units = config_.num_layers * config_.num_experts;
    const std::uint64_t experts_ = num_units * demo_model().package->expert_blob_bytes();
    SpanStage stage_{experts_ * 2};
    std::vector<std::vector<float>> wanted_;
    std::uint64_t before_ = 0;
    std::uint32_t spans_ended_ = 0;
};

// Regression: the experts of a span were once copied to slots while the span had its memory, and
// the worker took more than its lender had allowed.
TEST_F(SpanEndTest, ExpertsNeedNoSecondPlace) {
    for (int i = 0; i < 4; ++i) {
        EXPECT_LE(stage_.growth_during([&] { end(); }), places_bytes) << i;
        expect_experts_only();
        if (i < 3) begin();
    }
}

TEST_F(SpanEndTest, ExpertsNeedNoSecondPlaceDuringAStep) {
    stage_.device->hold_reads = true;
    stage_.give(encode_span_step({.step = 1,
                                  .span = 1,
                                  .dtype = Dtype::f32,
                                  .sequences = {{1, 0, 1}},
                                  .x = std::vector<float>(config_.hidden_size, 0.5f)},
                                 config_.hidden_size));
    ASSERT_EQ(stage_.device->held_reads.size(), 1u);
    stage_.sent.clear();
    const std::uint64_t held = stage_.device_bytes();
    EXPECT_LE(stage_.growth_during([&] {
        stage_.give(encode_span_release(1));
        EXPECT_EQ(stage_.device_bytes(), held) << "the step is computed";
        stage_.device->release_reads();
        stage_.run_until([&] { return stage_.has_sent(FrameType::budget); });
    }),
              places_bytes);
    expect_experts_only();
}

// The hub has released some of the experts, so their places are free for others.
TEST_F(SpanEndTest, ReleasedExpertsLeaveFreeSlots) {
    std::vector<Unit> released;
    for (std::uint32_t layer = 3; layer < 6; ++layer)
        for (std::uint32_t expert = 0; expert < config_.num_experts; expert += layer - 1)
            released.push_back(stage_.unit(layer, expert));
    stage_.give(encode_release(released));
    EXPECT_LE(stage_.growth_during([&] { end(); }), places_bytes);
    stage_.run_until_shown();
    EXPECT_EQ(stage_.status().units_ready, num_units - released.size());

    EXPECT_LE(stage_.growth_during([&] { stage_.assign_all(); }), places_bytes);
    expect_experts_only();
}

// The experts of an arena that the next span takes over are freed before those of the next layer.
TEST_F(SpanEndTest, NextSpanNeedsASecondPlaceForOneLayer) {
    const std::uint64_t layer_bytes = config_.num_experts * stage_.blob_bytes();
    EXPECT_LE(stage_.growth_during([&] { stage_.promote({4, 8}, 4 << 20); }), layer_bytes);
    EXPECT_EQ(stage_.answers(), wanted_);
}

// The lender lowers the limit below the span, and below the experts of the other layers.
TEST(SpanWorkerTest, LowerLimitEndsASpanAndDropsExperts) {
    const ModelConfig& config = demo_model().package->config();
    const std::uint64_t num_units = config.num_layers * config.num_experts,
                        experts = num_units * demo_model().package->expert_blob_bytes();
    SpanStage stage(experts * 2);
    stage.assign_all();
    const auto wanted = stage.answers();
    ASSERT_GT(stage.promote({2, 7}, 4 << 20).num_pages, 0u);
    stage.sent.clear();
    EXPECT_LE(stage.growth_during([&] { stage.core->set_budget(experts / 3); }), places_bytes);
    stage.run_until([&] { return stage.status().units_ready <= num_units / 3; });
    std::set<Unit> dropped;
    for (const Bytes& frame : stage.sent)
        if (decode_frame_header(frame)->type == FrameType::budget)
            for (const Unit& unit : must(decode_budget(frame, stage.limits)).dropped)
                dropped.insert(unit);
    EXPECT_EQ(stage.status().units_ready, num_units - dropped.size());
    EXPECT_LE(stage.last_budget(), experts / 3);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        if (const Unit unit = stage.unit(layer, layer); !dropped.contains(unit))
            EXPECT_EQ(stage.answer(unit), wanted[layer]) << layer;
}

// The next span is loaded while the earlier one is measured, whose experts it takes over. They
// count as the memory of the next span as soon as they are there, and not first when it is ready.
TEST(SpanWorkerTest, SpanCountsExpertsThatItTakesOver) {
    const ModelConfig& config = demo_model().package->config();
    const std::uint64_t experts = config.num_layers * config.num_experts *
                                  demo_model().package->expert_blob_bytes();
    SpanStage stage(experts * 2);
    stage.assign_all();
    const auto wanted = stage.answers();
    stage.device->hold_reads = true;
    stage.begin_span({2, 7}, 4 << 20);
    stage.run_until([&] { return stage.device->held_reads.size() == 1; });
    stage.sent.clear();

    stage.begin_span({2, 4}, 4 << 20);
    stage.run_until([&] { return stage.has_sent(FrameType::budget); });
    const std::uint64_t loading_bytes = stage.last_budget();
    ASSERT_EQ(stage.device->held_reads.size(), 1u) << "the span is loaded already";
    stage.run_until([&] { return stage.device->held_reads.size() == 2; });
    EXPECT_EQ(loading_bytes, stage.last_budget());

    stage.device->release_reads();
    EXPECT_GT(must(decode_span_ready(stage.next(FrameType::span_ready))).num_pages, 0u);
    EXPECT_EQ(stage.status().units_ready, config.num_layers * config.num_experts);
    EXPECT_EQ(stage.answers(), wanted);
}

// The experts of a span are in this machine's memory one layer at a time.
TEST(SpanWorkerTest, ExpertsOfASpanComeLayerByLayer) {
    const ModelConfig& config = demo_model().package->config();
    SpanStage stage(std::uint64_t{4} * config.num_layers * config.num_experts *
                    demo_model().package->expert_blob_bytes());
    stage.run_until_phase(WorkerPhase::serving);
    stage.holds_experts = true;
    stage.begin_span({2, 7}, 4 << 20);
    for (std::uint32_t layer = 2; layer < 7; ++layer) {
        stage.run_until([&] { return stage.held_experts.size() >= config.num_experts; });
        EXPECT_EQ(stage.held_experts.size(), config.num_experts) << "layer " << layer;
        stage.give_experts();
    }
    EXPECT_GT(must(decode_span_ready(stage.next(FrameType::span_ready))).num_pages, 0u);
    EXPECT_TRUE(stage.held_experts.empty());
}

// The span's first layer is on the GPU, and the experts of the second one are on their way.
TEST(SpanWorkerTest, SpanThatEndsWhileItLoadsGivesItsExpertsBack) {
    const ModelConfig& config = demo_model().package->config();
    const std::uint32_t all = config.num_layers * config.num_experts;
    SpanStage stage(std::uint64_t{2} * all * demo_model().package->expert_blob_bytes());
    stage.assign_all();
    const auto wanted = stage.answers();
    const std::uint64_t before = stage.device_bytes();
    stage.holds_experts = true;
    stage.begin_span({2, 7}, 4 << 20);
    stage.run_until([&] { return !stage.held_experts.empty(); });
    stage.give_experts();
    stage.run_until([&] { return !stage.held_experts.empty(); });
    EXPECT_EQ(stage.answers(), wanted);

    stage.give(encode_span_release(1));
    EXPECT_EQ(stage.answers(), wanted);
    EXPECT_EQ(stage.status().units_ready, all);
    const auto expect_bytes_before = [&] {
        EXPECT_NEAR(static_cast<double>(stage.device_bytes()), static_cast<double>(before),
                    static_cast<double>(places_bytes));
    };
    expect_bytes_before();
    stage.give_experts();  // those of the span that has ended
    expect_bytes_before();

    stage.holds_experts = false;
    EXPECT_GT(stage.promote({2, 7}, 4 << 20).num_pages, 0u);
    EXPECT_EQ(stage.answers(), wanted);
    EXPECT_EQ(stage.status().units_ready, all);
}

// A hub of an earlier version counts the experts of a span beside those that the worker holds.
TEST(SpanWorkerTest, HubWithoutSpanOnceGetsTwoCopies) {
    const ModelConfig& config = demo_model().package->config();
    const std::uint64_t experts = config.num_layers * config.num_experts *
                                  demo_model().package->expert_blob_bytes();
    const std::vector<std::string> caps{"budget", span_cap};
    SpanStage stage(experts * 4, caps), alone(experts * 4, caps);
    stage.assign_all();
    alone.run_until_phase(WorkerPhase::serving);
    const std::uint64_t before = stage.device_bytes(), before_alone = alone.device_bytes();
    const SpanReady ready = stage.promote({2, 4}, 4 << 20);
    EXPECT_EQ(alone.promote({2, 4}, 4 << 20).num_pages, ready.num_pages);
    EXPECT_EQ(stage.device_bytes() - before, alone.device_bytes() - before_alone);
    EXPECT_EQ(stage.last_budget() / stage.blob_bytes(), alone.last_budget() / alone.blob_bytes());
}

}  // namespace
}  // namespace moex
