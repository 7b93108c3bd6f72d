// Tests the engine's side of spans against workers that answer at once, late, wrongly or not.
#include "tests/hub/dispatch/span/span_client_stage.h"

#include <iostream>
#include <random>
#include <thread>

namespace moex {
namespace {

TEST_F(SpanClientTest, NewHolderIsCheckedThenUsed) {
    SpanClient client = make();
    EXPECT_EQ(step(client, {{5, 0, 6}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 6, 1}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 7, 1}}), SpanUse::away);
    EXPECT_TRUE(answered_);
    // Six rows take two frames of at most four.
    EXPECT_EQ(step(client, {{5, 8, 6}}), SpanUse::away);
    EXPECT_EQ(frames_[FrameType::span_step], 2 + 1 + 1 + 2);
    EXPECT_EQ(client.counters().checks, 2u);
    EXPECT_EQ(client.counters().trips, 2u);
    EXPECT_EQ(brought_, 0u);
    client.ended(5);
    client.ended(6);
    EXPECT_EQ(frames_[FrameType::span_end], 1);
}

// A later turn of a conversation goes on under the number of the one before. The holder forgets an
// ended text where another one needs its pages, the one that ended first before others.
TEST_F(SpanClientTest, HolderKeepsAnEndedTextForOneThatContinuesIt) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});  // it is known that no step takes the hub less
    for (std::uint32_t at = 0; at < 16; at += 4) step(client, {{5, at, 4}, {6, at, 4}});
    const std::uint32_t before = brought_;
    client.kept(5);
    client.kept(6);
    client.resumed(5, 8);
    EXPECT_EQ(step(client, {{5, 8, 4}}), SpanUse::away);
    EXPECT_EQ(brought_, before);
    // The holder has eight rows of the new text, and four of the step. The hub computes four more.
    may_leave_ = false;
    step(client, {{5, 12, 4}});
    may_leave_ = true;
    EXPECT_EQ(step(client, {{5, 16, 1}}), SpanUse::away);
    EXPECT_EQ(brought_, before + 4);

    // The holder has four pages of 128 tokens. Texts 5 and 6 take one each.
    client.kept(5);
    EXPECT_EQ(frames_[FrameType::span_end], 0);
    step(client, {{7, 0, 4}, {8, 0, 4}});
    EXPECT_EQ(frames_[FrameType::span_end], 0);
    step(client, {{9, 0, 4}});
    EXPECT_EQ(frames_[FrameType::span_end], 1);
    client.resumed(5, 17);
    EXPECT_EQ(step(client, {{5, 17, 1}}), SpanUse::away);
    EXPECT_EQ(brought_, before + 4);
    // No text has ended now: a further one has no room, until one ends.
    EXPECT_EQ(step(client, {{10, 0, 4}}), SpanUse::here);
    client.kept(9);
    EXPECT_NE(step(client, {{10, 0, 4}}), SpanUse::here);
    EXPECT_EQ(frames_[FrameType::span_end], 2);
}

// A holder forgets a text ten minutes after the end, even if no question comes.
TEST_F(SpanClientTest, HolderForgetsAnEndedTextInTime) {
    TimePoint now = now_steady();
    options_.now = [&] { return now; };
    SpanClient client = make();
    for (std::uint32_t at = 0; at < 16; at += 4) step(client, {{5, at, 4}, {6, at, 4}});
    client.kept(5);
    now += 9min;
    client.kept(6);
    client.forget_ended();
    EXPECT_EQ(frames_[FrameType::span_end], 0);
    now += 2min;
    client.forget_ended();
    EXPECT_EQ(frames_[FrameType::span_end], 1);
    client.resumed(6, 16);
    now += 20min;
    EXPECT_NE(step(client, {{6, 16, 1}}), SpanUse::here);
    EXPECT_EQ(frames_[FrameType::span_end], 1);
    client.kept(6);
    now += 11min;
    step(client, {{7, 0, 1}});
    EXPECT_EQ(frames_[FrameType::span_end], 2);
}

