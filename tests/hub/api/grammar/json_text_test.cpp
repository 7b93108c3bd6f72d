// Tests of strings and numbers, byte by byte: every accepted text can end well, within the least
// bytes that its state reports.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hub/api/grammar/json_text.h"

namespace moex::test {
namespace {

std::optional<TextState> run_text(const ByteAutomaton& texts, std::string_view bytes) {
    std::optional<TextState> at = TextState{};
    for (const char c : bytes) {
        at = step_text(texts, true, *at, static_cast<unsigned char>(c));
        if (!at) break;
    }
    return at;
}

bool is_inside(const ByteAutomaton& texts, std::string_view bytes) {
    const auto at = run_text(texts, bytes);
    return at && may_end_text(texts, *at);
}

SharedAutomaton pattern(std::string_view words) {
    return automaton_of_search(parse_pattern(words).value()).value();
}

TEST(JsonTextTest, StringsAreValidUtf8WithPairedSurrogates) {
    const ByteAutomaton& texts = *any_text();
    for (const char* good :
         {"", "plain", "\xc3\xa9", "\xf0\x9f\x98\x80", "\\n\\t\\\"\\\\\\/", "\\u0041",
          "\\uD83D\\uDE00", "\\ud83d\\ude00x", "\\u0000", "\\uffff", "\\ue000"})
        EXPECT_TRUE(is_inside(texts, good)) << good;
    for (const char* bad : {"\"", "\n", "\x01", "\xc3", "\xc0\x80", "\xed\xa0\x80",
                            "\xf5\x80\x80\x80", "\\", "\\x", "\\u12", "\\u12g", "\\uD83D",
                            "\\uD83Dx", "\\uD83D\\n", "\\uD83D\\u0041", "\\uDE00", "\x80"})
        EXPECT_FALSE(is_inside(texts, bad)) << bad;
}

TEST(JsonTextTest, APatternReadsTheDecodedText) {
    const SharedAutomaton letters = pattern("^[a-c\u00e9]+$");
    for (const char* good : {"abc", "\xc3\xa9", "\\u0061", "\\u00e9b", "\\u00E9"})
        EXPECT_TRUE(is_inside(*letters, good)) << good;
    for (const char* bad : {"", "d", "\\u0064", "\\n", "\\ud83d", "\\u1"})
        EXPECT_FALSE(run_text(*letters, bad) && is_inside(*letters, bad)) << bad;
    EXPECT_FALSE(run_text(*letters, "\\u01")) << "nothing in it could follow";
    EXPECT_TRUE(is_inside(*pattern("b"), "abc")) << "unanchored";
    EXPECT_TRUE(is_inside(*pattern("^\\u{1F600}$"), "\\ud83d\\ude00"));
    EXPECT_FALSE(run_text(*pattern("^\\u{1F600}$"), "\\ud83e"));
}

// Checks for every state that a few bytes reach: some next byte leads to a state one byte closer to
// an end.
TEST(JsonTextTest, TheLeastDistanceOfAStringIsKept) {
    for (const SharedAutomaton& texts : {any_text(), pattern("^[a-c\u00e9]{2,3}$"),
                                         pattern("^\\u{1F600}+x$"), pattern("^\"\\n$")}) {
        std::vector<TextState> states{{}};
        for (std::size_t i = 0; i < states.size() && i < 3000; ++i) {
            const std::uint32_t least = least_text(*texts, true, states[i]);
            bool comes_closer = least == 0;
            for (unsigned byte = 0; byte < 256; ++byte) {
                const auto next = step_text(*texts, true, states[i],
                                            static_cast<unsigned char>(byte));
                if (!next) continue;
                const std::uint32_t rest = least_text(*texts, true, *next);
                ASSERT_NE(rest, endless);
                ASSERT_GE(rest + 1, least);
                comes_closer = comes_closer || rest < least;
                if (std::find(states.begin(), states.end(), *next) == states.end())
                    states.push_back(*next);
            }
            ASSERT_TRUE(comes_closer) << i;
        }
    }
}

TEST(JsonTextTest, CodePointsAreCountedFromAnyPlaceOfAnEscape) {
    const ByteAutomaton& texts = *any_text();
    for (const std::string_view words :
         {"plain", "\xc3\xa9 and \xf0\x9f\x98\x80", "\\n\\t\\\"\\\\u00e9", "a\\u0041b\\u00fFc",
          "\\uD83D\\uDE00\\ud83d\\ude00x", "\\ue000\\\\u0041"})
        for (std::size_t from = 0; from <= words.size(); ++from)
            for (std::size_t end = from; end <= words.size(); ++end) {
                const TextState begin = *run_text(texts, words.substr(0, from));
                TextState at = begin;
                std::uint64_t count = 0;
                for (const char c : words.substr(from, end - from)) {
                    const auto byte = static_cast<unsigned char>(c);
                    count += begins_code_point(true, at, byte);
                    at = *step_text(texts, true, at, byte);
                }
                ASSERT_EQ(code_points_in(true, begin, words.substr(from, end - from)), count)
                    << words << " from " << from << " to " << end;
            }
    EXPECT_EQ(code_points_in(false, {}, "\\u0041"), 6u) << "no escape outside of a JSON string";
}

bool is_number(const NumberRule& rule, std::string_view bytes) {
    std::optional<NumberState> at = NumberState{};
    for (const char c : bytes) {
        at = step_number(rule, *at, static_cast<unsigned char>(c));
        if (!at) return false;
    }
    return may_end_number(rule, *at);
}

TEST(JsonTextTest, NumbersHaveAtMostFifteenDigitsAndASmallExponent) {
    const NumberRule any;
    for (const char* good : {"0", "-0", "12", "-1.5", "1e5", "1.25E-300", "9e+300",
                             "123456789012345", "0.00000000000001"})
        EXPECT_TRUE(is_number(any, good)) << good;
    for (const char* bad : {"", "-", "01", "1.", ".5", "1e", "1e301", "12e5", "1234567890123456",
                            "+1", "0x1", "1e+", "NaN"})
        EXPECT_FALSE(is_number(any, bad)) << bad;
    const NumberRule whole{.whole = true};
    EXPECT_TRUE(is_number(whole, "-7"));
    EXPECT_FALSE(is_number(whole, "7.0"));
    EXPECT_FALSE(is_number(whole, "7e1"));
}

struct Bounds {
    bool whole;
    std::optional<double> minimum, exclusive_minimum, maximum, exclusive_maximum;
};

std::optional<NumberRule> rule_of(const Bounds& b) {
    const auto decimal = [](std::optional<double> value) {
        return value ? std::optional(decimal_of(*value)) : std::nullopt;
    };
    return number_rule(b.whole, {.minimum = decimal(b.minimum),
                                 .exclusive_minimum = decimal(b.exclusive_minimum),
                                 .maximum = decimal(b.maximum),
                                 .exclusive_maximum = decimal(b.exclusive_maximum)});
}

TEST(JsonTextTest, BoundsHoldForEveryNumberThatIsWritten) {
    const Bounds all[] = {{true, 0, {}, 100, {}},      {true, -7, {}, -3, {}},
                          {true, 95, {}, 1005, {}},    {false, 0.1, {}, 0.3, {}},
                          {false, {}, 0.0, {}, 1.0},   {false, -2.5, {}, 0.25, {}},
                          {false, {}, 999.5, {}, {}},  {true, {}, -1.0, {}, 1.0},
                          {false, 1e-6, {}, 2e-6, {}}, {false, 1e14, {}, {}, {}},
                          {false, 1e15, {}, {}, {}},   {false, {}, 2.5e200, 2.6e200, {}},
                          {false, {}, {}, -7e30, {}},  {false, -3e-40, {}, 2e-41, {}},
                          {true, 1e16, {}, 3e16, {}},  {true, {}, {}, -1e19, {}},
                          {true, {}, 4e18, {}, 1e30}};
    for (const Bounds& b : all) {
        const auto rule = rule_of(b);
        ASSERT_TRUE(rule);
        // Try all beginnings of a few bytes: each beginning that is accepted has an end at the
        // distance that its state reports.
        std::vector<std::pair<std::string, NumberState>> open{{"", {}}};
        int ends = 0;
        for (std::size_t i = 0; i < open.size() && i < 4000; ++i) {
            const auto [words, at] = open[i];
            const std::uint32_t least = least_number(*rule, at);
            ASSERT_NE(least, endless) << words;
            bool comes_closer = least == 0;
            for (const char c : std::string("-.0123456789eE+")) {
                const auto next = step_number(*rule, at, static_cast<unsigned char>(c));
                if (!next) continue;
                comes_closer = comes_closer || least_number(*rule, *next) < least;
                open.emplace_back(words + c, *next);
            }
            ASSERT_TRUE(comes_closer) << words;
            if (!may_end_number(*rule, at)) continue;
            ++ends;
            const double value = nlohmann::json::parse(words).get<double>();
            EXPECT_TRUE(!b.minimum || value >= *b.minimum) << words;
            EXPECT_TRUE(!b.maximum || value <= *b.maximum) << words;
            EXPECT_TRUE(!b.exclusive_minimum || value > *b.exclusive_minimum) << words;
            EXPECT_TRUE(!b.exclusive_maximum || value < *b.exclusive_maximum) << words;
        }
        EXPECT_TRUE(ends > 0 || least_number(*rule, {}) > 4);
    }
    const auto percent = rule_of({true, 0, {}, 100, {}});
    for (const char* good : {"0", "7", "99", "100"}) EXPECT_TRUE(is_number(*percent, good));
    for (const char* bad : {"101", "1000", "-1", "00"}) EXPECT_FALSE(is_number(*percent, bad));
    EXPECT_FALSE(rule_of({true, 5, {}, 4, {}}));
    EXPECT_FALSE(rule_of({true, {}, 4.0, {}, 5.0})) << "nothing between";
    EXPECT_FALSE(rule_of({false, 1e301, {}, {}, {}})) << "the exponent is too large";
}

TEST(JsonTextTest, IntegersHaveSixtyFourBitsWithoutBounds) {
    const auto any = number_rule(true, {});
    for (const char* good :
         {"0", "-0", "7", "12345678901234567", "-9223372036854775808", "18446744073709551615"})
        EXPECT_TRUE(is_number(*any, good)) << good;
    for (const char* bad : {"-9223372036854775809", "18446744073709551616", "7.0", "7e1"})
        EXPECT_FALSE(is_number(*any, bad)) << bad;

    const auto natural = rule_of({true, 0, {}, {}, {}});
    EXPECT_TRUE(is_number(*natural, "1763977123456789012"));
    EXPECT_FALSE(is_number(*natural, "18446744073709551616"));
    const auto large = rule_of({true, 1e24, {}, {}, {}});
    EXPECT_TRUE(is_number(*large, "1000000000000000000000000"));
    EXPECT_FALSE(is_number(*large, "999999999999999999999999"));
    EXPECT_TRUE(integers_are_too_long({.minimum = decimal_of(1e40)}));
    EXPECT_FALSE(integers_are_too_long({.minimum = decimal_of(1e24)}));
}

TEST(JsonTextTest, BoundedNumbersMayHaveAnExponent) {
    const auto positive = rule_of({false, {}, 0.0, {}, {}});
    for (const char* good : {"6.02e23", "1e-9", "0.5", "3", "9.99E+299"})
        EXPECT_TRUE(is_number(*positive, good)) << good;
    for (const char* bad : {"0", "-1e3", "0e5", "12e5", "1e301"})
        EXPECT_FALSE(is_number(*positive, bad)) << bad;
    const auto narrow = rule_of({false, 1.5e20, {}, 1.6e20, {}});
    for (const char* good : {"1.5e20", "1.55e20", "1.6E20"})
        EXPECT_TRUE(is_number(*narrow, good)) << good;
    for (const char* bad : {"1.49e20", "1.61e20", "1.5e21", "2e20", "15"})
        EXPECT_FALSE(is_number(*narrow, bad)) << bad;
}

TEST(JsonTextTest, IntegersAreMultiplesOfTheirStep) {
    const auto steps = number_rule(true, {.minimum = Decimal{20}, .multiple_of = 15});
    for (const char* good : {"30", "45", "150", "600000000000000000"})
        EXPECT_TRUE(is_number(*steps, good)) << good;
    for (const char* bad : {"0", "15", "31", "151"}) EXPECT_FALSE(is_number(*steps, bad)) << bad;
    EXPECT_FALSE(
        number_rule(true, {.minimum = Decimal{31}, .maximum = Decimal{44}, .multiple_of = 15}));
}

}  // namespace
}  // namespace moex::test
