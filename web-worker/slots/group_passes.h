// A group of which many experts lie in no slot, or of more experts than there are slots, in passes:
// those that lie in slots first, then the others a few at a time, each brought once, so that one
// pass's experts are on their way while another's compute. The answers of pairs wait for the last
// pass, which adds them up as if there had been one: the same bits. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace moex {

// Experts of one pass: their places in the group's table, ascending.
using GroupPass = std::vector<std::uint32_t>;

// Fewer experts to bring than this are waited for at once.
inline constexpr std::uint32_t pass_experts_min = 8;

// Each of the group's `num_experts` in one pass. None has more than half of the `slots` (one at
// least), but the first, which leaves room for the second. Empty where no passes are worth it.
std::vector<GroupPass> cut_passes(std::uint32_t num_experts, std::uint32_t slots,
                                  const std::function<bool(std::uint32_t expert)>& in_slot);

}  // namespace moex
