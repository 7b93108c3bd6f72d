// How a chunk is cut, against machines whose costs are given: no clock, counts and sizes only.
#include "hub/engine/step_cost.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

namespace moex {
namespace {

constexpr double stretch = 2.0;

struct Machine {
    double plain_ms;
    std::function<double(std::uint32_t rows, std::uint32_t position)> prompt_ms;
};
Duration ms(double value) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(value));
}

// A prompt of `length` tokens beside `decode_rows`: the rows of each step that had some.
std::vector<std::uint32_t> run(StepCost& cost, const Machine& machine, std::uint32_t length,
                               std::uint32_t decode_rows, std::vector<double>& step_ms) {
    std::vector<std::uint32_t> chunks;
    for (std::uint32_t position = 0; position < length;) {
        if (cost.wants_plain_step(decode_rows)) {
            cost.record({.decode_rows = decode_rows}, ms(machine.plain_ms));
            continue;
        }
        const std::uint32_t rows = std::min(
            {length - position, cost.prompt_rows_max(),
             std::max(1u, cost.rows_within(cost.prompt_time(decode_rows, 1), position))});
        const double took = machine.plain_ms + machine.prompt_ms(rows, position);
        cost.record(
            {.decode_rows = decode_rows,
             .prompt_rows = rows,
             .prompt_positions = std::uint64_t{rows} * position + std::uint64_t{rows} * rows / 2},
            ms(took));
        chunks.push_back(rows);
        step_ms.push_back(took);
        position += rows;
    }
    return chunks;
}

TEST(StepCostTest, AChunkIsCutToAboutTwiceADecodeStep) {
    const std::vector<Machine> machines{
        // 4 rows a decode step; a hundred; where attention soon costs more than the rest
        {24, [](auto rows, auto) { return 6.0 * rows; }},
        {100, [](auto rows, auto) { return 1.0 * rows; }},
        {24, [](auto rows, auto at) { return rows * (0.5 + (at + rows / 2.0) / 400.0); }},
        // the first rows are dear: each meets experts that no row has met
        {24, [](auto rows, auto) { return 6.0 * std::pow(rows, 0.6); }}};

    for (std::size_t i = 0; i < machines.size(); ++i) {
        StepCost cost(stretch);
        std::vector<double> step_ms;
        const auto chunks = run(cost, machines[i], 4000, 1, step_ms);

        const std::size_t learned = 10;
        ASSERT_GT(chunks.size(), 2 * learned) << i;
        for (std::size_t step = learned; step < chunks.size(); ++step)
            EXPECT_LE(step_ms[step], 1.2 * stretch * machines[i].plain_ms)
                << "machine " << i << ", step " << step << ", rows " << chunks[step];

        // And not much less: what a chunk may cost is used.
        double sum = 0;
        for (std::size_t step = learned; step + 1 < chunks.size(); ++step) sum += step_ms[step];
        EXPECT_GE(sum / static_cast<double>(chunks.size() - 1 - learned),
                  0.7 * stretch * machines[i].plain_ms)
            << "machine " << i;
    }
}

TEST(StepCostTest, ChunksBeginSmallAndGrowNoFasterThanTwofold) {
    StepCost cost(stretch);
    const Machine remote{1000, [](auto rows, auto) { return 0.1 * rows; }};  // a far swarm
    std::vector<double> step_ms;
    const auto chunks = run(cost, remote, 2000, 3, step_ms);
    ASSERT_GE(chunks.size(), 4u);
    EXPECT_LE(chunks[0], 2u);
    for (std::size_t i = 1; i < chunks.size(); ++i) EXPECT_LE(chunks[i], 2 * chunks[i - 1]);
    EXPECT_LE(chunks.size(), 12u);

    // What was learned stays: the next prompt begins where this one ended.
    EXPECT_GE(run(cost, remote, 2000, 3, step_ms).front(), 512u);
}

TEST(StepCostTest, AnUnknownNumberOfDecodeRowsIsMeasuredOnceAndThenNowAndThen) {
    StepCost cost(stretch);
    EXPECT_TRUE(cost.wants_plain_step(2));
    cost.record({.decode_rows = 2}, 10ms);
    EXPECT_FALSE(cost.wants_plain_step(2));
    EXPECT_EQ(cost.prompt_time(2, 1), 10ms);

    int steps = 0;
    for (; !cost.wants_plain_step(2) && steps < 1000; ++steps)
        cost.record({.decode_rows = 2, .prompt_rows = 4, .prompt_positions = 40}, 20ms);
    EXPECT_EQ(steps, 64);
    cost.record({.decode_rows = 2}, 10ms);
    EXPECT_FALSE(cost.wants_plain_step(2));
}

// Each of 64 users who came at once cost the others a step without a prompt.
TEST(StepCostTest, ANumberOfDecodeRowsNearAMeasuredOneIsEstimated) {
    StepCost cost(stretch);
    std::vector<std::uint32_t> measured;
    for (std::uint32_t rows = 1; rows <= 64; ++rows) {
        const Duration took = ms(5 + rows);
        if (cost.wants_plain_step(rows)) {
            measured.push_back(rows);
            cost.record({.decode_rows = rows}, took);
        }
        EXPECT_NEAR(to_ms(cost.prompt_time(rows, 1)), to_ms(took), 0.4 * to_ms(took)) << rows;
    }
    EXPECT_EQ(measured, (std::vector<std::uint32_t>{1, 3, 7, 15, 31, 63}));

    EXPECT_EQ(cost.prompt_time(5, 1), 10ms);  // between 3 and 7
    EXPECT_FALSE(cost.wants_plain_step(126));
    EXPECT_TRUE(cost.wants_plain_step(127));
    cost.record({.decode_rows = 300}, 100ms);
    EXPECT_EQ(cost.prompt_time(150, 1), 75ms);  // of a larger one alone: more than half
}

TEST(StepCostTest, PromptsThatWaitInACrowdGetMoreOfTheTime) {
    StepCost cost(stretch);
    cost.record({.decode_rows = 4}, 20ms);
    EXPECT_EQ(cost.prompt_time(4, 1), 20ms);
    EXPECT_EQ(cost.prompt_time(4, 6), 20ms);
    EXPECT_EQ(cost.prompt_time(4, 7), 25ms);
    EXPECT_EQ(cost.prompt_time(4, 8), 30ms);
    EXPECT_EQ(cost.prompt_time(4, 60), 30ms);

    // A step that was meant to last longer has kept its time, and the next may take more rows.
    const auto rows_after = [](std::uint32_t num_prompts) {
        StepCost one(stretch);
        one.record({.decode_rows = 4}, 20ms);
        one.record({.decode_rows = 4, .prompt_rows = 8, .num_prompts = num_prompts}, 70ms);
        return one.prompt_rows_max();
    };
    EXPECT_EQ(rows_after(1), 8u);
    EXPECT_EQ(rows_after(9), 16u);
}

TEST(StepCostTest, OneHiccupDoesNotChangeMuch) {
    StepCost cost(stretch);
    for (int i = 0; i < 50; ++i) cost.record({.decode_rows = 1}, 20ms);
    cost.record({.decode_rows = 1}, 5s);
    EXPECT_LE(cost.prompt_time(1, 1), 25ms);
}

}  // namespace
}  // namespace moex
