// What the tokenizer and the template ask of Unicode, of whoever has its tables: utf8proc in a
// native program (unicode_utf8proc.cpp), the browser itself in a tab
// (web-worker/local/browser_text.cpp). A program links one of them. All are pure functions; the two
// may be of different versions of Unicode, and differ then in characters that the older one lacks.
// Source: Unicode UAX #15 and UAX #44.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moex {

// General_Category, numbered as utf8proc does; web-worker/local/text.js has the same order.
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

// Simple case mappings: one character to one.
char32_t unicode_upper(char32_t code_point);
char32_t unicode_lower(char32_t code_point);
char32_t unicode_title(char32_t code_point);

// Normal form C of valid UTF-8. O(n log n), also for endless runs of combining marks.
std::string unicode_nfc(std::string_view text);

}  // namespace moex
