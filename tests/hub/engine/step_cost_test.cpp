// Tests the length of prefill chunks on simulated machines with given costs. No clock is used; the
// tests check only counts and sizes.
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

// Runs a prompt of `length` tokens beside `decode_rows` decode rows. Returns, for each step with
// prompt rows, the number of these rows.
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
             std::max(cost.prompt_rows_min(),
                      cost.rows_within(cost.prompt_time(decode_rows, 1), position))});
        const double took = machine.plain_ms + machine.prompt_ms(rows, position);
        cost.record(
            {.decode_rows = decode_rows,
             .prompt_rows = rows,
             .prompt_positions = std::uint64_t{rows} * position + std::uint64_t{rows} * rows / 2,
             .chunk_positions = position,
             .num_prompts = 1},
            ms(took));
        chunks.push_back(rows);
        step_ms.push_back(took);
        position += rows;
    }
    return chunks;
}

TEST(StepCostTest, AChunkIsCutToAboutTwiceADecodeStep) {
    const std::vector<Machine> machines{
        // On the first machine 4 prompt rows fit into the time of a decode step, on the second a
        // hundred. On the third, attention soon costs more than everything else.
        {24, [](auto rows, auto) { return 6.0 * rows; }},
        {100, [](auto rows, auto) { return 1.0 * rows; }},
        {24, [](auto rows, auto at) { return rows * (0.5 + (at + rows / 2.0) / 400.0); }},
        // On this machine the first rows of a chunk are expensive: each loads experts that no row
        // has used before.
        {24, [](auto rows, auto) { return 6.0 * std::pow(rows, 0.6); }},
        // On this machine all rows of a chunk read the cache together.
        {24, [](auto rows, auto at) { return 4 + 1.0 * rows + at / 400.0 + rows * at / 2000.0; }}};

    for (std::size_t i = 0; i < machines.size(); ++i) {
        StepCost cost(stretch);
        std::vector<double> step_ms;
        const auto chunks = run(cost, machines[i], 4000, 1, step_ms);

        const std::size_t learned = 10;
        ASSERT_GT(chunks.size(), 2 * learned) << i;
        // number of steps with one more prompt row, which measure that row's cost
        std::size_t longer = 0;
        for (std::size_t step = learned; step < chunks.size(); ++step) {
            EXPECT_LE(step_ms[step], 1.5 * stretch * machines[i].plain_ms)
                << "machine " << i << ", step " << step << ", rows " << chunks[step];
            longer += step_ms[step] > 1.2 * stretch * machines[i].plain_ms;
        }
        EXPECT_LE(longer, chunks.size() / 32) << "machine " << i;

        // Chunks are not much shorter than allowed either: they use most of the available time.
        double sum = 0;
        for (std::size_t step = learned; step + 1 < chunks.size(); ++step) sum += step_ms[step];
        EXPECT_GE(sum / static_cast<double>(chunks.size() - 1 - learned),
                  0.7 * stretch * machines[i].plain_ms)
            << "machine " << i;
    }
}

TEST(StepCostTest, ChunksBeginSmallAndGrowNoFasterThanTwofold) {
    StepCost cost(stretch);
    const Machine remote{1000, [](auto rows, auto) { return 0.1 * rows; }};  // a remote swarm
    std::vector<double> step_ms;
    const auto chunks = run(cost, remote, 2000, 3, step_ms);
    ASSERT_GE(chunks.size(), 4u);
    EXPECT_LE(chunks[0], 2u);
    for (std::size_t i = 1; i < chunks.size(); ++i) EXPECT_LE(chunks[i], 2 * chunks[i - 1]);
    EXPECT_LE(chunks.size(), 12u);

    // The learned costs are kept: the next prompt begins with chunks as long as this prompt's last
    // ones.
    EXPECT_GE(run(cost, remote, 2000, 3, step_ms).front(), 512u);
}

TEST(StepCostTest, UnknownDecodeRowsAreMeasuredOnceThenOccasionally) {
    StepCost cost(stretch);
    EXPECT_TRUE(cost.wants_plain_step(2));
    cost.record({.decode_rows = 2}, 10ms);
    EXPECT_FALSE(cost.wants_plain_step(2));
    EXPECT_EQ(cost.prompt_time(2, 1), 10ms);

    int steps = 0;
    for (; !cost.wants_plain_step(2) && steps < 1000; ++steps)
        cost.record({.decode_rows = 2, .prompt_rows = 4, .prompt_positions = 40}, 20ms);
    EXPECT_EQ(steps, 16);
    cost.record({.decode_rows = 2}, 10ms);
    EXPECT_FALSE(cost.wants_plain_step(2));
}

