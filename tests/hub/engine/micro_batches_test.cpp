// Tests the choice of the number of micro-batches on simulated machines with given step times. No
// clock is used.
#include "hub/engine/micro_batches.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

namespace moex {
namespace {

// A machine for the test: the time of a step with `rows` rows in `number` micro-batches, and the
// share of an uncut step that the hub spends waiting.
struct SteppedMachine {
    std::function<double(std::uint32_t rows, std::uint32_t number)> step_ms;
    double waited_share = 0.6;
};
// Returns a machine with a link to its worker. A layer takes `own_ms` per row in the hub and in the
// worker, and `fixed_ms` for each micro-batch. The link has a latency of `line_ms`, which the
// computation of other micro-batches hides.
SteppedMachine pipelined(double own_ms, double fixed_ms, double line_ms) {
    return {[=](std::uint32_t rows, std::uint32_t number) {
        const double all = rows * own_ms + number * fixed_ms;
        return std::max(all, all / number + line_ms);
    }};
}
Duration millis(double value) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(value));
}

struct Steps {
    std::uint32_t last = 0;     // number of micro-batches in the last step
    std::uint32_t num_cut = 0;  // number of steps cut into two or more micro-batches
    double took_ms = 0;
};
Steps play(MicroBatches& micro_batches, const SteppedMachine& machine, const StepShape& shape,
           std::uint32_t num_steps) {
    const std::uint32_t rows = shape.decode_rows + shape.prompt_rows;
    Steps steps;
    for (std::uint32_t i = 0; i < num_steps; ++i) {
        steps.last = micro_batches.choose(shape);
        steps.num_cut += steps.last > 1;
        const double took = machine.step_ms(rows, steps.last);
        micro_batches.record(shape, steps.last, millis(took), millis(machine.waited_share * took));
        steps.took_ms += took;
    }
    return steps;
}

TEST(MicroBatchesTest, LongLinkIsHiddenWithinTenSteps) {
    MicroBatches micro_batches(2, 0);
    const SteppedMachine far = pipelined(0.05, 0.1, 3);
    EXPECT_EQ(play(micro_batches, far, {.decode_rows = 16}, 5).num_cut, 0u);
    EXPECT_EQ(play(micro_batches, far, {.decode_rows = 16}, 5).last, 2u);
    const Steps later = play(micro_batches, far, {.decode_rows = 16}, 2000);
    EXPECT_GE(later.num_cut, 1980u);
}

TEST(MicroBatchesTest, TrialsWithoutALinkCostUnderOnePercent) {
    MicroBatches micro_batches(2, 0);
    // on this machine, two micro-batches take 1.5 times as long as one
    const SteppedMachine near = pipelined(0.05, 0.8, 0);
    const Steps all = play(micro_batches, near, {.decode_rows = 16}, 1000);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 16}), 1u);
    EXPECT_GE(all.num_cut, 3u);
    EXPECT_LT(all.took_ms, 1.01 * 1000 * near.step_ms(16, 1));
}

TEST(MicroBatchesTest, AStepThatHardlyWaitsIsNeverCut) {
    MicroBatches micro_batches(4, 0);
    SteppedMachine local = pipelined(0.05, 0.1, 3);
    local.waited_share = 0.05;
    EXPECT_EQ(play(micro_batches, local, {.decode_rows = 64}, 3000).num_cut, 0u);
}

TEST(MicroBatchesTest, LargestNumberThatPaysIsUsed) {
    const StepShape shape{.decode_rows = 64};
    MicroBatches four(4, 0), three(3, 0), shallow(4, 0);
    EXPECT_EQ(play(four, pipelined(0.05, 0.1, 4), shape, 400).last, 4u);
    EXPECT_EQ(play(three, pipelined(0.05, 0.1, 4), shape, 400).last, 3u);
    // Two micro-batches hide the link's latency; a third micro-batch costs more time than it saves.
    const SteppedMachine short_line = pipelined(0.05, 0.3, 1.4);
    EXPECT_LT(short_line.step_ms(64, 2), short_line.step_ms(64, 1));
    EXPECT_LT(short_line.step_ms(64, 2), short_line.step_ms(64, 3));
    EXPECT_EQ(play(shallow, short_line, shape, 400).last, 2u);
}

// The durations of steps with one to four micro-batches, relative to an uncut step, were measured
// over a link of 2 ms. Against two micro-batches, three save about 2 % and four save 5 %.
TEST(MicroBatchesTest, TrialsContinuePastANumberThatSavesLittle) {
    const StepShape shape{.decode_rows = 16};
    const double shares[] = {1, 0.9, 0.885, 0.855};
    const SteppedMachine machine{
        [&](std::uint32_t, std::uint32_t number) { return 170 * shares[number - 1]; }};
    MicroBatches micro_batches(4, 0);
    EXPECT_EQ(play(micro_batches, machine, shape, 40).last, 4u);
    EXPECT_LT(play(micro_batches, machine, shape, 2000).took_ms, 1.005 * 2000 * 170 * shares[3]);
}

// The waiting time of an uncut step gives the first number of micro-batches to try. So the first
// trial has four, and no step with two or three is needed.
TEST(MicroBatchesTest, LongLinkIsCutIntoFourAtOnce) {
    MicroBatches micro_batches(4, 0);
    const StepShape shape{.decode_rows = 16};
    SteppedMachine far = pipelined(0.02, 0.4, 4);
    far.waited_share = 0.85;
    EXPECT_EQ(play(micro_batches, far, shape, 5).last, 1u);
    EXPECT_EQ(play(micro_batches, far, shape, 1).last, 4u);
    EXPECT_EQ(play(micro_batches, far, shape, 40).last, 4u);
}

