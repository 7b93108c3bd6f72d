// Tests continuous batching through the engine's interface. The tests wait for events; a wait's
// deadline expires only if a test is broken.
#include "tests/hub/engine/engine_stage.h"

namespace moex {
namespace {

TEST_F(EngineTest, ConcurrentGenerationsEqualTheirSoloRuns) {
    start({.sequences_max = 4, .step_rows_max = 10, .prefix_cache = false});
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 6; ++i) {
        requests.push_back(greedy(test::random_tokens(3 + 7 * i, 256, i), 20));
        if (i % 2 == 1) requests.back().sampling = {.temperature = 0.9, .top_p = 0.9, .seed = i};
    }
    std::vector<Outcome> alone;

    for (const auto& request : requests) alone.push_back(solo(request));
    EXPECT_EQ(engine_->counters().steps_multi_sequence, 0u);
    experts_.close();  // no round is answered until all requests are submitted
    std::vector<Pending> together;
    for (const auto& request : requests) together.push_back(submit(request));
    experts_.open();

    for (std::size_t i = 0; i < together.size(); ++i) {
        const Outcome outcome = get(together[i]);
        EXPECT_EQ(outcome.ids, alone[i].ids);
        EXPECT_EQ(outcome.logprobs, alone[i].logprobs);
        EXPECT_EQ(outcome.end.reason, FinishReason::length);
        EXPECT_EQ(outcome.end.stats.completion_tokens, 20u);
        EXPECT_EQ(outcome.end.stats.prompt_tokens, requests[i].prompt.size());
        // Each row uses two experts in three MoE layers: 6 pairs. The last token needs no row.
        EXPECT_EQ(outcome.end.stats.pairs_local, 6 * (requests[i].prompt.size() + 19));
    }
    const EngineCounters counters = engine_->counters();
    EXPECT_GT(counters.steps_multi_sequence, 10u);
    EXPECT_EQ(counters.running_max, 4u);
    EXPECT_EQ(counters.generated_tokens, 240u);
    EXPECT_EQ(counters.kv_pages_used, 0u);
    EXPECT_EQ(counters.running, 0u);
}

TEST_F(EngineTest, LongLinksGetMicroBatchesAndTheSameTexts) {
    const auto write = [&](ExpertBackend& experts, const EngineOptions& options) {
        engine_ = std::make_unique<Engine>(*decoder_, experts, options);
        std::vector<Pending> pending;
        for (std::uint32_t i = 0; i < 4; ++i)
            pending.push_back(submit(greedy(test::random_tokens(8, 256, i), 100)));
        std::vector<std::vector<TokenId>> texts;
        for (Pending& one : pending) texts.push_back(get(one).ids);
        return texts;
    };
    FarExperts near(local_, 0ms), far(local_, 10ms);
    const auto options = [](const FarExperts& experts, std::uint32_t micro_batches) {
        return EngineOptions{.clock = [&experts] { return experts.now; },
                             .micro_batches = micro_batches};
    };

    const auto wanted = write(local_, {});
    // No step is cut into micro-batches, because this thread computes the experts itself.
    EXPECT_EQ(engine_->counters().steps_micro_batched, 0u);
    EXPECT_EQ(write(near, options(near, 0)), wanted);
    // Steps are not cut: over a link of 0 ms they do not wait for answers.
    EXPECT_EQ(engine_->counters().steps_micro_batched, 0u);
    EXPECT_EQ(write(far, options(far, 0)), wanted);
    EXPECT_GT(engine_->counters().steps_micro_batched, 50u);
    EXPECT_EQ(write(far, options(far, 3)), wanted);
    EXPECT_GT(engine_->counters().steps_micro_batched, 90u);
    EXPECT_EQ(write(far, options(far, 1)), wanted);
    EXPECT_EQ(engine_->counters().steps_micro_batched, 0u);
    far.hinted = true;
    EXPECT_EQ(write(far, options(far, 0)), wanted);
    // steps are not cut: the hint of one micro-batch would replace another's
    EXPECT_EQ(engine_->counters().steps_micro_batched, 0u);
}

// Regression: "Answered by N contributors" counted all workers of the step, including those of
// other users' rows.
TEST_F(EngineTest, GenerationReportsOnlyTheWorkersOfItsRows) {
    ExpertsAsWorkers named(local_);
    const auto workers_of = [&](std::vector<GenerationRequest> requests) {
        engine_ = std::make_unique<Engine>(*decoder_, named, EngineOptions{.sequences_max = 4});
        std::vector<Pending> pending;
        for (auto& request : requests) pending.push_back(submit(std::move(request)));
        std::vector<std::vector<std::uint64_t>> workers;
        for (Pending& one : pending) workers.push_back(get(one).end.stats.workers);
        return workers;
    };

    const auto short_one = [] { return greedy({17}, 1); };
    const auto alone = workers_of({short_one()}).front();
    const auto crowd = [&] {
        std::vector<GenerationRequest> requests{short_one()};
        for (std::uint32_t i = 0; i < 3; ++i)
            requests.push_back(greedy(test::random_tokens(60, 256, i), 1));
        return requests;
    };
    const auto together = workers_of(crowd());
    EXPECT_EQ(together.front(), alone);
    EXPECT_LE(alone.size(), 3u);            // one row in three MoE layers has at most three workers
    EXPECT_GT(together.back().size(), 3u);  // sixty rows
}

TEST_F(EngineTest, FewerRowsThanSequencesStillServesAll) {
    start({.sequences_max = 5, .step_rows_max = 2});
    std::vector<Pending> together;
    for (std::uint32_t i = 0; i < 5; ++i)
        together.push_back(submit(greedy(test::random_tokens(4, 256, i), 12)));
    for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(get(together[i]).ids.size(), 12u);
}

TEST_F(EngineTest, StopIdsEndWithoutATokenOfTheirOwn) {
    start({});
    const auto request = greedy(test::random_tokens(5, 256, 1), 16);
    const Outcome whole = solo(request);
    auto stopping = request;
    stopping.stop_ids = {whole.ids[7]};
    const auto first = std::find(whole.ids.begin(), whole.ids.end(), whole.ids[7]);
    const Outcome cut = solo(stopping);
    EXPECT_EQ(cut.ids, std::vector<TokenId>(whole.ids.begin(), first));
    EXPECT_EQ(cut.end.reason, FinishReason::stop);
}

TEST_F(EngineTest, TheContextBoundsPromptAndAnswer) {
    start({});
    const auto refused = engine_->submit(greedy(test::random_tokens(300, 256, 1), 8), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message.find("300"), std::string::npos);
    EXPECT_NE(refused.error().message.find("256"), std::string::npos);
    EXPECT_FALSE(engine_->submit(greedy({}, 8), {}).ok());
    EXPECT_FALSE(engine_->submit(greedy({1, 256}, 8), {}).ok());

    const Outcome cut = solo(greedy(test::random_tokens(250, 256, 1), 100));
    EXPECT_EQ(cut.ids.size(), 6u);
    EXPECT_EQ(cut.end.reason, FinishReason::length);
}

TEST_F(EngineTest, QueueIsBoundedAndCancelFreesItsSlot) {
    start({.sequences_max = 1, .queue_max = 2});
    experts_.close();
    auto running = submit(greedy(test::random_tokens(4, 256, 1), 200));
    experts_.wait_for_round();  // the request has left the queue and runs
    auto first = submit(greedy(test::random_tokens(4, 256, 2), 4));
    auto second = submit(greedy(test::random_tokens(4, 256, 3), 4));
    const auto refused = engine_->submit(greedy({1}, 4), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::overloaded);

    engine_->cancel(first.id);
    auto third = submit(greedy(test::random_tokens(4, 256, 4), 4));
    engine_->cancel(running.id);
    experts_.open();
    EXPECT_EQ(get(first).end.reason, FinishReason::cancelled);

    const Outcome cancelled = get(running);
    EXPECT_EQ(cancelled.end.reason, FinishReason::cancelled);
    EXPECT_LE(cancelled.ids.size(), 1u);  // at most one step ended after the cancel
    EXPECT_EQ(get(second).ids.size(), 4u);
    EXPECT_EQ(get(third).ids.size(), 4u);

    engine_->cancel(third.id);  // no effect, since this generation has ended
    EXPECT_EQ(solo(greedy({5}, 3)).ids.size(), 3u);
}

TEST_F(EngineTest, AdmissionWaitsForKeyValuePages) {
    const KvCache probe(package_->config(), {16, 0});
    start({.sequences_max = 8, .kv_bytes_max = 3 * probe.page_bytes()});
    const auto refused = engine_->submit(greedy(test::random_tokens(60, 256, 1), 8), {});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("48"), std::string::npos);

