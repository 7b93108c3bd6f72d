// Tests spans on the dispatch strand: which layers a worker gets, and what its frames change.
#include <gtest/gtest.h>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/span/span_board.h"

namespace moex {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t num_layers = 8, num_experts = 2, kv_size = 16;
constexpr std::uint64_t layer_bytes = 10'000;

class SwarmSpansTest : public testing::Test {
  protected:
    SwarmSpansTest() {
        options_.limits = {
            .hidden_size = 32, .num_layers = num_layers, .num_experts = num_experts};
        options_.expert_shape = {32, 32, 32};
        options_.top_k = 1;
        options_.expert_blob_bytes = expert_blob_layout(options_.expert_shape).size_bytes;
        options_.layer_is_moe.assign(num_layers, 1);
        options_.blob_hash = [](std::uint32_t, std::uint32_t) { return Sha256{}; };
        options_.token_ok = [](std::string_view) { return true; };
        options_.held_wait = Duration::zero();
        options_.spans.on = true;
        options_.spans.kv_size = kv_size;
        options_.spans.context_tokens = 1024;
        options_.spans.layer_of = [](std::uint32_t) {
            return SpanAssign::Layer{Sha256{}, layer_bytes};
        };
    }

    // Connects a worker with room for `layers` layers, which loads every expert that it is assigned.
    WorkerId join(SwarmCore& core, std::uint32_t layers, const std::string& key) {
        actions_.clear();
        const WorkerId id = core.on_connect(now_, "127.0.0.1", true, actions_);
        Hello hello{.caps = {"group"}, .worker_key = key};
        hello.device.budget_bytes = 1 << 20;
        if (layers > 0) {
            hello.caps.push_back(span_cap);
            // The hub plans with 80 % of these bytes.
            hello.span_bytes = layers * one_layer() * 10 / 8 + 100;
            hello.span_kv_bytes = 1 << 20;
        }
        core.on_frame(now_, id, encode_hello(hello), actions_);
        std::vector<Unit> units;
        for (const Bytes& frame : frames(FrameType::assign))
            for (const AssignedUnit& unit : decode_assign(frame, options_.limits)->units)
                units.push_back({unit.layer, unit.expert});
        if (!units.empty()) core.on_frame(now_, id, encode_ready(units), actions_);
        now_ += options_.heartbeat_every;
        core.on_tick(now_, actions_);
        return id;
    }
    std::uint64_t one_layer() const {
        return layer_bytes + num_experts * options_.expert_blob_bytes;
    }
    // Returns the frames of a type among the newest actions.
    std::vector<Bytes> frames(FrameType type) {
        std::vector<Bytes> found;
        for (SwarmAction& action : actions_)
            if (const auto* sent = std::get_if<SendFrame>(&action);
                sent && decode_frame_header(sent->frame.head())->type == type)
                found.emplace_back(sent->frame.head().begin(), sent->frame.head().end());
        return found;
    }
    SpanAssign assigned() {
        const auto found = frames(FrameType::span_assign);
        if (found.empty()) return {};
        return *decode_span_assign(found.back(), options_.limits);
    }
    bool closed() const {
        return std::any_of(actions_.begin(), actions_.end(), [](const SwarmAction& action) {
            return std::holds_alternative<CloseWorker>(action);
        });
    }

