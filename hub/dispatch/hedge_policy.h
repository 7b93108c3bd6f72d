// How many attempts a call gets at once; asked when a round opens.
// Source: Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013, hedged requests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

inline constexpr std::uint32_t hedge_copies_max = 8;

enum class HedgeMode { off, fixed };
struct HedgePolicy {
    HedgeMode mode = HedgeMode::off;
    // fixed: attempts at once, on different workers
    std::uint32_t copies = 1;

    std::uint32_t attempts_at_once() const { return mode == HedgeMode::fixed ? copies : 1; }
};
Result<HedgePolicy> parse_hedge_policy(std::string_view text);  // "off", "fixed 2" or "fixed:2"
std::string hedge_policy_text(const HedgePolicy& policy);

}  // namespace moex
