#include "hub/dispatch/span/span_times.h"

#include <algorithm>
#include <bit>

namespace moex {

std::size_t SpanTimes::class_of(std::uint32_t num_rows) {
    return std::min<std::size_t>(std::bit_width(std::max(1u, num_rows) - 1), num_classes - 1);
}

// The mean follows a change within about eight samples. One stalled step moves it by at most three
// eighths of the mean.
void SpanTimes::record(std::uint32_t num_rows, Duration took) {
    std::optional<Duration>& mean = mean_[class_of(num_rows)];
    if (!mean)
        mean = took;
    else
        *mean += (std::min(took, 4 * *mean) - *mean) / 8;
}

std::optional<Duration> SpanTimes::expected(std::uint32_t num_rows) const {
    const std::size_t wanted = class_of(num_rows);
    for (std::size_t distance = 0; distance < num_classes; ++distance) {
        if (wanted + distance < num_classes && mean_[wanted + distance])
            return mean_[wanted + distance];
        if (distance <= wanted && mean_[wanted - distance]) return mean_[wanted - distance];
    }
    return std::nullopt;
}

}  // namespace moex
