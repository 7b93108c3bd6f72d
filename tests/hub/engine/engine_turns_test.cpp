// Tests the order in which requests are computed: prompts that run together with other prompts and
// with sequences that decode.
#include "tests/hub/engine/engine_stage.h"

namespace moex {
namespace {

// Regression: one client's thirty requests were served before another client's only one.
TEST_F(EngineTest, WaitingClientsAreServedRoundRobin) {
    start({.sequences_max = 1});
    experts_.close();
    std::mutex mutex;
    std::string order;
    std::vector<std::future<void>> ended;
    const auto ask = [&](char client) {
        auto request = greedy({1, 2, 3}, 1);
        request.client = client;
        auto done = std::make_shared<std::promise<void>>();
        ended.push_back(done->get_future());
        EXPECT_TRUE(engine_
                        ->submit(request, {.on_token = {},
                                           .on_end =
                                               [&, client, done](const GenerationEnd&) {
                                                   {
                                                       const std::lock_guard lock(mutex);
                                                       order += client;
                                                   }
                                                   done->set_value();
                                               }})
                        .ok());
    };
    ask('a');
    experts_.wait_for_round();  // the request has left the queue and runs
    for (const char client : std::string("aaaabbca")) ask(client);
    experts_.open();
    for (auto& one : ended) one.get();
    EXPECT_EQ(order, "aabcabaaa");
}

TEST_F(EngineTest, AShortPromptDoesNotWaitForALongOne) {
    start({.sequences_max = 2, .step_rows_max = 16});
    experts_.close();
    // this request runs until the long and the short prompt are queued
    auto held = submit(greedy(test::random_tokens(4, 256, 3), 1));
    experts_.wait_for_round();
    std::atomic<bool> long_began{false}, short_was_first{false};
    std::promise<void> long_done, short_done;

    const auto hear = [](std::function<void()> first, std::promise<void>& done) {
        return GenerationSink{.on_token =
                                  [first](const TokenEvent& event) {
                                      if (event.index == 0) first();
                                  },
                              .on_end = [&done](const GenerationEnd&) { done.set_value(); }};
    };
    ASSERT_TRUE(engine_
                    ->submit(greedy(test::random_tokens(200, 256, 1), 2),
                             hear([&] { long_began = true; }, long_done))
                    .ok());
    ASSERT_TRUE(engine_
                    ->submit(greedy(test::random_tokens(12, 256, 2), 2),
                             hear([&] { short_was_first = !long_began; }, short_done))
                    .ok());

    experts_.open();
    long_done.get_future().wait();
    short_done.get_future().wait();
    EXPECT_TRUE(short_was_first);
    get(held);
}

// Regression: prompts that ran side by side all ended only with the last one.
TEST_F(EngineTest, SimultaneousShortPromptsRunOneAfterTheOther) {
    start({.sequences_max = 4, .step_rows_max = 16});
    experts_.close();
    auto held = submit(greedy(test::random_tokens(4, 256, 9), 1));
    experts_.wait_for_round();

    // for each request, the step of its first token; only the engine's thread writes this
    std::vector<std::uint64_t> steps;
    std::vector<std::promise<void>> done(3);
    for (std::uint32_t i = 0; i < 3; ++i)
        ASSERT_TRUE(engine_
                        ->submit(greedy(test::random_tokens(16, 256, i), 1),
                                 {.on_token =
                                      [&](const TokenEvent&) {
                                          steps.push_back(engine_->counters().steps);
                                      },
                                  .on_end = [&done, i](const auto&) { done[i].set_value(); }})
                        .ok());
    experts_.open();
    for (auto& one : done) one.get_future().wait();
    get(held);
    EXPECT_EQ(steps, (std::vector<std::uint64_t>{steps[0], steps[0] + 1, steps[0] + 2}));
}

TEST_F(EngineTest, ManyShortPromptsDoNotBlockALongOne) {
    constexpr std::uint32_t num_short = 40;
    start({.sequences_max = num_short + 2, .step_rows_max = 16});
    experts_.close();
    auto held = submit(greedy(test::random_tokens(4, 256, 99), 1));
    experts_.wait_for_round();

    std::uint32_t short_before_long = 0, short_done = 0;  // used only on the engine's thread
    std::promise<void> all;
    std::uint32_t open = num_short + 1;
    const auto on_end = [&](const auto&) {
        if (--open == 0) all.set_value();
    };
    ASSERT_TRUE(
        engine_
            ->submit(greedy(test::random_tokens(80, 256, 98), 1),
                     {.on_token = [&](const TokenEvent&) { short_before_long = short_done; },
                      .on_end = on_end})
            .ok());
    for (std::uint32_t i = 0; i < num_short; ++i)
        ASSERT_TRUE(
            engine_
                ->submit(greedy(test::random_tokens(16, 256, i), 1),
                         {.on_token = [&](const TokenEvent&) { ++short_done; }, .on_end = on_end})
                .ok());
    experts_.open();
    all.get_future().wait();
    get(held);
    EXPECT_GE(short_before_long, num_short / 4);
    EXPECT_LE(short_before_long, num_short / 2);
}

// On the simulated clock a step takes very long, so that the second request arrives in time for the
// first step.
TEST_F(EngineTest, RequestsOfABurstBeginTogether) {
    ExpertsWithAClock timed(local_);
    engine_ = std::make_unique<Engine>(
        *decoder_, timed,
        EngineOptions{.sequences_max = 2,
                      .clock = [&timed] { return timed.now + 100'000 * (timed.now - TimePoint{}); },
                      .prefix_cache = false});
    // learns how long steps last; before that, no cost is known
    (void)solo(greedy(test::random_tokens(3, 256, 1), 4));
    timed.step_rows.clear();
    Pending first = submit(greedy(test::random_tokens(3, 256, 2), 4)),
            second = submit(greedy(test::random_tokens(5, 256, 3), 4));
    (void)get(first);
    (void)get(second);
    EXPECT_EQ(timed.step_rows, (std::vector<std::uint32_t>{8, 2, 2, 2}));
}

// Regression: a prompt of a thousand tokens blocked all other answers, because each step computed
// 256 rows of the prompt.
TEST_F(EngineTest, PromptBesideDecodingSequenceIsCutByStepTime) {
    ExpertsWithAClock timed(local_);
    std::vector<double> lateness;  // the engine's thread
    engine_ = std::make_unique<Engine>(
        *decoder_, timed,
        EngineOptions{.sequences_max = 2,
                      .clock = [&timed] { return timed.now; },
                      .on_step =
                          [&lateness](const StepShape& shape, Duration expected, Duration took) {
                              if (shape.decode_rows > 0 && shape.prompt_rows > 0)
                                  lateness.push_back(to_ms(took) / to_ms(expected));
                          },
                      .prefix_cache = false});
    const auto prompt = greedy(test::random_tokens(120, 256, 2), 1);
    Pending late;
    auto talker_done = std::make_shared<std::promise<void>>();
    ASSERT_TRUE(
        engine_
            ->submit(greedy(test::random_tokens(4, 256, 1), 200),
                     {.on_token =
                          [&](const TokenEvent& event) {
                              if (event.index == 3) late = submit(prompt);
                          },
                      .on_end = [talker_done](const GenerationEnd&) { talker_done->set_value(); }})
            .ok());
    talker_done->get_future().wait();
    const Outcome beside = get(late);

    // In each layer a decode row costs 2.5 ms and a prompt row 0.5 ms, so five prompt rows double
    // the duration of a step.
    const std::size_t steps = 200;
    ASSERT_GE(timed.step_rows.size(), steps);
    std::size_t with_prompt = 0, rows = 0;
    for (std::size_t step = 1; step < steps; ++step) {
        EXPECT_LE(timed.step_rows[step], 1u + 8) << "step " << step;
        if (timed.step_rows[step] > 1) rows += timed.step_rows[step] - 1, ++with_prompt;
    }
    EXPECT_EQ(rows, 120u);
    EXPECT_GE(with_prompt, 120u / 6);
    EXPECT_LE(with_prompt, 120u / 4);
    // Except for the first few, steps with prompt rows last as long as StepCost expected.
    ASSERT_EQ(lateness.size(), with_prompt);
    for (std::size_t step = 4; step < lateness.size(); ++step)
        EXPECT_NEAR(lateness[step], 1, 0.05) << step;

    // Without other sequences the whole prompt is computed in one step, and the answer is the same.
    timed.step_rows.clear();
    const Outcome alone = solo(prompt);
    EXPECT_EQ(timed.step_rows.front(), 120u);
    EXPECT_EQ(alone.ids, beside.ids);
}

}  // namespace
}  // namespace moex
