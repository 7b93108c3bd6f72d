#include "hub/foresight/cost/round_time.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "protocol/check.h"

namespace moex {
namespace {

// range of integration around the medians, in sigmas; the share outside is below 1e-22
constexpr double spreads = 10;
constexpr double p99_z = 2.3263478740408408;

// Returns the mean of a random time, given the function `open(ms)`: the share of times that are
// longer than `ms`. The mean is the integral of this share, by Simpson's rule over the logarithm of
// time. No time is shorter than `from_ms`.
double integral_ms(double from_ms, double to_ms, const std::function<double(double)>& open) {
    constexpr int steps = 8000;
    const double from = std::log(from_ms), width = (std::log(to_ms) - from) / steps;
    double sum = from_ms * open(from_ms);
    for (int i = 0; i <= steps; ++i) {
        const double ms = std::exp(from + i * width);
        const double weight = i == 0 || i == steps ? 1 : i % 2 == 1 ? 4 : 2;
        sum += weight * width / 3 * open(ms) * ms;
    }
    return sum;
}

// Returns the workers that have a share above 0. A spread (sigma) of 0 is replaced by a thousandth:
// without spread, the share of pending answers is a step function, which the integral's sampling
// points cannot represent.
std::vector<AskedWorker> asked_of(std::span<const AskedWorker> workers) {
    std::vector<AskedWorker> out;
    for (const AskedWorker& worker : workers)
        if (worker.time.median_ms > 0 && worker.share > 0)
            out.push_back({{worker.time.median_ms, std::max(worker.time.sigma, 1e-3)},
                           std::min(worker.share, 1.0)});
    return out;
}

// If each worker is drawn independently, a draw may contain no worker, and such a draw is not a
// round. Returns the factor c for which the remaining draws request each worker as often as its
// share: the chance of a worker is c times its share, and c = 1 - (the chance that no worker is
// requested). If every round requests exactly one worker, c approaches 0; if a worker has a share
// of 1, c is 1.
double chance_of_a_round(std::span<const AskedWorker> workers) {
    double low = 1e-6, high = 1;
    for (int i = 0; i < 60; ++i) {
        const double c = (low + high) / 2;
        double none = 1;
        for (const AskedWorker& worker : workers) none *= 1 - c * worker.share;
        (1 - none > c ? low : high) = c;
    }
    return high;
}

}  // namespace

double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

double answered_share(const AnswerTime& time, double ms) {
    if (time.sigma <= 0) return ms >= time.median_ms ? 1 : 0;
    return normal_cdf(std::log(ms / time.median_ms) / time.sigma);
}

double mean_ms(const AnswerTime& time) {
    return time.median_ms * std::exp(time.sigma * time.sigma / 2);
}

AnswerTime answer_time_of(double mean, double p50_ms, double p99_ms) {
    if (!(mean > 0) || !(p50_ms > 0)) return {};
    const double sigma = std::log(std::max(p99_ms / p50_ms, 1.0)) / p99_z;
    return {.median_ms = mean * std::exp(-sigma * sigma / 2), .sigma = sigma};
}

double slowest_ms(const AnswerTime& time, double calls, double copies) {
    MOEX_CHECK(time.median_ms >= 0 && calls > 0 && copies > 0, "a round of something");
    if (time.sigma <= 0 || time.median_ms <= 0) return time.median_ms;
    return integral_ms(time.median_ms * std::exp(-spreads * time.sigma),
                       time.median_ms * std::exp(spreads * time.sigma), [&](double ms) {
                           const double open = 1 - answered_share(time, ms);
                           return 1 - std::pow(1 - std::pow(open, copies), calls);
                       });
}

double round_ms(std::span<const AskedWorker> given, double copies) {
    const std::vector<AskedWorker> workers = asked_of(given);
    if (workers.empty()) return 0;
    double asked = 0, from_ms = 0, to_ms = 0;
    for (const auto& [time, share] : workers) {
        const double reach = std::exp(spreads * time.sigma);
        from_ms = asked > 0 ? std::min(from_ms, time.median_ms / reach) : time.median_ms / reach;
        to_ms = std::max(to_ms, time.median_ms * reach);
        asked += share;
    }

    const double somebody = chance_of_a_round(workers);
    return integral_ms(from_ms, to_ms, [&](double ms) {
        double all = 1, one = 0;
        for (const auto& [time, share] : workers) {
            const double done = answered_share(time, ms);
            all *= 1 - somebody * share * (1 - done);
            one += share / asked * done;
        }
        if (copies <= 1) return (1 - all) / somebody;
        return 1 - std::pow(1 - std::pow(1 - one, copies), std::max(asked / copies, 1.0));
    });
}

}  // namespace moex