// A worker with recurrent layers that does not follow the text gets the states before the rows, and
// a copy of a step that the hub computes itself.
TEST_F(SpanClientTest, HolderGetsStatesOnceAndFollows) {
    become_recurrent();
    SpanClient client = make();
    EXPECT_EQ(step(client, {{5, 0, 6}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 6, 1}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 7, 1}}), SpanUse::away);
    EXPECT_EQ(step(client, {{5, 8, 6}}), SpanUse::away);
    // Four of six drafted rows are rolled back: the worker has kept the inputs of these rows.
    EXPECT_EQ(step(client, {{5, 12, 1}}), SpanUse::away);
    EXPECT_TRUE(states_.empty());

    // Another sequence begins here, e.g. with a prefix that the hub has kept.
    EXPECT_EQ(step(client, {{5, 13, 1}, {6, 40, 1}}), SpanUse::check);
    ASSERT_EQ(states_.size(), 2u);
    for (std::uint32_t index : {0u, 1u}) {
        EXPECT_EQ(states_[index].sequence, 6u);
        EXPECT_EQ(states_[index].num_tokens, 40u);
        EXPECT_EQ(states_[index].index, index);
        EXPECT_EQ(states_[index].num_layers, 2u);
        EXPECT_EQ(states_[index].floats.front(), 100.0f * static_cast<float>(3 + index) + 40);
    }
    EXPECT_EQ(brought_, 40u) << "keys and values of the third layer";
    EXPECT_EQ(step(client, {{5, 14, 1}, {6, 41, 1}}), SpanUse::away);
    EXPECT_EQ(states_.size(), 2u);

    // After a step with more rows than a worker keeps, it can go on behind them only.
    EXPECT_EQ(step(client, {{5, 15, 12}}), SpanUse::away);
    EXPECT_EQ(step(client, {{5, 27, 1}}), SpanUse::away);
    EXPECT_EQ(states_.size(), 2u);
    EXPECT_EQ(client.counters().states, 1u);
    EXPECT_EQ(client.counters().wrong, 0u);
}

// Until the worker has answered behind its states, it computes copies, so that nobody waits.
TEST_F(SpanClientTest, NobodyWaitsForStates) {
    become_recurrent();
    SpanClient client = make();
    for (std::uint32_t at = 0; at < 2; ++at) EXPECT_EQ(step(client, {{5, at, 1}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 2, 1}}), SpanUse::away);
    silent_ = true;  // its answers are on their way
    for (std::uint32_t at = 40; at < 50; ++at)
        EXPECT_EQ(step(client, {{6, at, 1}}), at < 48 ? SpanUse::check : SpanUse::here) << at;
    EXPECT_EQ(states_.size(), 2u) << "the worker follows, and gets no others meanwhile";
    EXPECT_EQ(client.counters().late, 0u);
}

// The time of an answer that waits behind a state is not that of the span.
TEST_F(SpanClientTest, TimeOfATransferIsNotMeasured) {
    become_recurrent();
    TimePoint now{};
    options_.now = [&now] { return now; };
    holds_answers_ = true;
    SpanClient client = make();
    const auto answer_after = [&](Duration took) {
        now += took;
        for (auto& [id, answer] : std::exchange(held_answers_, {}))
            board_->answer(id, now, std::move(answer), 100);
    };
    // Two measured steps at once, then a state whose transfer takes ten seconds.
    for (std::uint32_t at = 0; at < 2; ++at) {
        EXPECT_EQ(step(client, {{5, at, 1}}, 100ms), SpanUse::check);
        answer_after(10ms);
    }
    EXPECT_EQ(step(client, {{6, 40, 1}}, 100ms), SpanUse::check);
    EXPECT_EQ(states_.size(), 2u);
    EXPECT_EQ(step(client, {{6, 41, 1}}, 100ms), SpanUse::check);
    answer_after(10s);
    holds_answers_ = false;
    EXPECT_EQ(step(client, {{6, 42, 1}}, 100ms), SpanUse::away);
    EXPECT_EQ(states_.size(), 2u);
}

