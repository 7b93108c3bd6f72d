#include "web-worker/slots/group_passes.h"

#include <algorithm>

namespace moex {
namespace {

// The preferred number of passes that bring experts. With more passes little more work overlaps,
// and each pass costs a submission.
constexpr std::uint32_t passes_wanted = 4;

void append(std::vector<GroupPass>& passes, const GroupPass& experts, std::uint32_t most) {
    for (std::size_t first = 0; first < experts.size(); first += most) {
        const auto begin = experts.begin() + static_cast<std::ptrdiff_t>(first);
        passes.emplace_back(begin, begin + std::min<std::ptrdiff_t>(most, experts.end() - begin));
    }
}

}  // namespace

std::vector<GroupPass> cut_passes(std::uint32_t num_experts, std::uint32_t slots,
                                  const std::function<bool(std::uint32_t expert)>& in_slot) {
    GroupPass there, missing;
    for (std::uint32_t expert = 0; expert < num_experts; ++expert)
        (in_slot(expert) ? there : missing).push_back(expert);
    if (num_experts <= slots && missing.size() <= 2 * pass_experts_min) return {};

    const auto share = static_cast<std::uint32_t>((missing.size() + passes_wanted - 1) /
                                                  passes_wanted);
    const std::uint32_t most = std::clamp(slots / 2, 1u, std::max(pass_experts_min, share));
    std::vector<GroupPass> passes;
    append(passes, there, std::max(1u, slots - std::min(slots, most)));
    append(passes, missing, most);
    return passes;
}

}  // namespace moex
