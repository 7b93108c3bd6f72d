// These tests are about holders of whole layers that leave, are late or send wrong answers.
#include "tests/hub/dispatch/core/swarm_spans_stage.h"

namespace moex {
namespace {

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
    budget_bytes_ = kv_bytes_ + 3 * layer_bytes_;
    const WorkerId a = join(3, "a");
    wait();
    ASSERT_EQ(layers_of(a), Range(2, 5));
    UnitCopies copies = core_->copies();
    EXPECT_EQ(copies.missing, (num_layers_ - 3) * num_experts_);
    EXPECT_EQ(copies.shares.at(a).alone, 3 * num_experts_);
    const WorkerId b = join(3, "b");
    wait();
    ASSERT_EQ(layers_of(b), Range(5, 8));
    copies = core_->copies();
    EXPECT_EQ(copies.missing, (num_layers_ - 6) * num_experts_);
    EXPECT_EQ(copies.shares.at(b).alone, 3 * num_experts_);
    EXPECT_EQ(core_->copies({b}).missing, (num_layers_ - 3) * num_experts_);
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
    // The worker answers the next heartbeat.
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
