// Cuts a group into passes if many of its experts have no slot, or if it has more experts than
// there are slots. The first pass computes the experts in slots. Each later pass computes a few of
// the other experts. Each expert is brought once, and the experts of a pass are brought while the
// pass before computes. The answers of pairs stay in the lane until the last pass adds them, in the
// order of a group without passes, so the bits are the same. The function is pure. Example: experts
// 3, 40 and 59 of 60 have slots: the passes are {3, 40, 59}, {0, 1, 2, 4, ...}, ...
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace moex {

// The experts of a pass: their indices in the group's table of experts, ascending.
using GroupPass = std::vector<std::uint32_t>;

// If the slots allow it, a pass brings at least this many experts. A group that misses at most
// twice as many experts is not cut, if it fits into the slots.
inline constexpr std::uint32_t pass_experts_min = 8;

// Puts each of the group's `num_experts` into one pass. A pass has at most half of the `slots` (at
// least one expert); the first pass may have more, but leaves room for the second. Returns no
// passes if passes would not save time.
std::vector<GroupPass> cut_passes(std::uint32_t num_experts, std::uint32_t slots,
                                  const std::function<bool(std::uint32_t expert)>& in_slot);

}  // namespace moex
