// Models in which most layers have a gated delta rule: neither the way a text is cut into steps,
// nor other texts, drafts, preemption or failed steps change a bit.
#include <cstring>

#include "tests/hub/engine/engine_stage.h"
#include "tests/hub/engine/known_drafts.h"

namespace moex {
namespace {

class HybridTest : public EngineTest {
  protected:
    HybridTest() : EngineTest(test::hybrid_package()) {}

    std::vector<float> step(std::span<const StepRows> batch, std::uint32_t micro_batches = 1) {
        auto result = decoder_->run(batch, experts_, micro_batches, {});
        if (!result.ok()) throw std::runtime_error(result.error().message);
        return std::move(result->logits);
    }
    // The logits of all rows of a text, computed alone in one step.
    std::vector<float> alone(std::span<const TokenId> ids) {
        KvCache cache(package_->config(), {16, 64});
        KvCache::Sequence sequence(cache);
        const StepRows rows{.kv = &sequence, .tokens = ids, .all_logits = true};
        return step({&rows, 1});
    }

    static GenerationRequest request_of(std::uint32_t i) {
        GenerationRequest request = drawn_request(
            test::random_tokens(1 + i * 7919 % 41, 256, i % 11), 1 + i * 31 % 28);
        request.sampling.temperature = i % 3 == 0 ? 0 : 0.9;
        request.sampling.seed = i;
        request.client = text("client ", i % 3);
        return request;
    }
    std::vector<Outcome> run(std::uint32_t count, EngineOptions options) {
        engine_ = std::make_unique<Engine>(*decoder_, experts_, options);
        std::vector<Pending> pending;
        for (std::uint32_t i = 0; i < count; ++i) pending.push_back(submit(request_of(i)));
        std::vector<Outcome> outcomes;
        for (Pending& one : pending) outcomes.push_back(get(one));
        counters_ = engine_->counters();
        engine_.reset();
        return outcomes;
    }
    static void expect_equal(const std::vector<Outcome>& outcomes,
                             const std::vector<Outcome>& wanted) {
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            ASSERT_EQ(outcomes[i].ids, wanted[i].ids) << i;
            ASSERT_EQ(outcomes[i].logprobs, wanted[i].logprobs) << i;
            ASSERT_EQ(outcomes[i].end.reason, wanted[i].end.reason) << i;
        }
    }

