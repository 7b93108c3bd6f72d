// Compares the rendering of templates with Jinja's own library, case by case. The expected texts
// are the output of Python's jinja2 3.1.6 in the sandbox of transformers (trim_blocks,
// lstrip_blocks).
#include "hub/model/chat_template.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <random>
#include <span>

#include <gtest/gtest.h>

#include "hub/model/jinja/number_text.h"
#include "hub/model/jinja/text_values.h"

namespace moex {
namespace {

struct LibraryCase {
    const char *source, *wanted;
};

void expect_rendered(std::span<const LibraryCase> cases) {
    for (const auto& [source, wanted] : cases) {
        const auto parsed = ChatTemplate::parse(source);
        ASSERT_TRUE(parsed.ok()) << source << "\n" << parsed.error().message;
        const auto rendered = (*parsed)->render(nlohmann::ordered_json::object());
        ASSERT_TRUE(rendered.ok()) << source << "\n" << rendered.error().message;
        EXPECT_EQ(*rendered, wanted) << source;
    }
}

TEST(JinjaLibraryTest, StringMethodsFollowPython) {
    static constexpr LibraryCase cases[] = {
        {"{{ 'Straße'.upper() }} {{ 'ß'.upper() }} {{ 'ﬁn'.capitalize() }} {{ 'ǆ'.title() }} "
         "{{ 'ᾳ'.upper() }} {{ 'ŉ'.upper() }}",
         "STRASSE SS Fin ǅ ΑΙ ʼN"},
        {"{{ 'ΟΔΟΣ ΣΑΣ Σ'.lower() }} {{ 'İ'.lower() | length }} {{ 'ΑΣ.'.lower() }}",
         "οδος σας σ 2 ας."},
        {"{{ 'Hello wORLD ß'.swapcase() }} {{ 'ΑΣ'.swapcase() }}", "hELLO World SS ας"},
        {"[{{ 'ab'.center(7) }}] [{{ 'abc'.center(6, '*') }}] [{{ 'é'.ljust(3, '.') }}] [{{ "
         "'é'.rjust(3) }}] [{{ 'abc'.center(2) }}]",
         "[   ab  ] [*abc**] [é..] [  é] [abc]"},
        {"{{ '42'.zfill(5) }} {{ '-42'.zfill(5) }} {{ '+1'.zfill(1) }} {{ ''.zfill(2) }} {{ "
         "'é'.zfill(3) }}",
         "00042 -0042 +1 00 00é"},
        {"{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') "
         "}} {{ 'abc'.rpartition('=') }}",
         "('a', '=', 'b=c') ('a=b', '=', 'c') ('abc', '', '') ('', '', 'abc')"},
        {"{{ \"they're bill's friends 1st\".title() }} | {{ \"they're bill's (best) "
         "friends-1st\" | title }}",
         "They'Re Bill'S Friends 1St | They're Bill's (Best) Friends-1st"},
        {"{{ 'abcab'.rindex('ab') }} {{ 'abcab'.index('ab') }}", "3 0"},
    };

    expect_rendered(cases);
}

TEST(JinjaLibraryTest, FiltersFollowJinja) {
    static constexpr LibraryCase cases[] = {
        {"{{ 'foo bar baz qux' | truncate(9) }}|{{ 'foo bar baz qux' | truncate(9, true) }}|{{ "
         "'foo bar baz qux' | truncate(11) }}|{{ 'foo bar baz qux' | truncate(11, False, "
         "'...', 0) }}|{{ 'x' * 300 | truncate | length if false else 1 }}",
         "foo...|foo ba...|foo bar baz qux|foo bar...|1"},
        {"{{ ('x' * 300) | truncate | length }} {{ ('é' * 300) | truncate(10, end='…') }} {{ "
         "'a b c d e f g' | truncate(5, leeway=0) }}",
         "255 ééééééééé… a..."},
        {"{{ 'one two,three_four don\\'t 日本 語!' | wordcount }} {{ '' | wordcount }}", "7 0"},
        {"{{ '<a href=\"x\">&\\'</a>' | e }} {{ 5 | escape }} {{ '<' | forceescape }}",
         "&lt;a href=&#34;x&#34;&gt;&amp;&#39;&lt;/a&gt; 5 &lt;"},
        {"[{{ 'ab' | center(6) }}] [{{ 'x' | center | length }}]", "[  ab  ] [80]"},
    };

    expect_rendered(cases);
}

TEST(JinjaLibraryTest, NumbersFollowJinja) {
    static constexpr LibraryCase cases[] = {
        {"{{ 0x1F }} {{ 0XfF + 1 }} {{ 0o17 }} {{ 0b1_01 }} {{ 0x_ff }} {{ 0 }} {{ 1_000 }}",
         "31 256 15 5 255 0 1000"},
    };
    expect_rendered(cases);
}

TEST(JinjaLibraryTest, FormatsFollowPython) {
    static constexpr LibraryCase cases[] = {
        {"{{ '%05.2f|%5s|%-5s|%+d|% d|%05d|%x|%#X|%o|%e|%G|%c%c|%5.1f%%' % (3.14159, 'ab', "
         "'cd', 5, 6, -42, 255, 255, 8, 12345.678, 0.00001, 'é', 66, 99.44) }}",
         "03.14|   ab|cd   |+5| 6|-0042|ff|0XFF|10|1.234568e+04|1E-05|éB| 99.4%"},
        {"{{ '%(name)s is %(age)03d' % {'name': 'Zoë', 'age': 7} }} {{ '%.2s|%5.1s|' % ('日本語', "
         "'xyz') }} {{ '%*d|%-*d|' % (5, 1, 4, 2) }}",
         "Zoë is 007 日本|    x|     1|2   |"},
        {"{{ '%s %r' | format('a', 'b') }} {{ '%.3d %i %u' % (5, -6.9, 7) }} {{ '%g %g' % "
         "(1e16, 0.5) }} {{ '%F' % 1 }} {{ '%#.0f' % 2 }}",
         "a 'b' 005 -6 7 1e+16 0.5 1.000000 2."},
        {"{{ '%05s|%-06d|%+.1e' % ('ab', 42, -0.00123) }}", "   ab|42    |-1.2e-03"},
    };

    expect_rendered(cases);
}

TEST(JinjaLibraryTest, LoopsRememberAndRecurse) {
    static constexpr LibraryCase cases[] = {
        {"{% for x in [1,1,2,2,1] %}{{ x }}{{ '*' if loop.changed(x) }}{{ '+' if "
         "loop.changed(x, x) }} {% endfor %}",
         "1*+ 1*+ 2*+ 2*+ 1*+ "},
        {"{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}, {'v': 3, 'c': [{'v': 4, 'c': []}]}]}, "
         "{'v': 5, 'c': []}] recursive %}{{ loop.depth }}:{{ n.v }}({{ loop(n.c) }}){% if not "
         "loop.last %},{% endif %}{% endfor %}",
         "1:1(2:2(),2:3(3:4())),1:5()"},
        {"{% for k, v in {'a': {'b': {}}, 'c': {}}.items() recursive %}{{ k }}[{{ "
         "loop(v.items()) }}]{% else %}.{% endfor %}",
         "a[b[.]]c[.]"},
    };

    expect_rendered(cases);
}

TEST(JinjaLibraryTest, CyclersAndJoinersKeepTheirState) {
    static constexpr LibraryCase cases[] = {
        {"{% set c = cycler('odd', 'even') %}{% for i in range(3) %}{{ c.next() }} {% endfor "
         "%}{{ c.current }}{% set _ = c.reset() %} {{ c.next() }}",
         "odd even odd even odd"},
        {"{% set comma = joiner() %}{% set bar = joiner('|') %}{% for x in [1, 2, 3] %}{{ "
         "comma() }}{{ x }}{{ bar() }}{% endfor %}",
         "1, 2|, 3|"},
        {"{% set ns = namespace({'a': 1}, b=2) %}{% set ns.a = ns.a + ns.b %}{{ ns.a }}{{ "
         "ns.missing is undefined }}",
         "3True"},
        {"{{ [1,2,1].count(1) }} {{ [1,2].index(2) }} {{ {'upper': 3}.upper }} {{ [].upper is "
         "undefined }}",
         "2 1 3 True"},
    };

    expect_rendered(cases);
}

std::string refusal(const std::string& source) {
    const auto parsed = ChatTemplate::parse(source);
    if (!parsed.ok()) return parsed.error().message;
    const auto rendered = (*parsed)->render(nlohmann::ordered_json::object());
    return rendered.ok() ? "rendered: " + *rendered : rendered.error().message;
}

TEST(JinjaLibraryTest, MisuseIsRefusedInASentence) {
    static constexpr LibraryCase cases[] = {
        {"{{ '%d' % 'a' }}", "%d wants a number"},
        {"{{ '%x' % 1.5 }}", "%x and %o want an integer"},
        {"{{ '%y' % 1 }}", "the format %y is not supported"},
        {"{{ '%' % 1 }}", "ends inside a conversion"},
        {"{{ '%s %s' % ('a',) }}", "not enough values"},
        {"{{ '%s' % ('a', 'b') }}", "too many values"},
        {"{{ '%(k)s' % 'x' }}", "wants a mapping"},
        {"{{ '%(k)s' % {'j': 1} }}", "has no 'k'"},
        {"{{ '%99999999s' % 'a' }}", "width or precision over"},
        {"{{ '%.400f' % 1 }}", "width or precision over"},
        {"{{ 0x }}", "a number without digits"},
        {"{{ 0b12 }}", "runs into a name"},
        {"{{ 0xFFFFFFFFFFFFFFFF }}", "more than 64 bits"},
        {"{{ 'a'.partition('') }}", "empty separator"},
        {"{{ 'a'.center(3, 'xy') }}", "fills with one character"},
        {"{{ 'a'.center(99999999999) }}", "steps"},
        {"{{ 'abc' | truncate(2) }}", "a length of at least 3"},
        {"{{ cycler() }}", "at least one item"},
        {"{{ joiner().next() }}", "undefined"},
        {"{% set ns = namespace() %}{% for x in [[]] recursive %}{% set ns.l = loop %}"
         "{% endfor %}{% set kept = ns.l %}{{ kept([1]) }}",
         "marked recursive"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "deep"},
        {"{% for x in [1] %}{{ loop([1]) }}{% endfor %}", "recursive"},
    };

    for (const auto& [source, wanted] : cases)
        EXPECT_NE(refusal(source).find(wanted), std::string::npos) << source << "\n"
                                                                   << refusal(source);
}

// Regression: a bound method kept a view of its name, but the name no longer existed when the
// method was called.
TEST(JinjaLibraryTest, AMethodMayBeNamedByAnExpression) {
    static constexpr LibraryCase cases[] = {
        {"{{ 'abc'['up' ~ 'per']() }} {{ [1, 1]['co' ~ 'unt'](1) }}", "ABC 2"},
        {"{% set shout = 'abc'['swap' ~ 'case' ~ ''] %}{{ 'x' * 40 }}{{ shout() }}",
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxABC"},
    };
    expect_rendered(cases);
}

// When a letter becomes longer, the marks of origin of the neighbouring text must not move.
TEST(JinjaLibraryTest, LettersKeepTheirOriginWhenTheyGrow) {
    jinja::MarkedText mixed("ß");
    mixed.append(jinja::MarkedText("ŉx", true));
    mixed.append("ﬁ", false);

    const jinja::MarkedText shouted = jinja::upper(mixed);
    EXPECT_EQ(shouted.bytes(), "SSʼNXFI");
    ASSERT_EQ(shouted.outside().size(), 1u);
    EXPECT_EQ(shouted.outside()[0].begin, 2u);
    EXPECT_EQ(shouted.outside()[0].end, 6u);
}

// The expected results come from charconv, which the standard library of a tab lacks for doubles.
TEST(JinjaLibraryTest, NumbersAreReadAndWrittenAsCharconvDoes) {
    for (const std::string digits :
         {"1.5",      "-2e3", ".5",     "5.", "1e400", "1e-400", "inf", "-nan",
          "Infinity", "0x10", "-0x1p3", "+1", " 1",    "1 ",     "",    "-",
          "--1",      "1e",   "1,5",    "e5", "i",     "00.10",  "-+3"}) {
        double wanted = 0;
        const char* const end = digits.data() + digits.size();
        const auto read = std::from_chars(digits.data(), end, wanted);
        const auto found = jinja::read_double(digits);
        ASSERT_EQ(found.has_value(), read.ec == std::errc() && read.ptr == end) << digits;
        if (found && !std::isnan(wanted)) EXPECT_EQ(*found, wanted) << digits;
    }

    std::mt19937_64 random(20261122);
    for (int i = 0; i < 20'000; ++i) {
        const double value = i % 2 == 0 ? static_cast<double>(random() % 100'000) / 1000
                                        : std::abs(std::bit_cast<double>(random()));
        if (!std::isfinite(value)) continue;
        std::array<char, 40> buffer;
        const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                           std::chars_format::scientific);
        ASSERT_EQ(jinja::shortest_scientific(value), std::string(buffer.data(), written.ptr));
    }
}

}  // namespace
}  // namespace moex
