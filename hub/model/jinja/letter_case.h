// Upper, lower and title case of one character, as Python's strings map it: one character may
// become up to three ('ß' gives "SS"), and a sigma at the end of a word has a form of its own.
// Source: Unicode, SpecialCasing.txt (its unconditional rows) and section 3.13 (Final_Sigma);
// everything else through hub/model/tokenizer/unicode.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moex::jinja {

std::u32string upper_of(char32_t c);
std::u32string title_of(char32_t c);
// Of the character at `at`: only a capital sigma looks at its neighbours.
std::u32string lower_of(std::u32string_view text, std::size_t at);

// A letter that has upper and lower case.
bool is_cased(char32_t c);

}  // namespace moex::jinja