    std::vector<Pending> pending;
    // Each sequence needs two of the three pages, so only one sequence runs at a time.
    for (std::uint32_t i = 0; i < 4; ++i)
        pending.push_back(submit(greedy(test::random_tokens(20, 256, i), 12)));
    for (auto& one : pending) EXPECT_EQ(get(one).ids.size(), 12u);
    EXPECT_EQ(engine_->counters().running_max, 1u);
    EXPECT_EQ(engine_->counters().kv_pages, 3u);
}

TEST_F(EngineTest, PreemptedSequencesGiveTheSameTexts) {
    const KvCache probe(package_->config(), {16, 0});
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 5; ++i) {
        requests.push_back(greedy(test::random_tokens(10 + i, 256, i), 60));
        if (i % 2 == 1) requests.back().sampling = {.temperature = 0.9, .seed = i};
    }
    requests[4].prompt_logprobs = true;
    start({});
    std::vector<Outcome> alone;

    for (const auto& request : requests) alone.push_back(solo(request));
    engine_.reset();
    // The cache has pages for only two of the five sequences.
    start({.sequences_max = 5, .step_rows_max = 24, .kv_bytes_max = 9 * probe.page_bytes()});
    experts_.close();
    std::vector<Pending> together;

    for (const auto& request : requests) together.push_back(submit(request));
    experts_.open();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Outcome outcome = get(together[i]);
        EXPECT_EQ(outcome.ids, alone[i].ids) << i;
        EXPECT_EQ(outcome.logprobs, alone[i].logprobs) << i;
        const auto &scores = outcome.end.prompt_logprobs, &wanted = alone[i].end.prompt_logprobs;
        ASSERT_EQ(scores.size(), wanted.size()) << i;
        for (std::size_t token = 0; token < scores.size(); ++token)
            EXPECT_EQ(scores[token].logprob, wanted[token].logprob) << i;
        EXPECT_EQ(outcome.end.stats.completion_tokens, 60u);
    }
    const EngineCounters counters = engine_->counters();
    EXPECT_GE(counters.running_max, 3u);
    EXPECT_GT(counters.preempted, 0u);
    EXPECT_EQ(counters.prompt_tokens, 10u + 11 + 12 + 13 + 14);
    EXPECT_EQ(counters.kv_pages_used, 0u);
}

