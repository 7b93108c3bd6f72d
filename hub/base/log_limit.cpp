#include "hub/base/log_limit.h"

#include <algorithm>

namespace moex {

std::optional<std::uint64_t> LogLimit::admit(std::string_view cause, TimePoint now) {
    constexpr std::size_t causes_max = 256;
    const std::lock_guard lock(mutex_);
    const auto found = lines_.find(cause);
    if (found != lines_.end() && now - found->second.admitted_at < every_) {
        ++found->second.left_out;
        return std::nullopt;
    }
    if (found != lines_.end()) {
        const std::uint64_t left_out = found->second.left_out;
        found->second = {.admitted_at = now};
        return left_out;
    }

    if (lines_.size() == causes_max)
        lines_.erase(std::min_element(lines_.begin(), lines_.end(), [](auto& a, auto& b) {
            return a.second.admitted_at < b.second.admitted_at;
        }));
    lines_.emplace(std::string(cause), Line{.admitted_at = now});
    return 0;
}

}  // namespace moex