// Steps of long prompts are rare, so two uncut steps and two cut steps are enough for a decision.
TEST(MicroBatchesTest, TwoLongStepsDecideATrial) {
    MicroBatches micro_batches(4, 0);
    const StepShape prompt{.prompt_rows = 512};
    SteppedMachine far = pipelined(1, 4, 500);
    far.waited_share = 0.75;
    EXPECT_EQ(play(micro_batches, far, prompt, 2).last, 1u);
    EXPECT_EQ(play(micro_batches, far, prompt, 2).last, 4u);
    EXPECT_EQ(play(micro_batches, far, prompt, 40).last, 4u);

    std::uint32_t step = 0;  // a single disturbed step does not change the decision
    MicroBatches disturbed(4, 0);
    const SteppedMachine stumbles{[&](std::uint32_t rows, std::uint32_t number) {
                                      return far.step_ms(rows, number) * (++step == 3 ? 10 : 1);
                                  },
                                  far.waited_share};
    EXPECT_EQ(play(disturbed, stumbles, prompt, 5).last, 4u);
}

// Without a link each further micro-batch only costs time, so numbers above two are not tried.
TEST(MicroBatchesTest, TrialsUpToFourAddNoCostWithoutLink) {
    const StepShape shape{.decode_rows = 16};
    SteppedMachine near = pipelined(0.05, 0.8, 0);
    near.waited_share = 0.4;  // the time in which workers compute the rows
    MicroBatches two(2, 0), four(4, 0);
    EXPECT_EQ(play(four, near, shape, 1000).took_ms, play(two, near, shape, 1000).took_ms);
    EXPECT_EQ(four.choose(shape), 1u);
}

TEST(MicroBatchesTest, ChangedLinkIsDetected) {
    MicroBatches micro_batches(2, 0);
    const StepShape shape{.decode_rows = 16};
    const SteppedMachine near = pipelined(0.05, 0.5, 0), far = pipelined(0.05, 0.5, 5);
    (void)play(micro_batches, near, shape, 1000);
    EXPECT_GE(play(micro_batches, far, shape, 100).num_cut, 80u);
    EXPECT_LE(play(micro_batches, near, shape, 100).num_cut, 70u);
    EXPECT_LE(play(micro_batches, near, shape, 100).num_cut, 5u);
}

TEST(MicroBatchesTest, SingleSlowStepDecidesNothing) {
    MicroBatches micro_batches(2, 0);
    const StepShape shape{.decode_rows = 16};
    const SteppedMachine far = pipelined(0.05, 0.1, 3);
    std::uint32_t step = 0;
    const SteppedMachine stumbles{[&](std::uint32_t rows, std::uint32_t number) {
        return far.step_ms(rows, number) * (++step % 5 == 0 ? 10 : 1);
    }};
    (void)play(micro_batches, stumbles, shape, 20);
    EXPECT_GE(play(micro_batches, stumbles, shape, 1000).num_cut, 980u);
}

// The first steps after a pause take twice as long as later ones, whatever the number of
// micro-batches, because clocks rise and contributors wake up. On this machine micro-batches only
// cost time.
TEST(MicroBatchesTest, StepsThatBecomeFasterByThemselvesDoNotCutLaterOnes) {
    const StepShape shape{.decode_rows = 8};
    std::uint32_t step = 0;
    const SteppedMachine wakes{[&](std::uint32_t, std::uint32_t number) {
        const double warmth = std::min(1.0, ++step / 12.0);
        return 60 * (2 - warmth) * (1 + 0.08 * (number - 1));
    }};
    MicroBatches micro_batches(4, 0);
    EXPECT_GE(play(micro_batches, wakes, shape, 10).num_cut, 3u);  // the first trial deceives
    EXPECT_LE(play(micro_batches, wakes, shape, 190).num_cut, 40u);
}

// Steps of prompts are long and decode steps are short. A number of micro-batches that saves time
// for one kind of steps may cost time for the other kind.
TEST(MicroBatchesTest, PromptsAndSizesLearnApart) {
    MicroBatches micro_batches(2, 0);
    const SteppedMachine far = pipelined(0.05, 0.1, 3), near = pipelined(0.05, 0.5, 0);
    (void)play(micro_batches, far, {.decode_rows = 16}, 100);
    (void)play(micro_batches, near, {.prompt_rows = 16}, 100);
    (void)play(micro_batches, near, {.decode_rows = 4}, 100);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 16}), 2u);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 31}), 2u);
    EXPECT_EQ(micro_batches.choose({.prompt_rows = 16}), 1u);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 12, .prompt_rows = 4}), 1u);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 4}), 1u);
}

TEST(MicroBatchesTest, NewSizeBeginsWithItsNeighboursNumber) {
    MicroBatches micro_batches(2, 0);
    (void)play(micro_batches, pipelined(0.05, 0.1, 3), {.decode_rows = 16}, 40);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 40}), 2u);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 9}), 2u);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 100}), 1u);
    EXPECT_EQ(micro_batches.choose({.prompt_rows = 40}), 1u);
    // a machine on which micro-batches cost too much
    const SteppedMachine costly = pipelined(0.05, 2, 0);
    (void)play(micro_batches, costly, {.decode_rows = 40}, 10);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 40}), 1u);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 16}), 2u);
}

TEST(MicroBatchesTest, FixedNumberIsLimitedByTheRows) {
    MicroBatches micro_batches(2, 4);
    const SteppedMachine near = pipelined(0.05, 0.5, 0);
    EXPECT_EQ(play(micro_batches, near, {.decode_rows = 16}, 100).last, 4u);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 3}), 3u);
    EXPECT_EQ(micro_batches.choose({.decode_rows = 1}), 1u);
    EXPECT_EQ(micro_batches.choose({.prompt_rows = 5000}), 4u);
}

}  // namespace
}  // namespace moex