// Regression: for each new number of decode rows, up to 64 users, prompts had to wait for a step
// without prompt rows.
TEST(StepCostTest, NeighbouringDecodeRowsAreEstimated) {
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

    EXPECT_EQ(cost.prompt_time(5, 1), 10ms);  // interpolated between 3 and 7 decode rows
    EXPECT_FALSE(cost.wants_plain_step(126));
    EXPECT_TRUE(cost.wants_plain_step(127));
    cost.record({.decode_rows = 300}, 100ms);
    // estimated from 300 decode rows only: more than half of their 100 ms
    EXPECT_EQ(cost.prompt_time(150, 1), 75ms);
}

TEST(StepCostTest, CrowdOfPromptsGetsMoreOfTheTime) {
    StepCost cost(stretch);
    cost.record({.decode_rows = 4}, 20ms);
    EXPECT_EQ(cost.prompt_time(4, 1), 20ms);
    EXPECT_EQ(cost.prompt_time(4, 6), 20ms);
    EXPECT_EQ(cost.prompt_time(4, 7), 25ms);
    EXPECT_EQ(cost.prompt_time(4, 8), 30ms);
    EXPECT_EQ(cost.prompt_time(4, 60), 30ms);

    // With many prompts a step may last longer. So a step of 70 ms is within its limit, and the
    // next step may have more prompt rows.
    const auto rows_after = [](std::uint32_t num_prompts) {
        StepCost one(stretch);
        one.record({.decode_rows = 4}, 20ms);
        one.record({.decode_rows = 4, .prompt_rows = 8, .num_prompts = num_prompts}, 70ms);
        return one.prompt_rows_max();
    };
    EXPECT_EQ(rows_after(1), 8u);
    EXPECT_EQ(rows_after(9), 16u);
}

// Regression: after a time in which hardly a row fitted, chunks stayed at one row, because StepCost
// assumed that each row costs as much as the first one.
TEST(StepCostTest, OneRowChunksGrowWhenFurtherRowsAreCheap) {
    StepCost cost(stretch);
    double slower = 3;
    const Machine machine{24, [&](auto rows, auto) { return slower * (14 + 2.0 * rows); }};
    std::vector<double> step_ms;
    const auto slow = run(cost, machine, 300, 1, step_ms);
    EXPECT_LE(slow.at(slow.size() - 2), 2u);

    slower = 1;
    const auto chunks = run(cost, machine, 1000, 1, step_ms);
    EXPECT_LE(chunks.size(), 320u);
    EXPECT_EQ(chunks[chunks.size() - 2], 5u);  // (24 ms - 14 ms for having rows) / 2 ms per row
}

// The first prompt row alone costs more than the available time, but 60 further rows cost hardly
// anything.
TEST(StepCostTest, RowsAreAddedWhenTheFirstRowIsExpensive) {
    StepCost cost(stretch);
    std::vector<double> step_ms;
    const auto chunks = run(cost, {20, [](auto rows, auto) { return 26 + 0.1 * rows; }}, 4000, 1,
                            step_ms);
    EXPECT_LE(chunks.size(), 200u);
    EXPECT_GE(chunks[chunks.size() - 2], 50u);
    EXPECT_LE(*std::max_element(step_ms.begin(), step_ms.end()), 3 * 20);
}

// One prompt row costs 1.4 times as much as a decode step, and 2 rows cost 2.8 times as much. So no
// chunk of 2 rows is tried, since it would make the decode rows wait too long.
TEST(StepCostTest, FurtherRowsAreNotTriedWhenTooLate) {
    StepCost cost(stretch);
    std::vector<double> step_ms;
    const auto chunks = run(cost, {10, [](auto rows, auto) { return 14.0 * rows; }}, 400, 1,
                            step_ms);
    for (std::size_t step = 10; step < chunks.size(); ++step) ASSERT_EQ(chunks[step], 1u) << step;
}

