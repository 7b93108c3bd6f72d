// Numbers as text and back, without what libc++ 13 lacks: charconv for doubles.
#pragma once

#include <optional>
#include <string>

namespace moex::jinja {

// The whole of `digits` as std::from_chars reads it: no blanks, no '+', no hexadecimal digits; also
// "inf" and "nan". nullopt when it is anything else, or beyond a double's range.
std::optional<double> read_double(const std::string& digits);

// The fewest digits that read back the same, as "1.5e-07" or "3e+00". Requires a finite value.
std::string shortest_scientific(double value);

}  // namespace moex::jinja
