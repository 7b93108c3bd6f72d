// Tests of the reasoning splitter: thoughts and content are the same wherever the stream is cut.
#include "hub/api/jobs/reasoning.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

struct Case {
    bool inside;
    const char* text;
    const char* reasoning;
    const char* content;
};

const Case cases[] = {
    {false, "", "", ""},
    {false, "Plain words.", "", "Plain words."},
    {false, "<think>\nA.\nB.\n</think>\n\nSo: C.", "A.\nB.", "So: C."},
    {false, "\n <think>A</think>B", "A", "B"},
    {false, "<think>\n\n</think>\n\nB", "", "B"},
    {false, "<think></think>", "", ""},
    {false, "<think>never ends", "never ends", ""},
    {false, "<think>ends in its tag </thin", "ends in its tag </thin", ""},
    {false, "<think>a < b </ c </think >\n</think> d", "a < b </ c </think >", " d"},
    {false, "<think>a\n\n\nb\n</think>c</think>d", "a\n\n\nb", "c</think>d"},
    {false, "<thin", "", "<thin"},
    {false, "<thinking>x</thinking>", "", "<thinking>x</thinking>"},
    {false, "Say <think>x</think> aloud", "", "Say <think>x</think> aloud"},
    {false, "  ", "", "  "},
    {true, "A\n</think>\n\nB\n", "A", "B\n"},
    {true, "\nA", "A", ""},
    {true, "A\n\n", "A\n\n", ""},
    {true, "</think>B", "", "B"},
    {true, "\n\n</think>\n\n\nB", "", "B"},
};

ReasonedText split(bool inside, const std::vector<std::string_view>& pieces) {
    ReasoningSplitter splitter(inside);
    ReasonedText out;
    const auto add = [&](const ReasonedText& part) {
        out.reasoning += part.reasoning;
        out.content += part.content;
    };
    for (const std::string_view piece : pieces) add(splitter.push(piece));
    add(splitter.finish());
    return out;
}

TEST(ReasoningTest, ABlockIsToldFromTheAnswer) {
    for (const Case& one : cases) {
        const ReasonedText whole = split(one.inside, {one.text});
        EXPECT_EQ(whole.reasoning, one.reasoning) << one.text;
        EXPECT_EQ(whole.content, one.content) << one.text;
    }
}

TEST(ReasoningTest, EveryCutOfTheStreamGivesTheSameParts) {
    for (const Case& one : cases) {
        SCOPED_TRACE(one.text);
        const std::string_view text(one.text);
        for (std::size_t first = 0; first <= text.size(); ++first)
            for (std::size_t second = first; second <= text.size(); ++second) {
                const ReasonedText cut = split(
                    one.inside, {text.substr(0, first), text.substr(first, second - first),
                                 text.substr(second)});
                EXPECT_EQ(cut.reasoning, one.reasoning) << first << ' ' << second;
                EXPECT_EQ(cut.content, one.content) << first << ' ' << second;
            }

        std::vector<std::string_view> letters;
        for (std::size_t i = 0; i < text.size(); ++i) letters.push_back(text.substr(i, 1));
        const ReasonedText cut = split(one.inside, letters);
        EXPECT_EQ(cut.reasoning, one.reasoning);
        EXPECT_EQ(cut.content, one.content);
    }
}

TEST(ReasoningTest, NothingIsHeldBackThatIsCertain) {
    ReasoningSplitter splitter(false);
    EXPECT_EQ(splitter.push("<think>Let me see").reasoning, "Let me see");
    EXPECT_EQ(splitter.push(" <").reasoning, " ");
    EXPECT_EQ(splitter.push("b").reasoning, "<b");
    EXPECT_TRUE(splitter.in_reasoning());
    EXPECT_EQ(splitter.push("</think>Yes").content, "Yes");
    EXPECT_FALSE(splitter.in_reasoning());
}

TEST(ReasoningTest, APromptThatEndsInAnOpenBlockIsSeen) {
    EXPECT_TRUE(ends_in_open_block("<|im_start|>assistant\n<think>\n"));
    EXPECT_TRUE(ends_in_open_block("x<think>"));
    EXPECT_FALSE(ends_in_open_block("<think>\n\n</think>\n\n"));
    EXPECT_FALSE(ends_in_open_block("assistant\n"));
    EXPECT_FALSE(ends_in_open_block(" \n"));
}

}  // namespace
}  // namespace moex
