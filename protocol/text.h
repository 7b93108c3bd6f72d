// text(a, b, ...) joins strings, characters, booleans and numbers into one message.
#pragma once

#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace moex {
namespace detail {

inline void append_text(std::string& out, std::string_view part) { out += part; }
inline void append_text(std::string& out, const std::string& part) { out += part; }
inline void append_text(std::string& out, const char* part) { out += part; }
inline void append_text(std::string& out, char part) { out += part; }
inline void append_text(std::string& out, bool part) { out += part ? "true" : "false"; }
template <class Number>
requires(std::is_arithmetic_v<Number>) void append_text(std::string& out, Number number) {
    char buffer[32];
    if constexpr (std::is_floating_point_v<Number>) {
        // The standard library of emcc 3.1.6 has no std::to_chars for floating point, so snprintf
        // is used.
        const int length = std::snprintf(buffer, sizeof buffer, "%.6g",
                                         static_cast<double>(number));
        out.append(buffer, static_cast<std::size_t>(length));
    } else {
        const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
        out.append(buffer, end);
    }
}

}  // namespace detail

template <class... Parts>
std::string text(const Parts&... parts) {
    std::string out;
    (detail::append_text(out, parts), ...);
    return out;
}

}  // namespace moex
