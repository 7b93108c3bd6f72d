// Tests that drafted tokens change no text: random requests with drafts of every kind equal the
// same requests without drafts, whatever the drafts are.
#include <bit>

#include "hub/draft/forced_draft.h"
#include "hub/draft/model_draft.h"
#include "hub/draft/ngram_draft.h"
#include "tests/hub/engine/engine_stage.h"
#include "tests/hub/engine/known_drafts.h"

namespace moex {
namespace {

// Allows about half of the tokens, depending on the answer so far and on the tokens left.
class HashMask : public TokenMask {
  public:
    std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                           std::uint32_t tokens_left) override {
        std::uint64_t hash = 14695981039346656037u + tokens_left;
        for (const TokenId id : answer) hash = (hash ^ id) * 1099511628211u;
        for (std::size_t i = 0; i < 4; ++i) bits_[i] = hash * (2 * i + 1) | 1;
        return bits_;
    }
    // Guesses some token that is mostly not allowed, and then one that may not be allowed either.
    std::vector<TokenId> forced(std::span<const TokenId> answer, std::size_t tokens_max) override {
        const auto bits = allowed(answer, 1);
        std::vector<TokenId> ids{static_cast<TokenId>(64 + std::countr_zero(bits[1])), 9};
        ids.resize(std::min(ids.size(), tokens_max));
        return ids;
    }

  private:
    std::uint64_t bits_[4];
};

class EngineDraftTest : public EngineTest {
  protected:
    // Returns one of many requests that cover temperature, cuts, penalties, bias, masks, ends and
    // scores.
    static GenerationRequest request_of(std::uint32_t i) {
        const std::uint32_t pick = i * 2654435761u;
        const auto bit = [&](int at) { return (pick >> at & 1) != 0; };
        std::vector<TokenId> prompt = test::random_tokens(1 + pick % 23, 256, i % 7);
        if (bit(5)) prompt.insert(prompt.end(), prompt.begin(), prompt.end());
        GenerationRequest request = greedy(std::move(prompt), 1 + pick / 64 % 40);
        SamplingOptions& sampling = request.sampling;
        sampling.temperature = bit(6) ? 0.8 : bit(7) ? 1.2 : 0;
        sampling.top_p = bit(8) ? 0.95 : 1;
        sampling.min_p = bit(9) ? 0.05 : 0;
        sampling.sample_top_k = bit(10) ? 20 : 0;
        sampling.repetition_penalty = bit(11) ? 1.3 : 1;
        sampling.presence_penalty = bit(12) ? 0.5 : 0;
        sampling.frequency_penalty = bit(13) ? 0.3 : 0;
        if (bit(14)) sampling.logit_bias = {{3, 2.0f}, {pick % 256, -5.0f}};
        sampling.seed = i;
        sampling.choice = pick % 3;
        if (bit(15) && bit(16)) sampling.mask = std::make_shared<HashMask>();
        if (bit(17)) request.stop_ids = {pick % 256, 7, 100, 200};
        request.logprobs = bit(18);
        request.top_logprobs = request.logprobs ? 3 : 0;
        request.prompt_logprobs = bit(19) && bit(20);
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

    void expect_equal(const std::vector<Outcome>& outcomes, const std::vector<Outcome>& wanted) {
        ASSERT_EQ(outcomes.size(), wanted.size());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            ASSERT_EQ(outcomes[i].ids, wanted[i].ids) << i;
            ASSERT_EQ(outcomes[i].logprobs, wanted[i].logprobs) << i;
            ASSERT_EQ(outcomes[i].end.reason, wanted[i].end.reason) << i;
            const GenerationStats &stats = outcomes[i].end.stats, &plain = wanted[i].end.stats;
            ASSERT_EQ(stats.completion_tokens, plain.completion_tokens) << i;
            if (counters_.preempted == 0) {
                ASSERT_EQ(stats.pairs_local, plain.pairs_local) << i;
            }
        }
    }