// A state that cannot be read is not sent, nor are the others of its sequence.
TEST_F(SpanClientTest, NoStateIsSentThatCouldNotBeRead) {
    become_recurrent();
    SpanClient client = make();
    for (std::uint32_t at = 0; at < 3; ++at) step(client, {{5, at, 1}});
    // The keys and values of the third layer are read first, then one of the two states.
    for (const int reads : {0, 1, 1}) {
        reads_left_ = reads;
        EXPECT_EQ(step(client, {{6, 40, 1}}), SpanUse::here) << reads;
        EXPECT_EQ(reads_left_, 0);
        EXPECT_TRUE(states_.empty()) << reads;
    }
    EXPECT_EQ(client.counters().states, 0u);
    reads_left_ = 3;
    EXPECT_EQ(step(client, {{6, 41, 1}}), SpanUse::check) << "one more row, and both states";
    EXPECT_EQ(states_.size(), 2u);
    EXPECT_EQ(brought_, 41u);
}

// States that would fill the worker's outbox are not sent.
TEST_F(SpanClientTest, LargeStatesStayHere) {
    become_recurrent();
    SpanClient client = make();
    for (std::uint32_t at = 0; at < 3; ++at) step(client, {{5, at, 1}});
    const std::uint64_t states_of_one = 2 * options_.state_floats * sizeof(float);
    options_.state_bytes_at_once = states_of_one;
    SpanClient small = make();
    for (std::uint32_t at = 0; at < 3; ++at) step(small, {{5, at, 1}});
    EXPECT_EQ(step(small, {{6, 40, 1}, {7, 40, 1}}), SpanUse::here);
    EXPECT_TRUE(states_.empty());
    EXPECT_EQ(step(small, {{6, 41, 1}}), SpanUse::check);
    EXPECT_EQ(states_.size(), 2u);
}

// An answer that comes after its sequence has ended takes no place of another one.
TEST_F(SpanClientTest, LateRefusalOfAnEndedSequenceTakesNoPlace) {
    become_recurrent();
    add_holder({}, 1);
    SpanClient client = make();
    verdict_ = SpanVerdict::unknown_sequence;
    EXPECT_EQ(step(client, {{1, 0, 1}}), SpanUse::check);
    client.ended(1);
    verdict_ = SpanVerdict::done;
    EXPECT_EQ(step(client, {{2, 0, 1}}), SpanUse::check);
}

// A hub that has no states, or a worker that has room for two sequences.
TEST_F(SpanClientTest, SequencesBeyondTheStatesStayHere) {
    become_recurrent();
    add_holder({}, 2);
    SpanClient client = make();
    EXPECT_EQ(step(client, {{1, 0, 1}, {2, 0, 1}}), SpanUse::check);
    EXPECT_EQ(step(client, {{1, 1, 1}, {2, 1, 1}, {3, 0, 1}}), SpanUse::here);
    client.ended(1);
    EXPECT_EQ(step(client, {{2, 1, 1}, {3, 0, 1}}), SpanUse::check);
}

// A lie in the inputs of a recurrence poisons the hub's states.
TEST_F(SpanClientTest, LieInTheInputsOfARecurrenceIsFound) {
    become_recurrent();
    lie_in_delta_ = true;
    SpanClient client = make();
    std::uint32_t at = 0;
    while (lied_.empty() && at < 20) step(client, {{5, at++, 1}});
    EXPECT_FALSE(lied_.empty());
    EXPECT_EQ(client.counters().trips, 0u);
}