    EngineCounters counters_;
};

TEST_F(HybridTest, CutsNeighboursAndMicroBatchesChangeNoBit) {
    constexpr std::uint32_t num_tokens = 90, num_texts = 3;
    const std::size_t vocab_size = package_->config().vocab_size;
    std::vector<std::vector<TokenId>> texts;
    std::vector<std::vector<float>> wanted;
    for (std::uint32_t i = 0; i < num_texts; ++i) {
        texts.push_back(test::random_tokens(num_tokens, 256, i));
        wanted.push_back(alone(texts.back()));
    }

    std::mt19937 generator(1);
    const auto random = [&] { return static_cast<std::uint32_t>(generator()); };
    for (int trial = 0; trial < 20; ++trial) {
        KvCache cache(package_->config(), {16, 64});
        std::vector<KvCache::Sequence> sequences;
        for (std::uint32_t i = 0; i < num_texts; ++i) sequences.emplace_back(cache);
        std::vector<std::vector<float>> found(num_texts);
        while (sequences[0].num_tokens() + sequences[1].num_tokens() + sequences[2].num_tokens() <
               num_texts * num_tokens) {
            std::vector<StepRows> batch;
            std::vector<std::uint32_t> members;
            for (std::uint32_t i = 0; i < num_texts; ++i) {
                const std::uint32_t done = sequences[i].num_tokens();
                const std::uint32_t most = random() % 2 == 0 ? 9 : 40;
                const std::uint32_t count = std::min(num_tokens - done, random() % (most + 1));
                if (count == 0) continue;
                members.push_back(i);
                batch.push_back({.kv = &sequences[i],
                                 .tokens = std::span(texts[i]).subspan(done, count),
                                 .all_logits = true});
            }
            if (batch.empty()) continue;
            const std::vector<float> logits = step(batch, 1 + random() % 3);
            std::size_t at = 0;
            for (std::size_t i = 0; i < batch.size(); ++i) {
                const std::size_t floats = batch[i].tokens.size() * vocab_size;
                auto& to = found[members[i]];
                to.insert(to.end(), logits.begin() + at, logits.begin() + at + floats);
                at += floats;
            }
        }
        for (std::uint32_t i = 0; i < num_texts; ++i)
            ASSERT_EQ(std::memcmp(found[i].data(), wanted[i].data(), wanted[i].size() * 4), 0)
                << "trial " << trial << ", text " << i;
    }
}

// While a round is out the threads are told which matrices they will need next, and those of a
// layer with a gated delta rule are others. Packed matrices alone are announced.
TEST_F(HybridTest, RoundsElsewhereChangeNoBit) {
    DecoderOptions options;
    options.arithmetic = Arithmetic::int8;
    auto packed = Decoder::create(package_, test::compute_threads(), options);
    ASSERT_TRUE(packed.ok()) << packed.error().message;
    FarExperts far(local_, 1ms);
    const std::vector<TokenId> ids = test::random_tokens(20, 256, 1);
    std::vector<float> logits[2];
    for (int i = 0; i < 2; ++i) {
        KvCache cache(package_->config(), {16, 64});
        KvCache::Sequence sequence(cache);
        const StepRows rows{.kv = &sequence, .tokens = ids, .all_logits = true};
        ExpertBackend& experts = i == 0 ? static_cast<ExpertBackend&>(experts_) : far;
        auto result = (*packed)->run({&rows, 1}, experts, 1, {});
        ASSERT_TRUE(result.ok()) << result.error().message;
        logits[i] = std::move(result->logits);
    }
    EXPECT_EQ(std::memcmp(logits[0].data(), logits[1].data(), logits[0].size() * 4), 0);
}

TEST_F(HybridTest, StepThatFailedIsRepeatedWithTheSameBits) {
    const std::vector<TokenId> ids = test::random_tokens(60, 256, 4);
    const std::vector<float> wanted = alone(ids);
    KvCache cache(package_->config(), {16, 64});
    KvCache::Sequence sequence(cache);
    std::vector<float> found;
    for (std::uint32_t done = 0, count = 1; done < ids.size(); done += count) {
        count = std::min<std::uint32_t>(1 + done % 13,
                                        static_cast<std::uint32_t>(ids.size()) - done);
        const StepRows rows{
            .kv = &sequence, .tokens = std::span(ids).subspan(done, count), .all_logits = true};
        experts_.fail_next();
        EXPECT_FALSE(decoder_->run({&rows, 1}, experts_, 1, {}).ok());
        ASSERT_EQ(sequence.num_tokens(), done);
        const std::vector<float> logits = step({&rows, 1});
        found.insert(found.end(), logits.begin(), logits.end());
    }
    EXPECT_EQ(std::memcmp(found.data(), wanted.data(), wanted.size() * 4), 0);
}

TEST_F(HybridTest, TextsGoOnFromCopiesOfEarlierStates) {
    const auto fresh = [&](const GenerationRequest& request) {
        start({.prefix_cache = false});
        return solo(request);
    };
    GenerationRequest first = drawn_request(test::random_tokens(150, 256, 1), 61);
    GenerationRequest next = first, other = first;
    const Outcome answer = fresh(first);
    next.prompt.insert(next.prompt.end(), answer.ids.begin(), answer.ids.end());
    const auto question = test::random_tokens(30, 256, 2);
    next.prompt.insert(next.prompt.end(), question.begin(), question.end());
    other.prompt.resize(147);
    other.prompt.insert(other.prompt.end(), question.begin(), question.end());
    const Outcome wanted_next = fresh(next), wanted_other = fresh(other);

    // The answer's end has a copy at 208, and the prompt's end at 144.
    start({});
    solo(first);
    const Outcome second = solo(next), third = solo(other);
    EXPECT_EQ(second.end.stats.cached_tokens, 208u);
    EXPECT_EQ(third.end.stats.cached_tokens, 144u);
    expect_equal({second, third}, {wanted_next, wanted_other});
}

TEST_F(HybridTest, CopyThatWasUsedLongestAgoLeavesFirst) {
    const RecurrentShape shape = RecurrentShape::of(package_->config());
    RecurrentBlocks blocks(shape);
    RecurrentState state(blocks);
    state.begin_step(0, 16);
    state.fill([] { return 1.0f; });
    state.commit();
    const std::uint64_t bytes = 4 * shape.num_layers * shape.snapshot_floats_of_layer();
    RecurrentSnapshots copies(shape, 2 * (bytes + 100) + 1, 100);
    copies.keep(1, state, {});
    copies.keep(2, state, {});
    EXPECT_NE(copies.find(1), nullptr);
    copies.keep(3, state, {});
    EXPECT_TRUE(copies.has(1) && !copies.has(2) && copies.has(3));
    copies.drop(1);
    copies.keep(2, state, {});
    EXPECT_TRUE(!copies.has(1) && copies.has(2) && copies.has(3));

    // A companion is made for a copy that has none, once.
    std::vector<std::uint32_t> made;
    struct Companion : SnapshotCompanion {
        std::uint64_t size_bytes() const override { return 77; }
    };
    const auto make = [&](std::uint32_t num_tokens) {
        made.push_back(num_tokens);
        return std::make_shared<const Companion>();
    };
    EXPECT_EQ(copies.used_bytes(), 2 * bytes);
    EXPECT_EQ(copies.companion(3), nullptr);
    copies.keep(3, state, make);
    copies.keep(3, state, make);
    EXPECT_EQ(made, std::vector<std::uint32_t>{state.border()});
    EXPECT_NE(copies.companion(3), nullptr);
    EXPECT_EQ(copies.used_bytes(), 2 * bytes + 77);
    copies.drop(3);
    EXPECT_EQ(copies.used_bytes(), bytes);
    EXPECT_EQ(copies.companion(3), nullptr);
}

TEST_F(HybridTest, DraftsAndPreemptionChangeNoText) {
    constexpr std::uint32_t count = 1'000, num_preempted = 150;
    const std::vector<Outcome> wanted = run(count, {.queue_max = count, .prefix_cache = false});
    KnownTexts known(KnownTexts::Says::random);
    for (std::uint32_t i = 0; i < count; ++i) {
        const GenerationRequest request = request_of(i);
        known.know(request.prompt, request.sampling.seed, request.sampling.choice, wanted[i].ids);
    }
    EngineOptions options{.queue_max = count, .draft_sources = {&known}, .draft_tokens = 16};
    expect_equal(run(count, options), wanted);
    if (HasFatalFailure()) return;
    EXPECT_GT(counters_.accepted_tokens, 0u);
    EXPECT_LE(counters_.drafted_tokens, 8 * counters_.drafts);

    const KvCache probe(package_->config(), {delta_chunk, 0});
    options.sequences_max = 5;
    options.step_rows_max = 24;
    options.prefix_cache = false;
    // each of the five sequences may need a second state
    options.kv_bytes_max = 10 * RecurrentShape::of(package_->config()).size_bytes() +
                           18 * probe.page_bytes();
    for (const std::optional<std::uint32_t> tokens :
         {std::optional<std::uint32_t>(), std::optional(3u)}) {
        options.draft_tokens = tokens;
        expect_equal(run(num_preempted, options), {wanted.begin(), wanted.begin() + num_preempted});
        if (HasFatalFailure()) return;
        EXPECT_GT(counters_.preempted, 0u);
    }
}

TEST_F(HybridTest, StatesBeyondTheBudgetAreRefused) {
    try {
        Engine(*decoder_, experts_, {.sequences_max = 1'000, .kv_bytes_max = 1u << 20});
        FAIL() << "an engine without room for its sequences";
    } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find("1000 sequences"), std::string::npos);
    }
}

}  // namespace
}  // namespace moex
