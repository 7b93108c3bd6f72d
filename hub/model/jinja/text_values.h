// Python's string operations on marked text. The parts of a result keep the mark that says where
// their bytes came from, the template or outside.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/jinja/value.h"

namespace moex::jinja {

enum class Side { left, right, both };
// Removes `characters` from both ends of a text, or white space if `characters` is absent.
MarkedText strip(const MarkedText& source, Side side,
                 const std::optional<std::string>& characters = std::nullopt);
// Splits a text at a separator. If `splits_max` is not negative, the function makes at most that
// number of cuts. The cuts start at the right end if `from_right` is true.
std::vector<MarkedText> split(const MarkedText& source, std::string_view separator,
                              std::int64_t splits_max, bool from_right);
std::vector<MarkedText> split_spaces(const MarkedText& source, std::int64_t splits_max);
std::vector<MarkedText> split_lines(const MarkedText& source, bool keep_ends);
MarkedText replace(const MarkedText& source, const MarkedText& from, const MarkedText& to,
                   std::int64_t count_max, std::size_t bytes_max);
MarkedText upper(const MarkedText& source);
MarkedText lower(const MarkedText& source);
MarkedText capitalize(const MarkedText& source);
MarkedText swap_case(const MarkedText& source);
// The string method str.title(). A word begins after any character that is not a letter with case.
MarkedText title(const MarkedText& source);
// The Jinja filter `title`. A word begins after white space and the characters - ( { [ <.
MarkedText title_words(const MarkedText& source);
// Extends a text to `width` characters with `filler`, which is one character. If both sides are
// filled and the number of fillers is odd, they are divided as in Python.
enum class Fill { left, right, both };
MarkedText fill(const MarkedText& source, std::int64_t width, std::string_view filler, Fill side);
bool is_python_space(char32_t c);
bool is_letter(char32_t c);
bool is_decimal_digit(char32_t c);
bool is_word_character(char32_t c);  // true for a letter or a digit
// Returns true if the text is not empty and `kind` is true for all its code points.
bool all_are(std::string_view bytes, const std::function<bool(char32_t)>& kind);

}  // namespace moex::jinja
