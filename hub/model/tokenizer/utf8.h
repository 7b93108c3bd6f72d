// UTF-8 functions for the tokenizer and the template: repair, reading, normal form C, white space.
// All functions are pure functions over bytes.
// Source: WHATWG Encoding (UTF-8 decoder) and Unicode UAX #15.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "hub/model/tokenizer/unicode.h"

namespace moex {

// The range of bytes [begin, end) of a text.
struct TextRange {
    std::size_t begin = 0;
    std::size_t end = 0;
};

// The result of reading one code point. For a broken sequence the code point is U+FFFD, and the
// length is that of the maximal ill-formed part.
struct Utf8Step {
    char32_t code_point = 0;
    std::uint32_t num_bytes = 0;  // length of the sequence; 0 only at the end of the text
    bool valid = true;
    bool cut = false;  // true: the sequence is broken only because the text ends
};
Utf8Step utf8_step(std::string_view text, std::size_t at);

void utf8_append(std::string& out, char32_t code_point);
bool utf8_is_valid(std::string_view text);
// Replaces every maximal ill-formed part of a text by one U+FFFD.
std::string utf8_repair(std::string_view text);
// Returns the number of bytes, 0 to 3, at the end of a text that begin a sequence which further
// bytes may complete.
std::size_t utf8_incomplete_tail(std::string_view text);
// number of code points in `text`, which is valid UTF-8
std::size_t utf8_count(std::string_view text);

// Returns normal form C, or another normal form, of a text, which must be valid UTF-8. O(n log n),
// also for long runs of combining marks.
std::string utf8_nfc(std::string_view text);
std::string utf8_normal_form(std::string_view text, NormalForm form);

// Returns true if the character has the Unicode property White_Space.
bool is_unicode_space(char32_t code_point);
// Return `text`, which is valid UTF-8, without the white space at its end or at its begin.
std::string_view utf8_trim_end(std::string_view text);
std::string_view utf8_trim_start(std::string_view text);

}  // namespace moex
