#include "web-worker/group_parts.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

namespace moex {
namespace {

constexpr std::uint32_t not_in = ~0u;

// Of each of the group's rows, which of the part's it is.
std::vector<std::uint32_t> places_of(const GroupPart& part, std::uint32_t num_rows) {
    std::vector<std::uint32_t> places(num_rows, not_in);
    for (std::uint32_t i = 0; i < part.rows.size(); ++i) places[part.rows[i]] = i;
    return places;
}

// Row `first` of `from`, to where `to` has its row `at`. int8 keeps its scales behind all codes.
void copy_row(Dtype dtype, std::uint32_t row_size, std::span<std::byte> to, std::uint64_t to_rows,
              std::uint64_t at, ByteView from, std::uint64_t from_rows, std::uint64_t first) {
    const std::uint64_t scale_bytes = dtype == Dtype::int8 ? sizeof(float) : 0,
                        row_bytes = wire_rows_bytes(dtype, 1, row_size) - scale_bytes;
    std::memcpy(to.data() + at * row_bytes, from.data() + first * row_bytes, row_bytes);
    if (scale_bytes > 0)
        std::memcpy(to.data() + to_rows * row_bytes + at * scale_bytes,
                    from.data() + from_rows * row_bytes + first * scale_bytes, scale_bytes);
}

// Which rows ask for what, and what a part that is begun lacks for each of them.
class Cutter {
  public:
    explicit Cutter(const GroupDispatchView& group)
        : asks_(group.shape.num_tokens),
          rows_of_(group.experts.size()),
          asked_(group.experts.size()) {
        std::size_t pair = 0;
        for (std::uint32_t expert = 0; expert < group.experts.size(); ++expert)
            for (std::uint32_t i = 0; i < group.experts[expert].num_rows; ++i, ++pair) {
                asks_[group.rows[pair]].push_back(expert);
                rows_of_[expert].push_back(group.rows[pair]);
            }
        begin_part();
    }
    std::size_t num_asked(std::uint32_t row) const { return asks_[row].size(); }
    std::size_t num_missing(std::uint32_t row) const { return missing_[row]; }

    void begin_part() {
        asked_.assign(asked_.size(), false);
        num_experts_ = 0;
        missing_.clear();
        for (const auto& experts : asks_) missing_.push_back(experts.size());
    }
    void add_experts_of(std::uint32_t row) {
        for (const std::uint32_t expert : asks_[row]) {
            if (asked_[expert]) continue;
            asked_[expert] = true;
            ++num_experts_;
            for (const std::uint32_t other : rows_of_[expert]) --missing_[other];
        }
    }
    // Whom the part lacks least for, among those that it lacks something for and has room for; the
    // first of equals.
    std::optional<std::uint32_t> nearest(std::span<const std::uint32_t> rows,
                                         std::size_t experts_max) const {
        std::optional<std::uint32_t> best;
        for (const std::uint32_t row : rows)
            if (missing_[row] > 0 && num_experts_ + missing_[row] <= experts_max &&
                (!best || missing_[row] < missing_[*best]))
                best = row;
        return best;
    }

  private:
    std::vector<std::vector<std::uint32_t>> asks_, rows_of_;  // experts of rows, rows of experts
    std::vector<bool> asked_;                                 // experts of the part
    std::size_t num_experts_ = 0;
    std::vector<std::size_t> missing_;  // experts of each row that the part has not
};

}  // namespace

std::vector<GroupPart> cut_group(const GroupDispatchView& group, std::uint32_t experts_max,
                                 const std::function<std::uint32_t(std::uint32_t)>& pairs_max) {
    Cutter cutter(group);
    std::vector<std::uint32_t> left(group.shape.num_tokens);
    std::iota(left.begin(), left.end(), 0u);
    for (const std::uint32_t row : left)
        if (cutter.num_asked(row) > experts_max || cutter.num_asked(row) > pairs_max(1)) return {};

    std::vector<GroupPart> parts;
    while (!left.empty()) {
        // Begun by whom the part before lacks least for: those experts lie in slots already.
        const std::uint32_t first = *std::min_element(
            left.begin(), left.end(), [&](std::uint32_t a, std::uint32_t b) {
                return cutter.num_missing(a) < cutter.num_missing(b);
            });
        cutter.begin_part();
        for (std::optional<std::uint32_t> next = first; next;
             next = cutter.nearest(left, experts_max))
            cutter.add_experts_of(*next);

        GroupPart part;
        std::size_t pairs = 0;
        std::erase_if(left, [&](std::uint32_t row) {
            const std::size_t own = cutter.num_asked(row), num_rows = part.rows.size() + 1;
            if (cutter.num_missing(row) > 0 ||
                pairs + own > pairs_max(static_cast<std::uint32_t>(num_rows)))
                return false;
            part.rows.push_back(row);
            pairs += own;
            return true;
        });
        parts.push_back(std::move(part));
    }
    return parts;
}

void take_part(GroupDispatchView& out, Bytes& x, const GroupDispatchView& group,
               const GroupPart& part) {
    out.sequence_id = group.sequence_id;
    out.shape = group.shape;
    out.x_int8 = group.x_int8;
    out.experts.clear();
    out.rows.clear();
    out.gates.clear();

    const std::vector<std::uint32_t> places = places_of(part, group.shape.num_tokens);
    std::size_t pair = 0;
    for (const GroupExpert& expert : group.experts) {
        const std::size_t before = out.rows.size();
        for (std::uint32_t i = 0; i < expert.num_rows; ++i, ++pair) {
            const std::uint32_t place = places[group.rows[pair]];
            if (place == not_in) continue;
            out.rows.push_back(static_cast<std::uint16_t>(place));
            out.gates.push_back(group.gates[pair]);
        }
        if (out.rows.size() > before)
            out.experts.push_back(
                {expert.expert, static_cast<std::uint16_t>(out.rows.size() - before)});
    }

    const auto num_rows = static_cast<std::uint32_t>(part.rows.size());
    out.shape.num_tokens = num_rows;
    out.shape.num_pairs = static_cast<std::uint32_t>(out.rows.size());
    out.shape.num_experts = static_cast<std::uint16_t>(out.experts.size());
    x.resize(wire_rows_bytes(group.x_dtype(), num_rows, group.shape.hidden_dim));
    for (std::uint32_t i = 0; i < num_rows; ++i)
        copy_row(group.x_dtype(), group.shape.hidden_dim, x, num_rows, i, group.x_bytes,
                 group.shape.num_tokens, part.rows[i]);
    out.x_bytes = x;
}

void put_part(std::span<std::byte> y, const GroupDispatchView& group, const GroupPart& part,
              ByteView part_y) {
    const GroupShape& shape = group.shape;
    if (!shape.unsummed) {
        for (std::uint32_t i = 0; i < part.rows.size(); ++i)
            copy_row(shape.dtype, shape.hidden_dim, y, shape.num_tokens, part.rows[i], part_y,
                     part.rows.size(), i);
        return;
    }

    const std::vector<std::uint32_t> places = places_of(part, shape.num_tokens);
    const auto is_in = [&](std::uint16_t row) { return places[row] != not_in; };
    const auto num_pairs = static_cast<std::uint64_t>(
        std::count_if(group.rows.begin(), group.rows.end(), is_in));
    std::uint64_t next = 0;
    for (std::size_t pair = 0; pair < group.rows.size(); ++pair)
        if (is_in(group.rows[pair]))
            copy_row(shape.dtype, shape.hidden_dim, y, shape.num_pairs, pair, part_y, num_pairs,
                     next++);
}

}  // namespace moex
