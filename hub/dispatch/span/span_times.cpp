#include "hub/dispatch/span/span_times.h"

#include <algorithm>
#include <bit>

namespace moex {

std::size_t SpanTimes::class_of(std::uint32_t num_rows) {
    return std::min<std::size_t>(std::bit_width(std::max(1u, num_rows) - 1), num_classes - 1);
}

void SpanTimes::record(std::uint32_t num_rows, Duration took) {
    Recent& recent = recent_[class_of(num_rows)];
    recent.times[recent.count++ % num_recent] = took;
    std::array<Duration, num_recent> times = recent.times;
    const std::size_t known = std::min(recent.count, num_recent), middle = (known - 1) / 2;
    std::nth_element(times.begin(), times.begin() + middle, times.begin() + known);
    recent.median = times[middle];
}

std::optional<Duration> SpanTimes::median_of(std::size_t number) const {
    const Recent& recent = recent_[number];
    return recent.count > 0 ? std::optional(recent.median) : std::nullopt;
}

std::optional<Duration> SpanTimes::at_least(std::uint32_t num_rows) const {
    for (std::size_t at = class_of(num_rows) + 1; at-- > 0;)
        if (const auto median = median_of(at)) return median;
    return std::nullopt;
}

std::optional<Duration> SpanTimes::at_most(std::uint32_t num_rows) const {
    for (std::size_t at = class_of(num_rows); at < num_classes; ++at)
        if (const auto median = median_of(at)) return median;
    return std::nullopt;
}

std::optional<Duration> SpanTimes::expected(std::uint32_t num_rows) const {
    const std::size_t wanted = class_of(num_rows);
    for (std::size_t distance = 0; distance < num_classes; ++distance) {
        if (wanted + distance < num_classes && recent_[wanted + distance].count > 0)
            return median_of(wanted + distance);
        if (distance <= wanted && recent_[wanted - distance].count > 0)
            return median_of(wanted - distance);
    }
    return std::nullopt;
}

}  // namespace moex
