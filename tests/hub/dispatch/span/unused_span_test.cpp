// Tests the checks of holders of layers whole that a faster hub does not use.
#include "tests/hub/dispatch/span/span_client_stage.h"

namespace moex {
namespace {

// Holders of a hub that is faster than they are, on a clock of their own. A step takes 10 ms.
class UnusedSpanTest : public SpanClientTest {
  protected:
    UnusedSpanTest() {
        options_.now = [this] { return now_; };
        options_.check = {.to_prove = 8, .rate = 0, .doubted_checks = 20};
    }
    // Runs steps for `time`. Returns how many of them the holders computed, too.
    int run(SpanClient& client, Duration time) {
        int checks = 0;
        for (const TimePoint end = now_ + time; now_ < end; now_ += 10ms)
            checks += step(client, {{5, at_++ % 400, 1}}, 1ns) == SpanUse::check;
        return checks;
    }
    // Runs a step of a text of its own. If it is a check, the answer arrives after `away`.
    SpanUse play(SpanClient& client, std::uint32_t num_rows, Duration away, Duration here) {
        const SpanUse use = step(client, {{++at_, 0, num_rows}}, here);
        if (use == SpanUse::check) now_ += away;
        for (auto& [id, answer] : std::exchange(held_answers_, {}))
            board_->answer(id, now_, std::move(answer), 100);
        client.ended(at_);
        return use;
    }
    // Returns true if the holder of the span has a record now.
    bool is_proven(SpanClient& client, std::size_t index = 0) {
        client.plan({});
        return client.views().at(index).proven;
    }

    TimePoint now_{};
    std::uint32_t at_ = 0;
};

// Regression: the intervals of the measurements once grew to half a minute before a holder had a
// record, and one that was doubted had none for hours, however much the hub computed.
TEST_F(UnusedSpanTest, HolderHasItsRecordSoon) {
    SpanClient client = make();
    EXPECT_EQ(run(client, 3500ms), 8);
    EXPECT_TRUE(is_proven(client));
    // Then it is measured after one second, two, four, and up to thirty.
    EXPECT_LE(run(client, 180s), 11);

    lies_next_ = true;
    for (int i = 0; i < 32 && is_proven(client); ++i) run(client, 1s);
    EXPECT_FALSE(is_proven(client));
    EXPECT_LE(run(client, 12s), 24);
    EXPECT_TRUE(is_proven(client));
    EXPECT_TRUE(lied_.empty());
    EXPECT_EQ(client.counters().trips, 0u);
}

TEST_F(UnusedSpanTest, DifferencesSetTheHolderAsideSoon) {
    SpanClient client = make();
    run(client, 180s);
    EXPECT_TRUE(is_proven(client));
    strays_ = true;
    const std::uint64_t before = client.counters().checks;
    run(client, 32s);
    EXPECT_FALSE(set_aside_.empty());
    EXPECT_EQ(client.counters().checks, before + 2);
}

// A holder with recurrent states that follows a text is checked in each of its steps: once it has
// missed one, it would need all states again.
TEST_F(UnusedSpanTest, HolderWithStatesHasItsRecordAfterFewSteps) {
    become_recurrent();
    SpanClient client = make();
    EXPECT_EQ(run(client, 90ms), 8);
    EXPECT_TRUE(is_proven(client));
    EXPECT_EQ(run(client, 100ms), 0);
    EXPECT_TRUE(states_.empty());
}

// Regression: steps of 16 rows were once computed here for ever, because a prompt of 256 rows had
// taken the holder longer than a row takes the hub. Neither had been measured with 16 rows there.
TEST_F(UnusedSpanTest, TimesOfOtherNumbersOfRowsEndNoUse) {
    options_.check.to_prove = 3;
    holds_answers_ = true;
    SpanClient client = make();
    EXPECT_EQ(play(client, 1, 10ms, 100ms), SpanUse::check);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(play(client, 256, 400ms, 200ms), SpanUse::check);
    EXPECT_EQ(play(client, 256, 400ms, 200ms), SpanUse::here) << "the hub is faster";
    EXPECT_EQ(play(client, 16, 20ms, 110ms), SpanUse::check) << "not known";
    holds_answers_ = false;
    EXPECT_EQ(step(client, {{99, 0, 16}}, 110ms), SpanUse::away);
    EXPECT_EQ(step(client, {{99, 16, 1}}, 100ms), SpanUse::away);
}

// The reverse: a prompt of 256 rows that is slow here keeps no span in use that is slower than the
// hub with 16 rows.
TEST_F(UnusedSpanTest, TimesOfOtherNumbersOfRowsKeepNoUse) {
    options_.check.to_prove = 3;
    holds_answers_ = true;
    SpanClient client = make();
    EXPECT_EQ(play(client, 1, 9ms, 8ms), SpanUse::check);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(play(client, 256, 150ms, 400ms), SpanUse::check);
    EXPECT_EQ(play(client, 16, 130ms, 20ms), SpanUse::check) << "not known";
    EXPECT_EQ(play(client, 16, 130ms, 20ms), SpanUse::check) << "a slower one, measured again";
    EXPECT_EQ(play(client, 16, 130ms, 20ms), SpanUse::here);
}

// Regression: a standby was once checked with the first holder only, which has rare checks.
TEST_F(UnusedSpanTest, StandbyHasItsRecordSoon) {
    SpanClient client = make();
    run(client, 180s);
    EXPECT_TRUE(is_proven(client));
    const int steps = steps_of_[1];
    add_standby();
    EXPECT_LE(run(client, 5s), 9);
    EXPECT_TRUE(is_proven(client, 1));
    EXPECT_TRUE(client.views()[1].standby);
    EXPECT_LE(steps_of_[1], steps + 1);
    EXPECT_LE(run(client, 60s), 7);
}

}  // namespace
}  // namespace moex
