// Python's string operations on marked text: pieces keep the origin of their bytes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/jinja/value.h"

namespace moex::jinja {

enum class Side { left, right, both };
// Without `characters`: white space.
MarkedText strip(const MarkedText& source, Side side,
                 const std::optional<std::string>& characters = std::nullopt);
// At most `splits_max` cuts when not negative; from the right when `from_right`.
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
// str.title(): a word begins behind anything but a letter that has case.
MarkedText title(const MarkedText& source);
// The filter: a word begins behind white space and - ( { [ <.
MarkedText title_words(const MarkedText& source);
// Up to `width` characters with `filler`, one character; for `both`, as Python rounds.
enum class Fill { left, right, both };
MarkedText fill(const MarkedText& source, std::int64_t width, std::string_view filler, Fill side);
bool is_python_space(char32_t c);
bool is_letter(char32_t c);
bool is_decimal_digit(char32_t c);
bool is_word_character(char32_t c);  // a letter or a digit
// Whether the text is not empty and all its code points are `kind`.
bool all_are(std::string_view bytes, const std::function<bool(char32_t)>& kind);

}  // namespace moex::jinja