// What another hub has drawn is the begin of the answer: the rest is the same at every temperature,
// with penalties, and with a limit that the given tokens already reach.
TEST_F(EngineTest, AnAnswerGoesOnAfterGivenTokens) {
    start({});
    for (std::uint32_t i = 0; i < 4; ++i) {
        GenerationRequest whole = greedy(test::random_tokens(10 + i, 256, i), 40);
        if (i > 0)
            whole.sampling = {.temperature = 0.8 + 0.2 * i,
                              .top_p = 0.95,
                              .repetition_penalty = i == 2 ? 1.3 : 1.0,
                              .frequency_penalty = i == 3 ? 0.5 : 0.0,
                              .seed = i};
        const Outcome undisturbed = solo(whole);
        ASSERT_EQ(undisturbed.ids.size(), 40u);
        for (const std::size_t given : {1u, 17u, 39u, 40u}) {
            GenerationRequest rest = whole;
            rest.client = text("another client ", i, given);
            rest.answer.assign(undisturbed.ids.begin(), undisturbed.ids.begin() + given);
            const Outcome outcome = solo(rest);
            const std::vector<TokenId> wanted(undisturbed.ids.begin() + given,
                                              undisturbed.ids.end());
            EXPECT_EQ(outcome.ids, wanted) << "request " << i << " after " << given;
            EXPECT_EQ(outcome.end.reason, FinishReason::length);
            EXPECT_EQ(outcome.end.stats.completion_tokens, 40u);
        }
    }
    GenerationRequest wrong = greedy(test::random_tokens(10, 256, 0), 2);
    wrong.answer = {1, 2, 3};
    EXPECT_EQ(engine_->submit(wrong, {}).error().code, ErrorCode::invalid_argument);
    wrong.answer = {256};
    EXPECT_EQ(engine_->submit(wrong, {}).error().code, ErrorCode::invalid_argument);
}

TEST_F(EngineTest, PromptLogprobsAndLogprobsAreTheModels) {
    start({.step_rows_max = 7});
    auto request = greedy(test::random_tokens(20, 256, 1), 3);
    request.prompt_logprobs = request.logprobs = true;
    request.top_logprobs = 5;
    const Outcome outcome = solo(request);
    ASSERT_EQ(outcome.end.prompt_logprobs.size(), 19u);

    KvCache cache(package_->config(), {16, 8});
    KvCache::Sequence sequence(cache);
    const StepRows rows{.kv = &sequence, .tokens = request.prompt, .all_logits = true};
    const auto step = decoder_->step({&rows, 1}, local_);
    ASSERT_TRUE(step.ok());

    std::vector<float> logprobs(256);
    for (std::size_t i = 0; i < 19; ++i) {
        log_softmax(std::span(step->logits).subspan(i * 256, 256), logprobs);
        const SampledToken& scored = outcome.end.prompt_logprobs[i];
        EXPECT_EQ(scored.id, request.prompt[i + 1]);
        EXPECT_NEAR(scored.logprob, logprobs[request.prompt[i + 1]], 1e-5);
        ASSERT_EQ(scored.top.size(), 5u);
        EXPECT_NEAR(scored.top[0].logprob, *std::max_element(logprobs.begin(), logprobs.end()),
                    1e-5);
    }
    log_softmax(std::span(step->logits).subspan(19 * 256, 256), logprobs);
    EXPECT_NEAR(outcome.logprobs[0], *std::max_element(logprobs.begin(), logprobs.end()), 1e-5);
    EXPECT_EQ(solo([&] {
                  auto none = request;
                  none.max_tokens = 0;
                  return none;
              }())
                  .ids.size(),
              0u);
}

}  // namespace
}  // namespace moex
