// A group of more experts than a worker has slots for, in parts that are computed one after the
// other: rows that ask for much the same experts together, so that few experts are brought twice,
// and no more experts in a part than there are slots. A row's arithmetic depends on no other, so
// the answer is the group's, bit for bit. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "protocol/messages.h"

namespace moex {

struct GroupPart {
    std::vector<std::uint32_t> rows;  // of the group, ascending
};

// Each row in one part. A part of so many rows has at most `pairs_max(rows)` pairs. Empty where one
// row alone asks for more. O(rows · experts_max) a part.
std::vector<GroupPart> cut_group(const GroupDispatchView& group, std::uint32_t experts_max,
                                 const std::function<std::uint32_t(std::uint32_t)>& pairs_max);

// The part as a group of its own: its rows are counted from 0, its x is copied to `x`.
void take_part(GroupDispatchView& out, Bytes& x, const GroupDispatchView& group,
               const GroupPart& part);

// Where the whole group's answer, in wire form, has what the part's answer is.
void put_part(std::span<std::byte> y, const GroupDispatchView& group, const GroupPart& part,
              ByteView part_y);

}  // namespace moex
