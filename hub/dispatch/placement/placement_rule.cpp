#include "hub/dispatch/placement/placement_rule.h"

#include <charconv>

#include "protocol/text.h"

namespace moex {

Result<PlacementChoice> parse_placement(std::string_view choice) {
    if (choice == "fan-out") return PlacementChoice{};
    if (choice == "hash") return PlacementChoice{.rule = PlacementRule::hash};
    constexpr std::string_view groups = "groups";
    if (choice.starts_with(groups) && choice.size() > groups.size() + 1 &&
        (choice[groups.size()] == ' ' || choice[groups.size()] == ':')) {
        const char* const end = choice.data() + choice.size();
        std::uint32_t count = 0;
        const auto [stop, failure] = std::from_chars(choice.data() + groups.size() + 1, end, count);
        if (failure == std::errc() && stop == end && count >= 1 && count <= worker_groups_max)
            return PlacementChoice{.rule = PlacementRule::groups, .num_groups = count};
    }
    return Error{ErrorCode::invalid_argument,
                 text("placement \"", choice.substr(0, 40),
                      "\": want fan-out, hash, or groups N with N from 1 to ", worker_groups_max)};
}

std::string placement_text(const PlacementChoice& choice) {
    switch (choice.rule) {
        case PlacementRule::fan_out: return "fan-out";
        case PlacementRule::hash: return "hash";
        case PlacementRule::groups: return text("groups ", choice.num_groups);
    }
    return "fan-out";
}

}  // namespace moex
