#include "hub/model/jinja/number_text.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace moex::jinja {

std::optional<double> read_double(const std::string& digits) {
    const std::size_t first = digits.starts_with('-') ? 1 : 0;
    if (first == digits.size() || digits.find('\0') != std::string::npos) return std::nullopt;

    // Refuse the forms of numbers that strtod accepts and charconv does not: leading blanks and
    // signs, and hexadecimal digits.
    const char c = digits[first];
    const bool begins_well = (c >= '0' && c <= '9') || c == '.' || c == 'i' || c == 'I' ||
                             c == 'n' || c == 'N';
    if (!begins_well || digits.find_first_of("xX") == first + 1) return std::nullopt;

    errno = 0;
    char* end = nullptr;
    const double value = std::strtod(digits.c_str(), &end);
    if (errno == ERANGE || end != digits.c_str() + digits.size()) return std::nullopt;
    return value;
}

std::string shortest_scientific(double value) {
    char buffer[40];
    for (int digits = 1; digits <= std::numeric_limits<double>::max_digits10; ++digits) {
        std::snprintf(buffer, sizeof buffer, "%.*e", digits - 1, value);
        if (std::strtod(buffer, nullptr) == value) break;
    }
    return buffer;
}

}  // namespace moex::jinja