TEST_F(SpanClientTest, ProvenHolderIsCheckedWithTheHubsWeights) {
    options_.has_weights = true;
    options_.check.rate = 0.25;
    SpanClient client = make();
    std::uint32_t at = 0;
    int num_checks = 0;
    for (; at < 2; ++at) step(client, {{5, at, 1}});
    EXPECT_EQ(with_own_weights_, 0) << "the hub's own way is measured while a holder is new";
    for (; at < 400; ++at) num_checks += step(client, {{5, at, 1}}) == SpanUse::check;
    EXPECT_GT(with_own_weights_, num_checks / 2);
    EXPECT_LT(with_own_weights_, num_checks) << "some checks measure the hub's own way";
    // A lie is found by both kinds of checks.
    lie_in_x_ = true;
    for (std::uint32_t i = 0; i < 100 && lied_.empty(); ++i) step(client, {{5, at++, 1}});
    EXPECT_FALSE(lied_.empty());
}

TEST_F(SpanClientTest, FasterHubKeepsItsLayersAndMeasuresSeldom) {
    SpanClient client = make();
    int checks = 0;
    for (std::uint32_t i = 0; i < 50; ++i)
        checks += step(client, {{5, i, 1}}, 1ns) == SpanUse::check;
    EXPECT_GE(checks, 1);
    EXPECT_LE(checks, 3);
    EXPECT_EQ(client.counters().trips, 0u);
}

TEST_F(SpanClientTest, LiesInRowsOrKeysOrValuesEndTheSpan) {
    for (bool* const lie : {&lie_in_x_, &lie_in_k_, &lie_in_v_}) {
        lied_.clear();
        lie_in_x_ = lie_in_k_ = lie_in_v_ = false;
        *lie = true;
        add_holder();
        SpanClient client = make();
        EXPECT_EQ(step(client, {{5, 0, 2}}), SpanUse::check);
        EXPECT_EQ(step(client, {{5, 2, 1}}), SpanUse::check);
        EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::here);
        EXPECT_FALSE(lied_.empty());
        EXPECT_EQ(client.counters().wrong, 2u);
        EXPECT_EQ(client.counters().lies, 1u);
        EXPECT_EQ(client.counters().trips, 0u);
        EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::here);
    }
}

// Where routes lie close together, honest answers differ much and often. No answer of such a holder
// is used, and it is not banned.
TEST_F(SpanClientTest, HonestDifferencesSetTheHolderAside) {
    strays_ = true;
    SpanClient client = make();
    EXPECT_EQ(step(client, {{5, 0, 2}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 2, 1}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::here);
    EXPECT_TRUE(lied_.empty()) << lied_;
    EXPECT_NE(set_aside_.find("differs by 0.9 of its size"), set_aside_.npos) << set_aside_;
    EXPECT_EQ(client.counters().wrong, 2u);
    EXPECT_EQ(client.counters().set_aside, 1u);
    EXPECT_EQ(client.counters().lies, 0u);
    EXPECT_EQ(client.counters().trips, 0u);
    EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::here);
}

// A liar that was found once gains nothing by a moderate difference afterwards, nor the other way
// round.
TEST_F(SpanClientTest, LieBesideAModerateDifferenceIsALie) {
    for (const bool lies_first : {false, true}) {
        lied_.clear(), set_aside_.clear();
        add_holder();
        SpanClient client = make();
        lies_next_ = lies_first, strays_ = !lies_first;
        step(client, {{5, 0, 2}});
        lies_next_ = !lies_first, strays_ = lies_first;
        step(client, {{5, 2, 1}});
        EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::here);
        EXPECT_FALSE(lied_.empty());
        EXPECT_TRUE(set_aside_.empty());
    }
}

TEST_F(SpanClientTest, DoubtedHolderIsCheckedInEveryStep) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    lies_next_ = true;
    EXPECT_EQ(step(client, {{5, 1, 1}}), SpanUse::check);
    std::uint32_t at = 2;
    for (; at < 6; ++at) EXPECT_EQ(step(client, {{5, at, 1}}), SpanUse::check) << at;
    EXPECT_EQ(step(client, {{5, at++, 1}}), SpanUse::away);
    EXPECT_TRUE(lied_.empty());
    EXPECT_EQ(client.counters().wrong, 1u);
}

