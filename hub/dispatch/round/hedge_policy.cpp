#include "hub/dispatch/round/hedge_policy.h"

#include <charconv>

namespace moex {

Result<HedgePolicy> parse_hedge_policy(std::string_view policy) {
    if (policy == "off") return HedgePolicy{};
    if (policy == "delayed") return HedgePolicy{.mode = HedgeMode::delayed};
    if (policy == "adaptive") return HedgePolicy{.mode = HedgeMode::adaptive, .copies = 2};
    constexpr std::string_view fixed = "fixed";
    if (policy.substr(0, fixed.size()) == fixed) {
        std::string_view rest = policy.substr(fixed.size());
        if (!rest.empty() && (rest.front() == ' ' || rest.front() == ':')) {
            rest.remove_prefix(1);
            std::uint32_t copies = 0;
            const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(),
                                                        copies);
            if (failure == std::errc() && end == rest.data() + rest.size() && copies >= 1 &&
                copies <= hedge_copies_max)
                return HedgePolicy{.mode = HedgeMode::fixed, .copies = copies};
        }
    }
    return Error{
        ErrorCode::invalid_argument,
        text("hedge policy \"", policy.substr(0, 40),
             "\": want off, delayed, adaptive, or fixed H with H from 1 to ", hedge_copies_max)};
}

std::string hedge_policy_text(const HedgePolicy& policy) {
    switch (policy.mode) {
        case HedgeMode::off: return "off";
        case HedgeMode::fixed: return text("fixed ", policy.copies);
        case HedgeMode::adaptive: return "adaptive";
        case HedgeMode::delayed: return "delayed";
    }
    return "off";
}

}  // namespace moex
