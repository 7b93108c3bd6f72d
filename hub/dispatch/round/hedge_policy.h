// The operator's choice of hedging: which calls are sent to several workers, at once or after a
// delay. This header has the options and their text form; attempt_policy.h implements them. Source:
// Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013, hedged requests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "hub/base/clock.h"
#include "protocol/result.h"

namespace moex {

inline constexpr std::uint32_t hedge_copies_max = 8;

enum class HedgeMode {
    off,
    fixed,  // every call is sent to `copies` workers at once
    // each call is sent to `copies` workers at once while the swarm's median latency exceeds
    // `slow_p50`
    adaptive,
    delayed  // a second attempt when the first takes longer than most, within a budget
};
struct HedgePolicy {
    HedgeMode mode = HedgeMode::off;
    // number of attempts sent at once, to different workers
    std::uint32_t copies = 1;
    Duration slow_p50 = 50ms;
};
// Parses "off", "fixed 2" or "fixed:2", "adaptive", and "delayed".
Result<HedgePolicy> parse_hedge_policy(std::string_view text);
std::string hedge_policy_text(const HedgePolicy& policy);

}  // namespace moex