TEST_F(SpanClientTest, HolderThatReturnsKeepsItsRecord) {
    board_->remove(1);
    add_holder("key");
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    lies_next_ = true;
    step(client, {{5, 1, 1}});
    EXPECT_EQ(step(client, {{5, 2, 1}}), SpanUse::check);
    board_->remove(1);
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::here);
    add_holder("key");
    lies_next_ = true;
    EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 5, 1}}), SpanUse::here);
    EXPECT_FALSE(lied_.empty());
}

// A holder lies by chance, in rows, until it is found.
TEST_F(SpanClientTest, LiarPlacesAsManyWrongAnswersAsExpected) {
    options_.check = {.to_prove = 2, .rate = 1.0 / 16, .doubted_checks = 32};
    std::mt19937 random(4);
    for (const double lies : {1.0, 0.2, 0.05}) {
        constexpr int liars = 200;
        wrong_used_ = 0;
        for (int liar = 0; liar < liars; ++liar) {
            options_.seed = static_cast<std::uint64_t>(liar) + 1;
            lied_.clear();
            add_holder();
            SpanClient client = make();
            for (std::uint32_t at = 0; lied_.empty(); ++at) {
                lies_next_ = std::bernoulli_distribution(lies)(random);
                step(client, {{5, at % 400, 1}});
                ASSERT_LT(at, 100'000u) << "the liar is never found";
            }
            board_->remove(1);
        }
        const double mean = static_cast<double>(wrong_used_) / liars,
                     expected = expected_wrong_answers(options_.check, lies);
        std::cout << "a share " << lies << " of lies: " << mean << " wrong answers were used, "
                  << expected << " expected\n";
        EXPECT_NEAR(mean, expected, 0.25 * expected) << lies;
    }
}

TEST_F(SpanClientTest, StandbyIsCheckedBesideAndTakesOverAtOnce) {
    add_standby();
    SpanClient client = make();
    step(client, {{5, 0, 40}});
    step(client, {{5, 40, 1}});
    EXPECT_EQ(step(client, {{5, 41, 1}}), SpanUse::away);
    EXPECT_EQ(client.counters().checks, 4u);
    EXPECT_EQ(brought_, 0u);
    // The rows that the first worker computes reach the second one 16 at a time.
    for (std::uint32_t at = 42; at < 75; ++at) step(client, {{5, at, 1}});
    EXPECT_EQ(brought_, 32u);
    const int steps = steps_of_[2];
    board_->remove(1);
    worker_ = 10;
    EXPECT_EQ(step(client, {{5, 75, 1}}), SpanUse::away);
    EXPECT_TRUE(answered_);
    EXPECT_EQ(steps_of_[2], steps + 1);
    EXPECT_EQ(brought_, 34u);
}

// A standby that joins a proven holder is proven by the steps that are used, without one that the
// hub computes.
TEST_F(SpanClientTest, StandbyIsProvenBesideAnswersThatAreUsed) {
    SpanClient client = make();
    step(client, {{5, 0, 2}});
    step(client, {{5, 2, 1}});
    add_standby();
    for (std::uint32_t at = 3; at < 6; ++at) EXPECT_EQ(step(client, {{5, at, 1}}), SpanUse::away);
    EXPECT_EQ(steps_of_[2], 2);
    client.plan({});
    const auto views = client.views();
    ASSERT_EQ(views.size(), 2u);
    EXPECT_TRUE(views[1].proven);
    EXPECT_EQ(client.counters().checks, 4u);
}

// A holder that does not answer is replaced by its standby in the same step, and comes behind it
// until it answers again, even when its suspension is over.
TEST_F(SpanClientTest, SilentHolderGivesWayToItsStandby) {
    add_standby();
    SpanClient client = make();
    step(client, {{5, 0, 2}});
    step(client, {{5, 2, 1}});
    silent_span_ = 1;
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::away);
    EXPECT_FALSE(answered_);
    EXPECT_TRUE(answered_again_);
    EXPECT_EQ(brought_, 0u);
    worker_ = 10;
    const TimePoint begun = now_steady();
    while (now_steady() < begun + 1100ms) {
        ASSERT_EQ(step(client, {{5, 4, 1}}), SpanUse::away);
        ASSERT_TRUE(answered_);
    }
    EXPECT_EQ(client.counters().late, 1u);
}

