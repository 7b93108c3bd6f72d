#include "web-worker/group_parts.h"

#include <algorithm>
#include <cstring>

namespace moex {
namespace {

bool is_in(GroupPart part, std::uint32_t row) {
    return row >= part.first_row && row - part.first_row < part.num_rows;
}

// Rows [first, first + count) of `from`, to where `to` has them from its row `at` on. int8 keeps
// its scales behind all codes.
void copy_rows(Dtype dtype, std::uint32_t row_size, std::span<std::byte> to, std::uint64_t to_rows,
               std::uint64_t at, ByteView from, std::uint64_t from_rows, std::uint64_t first,
               std::uint64_t count) {
    const std::uint64_t scale_bytes = dtype == Dtype::int8 ? sizeof(float) : 0,
                        row_bytes = wire_rows_bytes(dtype, 1, row_size) - scale_bytes;
    std::memcpy(to.data() + at * row_bytes, from.data() + first * row_bytes, count * row_bytes);
    if (scale_bytes > 0)
        std::memcpy(to.data() + to_rows * row_bytes + at * scale_bytes,
                    from.data() + from_rows * row_bytes + first * scale_bytes, count * scale_bytes);
}

}  // namespace

std::vector<GroupPart> cut_group(const GroupDispatchView& group, std::uint32_t experts_max,
                                 const std::function<std::uint32_t(std::uint32_t)>& pairs_max) {
    std::vector<std::vector<std::uint16_t>> experts_of(group.shape.num_tokens);
    std::size_t pair = 0;
    for (const GroupExpert& expert : group.experts)
        for (std::uint32_t i = 0; i < expert.num_rows; ++i)
            experts_of[group.rows[pair++]].push_back(expert.expert);

    std::vector<GroupPart> parts;
    std::vector<std::uint16_t> asked, with;  // ascending
    std::size_t pairs = 0;                   // of the last part
    for (std::uint32_t row = 0; row < group.shape.num_tokens; ++row) {
        const std::size_t own = experts_of[row].size();
        if (own > experts_max || own > pairs_max(1)) return {};
        with.clear();
        std::set_union(asked.begin(), asked.end(), experts_of[row].begin(), experts_of[row].end(),
                       std::back_inserter(with));

        const bool fits = !parts.empty() && with.size() <= experts_max &&
                          pairs + own <= pairs_max(parts.back().num_rows + 1);
        if (fits) {
            ++parts.back().num_rows;
            asked.swap(with);
            pairs += own;
        } else {
            parts.push_back({.first_row = row, .num_rows = 1});
            asked = experts_of[row];
            pairs = own;
        }
    }
    return parts;
}

void take_part(GroupDispatchView& out, Bytes& x, const GroupDispatchView& group, GroupPart part) {
    out.sequence_id = group.sequence_id;
    out.shape = group.shape;
    out.x_int8 = group.x_int8;
    out.experts.clear();
    out.rows.clear();
    out.gates.clear();

    std::size_t pair = 0;
    for (const GroupExpert& expert : group.experts) {
        const std::size_t before = out.rows.size();
        for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair) {
            if (!is_in(part, group.rows[pair])) continue;
            out.rows.push_back(static_cast<std::uint16_t>(group.rows[pair] - part.first_row));
            out.gates.push_back(group.gates[pair]);
        }
        if (out.rows.size() > before)
            out.experts.push_back(
                {expert.expert, static_cast<std::uint16_t>(out.rows.size() - before)});
    }

    out.shape.num_tokens = part.num_rows;
    out.shape.num_pairs = static_cast<std::uint32_t>(out.rows.size());
    out.shape.num_experts = static_cast<std::uint16_t>(out.experts.size());
    x.resize(wire_rows_bytes(group.x_dtype(), part.num_rows, group.shape.hidden_dim));
    copy_rows(group.x_dtype(), group.shape.hidden_dim, x, part.num_rows, 0, group.x_bytes,
              group.shape.num_tokens, part.first_row, part.num_rows);
    out.x_bytes = x;
}

void put_part(std::span<std::byte> y, const GroupDispatchView& group, GroupPart part,
              ByteView part_y) {
    const GroupShape& shape = group.shape;
    if (!shape.unsummed)
        return copy_rows(shape.dtype, shape.hidden_dim, y, shape.num_tokens, part.first_row, part_y,
                         part.num_rows, 0, part.num_rows);

    const auto num_pairs = static_cast<std::uint64_t>(std::count_if(
        group.rows.begin(), group.rows.end(), [&](std::uint16_t row) { return is_in(part, row); }));
    std::uint64_t next = 0;
    for (std::size_t pair = 0; pair < group.rows.size(); ++pair)
        if (is_in(part, group.rows[pair]))
            copy_rows(shape.dtype, shape.hidden_dim, y, shape.num_pairs, pair, part_y, num_pairs,
                      next++, 1);
}

}  // namespace moex
