// The functions that the tokenizer and the template call in JavaScript in a tab: RegExp,
// String.normalize and Unicode's properties (text.js, through text_library.js). An answer of
// several bytes is stored at the address that mx_text_room(size) returned, until the next answer.
#pragma once

#include <cstdint>

extern "C" {
// Returns the handle of a pattern in ECMAScript's syntax; on an error, minus the size of the
// answer, which is the reason.
int mx_pattern_compile(const char* source, int source_bytes);
void mx_pattern_free(int pattern);
// Returns the number of non-empty matches. The answer holds the begin and the end of each match,
// two byte offsets as uint32.
int mx_pattern_find(int pattern, const char* text, int text_bytes);
// Normalises a text to one of Unicode's forms (NormalForm); returns the size of the answer in
// bytes.
int mx_text_normal_form(const char* text, int text_bytes, int form);
int mx_unicode_category(std::uint32_t code_point);  // UnicodeCategory
// Returns the code point of one character in another case. `to`: 0 upper, 1 lower, 2 title.
std::uint32_t mx_unicode_case(std::uint32_t code_point, int to);
}