    SwarmOptions options_;
    TimePoint now_{1h};
    std::vector<SwarmAction> actions_;
};

TEST_F(SwarmSpansTest, WorkersGetLayersBetweenTheHubsOwn) {
    SwarmCore core(options_);
    join(core, 3, "a");
    const SpanAssign first = assigned();
    EXPECT_EQ(first.first_layer, 2u);
    EXPECT_EQ(first.end_layer, 5u);
    EXPECT_EQ(first.layers.size(), 3u);
    join(core, 8, "b");
    EXPECT_EQ(assigned().first_layer, 5u);
    EXPECT_EQ(assigned().end_layer, 7u);
    // Every layer has a holder: the next worker gets the layers of another one.
    join(core, 3, "c");
    EXPECT_GT(assigned().end_layer, assigned().first_layer);
}

TEST_F(SwarmSpansTest, WorkersWithoutTheCapabilityGetNone) {
    SwarmCore core(options_);
    join(core, 0, "a");
    EXPECT_TRUE(frames(FrameType::span_assign).empty());
}

TEST_F(SwarmSpansTest, ExpertsKeepTheirMemoryWithoutALocalBackend) {
    options_.local_fallback = false;
    SwarmCore core(options_);
    // The worker's budget holds the experts, and hardly anything beside them.
    options_.limits.num_experts = num_experts;
    const WorkerId id = core.on_connect(now_, "127.0.0.1", true, actions_);
    Hello hello{.caps = {"group", span_cap}, .worker_key = "a"};
    hello.device.budget_bytes = num_layers * num_experts * options_.expert_blob_bytes + 1000;
    hello.span_bytes = hello.span_kv_bytes = 1 << 20;
    core.on_frame(now_, id, encode_hello(hello), actions_);
    now_ += options_.heartbeat_every;
    core.on_tick(now_, actions_);
    EXPECT_TRUE(frames(FrameType::span_assign).empty());
}

TEST_F(SwarmSpansTest, ReadySpanIsOnTheBoardUntilItsWorkerLeaves) {
    SwarmCore core(options_);
    const WorkerId id = join(core, 3, "a");
    const std::uint32_t span = assigned().span;
    EXPECT_TRUE(core.span_board()->ready().empty());
    core.on_frame(now_, id, encode_span_ready({span, 8, 128, 16, {}}), actions_);
    ASSERT_EQ(core.span_board()->ready().size(), 1u);
    EXPECT_EQ(core.span_board()->ready()[0].worker, id);
    EXPECT_EQ(core.span_board()->ready()[0].rows_max, 16u);

    core.span_board()->expect(4, span);
    core.on_span_frame(now_, span, 4, encode_span_end({1}), actions_);
    core.on_disconnect(now_, id, actions_);
    EXPECT_TRUE(core.span_board()->ready().empty());
    const auto answer = core.span_board()->poll(4);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->answer.error().code, ErrorCode::unavailable);
}

TEST_F(SwarmSpansTest, WorkerThatCannotHoldItIsAskedForHalf) {
    SwarmCore core(options_);
    const WorkerId id = join(core, 4, "a");
    const SpanAssign wanted = assigned();
    EXPECT_EQ(wanted.end_layer - wanted.first_layer, 4u);
    actions_.clear();
    core.on_frame(now_, id, encode_span_ready({.span = wanted.span}), actions_);
    EXPECT_EQ(assigned().end_layer - assigned().first_layer, 2u);
}

TEST_F(SwarmSpansTest, AnswersReachTheBoardOnce) {
    SwarmCore core(options_);
    const WorkerId id = join(core, 1, "a");
    const std::uint32_t span = assigned().span;
    core.on_frame(now_, id, encode_span_ready({span, 8, 128, 16, {}}), actions_);
    core.span_board()->expect(4, span);
    core.on_span_frame(now_, span, 4, encode_span_end({1}), actions_);
    SpanAnswer answer{.step = 4, .span = span, .num_rows = 1, .num_layers = 1, .kv_size = kv_size,
                      .x = std::vector<float>(32, 1.0f)};
    answer.kv.resize(span_kv_bytes(1, 1, kv_size));
    core.on_frame(now_, id, encode_span_answer(answer, 32), actions_);
    EXPECT_TRUE(core.span_board()->poll(4).has_value());
    // A second answer, and one to a step that was never sent, are late.
    core.on_frame(now_, id, encode_span_answer(answer, 32), actions_);
    EXPECT_EQ(core.counters().late, 1u);
    EXPECT_FALSE(closed());
    // A frame that breaks the protocol ends the connection.
    Bytes broken = encode_span_answer(answer, 32);
    broken[frame_header_bytes + 4] = std::byte{9};
    core.on_frame(now_, id, broken, actions_);
    EXPECT_TRUE(closed());
    EXPECT_TRUE(core.span_board()->ready().empty());
}

TEST_F(SwarmSpansTest, LiarGetsNoSpanAgain) {
    SwarmCore core(options_);
    const WorkerId id = join(core, 3, "a");
    const std::uint32_t span = assigned().span;
    core.on_frame(now_, id, encode_span_ready({span, 8, 128, 16, {}}), actions_);
    actions_.clear();
    core.on_span_lie(now_, span, "it differs", actions_);
    EXPECT_EQ(frames(FrameType::span_release).size(), 1u);
    EXPECT_TRUE(core.span_board()->ready().empty());
    core.on_disconnect(now_, id, actions_);
    join(core, 3, "a");
    EXPECT_TRUE(frames(FrameType::span_assign).empty());
}

}  // namespace
}  // namespace moex