// Where a standby differs from the answer that is used, the hub computes the next step and finds
// out who is wrong.
TEST_F(SpanClientTest, HubJudgesWhoIsWrongInADispute) {
    for (const std::uint32_t liar : {1u, 2u}) {
        SCOPED_TRACE(liar);
        board_ = std::make_shared<SpanBoard>();
        lied_.clear(), lying_span_ = 0, wrong_used_ = 0;
        add_holder();
        SpanClient client = make();
        step(client, {{5, 0, 2}});
        step(client, {{5, 2, 1}});
        add_standby();
        lying_span_ = liar;
        EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::away);
        EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::check);
        EXPECT_EQ(client.counters().disputes, 1u);
        for (std::uint32_t at = 5; at < 12 && lied_.empty(); ++at) step(client, {{5, at, 1}});
        EXPECT_FALSE(lied_.empty());
        client.plan({});
        ASSERT_EQ(client.views().size(), 1u);
        EXPECT_EQ(client.views()[0].worker, liar == 1 ? 10u : 9u);
    }
}

// SPAN_STEP has 4 bytes a value of the residual stream, SPAN_ANSWER too, and 2 bytes a value of the
// keys and values of each layer.
TEST_F(SpanClientTest, BytesOfATokenFollowTheFormula) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    step(client, {{5, 2, 1}});
    const auto before = client.counters();
    for (std::uint32_t at = 3; at < 13; ++at) EXPECT_EQ(step(client, {{5, at, 1}}), SpanUse::away);
    const auto after = client.counters();
    const std::uint64_t up = after.step_bytes - before.step_bytes,
                        down = after.answer_bytes - before.answer_bytes;
    EXPECT_EQ(down, 10 * span_answer_bytes(hidden, 1, (end_layer - first_layer) * 2 * kv_size));
    EXPECT_EQ(after.step_bytes, bytes_[FrameType::span_step]);
    EXPECT_EQ(after.step_rows, 13u);
    EXPECT_EQ(after.answer_rows, 13u);
    EXPECT_GE(up, 10u * 4 * hidden);
    EXPECT_LE(up, 10u * (4 * hidden + 64));
    EXPECT_EQ(after.kv_bytes, 0u);
    // A sequence that the hub computed: 30 rows of keys and values, in two steps.
    step(client, {{6, 30, 1}});
    step(client, {{6, 31, 1}});
    EXPECT_EQ(client.counters().kv_bytes, bytes_[FrameType::span_kv]);
    EXPECT_GE(bytes_[FrameType::span_kv], span_kv_bytes(end_layer - first_layer, 31, kv_size));
}

TEST_F(SpanClientTest, LateAnswerSuspendsTheSpan) {
    SpanClient client = make();
    step(client, {{5, 0, 2}});
    step(client, {{5, 2, 1}});
    silent_ = true;
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::away);
    EXPECT_FALSE(answered_);
    EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::here);
    EXPECT_EQ(client.counters().late, 1u);
    EXPECT_EQ(late_, std::vector{1u});
}

TEST_F(SpanClientTest, LostHolderFailsTheStepAtOnce) {
    options_.late_min = options_.late_max = 1h;
    SpanClient client = make();
    step(client, {{5, 0, 2}});
    step(client, {{5, 2, 1}});
    silent_ = true;
    std::jthread leaver([&] {
        while (steps_sent_ < 3) std::this_thread::yield();
        board_->remove(1);
    });
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::away);
    EXPECT_FALSE(answered_);
    EXPECT_EQ(step(client, {{5, 4, 1}}), SpanUse::here);
    EXPECT_EQ(client.counters().failed, 1u);
}

