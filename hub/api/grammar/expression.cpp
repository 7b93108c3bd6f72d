#include "hub/api/grammar/expression.h"

#include <algorithm>

namespace moex {
namespace {

constexpr char32_t surrogate_first = 0xd800, surrogate_last = 0xdfff;

}  // namespace

std::vector<CodePoints> normalized(std::vector<CodePoints> ranges) {
    std::sort(ranges.begin(), ranges.end(),
              [](const CodePoints& a, const CodePoints& b) { return a.first < b.first; });

    std::vector<CodePoints> joined;
    for (const CodePoints& range : ranges) {
        if (range.first > range.last) continue;
        if (!joined.empty() && range.first <= joined.back().last + 1)
            joined.back().last = std::max(joined.back().last, range.last);
        else
            joined.push_back(range);
    }

    std::vector<CodePoints> out;
    for (const CodePoints& range : joined) {
        if (range.last < surrogate_first || range.first > surrogate_last) {
            out.push_back(range);
            continue;
        }
        if (range.first < surrogate_first) out.push_back({range.first, surrogate_first - 1});
        if (range.last > surrogate_last) out.push_back({surrogate_last + 1, range.last});
    }
    return out;
}

std::vector<CodePoints> complement(const std::vector<CodePoints>& ranges) {
    std::vector<CodePoints> out;
    char32_t next = 0;
    for (const CodePoints& range : ranges) {
        if (range.first > next) out.push_back({next, range.first - 1});
        next = range.last + 1;
    }
    if (next <= code_point_max) out.push_back({next, code_point_max});
    return normalized(std::move(out));
}

}  // namespace moex
