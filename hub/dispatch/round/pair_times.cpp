#include "hub/dispatch/round/pair_times.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace moex {
namespace {
constexpr double weight = 0.2, probe_weight_if_less = 0.6;

// the largest number of pairs of a class
double pairs_of(std::size_t size_class) { return static_cast<double>(1u << size_class); }

Duration whole(double ns) { return Duration(static_cast<std::int64_t>(ns)); }
}  // namespace

std::size_t PairTimes::class_of(std::uint32_t num_pairs) {
    const auto width = static_cast<std::size_t>(std::bit_width(std::max(1u, num_pairs) - 1));
    return std::min(width, num_classes - 1);
}

void PairTimes::record(std::uint32_t num_pairs, Duration took, TimePoint now) {
    record(num_pairs, took, now, weight);
}

void PairTimes::record_probe(std::uint32_t num_pairs, Duration took, TimePoint now) {
    record(num_pairs, took, now, probe_weight_if_less);
}

void PairTimes::record(std::uint32_t num_pairs, Duration took, TimePoint now,
                       double weight_if_less) {
    constexpr double times_mean_max = 4;
    Estimate& own = estimates_[class_of(num_pairs)];
    auto sample_ns = static_cast<double>(took.count());
    own.at = now;
    if (own.num_samples++ == 0) {
        own.mean_ns = sample_ns;
        return;
    }

    sample_ns = std::min(sample_ns, times_mean_max * own.mean_ns);
    const double usual = sample_ns < own.mean_ns ? weight_if_less : weight;
    // The first samples form a plain mean.
    own.mean_ns += std::max(usual, 1.0 / own.num_samples) * (sample_ns - own.mean_ns);
}

std::optional<Duration> PairTimes::at_most(std::uint32_t num_pairs) const {
    const std::size_t own = class_of(num_pairs);
    if (estimates_[own].num_samples > 0) return whole(estimates_[own].mean_ns);

    std::optional<double> most_ns;
    for (std::size_t i = own + 1; i < num_classes && !most_ns; ++i)
        if (estimates_[i].num_samples > 0) most_ns = estimates_[i].mean_ns;
    for (std::size_t i = own; i-- > 0;) {
        if (estimates_[i].num_samples == 0) continue;
        const double scaled = estimates_[i].mean_ns * pairs_of(own) / pairs_of(i);
        most_ns = std::min(scaled, most_ns.value_or(scaled));
        break;
    }
    if (!most_ns) return std::nullopt;
    return whole(*most_ns);
}

std::optional<Duration> PairTimes::expected(std::uint32_t num_pairs) const {
    const std::size_t own = class_of(num_pairs);
    const std::optional<Duration> most = at_most(num_pairs);
    for (std::size_t i = own + 1; i-- > 0;) {
        if (estimates_[i].num_samples == 0) continue;
        const double scaled = estimates_[i].mean_ns * std::sqrt(pairs_of(own) / pairs_of(i));
        return std::min(whole(scaled), *most);
    }
    return most;
}

Duration PairTimes::at_least(std::uint32_t num_pairs) const {
    const std::size_t own = class_of(num_pairs);
    for (std::size_t i = own + 1; i-- > 0;)
        if (estimates_[i].num_samples > 0) return whole(estimates_[i].mean_ns);
    return Duration{};
}

std::optional<TimePoint> PairTimes::measured_at(std::uint32_t num_pairs) const {
    const Estimate& own = estimates_[class_of(num_pairs)];
    if (own.num_samples == 0) return std::nullopt;
    return own.at;
}

}  // namespace moex