TEST_F(SpanClientTest, MissingKeysAndValuesAreBroughtInParts) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    // A sequence of 50 tokens that the hub computed: 20 rows are sent before each step.
    EXPECT_EQ(step(client, {{6, 50, 1}}), SpanUse::here);
    EXPECT_EQ(step(client, {{6, 51, 1}}), SpanUse::here);
    EXPECT_EQ(step(client, {{6, 52, 1}}), SpanUse::away);
    EXPECT_EQ(brought_, 52u);
    // Rows that the hub computes are missing afterwards.
    may_leave_ = false;
    EXPECT_EQ(step(client, {{6, 53, 2}}), SpanUse::here);
    may_leave_ = true;
    EXPECT_EQ(step(client, {{6, 55, 1}}), SpanUse::away);
    EXPECT_EQ(brought_, 54u);
}

// A step may be stopped before the layers of a check. The holder is checked at a later step.
TEST_F(SpanClientTest, StoppedStepEndsNoChecks) {
    SpanClient client = make();
    const std::vector<SpanSequence> rows{{5, 0, 1}};
    const SpanBatch stopped{.sequences = rows, .num_rows = 1, .read_kv = {}};
    ASSERT_EQ(client.plan(stopped).front().use, SpanUse::check);
    EXPECT_EQ(step(client, {{5, 0, 1}}), SpanUse::check);
    ASSERT_EQ(client.plan({.sequences = rows, .num_rows = 1, .read_kv = {}}).front().use,
              SpanUse::check);
    EXPECT_EQ(step(client, {{5, 1, 1}}), SpanUse::check);
    EXPECT_EQ(step(client, {{5, 2, 1}}), SpanUse::away);
}

TEST_F(SpanClientTest, KeysThatCouldNotBeReadAreNotSent) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    reads_left_ = 0;
    EXPECT_EQ(step(client, {{6, 10, 1}}), SpanUse::here);
    EXPECT_EQ(brought_, 0u);
    reads_left_ = 1;
    EXPECT_EQ(step(client, {{6, 11, 1}}), SpanUse::away);
    EXPECT_EQ(brought_, 11u);
}

TEST_F(SpanClientTest, RowsThatTheHubComputedAnewAreBrought) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    EXPECT_EQ(step(client, {{5, 2, 5}}), SpanUse::away);
    // The sequence is rolled back to three tokens, and the hub computes five others.
    may_leave_ = false;
    EXPECT_EQ(step(client, {{5, 3, 5}}), SpanUse::here);
    may_leave_ = true;
    EXPECT_EQ(step(client, {{5, 8, 1}}), SpanUse::away);
    EXPECT_EQ(brought_, 5u);
}

TEST_F(SpanClientTest, SequencesBeyondTheRoomStayHere) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    // Four pages: sequence 5 has one, sequence 6 wants four.
    EXPECT_EQ(step(client, {{6, 500, 1}}), SpanUse::here);
    EXPECT_EQ(brought_, 0u);
}

TEST_F(SpanClientTest, RefusedStepIsComputedHere) {
    SpanClient client = make();
    step(client, {{5, 0, 1}});
    step(client, {{5, 1, 1}});
    verdict_ = SpanVerdict::unknown_sequence;
    EXPECT_EQ(step(client, {{5, 2, 1}}), SpanUse::away);
    EXPECT_FALSE(answered_);
    // Everything is brought again.
    verdict_ = SpanVerdict::done;
    EXPECT_EQ(step(client, {{5, 3, 1}}), SpanUse::away);
    EXPECT_TRUE(answered_);
    EXPECT_EQ(brought_, 3u);
}

}  // namespace
}  // namespace moex