TEST(StepCostTest, ChunksAreSmallerWhenStepsAreOftenLate) {
    // Simulates a machine on which every twelfth step takes `late` times as long as expected.
    const auto late_steps = [](double late, std::size_t& num_steps) {
        StepCost cost(stretch);
        std::uint32_t step = 0;
        const Machine machine{20, [&](auto rows, auto) {
                                  const double ms = 1.0 * rows;
                                  return ++step % 12 == 0 ? late * (20 + ms) - 20 : ms;
                              }};
        std::vector<double> step_ms;
        run(cost, machine, 8000, 1, step_ms);
        num_steps = step_ms.size();
        return std::count_if(step_ms.begin() + 400, step_ms.end(),
                             [](double ms) { return ms > 1.02 * 3 * 20; });
    };
    std::size_t quiet = 0, late = 0, very_late = 0;
    EXPECT_EQ(late_steps(1.3, quiet), 0);
    EXPECT_LE(quiet, 8000u / 18);
    // Late steps would take 2 x 1.8 = 3.6 times as long as a decode step, beyond the limit of 3. So
    // the target is reduced from 2 to 1.67.
    EXPECT_LE(late_steps(1.8, late), static_cast<std::ptrdiff_t>(late / 100));
    EXPECT_GE(late, 8000u / 15);
    // The part of a step for prompts is reduced to half at most. If steps are 4 times as late, this
    // is not enough to stay within the limit.
    EXPECT_GT(late_steps(4, very_late), 0);
    EXPECT_LE(very_late, 8000u / 8);
}

TEST(StepCostTest, SingleSlowStepChangesLittle) {
    StepCost cost(stretch);
    for (int i = 0; i < 50; ++i) cost.record({.decode_rows = 1}, 20ms);
    cost.record({.decode_rows = 1}, 5s);
    EXPECT_LE(cost.prompt_time(1, 1), 25ms);
}

// Drafted rows make the prompts no smaller a crowd.
TEST(StepCostTest, CrowdIsCountedBySequences) {
    StepCost cost(stretch);
    cost.record({.decode_rows = 16}, 20ms);
    EXPECT_EQ(cost.prompt_time(16, 8), 20ms);
    EXPECT_EQ(cost.prompt_time(16, 8, 12), 30ms);
}

// Regression: the workers' line became longer while many prompts waited, with another number of
// decode rows in nearly each step. The steps were then taken for slow because of their prompt rows,
// so that prompts got a row a step.
TEST(StepCostTest, PromptsKeepTheirRowsWhenALineChanges) {
    StepCost cost(stretch);
    double line_ms = 0;
    const auto steps_of = [&](std::uint32_t num_rows) {
        std::uint32_t steps = 0;
        for (std::uint32_t left = num_rows; left > 0; ++steps) {
            const std::uint32_t sequences = 8 + steps % 24, drafted = steps % 5 * 8,
                                decode_rows = sequences + drafted;
            const double plain_ms = line_ms + 4 + 0.2 * decode_rows;
            std::uint32_t rows = 0;
            if (!cost.wants_plain_step(decode_rows)) {
                const Duration time = cost.prompt_time(decode_rows, 1, drafted);
                rows = std::min({left, cost.prompt_rows_max(),
                                 std::max(cost.prompt_rows_min(), cost.rows_within(time, 0))});
            }
            cost.record({.decode_rows = decode_rows,
                         .drafted_rows = drafted,
                         .prompt_rows = rows,
                         .num_prompts = 1},
                        ms(plain_ms + 0.1 * rows));
            left -= rows;
        }
        return steps;
    };
    steps_of(4000);
    EXPECT_LE(steps_of(4000), 60u);
    line_ms = 40;
    EXPECT_LE(steps_of(4000), 40u) << "a step has room for more prompt rows than before";
    line_ms = 0;
    EXPECT_LE(steps_of(4000), 80u);
    EXPECT_LE(steps_of(4000), 60u);
}

TEST(StepCostTest, StepsThatAreLateNowAndThenKeepWhatIsKnown) {
    StepCost cost(stretch);
    for (int i = 0; i < 50; ++i) cost.record({.decode_rows = 8}, 20ms);
    for (int i = 0; i < 2; ++i) cost.record({.decode_rows = 8}, 100ms);
    cost.record({.decode_rows = 8}, 20ms);
    for (int i = 0; i < 2; ++i) cost.record({.decode_rows = 8}, 100ms);
    EXPECT_LE(cost.prompt_time(8, 1), 45ms);
    cost.record({.decode_rows = 8}, 100ms);
    EXPECT_EQ(cost.prompt_time(8, 1), 100ms);
}

}  // namespace
}  // namespace moex
