// Tests lossy answers that run together with exact answers, through the engine's interface.
#include "tests/hub/engine/engine_stage.h"

namespace moex {
namespace {

// Exact and lossy answers run together. The cache has pages for only two of five answers, so
// answers are preempted and computed again.
TEST_F(EngineTest, LossyAnswersDoNotChangeExactAnswers) {
    const KvCache probe(package_->config(), {16, 0});
    NothingStandsIn nothing, other;  // two speculators, so that a step has rows of both
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 5; ++i) {
        requests.push_back(greedy(test::random_tokens(10 + i, 256, i), 60));
        requests.back().logprobs = true;
        if (i % 2 == 0) requests.back().speculator = i == 2 ? &other : &nothing;
    }
    start({});
    std::vector<Outcome> alone;
    for (const auto& request : requests) alone.push_back(solo(request));
    EXPECT_EQ(nothing.positions_min, 10u);  // prompts are exact

    GenerationRequest exact = requests[0];
    exact.speculator = nullptr;
    const Outcome unlike = solo(exact);
    EXPECT_NE(unlike.logprobs, alone[0].logprobs);
    EXPECT_EQ(unlike.logprobs[0], alone[0].logprobs[0]);

    engine_.reset();
    start({.sequences_max = 5, .step_rows_max = 24, .kv_bytes_max = 9 * probe.page_bytes()});
    experts_.close();
    std::vector<Pending> together;
    for (const auto& request : requests) together.push_back(submit(request));
    experts_.open();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Outcome outcome = get(together[i]);
        EXPECT_EQ(outcome.ids, alone[i].ids) << i;
        EXPECT_EQ(outcome.logprobs, alone[i].logprobs) << i;
        EXPECT_EQ(outcome.end.stats.speculative, i % 2 == 0);
    }
    EXPECT_GT(engine_->counters().preempted, 0u);
}

// The next turn of a conversation takes over the cache pages of the question, but no page of a
// lossy answer.
TEST_F(EngineTest, PagesOfLossyAnswersAreNotShared) {
    NothingStandsIn nothing;
    start({});
    for (const bool lossy : {true, false}) {
        GenerationRequest request = greedy(test::random_tokens(32, 256, lossy), 40);
        if (lossy) request.speculator = &nothing;
        const Outcome answer = solo(request);
        ASSERT_EQ(answer.ids.size(), 40u);
        GenerationRequest next = greedy(request.prompt, 4);
        next.prompt.insert(next.prompt.end(), answer.ids.begin(), answer.ids.end());
        EXPECT_EQ(solo(next).end.stats.cached_tokens, lossy ? 32u : 64u);
    }

    // No page of an answer with a latency budget is taken over, even if no expert's answer was left
    // out.
    GenerationRequest request = greedy(test::random_tokens(32, 256, 7), 40);
    request.late_wait = 1s, request.late_pairs_max = 1;
    const Outcome answer = solo(request);
    GenerationRequest next = greedy(request.prompt, 4);
    next.prompt.insert(next.prompt.end(), answer.ids.begin(), answer.ids.end());
    EXPECT_EQ(solo(next).end.stats.cached_tokens, 32u);
}

// Each of the three MoE layers has one late answer per step. Seven answers, the limit, are left out
// over three steps, and no further ones.
TEST_F(EngineTest, LateAnswersAreLeftOutUpToTheLimit) {
    LateExperts late(experts_);
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 4; ++i) {
        requests.push_back(greedy(test::random_tokens(10 + i, 256, i), 20));
        requests.back().logprobs = true;
    }
    start({.prefix_cache = false});
    std::vector<Outcome> exact;
    for (const auto& request : requests) exact.push_back(solo(request));

    for (const std::size_t i : {1u, 3u})
        requests[i].late_wait = 1ms, requests[i].late_pairs_max = 7;
    engine_ = std::make_unique<Engine>(*decoder_, late,
                                       EngineOptions{.step_rows_max = 12, .prefix_cache = false});
    experts_.close();
    std::vector<Pending> together;
    for (const auto& request : requests) together.push_back(submit(request));
    experts_.open();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Outcome outcome = get(together[i]);
        const bool lacks = i % 2 == 1;
        EXPECT_EQ(outcome.end.stats.pairs_late, lacks ? 7u : 0u) << i;
        EXPECT_EQ(outcome.logprobs[0], exact[i].logprobs[0]) << "the prompt lacks nothing";
        EXPECT_EQ(outcome.logprobs == exact[i].logprobs, !lacks) << i;
        if (!lacks) {
            EXPECT_EQ(outcome.ids, exact[i].ids) << i;
        }
    }
}

// A device without speculators, like the GPU that computes the hub's layers.
TEST_F(EngineTest, DeviceWithoutSpeculatorsRefusesLossyAnswers) {
    test::LogitsOnly device(*decoder_);
    Engine engine(device, experts_, {});
    NothingStandsIn nothing;
    GenerationRequest request = greedy({1, 2, 3}, 4);
    request.speculator = &nothing;
    EXPECT_EQ(engine.submit(request, {}).error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace moex
