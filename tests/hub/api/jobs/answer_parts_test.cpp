// Tests the parts of one choice's text, and the gate before the events of a job.
#include "hub/api/jobs/answer_parts.h"

#include <thread>

#include <gtest/gtest.h>

#include "hub/api/jobs/event_gate.h"

namespace moex {
namespace {

// All pieces of a text that is pushed in the given cuts, one token each.
ReasonedText joined(AnswerParts parts, std::string_view text, std::size_t cut) {
    ReasonedText all;
    std::uint32_t num_tokens = 0;
    const auto take = [&](const AnswerParts::Piece& piece) {
        all.reasoning += piece.text.reasoning;
        all.content += piece.text.content;
        EXPECT_TRUE(piece.calls.empty());
    };
    for (std::size_t at = 0; at < text.size(); at += cut)
        take(parts.push(std::string(text.substr(at, cut)), ++num_tokens, false));
    take(parts.push({}, num_tokens, true));
    return all;
}

TEST(AnswerPartsTest, ThoughtsAndWordsDoNotDependOnTheCut) {
    const std::string text = "<think>\nA sum.\n</think>\n\n4 < 5";
    for (std::size_t cut = 1; cut <= text.size(); ++cut) {
        const ReasonedText parts = joined(AnswerParts({.splits_reasoning = true}), text, cut);
        EXPECT_EQ(parts.reasoning, "A sum.") << cut;
        EXPECT_EQ(parts.content, "4 < 5") << cut;
    }
    EXPECT_EQ(joined(AnswerParts(AnswerParts::Options{}), text, 3).content, text);
}

TEST(AnswerPartsTest, TokensOfThoughtsAreCounted) {
    AnswerParts parts({.splits_reasoning = true});
    std::uint32_t num_tokens = 0;
    for (const char* token : {"<think>", "A", " sum", "</think>", "4", "2"})
        parts.push(token, ++num_tokens, false);
    // The token that ends the thoughts is followed by words.
    EXPECT_EQ(parts.reasoning_tokens(), 3u);
    EXPECT_EQ(AnswerParts(AnswerParts::Options{}).reasoning_tokens(), std::nullopt);
    EXPECT_EQ(parts.num_calls(), 0u);
}

TEST(AnswerPartsTest, StopStringsEndWordsAndNotThoughts) {
    const std::vector<std::string> stops{"END"};
    AnswerParts parts({.splits_reasoning = true, .stops = stops});
    EXPECT_EQ(parts.push("<think>the END</think>", 1, false).text.reasoning, "the END");
    EXPECT_FALSE(parts.stopped());
    EXPECT_EQ(parts.push("one EN", 2, false).text.content, "one ");
    EXPECT_EQ(parts.push("D two", 3, false).text.content, "");
    EXPECT_TRUE(parts.stopped());
    ASSERT_NE(parts.stop(), nullptr);
    EXPECT_EQ(*parts.stop(), "END");

    AnswerParts later({.stops = stops, .min_tokens = 1});
    EXPECT_EQ(later.push("END", 1, false).text.content, "END");
    EXPECT_EQ(later.push("ENDED", 2, false).text.content, "");
    EXPECT_TRUE(later.stopped());
    EXPECT_EQ(AnswerParts(AnswerParts::Options{}).stop(), nullptr);
}

TEST(EventGateTest, EarlyEventsRunInOrderBeforeLaterOnes) {
    EventGate gate;
    std::vector<int> order;
    gate.deliver([&] {
        order.push_back(1);
        gate.deliver([&] { order.push_back(3); });  // the gate is still closed
    });
    gate.deliver([&] { order.push_back(2); });
    EXPECT_TRUE(order.empty());
    gate.open();
    gate.deliver([&] { order.push_back(4); });
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST(EventGateTest, EventsOfAnotherThreadKeepTheirOrder) {
    for (int turn = 0; turn < 200; ++turn) {
        EventGate gate;
        std::vector<int> order;  // one event at a time runs, on either thread
        std::thread engine([&] {
            for (int i = 0; i < 100; ++i) gate.deliver([&order, i] { order.push_back(i); });
        });
        gate.open();
        engine.join();
        ASSERT_EQ(order.size(), 100u);
        for (int i = 0; i < 100; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
    }
}

}  // namespace
}  // namespace moex
