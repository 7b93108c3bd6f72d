// A group in parts: every row once, few experts brought twice, the answers where the whole group's
// would be.
#include "web-worker/group_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

namespace moex {
namespace {

constexpr std::uint32_t hidden = 8;

// Rows that ask for `top_k` of `num_experts` each, in the group's tables, expert by expert.
struct Group {
    GroupDispatchView view;
    std::vector<std::set<std::uint16_t>> asks;
    Bytes x;

    Group(std::uint32_t num_rows, std::uint32_t num_experts, std::uint32_t top_k, Dtype dtype,
          bool unsummed) {
        std::mt19937 random(7);
        asks.resize(num_rows);
        for (auto& experts : asks)
            while (experts.size() < top_k)
                experts.insert(static_cast<std::uint16_t>(random() % num_experts));
        for (std::uint16_t expert = 0; expert < num_experts; ++expert) {
            std::uint16_t count = 0;
            for (std::uint16_t row = 0; row < num_rows; ++row)
                if (asks[row].contains(expert)) {
                    view.rows.push_back(row);
                    view.gates.push_back(static_cast<std::uint16_t>(view.rows.size()));
                    ++count;
                }
            if (count > 0) view.experts.push_back({expert, count});
        }
        view.shape.num_tokens = num_rows;
        view.shape.num_pairs = static_cast<std::uint32_t>(view.rows.size());
        view.shape.num_experts = static_cast<std::uint16_t>(view.experts.size());
        view.shape.hidden_dim = hidden;
        view.shape.dtype = dtype;
        view.shape.unsummed = unsummed;
        x.resize(wire_rows_bytes(view.x_dtype(), num_rows, hidden));
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::byte>(random());
        view.x_bytes = x;
    }
};

// Every third row number, or so: what a part says of its rows, in wire form, by pair or row.
Bytes marked(const GroupDispatchView& part, Dtype dtype, std::uint64_t num_answers,
             const std::function<std::uint8_t(std::uint64_t)>& mark) {
    Bytes y(wire_rows_bytes(dtype, num_answers, hidden));
    const std::uint64_t scale_bytes = dtype == Dtype::int8 ? sizeof(float) : 0,
                        row_bytes = wire_rows_bytes(dtype, 1, hidden) - scale_bytes;
    for (std::uint64_t i = 0; i < num_answers; ++i) {
        std::memset(y.data() + i * row_bytes, mark(i), row_bytes);
        if (scale_bytes > 0)
            std::memset(y.data() + num_answers * row_bytes + i * scale_bytes, mark(i), scale_bytes);
    }
    EXPECT_EQ(part.shape.hidden_dim, hidden);
    return y;
}

const auto any_pairs = [](std::uint32_t) { return 1u << 20; };

TEST(GroupPartsTest, EveryRowIsInOnePartAndNoPartAsksForMoreExpertsThanMayBe) {
    for (const std::uint32_t experts_max : {4u, 5u, 9u, 16u}) {
        const Group group(90, 16, 4, Dtype::f16, false);
        const auto pairs_max = [](std::uint32_t num_rows) { return num_rows > 10 ? 0u : 40u; };
        std::vector<int> times(90);
        for (const GroupPart& part : cut_group(group.view, experts_max, pairs_max)) {
            std::set<std::uint16_t> experts;
            for (const std::uint32_t row : part.rows) {
                ++times[row];
                experts.insert(group.asks[row].begin(), group.asks[row].end());
            }
            EXPECT_LE(experts.size(), experts_max);
            EXPECT_LE(part.rows.size(), 10u);
            EXPECT_TRUE(std::ranges::is_sorted(part.rows));
        }
        EXPECT_EQ(times, std::vector<int>(90, 1));
    }
    EXPECT_TRUE(cut_group(Group(3, 16, 4, Dtype::f16, false).view, 3, any_pairs).empty());
}

// A prompt of 128 rows, 4 of 16 experts each, ten slots: rows in their order bring 130 or so.
TEST(GroupPartsTest, FewExpertsAreBroughtTwice) {
    const Group group(128, 16, 4, Dtype::f16, false);
    std::set<std::uint16_t> slots, run;
    std::size_t num_brought = 0, num_in_order = 0;
    for (const GroupPart& part : cut_group(group.view, 10, any_pairs)) {
        std::set<std::uint16_t> experts;
        for (const std::uint32_t row : part.rows)
            experts.insert(group.asks[row].begin(), group.asks[row].end());
        for (const std::uint16_t expert : experts) num_brought += !slots.contains(expert);
        slots = experts;
    }
    slots.clear();
    for (const auto& asks : group.asks) {
        std::set<std::uint16_t> with = run;
        with.insert(asks.begin(), asks.end());
        if (with.size() > 10) with = asks;
        for (const std::uint16_t expert : with) num_in_order += !run.contains(expert);
        run = with;
    }
    EXPECT_LE(num_brought, 60u);
    EXPECT_GE(num_in_order, 2 * num_brought);
}

TEST(GroupPartsTest, PartsAreTheGroupsRowsAndTheirAnswersLandWhereTheGroupHasThem) {
    for (const Dtype dtype : {Dtype::f16, Dtype::int8, Dtype::f32})
        for (const bool unsummed : {false, true}) {
            const Group group(30, 12, 3, dtype, unsummed);
            const std::uint64_t answers = unsummed ? group.view.shape.num_pairs : 30;
            Bytes y(wire_rows_bytes(dtype, answers, hidden));
            std::size_t num_pairs = 0;
            for (const GroupPart& part : cut_group(group.view, 5, any_pairs)) {
                GroupDispatchView view;
                Bytes x;
                take_part(view, x, group.view, part);
                num_pairs += view.rows.size();
                ASSERT_EQ(view.rows.size(), 3 * part.rows.size());
                // A pair is told by its gate, which counts the group's pairs from 1.
                for (std::size_t pair = 0; pair < view.rows.size(); ++pair)
                    EXPECT_EQ(part.rows[view.rows[pair]], group.view.rows[view.gates[pair] - 1]);
                const auto mark = [&](std::uint64_t i) {
                    return static_cast<std::uint8_t>(unsummed ? view.gates[i] - 1 : part.rows[i]);
                };
                put_part(y, group.view, part,
                         marked(view, dtype, unsummed ? view.rows.size() : part.rows.size(), mark));
            }
            EXPECT_EQ(num_pairs, group.view.rows.size());
            EXPECT_EQ(y, marked(group.view, dtype, answers,
                                [](std::uint64_t i) { return static_cast<std::uint8_t>(i); }));
        }
}

}  // namespace
}  // namespace moex
