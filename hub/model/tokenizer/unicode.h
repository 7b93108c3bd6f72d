// The Unicode functions that the tokenizer and the template need. There are two implementations:
// utf8proc in a native program (unicode_utf8proc.cpp), and the browser itself in a tab
// (web-worker/local/browser_text.cpp). A program links one of the two. All functions are pure. The
// implementations may have different versions of Unicode. They then differ in characters that the
// older version lacks.
// Source: Unicode UAX #15 and UAX #44.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moex {

// The Unicode property General_Category, with the numbers that utf8proc uses.
// web-worker/local/text.js lists the categories in the same order.
enum class UnicodeCategory : std::uint8_t {
    cn,  // unassigned
    lu,
    ll,
    lt,
    lm,
    lo,
    mn,
    mc,
    me,
    nd,
    nl,
    no,
    pc,
    pd,
    ps,
    pe,
    pi,
    pf,
    po,
    sm,
    sc,
    sk,
    so,
    zs,
    zl,
    zp,
    cc,
    cf,
    cs,
    co,
};
UnicodeCategory unicode_category(char32_t code_point);

// Simple case mappings, which map one character to one character.
char32_t unicode_upper(char32_t code_point);
char32_t unicode_lower(char32_t code_point);
char32_t unicode_title(char32_t code_point);

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };  // text.js has the same order
// Returns a normal form of a text, which must be valid UTF-8. O(n log n), also for long runs of
// combining marks.
std::string unicode_normal_form(std::string_view text, NormalForm form);

}  // namespace moex
