#include "web-worker/session/hub_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace moex {
namespace {

// A nearer hub saves one difference of round trips in each layer. Less than this is noise.
constexpr double nearer_ms_min = 5;

// Steps of a quarter: 0 lacks nothing, 4 lacks more than three quarters.
int need_step(const HubNeed& need) {
    return static_cast<int>(std::ceil(need.lack() / clearly_more - 1e-9));
}

// Steps of a factor of two, from 2 ms. A hub that was not measured comes after those that were.
int rtt_step(const std::optional<double>& rtt_ms) {
    if (!rtt_ms) return 64;
    return std::max(0, static_cast<int>(std::floor(std::log2(std::max(1.0, *rtt_ms)))));
}

// Steps of a factor of two in answers that run for each worker.
int load_step(const HubNeed& need) {
    return static_cast<int>(std::floor(std::log2(1 + need.streams / (1.0 + need.workers))));
}

}  // namespace

std::vector<std::size_t> rank_hubs(std::span<const HubOption> hubs,
                                   const std::function<double()>& random) {
    using Key = std::tuple<int, int, int, double>;
    std::vector<Key> keys;
    for (const HubOption& hub : hubs)
        keys.emplace_back(-need_step(hub.need), rtt_step(hub.rtt_ms), load_step(hub.need),
                          random ? random() : 0);

    std::vector<std::size_t> order(hubs.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
    return order;
}

bool is_clearly_better(const HubOption& other, const HubOption& here) {
    const double more = other.need.lack() - here.need.lack();
    if (more >= clearly_more) return true;
    if (more <= -clearly_more || !other.rtt_ms || !here.rtt_ms) return false;
    return *other.rtt_ms <= *here.rtt_ms / 2 && *here.rtt_ms - *other.rtt_ms >= nearer_ms_min;
}

}  // namespace moex
