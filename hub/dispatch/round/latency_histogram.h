// Latencies of attempts in log-linear buckets: 8 per power of two from 1 us to 67 s, so that a
// quantile is exact within 12.5 %. Old samples fade: all counts are halved when the total reaches
// `samples_max`.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "hub/base/clock.h"

namespace moex {

class LatencyHistogram {
  public:
    void record(Duration latency) {
        const auto us = static_cast<std::uint64_t>(
            std::max<std::int64_t>(1, latency.count() / 1000));
        ++counts_[bucket(us)];
        if (++total_ >= samples_max) {
            total_ = 0;
            for (auto& count : counts_) total_ += (count /= 2);
        }
        stale_ = true;
    }
    std::uint32_t total() const { return total_; }
    // Returns the upper edge of the bucket in which the share `q` of all samples is reached; zero
    // without samples. O(number of buckets).
    Duration quantile(double q) const {
        if (total_ == 0) return Duration{};
        const double wanted = q * total_;
        std::uint64_t seen = 0;
        for (std::size_t i = 0; i < counts_.size(); ++i) {
            seen += counts_[i];
            if (counts_[i] > 0 && static_cast<double>(seen) >= wanted) return upper_edge(i);
        }
        return upper_edge(counts_.size() - 1);
    }
    // The two quantiles that dispatch reads at every attempt. They are cached until the next
    // record().
    Duration p50() const {
        refresh();
        return p50_;
    }
    Duration p99() const {
        refresh();
        return p99_;
    }

  private:
    static constexpr std::uint32_t samples_max = 1024;
    static constexpr std::uint32_t octaves = 26;

    static std::size_t bucket(std::uint64_t us) {
        us = std::min<std::uint64_t>(us, (std::uint64_t{1} << octaves) - 1);
        const int width = std::bit_width(us);  // the bit width is at least 1
        // each of 1 to 15 us has its own bucket
        if (width <= 4) return static_cast<std::size_t>(us);
        return static_cast<std::size_t>(16 + (width - 5) * 8 + ((us >> (width - 4)) & 7));
    }
    static Duration upper_edge(std::size_t index) {
        if (index < 16) return std::chrono::microseconds(index + 1);
        const std::size_t octave = (index - 16) / 8, step = (index - 16) % 8;
        return std::chrono::microseconds((std::uint64_t{9} + step) << (octave + 1));
    }
    void refresh() const {
        if (!stale_) return;
        p50_ = quantile(0.50);
        p99_ = quantile(0.99);
        stale_ = false;
    }
    std::array<std::uint32_t, 16 + (octaves - 4) * 8> counts_{};
    std::uint32_t total_ = 0;
    mutable bool stale_ = false;
    mutable Duration p50_{}, p99_{};
};

}  // namespace moex