    static constexpr std::uint32_t queue_max = 100'000;
    EngineCounters counters_;
};

TEST_F(EngineDraftTest, TextsEqualThoseWithoutDraftsWhateverIsDrafted) {
    constexpr std::uint32_t count = 1'100;
    const EngineOptions plain{.queue_max = queue_max, .prefix_cache = false};
    const std::vector<Outcome> wanted = run(count, plain);
    EXPECT_EQ(counters_.drafts, 0u);

    KnownTexts right(KnownTexts::Says::right), wrong(KnownTexts::Says::wrong),
        random(KnownTexts::Says::random);
    for (std::uint32_t i = 0; i < count; ++i) {
        const GenerationRequest request = request_of(i);
        for (KnownTexts* one : {&right, &wrong, &random})
            one->know(request.prompt, request.sampling.seed, request.sampling.choice,
                      wanted[i].ids);
    }
    NgramDrafts ngrams;
    ForcedDrafts forced;

    EngineOptions options = plain;
    for (const std::optional<std::uint32_t> tokens :
         {std::optional<std::uint32_t>(), std::optional(1u), std::optional(3u), std::optional(8u)})
        for (DraftSource* source :
             std::initializer_list<DraftSource*>{&right, &wrong, &random, &ngrams, &forced}) {
            SCOPED_TRACE(text(source->name(), " ", tokens.value_or(0)));
            options.draft_sources = {source};
            options.draft_tokens = tokens;
            expect_equal(run(count, options), wanted);
            if (HasFatalFailure()) return;
            EXPECT_TRUE(!tokens || counters_.drafts > 0);
            EXPECT_TRUE(source != &wrong || counters_.accepted_tokens == 0);
            EXPECT_TRUE(source != &right || counters_.accepted_tokens == counters_.drafted_tokens);
            EXPECT_TRUE(source != &random || !tokens || counters_.accepted_tokens > 0);
        }
    // several sources at once
    options.draft_sources = {&forced, &wrong, &ngrams, &right};
    expect_equal(run(count, options), wanted);
}

TEST_F(EngineDraftTest, PreemptionPrefixesAndMicroBatchesChangeNoDraftedText) {
    constexpr std::uint32_t count = 300;
    const std::vector<Outcome> wanted = run(count, {.queue_max = queue_max, .prefix_cache = false});
    KnownTexts random(KnownTexts::Says::random);
    for (std::uint32_t i = 0; i < count; ++i) {
        const GenerationRequest request = request_of(i);
        random.know(request.prompt, request.sampling.seed, request.sampling.choice, wanted[i].ids);
    }
    const KvCache probe(package_->config(), {16, 0});
    EngineOptions options{.sequences_max = 5,
                          .queue_max = queue_max,
                          .step_rows_max = 24,
                          .kv_bytes_max = 9 * probe.page_bytes(),
                          .draft_sources = {&random},
                          .draft_tokens = 5};
    options.prefix_cache = false;
    expect_equal(run(count, options), wanted);
    EXPECT_GT(counters_.preempted, 0u);
    EXPECT_GT(counters_.accepted_tokens, 0u);

    options.kv_bytes_max = 512ull << 20;
    options.micro_batches = 3;
    expect_equal(run(count, options), wanted);
    EXPECT_GT(counters_.steps_micro_batched, 0u);

    // Pages that a draft has filled and that were rolled back are not offered: the same prompts
    // again take over pages of the first run, and give the same texts.
    options.prefix_cache = true;
    engine_ = std::make_unique<Engine>(*decoder_, experts_, options);
    for (int turn = 0; turn < 2; ++turn) {
        std::vector<Pending> pending;
        for (std::uint32_t i = 0; i < count; ++i) pending.push_back(submit(request_of(i)));
        for (std::uint32_t i = 0; i < count; ++i) {
            const Outcome outcome = get(pending[i]);
            ASSERT_EQ(outcome.ids, wanted[i].ids) << i;
            // A conversation goes on: its next prompt holds the answer of this one.
            if (turn == 0 || i % 8 != 0) continue;
            GenerationRequest next = request_of(i);
            next.sampling.mask = nullptr;
            next.prompt.insert(next.prompt.end(), outcome.ids.begin(), outcome.ids.end());
            GenerationRequest alone = next;
            alone.client = "alone";
            ASSERT_EQ(solo(next).ids, solo(alone).ids) << i;
        }
    }
    EXPECT_GT(engine_->counters().cached_tokens, 0u);
}

// A draft model that is the model itself draws every token with the same noise, so each of its
// tokens is accepted. Another model draws others, and changes no text either.
TEST_F(EngineDraftTest, ADraftModelDrawsWithTheNoiseOfItsTarget) {
    constexpr std::uint32_t count = 120;
    const EngineOptions plain{.queue_max = queue_max, .prefix_cache = false};
    const std::vector<Outcome> wanted = run(count, plain);

    test::TemporaryFolder folder("draft");
    const auto report = synth_package(test::tiny_config(), "other", 8, folder.path() / "other", {},
                                      test::compute_threads(), {});
    ASSERT_TRUE(report.ok());
    const auto opened = ModelPackage::open(folder.path() / "other");
    ASSERT_TRUE(opened.ok());
    LocalExperts other_experts(*opened, test::compute_threads(), {});
    const auto other = Decoder::create(*opened, test::compute_threads());
    ASSERT_TRUE(other.ok());
    const auto twin = decoder_->twin(test::compute_threads());

    const KvCacheOptions kv{.page_tokens = 16, .num_pages = 400};
    ModelDrafts same(*twin, local_, {.name = "same", .kv = kv, .prompt_rows_max = 64}),
        shadow(*twin, local_, {.name = "shadow", .kv = kv, .copies_keys = true}),
        wrong(**other, other_experts, {.name = "other", .kv = kv});
    for (ModelDrafts* source : {&same, &shadow, &wrong})
        for (const std::optional<std::uint32_t> tokens :
             {std::optional<std::uint32_t>(), std::optional(1u), std::optional(4u)}) {
            SCOPED_TRACE(text(source->name(), " ", tokens.value_or(0)));
            EngineOptions options = plain;
            options.draft_sources = {source};
            options.draft_tokens = tokens;
            const std::vector<Outcome> outcomes = run(count, options);
            expect_equal(outcomes, wanted);
            EXPECT_TRUE(!tokens || counters_.drafts > 150) << counters_.drafts;
            // A draft knows no mask, so that it may draw a token which the mask does not allow.
            for (std::uint32_t i = 0; i < count; ++i) {
                const DraftStats& stats = outcomes[i].end.stats.drafts;
                if (source != &wrong && !request_of(i).sampling.mask) {
                    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens) << i;
                }
            }
        }
}

