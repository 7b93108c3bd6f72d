// Conversions between doubles and text without charconv, which libc++ 13 lacks for doubles.
#pragma once

#include <optional>
#include <string>

namespace moex::jinja {

// Reads a number. All of `digits` must be a number in the syntax of std::from_chars: no blanks, no
// '+', no hexadecimal digits; "inf" and "nan" are accepted. Returns nullopt for any other text, or
// for a number beyond the range of double.
std::optional<double> read_double(const std::string& digits);

// Returns the shortest text that reads back as the same double, like "1.5e-07" or "3e+00". `value`
// must be finite.
std::string shortest_scientific(double value);

}  // namespace moex::jinja
