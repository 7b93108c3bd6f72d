// The functions that the tokenizer and the template call in JavaScript in a tab: RegExp,
// String.normalize and Unicode's properties (text.js, through text_library.js). An answer of
// several bytes is stored at the address that mx_text_room(size) returned, until the next answer.
#pragma once

#include <cstdint>

extern "C" {
// Returns the handle of a pattern in ECMAScript's syntax; otherwise minus the size of a reason.
int mx_pattern_compile(const char* source, int source_bytes);
void mx_pattern_free(int pattern);
// Returns the number of non-empty matches; the answer has the begin and the end of each as uint32,
// in bytes.
int mx_pattern_find(int pattern, const char* text, int text_bytes);
// Returns the size of the answer.
int mx_text_nfc(const char* text, int text_bytes);
int mx_unicode_category(std::uint32_t code_point);  // UnicodeCategory
// Returns one character's simple mapping. `to`: 0 upper, 1 lower, 2 title.
std::uint32_t mx_unicode_case(std::uint32_t code_point, int to);
}