TEST_F(EngineDraftTest, RequestsChooseTheirOwnNumberOfDraftedTokens) {
    KnownTexts right(KnownTexts::Says::right);
    GenerationRequest request = greedy(test::random_tokens(9, 256, 3), 40);
    start({});
    const Outcome plain = solo(request);
    right.know(request.prompt, 0, 0, plain.ids);

    start({.draft_sources = {&right}, .draft_tokens = 4});
    Outcome outcome = solo(request);
    EXPECT_EQ(outcome.ids, plain.ids);
    // 8 steps of 5 tokens: the first token is drawn after the prompt, 39 follow
    EXPECT_EQ(outcome.end.stats.drafts.steps, 9u);
    EXPECT_EQ(outcome.end.stats.drafts.drafts, 8u);
    EXPECT_EQ(outcome.end.stats.drafts.accepted_histogram[4], 7u);
    EXPECT_EQ(outcome.end.stats.drafts.accepted_histogram[3], 1u);
    EXPECT_EQ(outcome.end.stats.drafts.accepted_tokens, 31u);
    EXPECT_STREQ(outcome.end.stats.drafts.kind, "known");

    request.draft_tokens = 0;
    outcome = solo(request);
    EXPECT_EQ(outcome.ids, plain.ids);
    EXPECT_EQ(outcome.end.stats.drafts.steps, 40u);
    EXPECT_EQ(outcome.end.stats.drafts.drafts, 0u);
}

// A lossy answer takes no drafts: the rows of its answer are not the model's own.
TEST_F(EngineDraftTest, LossyAnswersTakeNoDrafts) {
    NgramDrafts ngrams;
    NothingStandsIn nothing;
    start({.draft_sources = {&ngrams}, .draft_tokens = 4});
    GenerationRequest request = greedy({1, 2, 3, 1, 2, 3, 1, 2, 3}, 20);
    request.speculator = &nothing;
    EXPECT_EQ(solo(request).end.stats.drafts.drafts, 0u);
    request.speculator = nullptr;
    EXPECT_GT(solo(request).end.stats.drafts.steps, 0u);
}

}  // namespace
}  // namespace moex
