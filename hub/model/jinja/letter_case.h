// Upper, lower and title case of a character, with the mappings of Python's strings. One
// character may become up to three ('ß' gives "SS"), and a sigma at the end of a word has a special
// form. Source: Unicode, SpecialCasing.txt (its unconditional rows) and section 3.13 (Final_Sigma);
// everything else through hub/model/tokenizer/unicode.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moex::jinja {

std::u32string upper_of(char32_t c);
std::u32string title_of(char32_t c);
// Returns the lower case of the character at `at`. Only the lower case of a capital sigma depends
// on neighbouring characters.
std::u32string lower_of(std::u32string_view text, std::size_t at);

// Returns true for a letter that has an upper-case and a lower-case form.
bool is_cased(char32_t c);

}  // namespace moex::jinja
