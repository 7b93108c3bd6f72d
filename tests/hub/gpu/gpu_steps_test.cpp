// Tests the engine's steps on a Vulkan device (lavapipe if there is no GPU): in a step with several
// sequences, each row has the same bits as in a step with its sequence alone, for every backend of
// experts.
#include "hub/commands/gpu/gpu_steps.h"

#include <array>
#include <cmath>
#include <cstring>
#include <future>
#include <iostream>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "hub/engine/decoder.h"
#include "hub/engine/engine.h"
#include "hub/engine/local_experts.h"
#include "hub/foresight/predict/hints.h"
#include "hub/foresight/predictor_choice.h"
#include "protocol/kv_page.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/engine/known_drafts.h"
#include "tests/hub/gpu/requests.h"

namespace moex {
namespace {

struct Kind {
    bool holds_experts = false;
    KvDtype kv_dtype = KvDtype::f32;
    bool has_shared = false;  // a shared expert with a gate
};
constexpr Kind kinds[] = {{false, KvDtype::f32},       {true, KvDtype::f32},
                          {true, KvDtype::f16},        {true, KvDtype::int8},
                          {false, KvDtype::f32, true}, {true, KvDtype::f32, true}};

std::shared_ptr<const ModelPackage> package_of(bool has_shared) {
    if (!has_shared) return test::tiny_package();
    ModelConfig config = test::tiny_config();
    for (LayerPlan& plan : config.layers)
        if (plan.is_routed) {
            plan.shared_size = 48;
            plan.has_shared_gate = true;
        }
    static const std::shared_ptr<const ModelPackage> package = test::synth(config, "shared");
    return package;
}

class GpuStepsTest : public testing::TestWithParam<Kind> {
  protected:
    GpuStepsTest()
        : package_(package_of(GetParam().has_shared)),
          experts_(package_, test::compute_threads(), {}, Arithmetic::exact),
          steps_(must(open_gpu_steps(package_, test::compute_threads(),
                                     {.device = "0",
                                      .holds_experts = GetParam().holds_experts,
                                      .sequences_max = 4,
                                      .step_rows_max = 64,
                                      .micro_batches_max = 3,
                                      .kv_dtype = GetParam().kv_dtype}))) {}

    KvCacheOptions pages(std::uint32_t num_pages) {
        KvCacheOptions options = steps_->kv_pages();
        EXPECT_GE(options.num_pages, num_pages);
        options.num_pages = num_pages;
        options.mover = steps_->page_mover();
        return options;
    }
    std::vector<float> step(std::span<const StepRows> batch, std::uint32_t micro_batches = 1) {
        return must(steps_->run(batch, experts_, micro_batches, {})).logits;
    }
    // Runs the text `ids` alone, `chunk` tokens at a time, and returns the logits of all rows. The
    // cache of this run uses the same page numbers as all other caches, so it overwrites their rows
    // on the device.
    std::vector<float> alone(std::span<const TokenId> ids, std::size_t chunk = 50) {
        KvCache cache(package_->config(), pages(2));
        KvCache::Sequence sequence(cache);
        std::vector<float> all;
        for (std::size_t i = 0; i < ids.size(); i += chunk) {
            const StepRows rows{.kv = &sequence,
                                .tokens = ids.subspan(i, std::min(chunk, ids.size() - i)),
                                .all_logits = true};
            const auto logits = step({&rows, 1});
            all.insert(all.end(), logits.begin(), logits.end());
        }
        return all;
    }
    std::span<const float> row(const std::vector<float>& logits, std::size_t index) const {
        const std::size_t vocab_size = package_->config().vocab_size;
        return std::span(logits).subspan(index * vocab_size, vocab_size);
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts experts_;
    std::unique_ptr<GpuSteps> steps_;
};

INSTANTIATE_TEST_SUITE_P(ExpertsThereAndElsewhere, GpuStepsTest, testing::ValuesIn(kinds));

TEST_P(GpuStepsTest, SequencesHaveTheSameBitsTogetherAndAlone) {
    const auto a = test::random_tokens(140, 256, 1), b = test::random_tokens(7, 256, 2),
               c = test::random_tokens(70, 256, 3);
    const auto a_alone = alone(a), b_alone = alone(b, 1), c_alone = alone(c);

    KvCache cache(package_->config(), pages(6));
    KvCache::Sequence of_a(cache), of_b(cache), of_c(cache);
    // This step has a chunk without logits, a single token, and a sequence with the logits of all
    // rows.
    const StepRows first[] = {{.kv = &of_a, .tokens = std::span(a).first(100), .no_logits = true},
                              {.kv = &of_b, .tokens = std::span(b).first(1)},
                              {.kv = &of_c, .tokens = std::span(c).first(69), .all_logits = true}};
    const auto logits = step(first);
    expect_same_bits(row(logits, 0), row(b_alone, 0));
    for (std::size_t i = 0; i < 69; ++i) expect_same_bits(row(logits, 1 + i), row(c_alone, i));
    EXPECT_EQ(of_a.num_tokens(), 100u);

    const StepRows second[] = {{.kv = &of_c, .tokens = std::span(c).last(1)},
                               {.kv = &of_a, .tokens = std::span(a).last(40)},
                               {.kv = &of_b, .tokens = std::span(b).last(6)}};
    const auto later = step(second);
    expect_same_bits(row(later, 0), row(c_alone, 69));
    expect_same_bits(row(later, 1), row(a_alone, 139));
    expect_same_bits(row(later, 2), row(b_alone, 6));
}

// The rows of a prompt are in several micro-batches, and the step needs more passes (of 64 rows)
// than it has micro-batches.
TEST_P(GpuStepsTest, MicroBatchesChangeNoBit) {
    EXPECT_EQ(steps_->micro_batches_max(), GetParam().holds_experts ? 1u : 3u);
    const auto a = test::random_tokens(140, 256, 31), b = test::random_tokens(7, 256, 32),
               c = test::random_tokens(70, 256, 33);
    const auto a_alone = alone(a), b_alone = alone(b), c_alone = alone(c);
    for (std::uint32_t number = 1; number <= steps_->micro_batches_max(); ++number) {
        KvCache cache(package_->config(), pages(6));
        KvCache::Sequence of_a(cache), of_b(cache), of_c(cache);
        const StepRows prompts[] = {
            {.kv = &of_a, .tokens = std::span(a).first(139), .no_logits = true},
            {.kv = &of_b, .tokens = std::span(b).first(6), .likeliest = 64},
            {.kv = &of_c, .tokens = std::span(c).first(69), .all_logits = true}};
        const StepResult first = must(steps_->run(prompts, experts_, number, {}));
        ASSERT_EQ(first.likeliest.size(), 1u);
        const LikeliestTokens& likeliest = first.likeliest.front();
        ASSERT_EQ(likeliest.tokens.size(), 64u);
        EXPECT_EQ(likeliest.tokens[0].logit, std::ranges::max(row(b_alone, 5)));
        for (std::size_t i = 0; i < 69; ++i)
            expect_same_bits(row(first.logits, i), row(c_alone, i));
        for (const RowProvenance& one : first.rows) EXPECT_EQ(one.pairs_local, 6);

        const StepRows decode[] = {{.kv = &of_a, .tokens = std::span(a).last(1)},
                                   {.kv = &of_b, .tokens = std::span(b).last(1)},
                                   {.kv = &of_c, .tokens = std::span(c).last(1)}};
        const auto logits = step(decode, number);
        expect_same_bits(row(logits, 0), row(a_alone, 139));
        expect_same_bits(row(logits, 1), row(b_alone, 6));
        expect_same_bits(row(logits, 2), row(c_alone, 69));
    }
}

// A backend that wants hints, and records the hints for each layer.
class HintedExperts : public ExpertBackend {
  public:
    explicit HintedExperts(ExpertBackend& experts) : experts_(experts) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        return experts_.submit(batch);
    }
    const char* name() const override { return "hinted"; }
    bool wants_hints() const override { return true; }
    void hint(std::span<const ExpertHint> hints) override {
        for (const ExpertHint& one : hints) told[one.layer].insert(one.expert);
    }
    std::map<std::uint32_t, std::set<std::uint32_t>> told;

  private:
    ExpertBackend& experts_;
};

// The hints for the next layer are the same whether the GPU or the hub's cores compute the steps.
TEST_P(GpuStepsTest, RemoteExpertsGetHintsAndNoBitChanges) {
    const auto sources = must(load_speculation_sources(package_, test::compute_threads()));
    const auto decoder = must(Decoder::create(package_, test::compute_threads()));
    const auto ids = test::random_tokens(4, 256, 41);
    for (const char* name : {"next-gate", "auto"}) {
        Hints here(sources.gates, must(make_predictor(name, sources, false)), 2),
            there(sources.gates, must(make_predictor(name, sources, false)), 2);
        HintedExperts wanted(experts_), told(experts_);
        KvCache kv(package_->config(), {16, 8, KvDtype::f32});
        KvCache::Sequence sequence(kv);
        const StepRows rows{.kv = &sequence, .tokens = ids, .all_logits = true};
        decoder->foresee_with(&here);
        must(decoder->step({&rows, 1}, wanted));

        KvCache cache(package_->config(), pages(2));
        KvCache::Sequence on_gpu(cache);
        const StepRows gpu_rows{.kv = &on_gpu, .tokens = ids, .all_logits = true};
        steps_->foresee_with(&there);
        const auto logits = must(steps_->run({&gpu_rows, 1}, told, 1, {})).logits;
        steps_->foresee_with(nullptr);
        expect_same_bits(logits, alone(ids));

        if (GetParam().holds_experts) {
            EXPECT_TRUE(told.told.empty());
            continue;
        }
        EXPECT_FALSE(wanted.told.empty());
        EXPECT_EQ(told.told, wanted.told) << name;
    }
}

// A backend that fails in one of its rounds, and counts the rounds in flight.
class BrittleExperts : public ExpertBackend {
  public:
    BrittleExperts(ExpertBackend& experts, std::uint32_t fails_at)
        : experts_(experts),
          fails_at_(fails_at) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        const bool fails = ++num_rounds == fails_at_;
        return std::make_unique<Round>(*this, fails ? nullptr : experts_.submit(batch));
    }
    const char* name() const override { return "brittle"; }
    std::uint32_t num_rounds = 0, live = 0, live_max = 0;

  private:
    struct Round : ExpertRound {
        Round(BrittleExperts& owner, std::unique_ptr<ExpertRound> round)
            : all(owner),
              inner(std::move(round)) {
            all.live_max = std::max(all.live_max, ++all.live);
        }
        ~Round() override { --all.live; }
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            if (!inner) return Error{ErrorCode::unavailable, "nobody is there"};
            return inner->wait(std::move(stop));
        }
        BrittleExperts& all;
        std::unique_ptr<ExpertRound> inner;
    };
    ExpertBackend& experts_;
    const std::uint32_t fails_at_;
};

TEST_P(GpuStepsTest, ARoundThatFailsEndsTheOthersOfItsStep) {
    // the GPU holds the experts, so no round is sent to a backend
    if (GetParam().holds_experts) return;
    const auto ids = test::random_tokens(20, 256, 34);
    KvCache cache(package_->config(), pages(2));
    KvCache::Sequence sequence(cache);
    const StepRows rows{.kv = &sequence, .tokens = ids};
    // the step has 9 rounds, 3 per layer
    for (const std::uint32_t fails_at : {1u, 2u, 3u, 5u, 9u}) {
        BrittleExperts brittle(experts_, fails_at);
        const auto failed = steps_->run({&rows, 1}, brittle, 3, {});
        ASSERT_FALSE(failed.ok());
        EXPECT_EQ(failed.error().code, ErrorCode::unavailable);
        EXPECT_EQ(brittle.live, 0u);
        EXPECT_EQ(brittle.live_max, 3u);
        EXPECT_EQ(sequence.num_tokens(), 0u);
    }
    expect_same_bits(step({&rows, 1}, 3), row(alone(ids), 19));
}

// One step has rows that return likeliest tokens, rows that return logits, and rows without any
// output.
TEST_P(GpuStepsTest, LikeliestTokensMatchTheRowsLogits) {
    const auto a = test::random_tokens(9, 256, 21), b = test::random_tokens(4, 256, 22),
               c = test::random_tokens(7, 256, 23), d = test::random_tokens(3, 256, 24);
    const std::vector<float> alone_with[] = {alone(a), alone(b), alone(c), alone(d)};

    KvCache cache(package_->config(), pages(6));
    KvCache::Sequence of_a(cache), of_b(cache), of_c(cache), of_d(cache);
    const StepRows batch[] = {{.kv = &of_a, .tokens = a, .likeliest = 64},
                              {.kv = &of_b, .tokens = b, .all_logits = true},
                              {.kv = &of_c, .tokens = c, .likeliest = 1},
                              {.kv = &of_d, .tokens = d}};
    ASSERT_EQ(steps_->likeliest_max(), 64u);
    const StepResult result = must(steps_->run(batch, experts_, 1, {}));
    ASSERT_EQ(result.logits.size(), 5 * std::size_t{package_->config().vocab_size});
    for (std::size_t i = 0; i < 4; ++i)
        expect_same_bits(row(result.logits, i), row(alone_with[1], i));
    expect_same_bits(row(result.logits, 4), row(alone_with[3], 2));

    ASSERT_EQ(result.likeliest.size(), 2u);
    const std::span<const float> logits[] = {row(alone_with[0], 8), row(alone_with[2], 6)};
    for (std::size_t i = 0; i < 2; ++i) {
        const LikeliestTokens& mine = result.likeliest[i];
        const SampledToken wanted = score(logits[i], 0, 64);
        ASSERT_EQ(mine.tokens.size(), i == 0 ? 64u : 1u);
        for (std::size_t k = 0; k < mine.tokens.size(); ++k) {
            EXPECT_EQ(mine.tokens[k].id, wanted.top[k].id);
            EXPECT_EQ(mine.tokens[k].logit, logits[i][wanted.top[k].id]);
        }
        EXPECT_NEAR(mine.log_sum_exp, logits[i][0] - wanted.logprob, 1e-5);
    }
}

TEST_P(GpuStepsTest, LogitsAreNearThoseOfTheCpu) {
    const auto ids = test::random_tokens(30, 256, 4);
    const auto mine = alone(ids);
    auto decoder = must(Decoder::create(package_, test::compute_threads()));
    // int8 codes of the hub's cores differ from the GPU's
    const bool coded = GetParam().kv_dtype == KvDtype::int8;
    KvCache cache(package_->config(), {16, 8, coded ? KvDtype::f16 : GetParam().kv_dtype});
    KvCache::Sequence sequence(cache);
    const StepRows rows{.kv = &sequence, .tokens = ids, .all_logits = true};
    const StepResult wanted = must(decoder->step({&rows, 1}, experts_));
    ASSERT_EQ(mine.size(), wanted.logits.size());
    float worst = 0;
    for (std::size_t i = 0; i < mine.size(); ++i)
        worst = std::max(worst, std::abs(mine[i] - wanted.logits[i]));
    std::cout << "largest difference of a logit: " << worst << "\n";
    EXPECT_LE(worst, coded ? 2e-2f : 1e-3f);
}

TEST_P(GpuStepsTest, SharedPageIsCopiedBeforeAWriteAfterRollback) {
    const auto ids = test::random_tokens(129, 256, 5);
    const auto other = test::random_tokens(1, 256, 6);
    KvCache cache(package_->config(), pages(6));
    KvCache::Sequence first(cache, "one"), second(cache, "one");
    const StepRows prompt{.kv = &first, .tokens = std::span(ids).first(128), .no_logits = true};
    (void)step({&prompt, 1});
    first.publish(std::span(ids).first(128), std::vector<std::vector<std::uint64_t>>(1));
    second.adopt(std::span(ids).first(128));
    ASSERT_EQ(second.num_tokens(), 128u);
    ASSERT_EQ(second.pages()[0], first.pages()[0]);

    second.roll_back(127);
    const StepRows changed{.kv = &second, .tokens = other};
    (void)step({&changed, 1});
    EXPECT_NE(second.pages()[0], first.pages()[0]);

    const StepRows last{.kv = &first, .tokens = std::span(ids).last(1)};
    const auto untouched = step({&last, 1});
    expect_same_bits(untouched, row(alone(ids), 128));
}

TEST_P(GpuStepsTest, AStoppedStepChangesNoSequence) {
    const auto ids = test::random_tokens(5, 256, 7);
    KvCache cache(package_->config(), pages(2));
    KvCache::Sequence sequence(cache);
    const StepRows rows{.kv = &sequence, .tokens = ids};
    std::stop_source stop;
    stop.request_stop();
    const auto stopped = steps_->run({&rows, 1}, experts_, 1, stop.get_token());
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
    EXPECT_EQ(sequence.num_tokens(), 0u);
    const auto again = step({&rows, 1});
    expect_same_bits(again, row(alone(ids), 4));
}

// The answers of an engine that runs its steps on the GPU. write_together() sends each request when
// the request before has its first token.
struct Written {
    std::vector<std::vector<TokenId>> ids;
    EngineCounters counters;
};
Written write_together(StepDevice& steps, ExpertBackend& experts, const EngineOptions& options,
                       std::span<const GenerationRequest> requests) {
    Written written{.ids = std::vector<std::vector<TokenId>>(requests.size())};
    std::vector<std::promise<FinishReason>> ends(requests.size());
    Engine engine(steps, experts, options);
    std::function<void(std::size_t)> send = [&](std::size_t index) {
        if (index == requests.size()) return;
        const auto on_token = [&, index](const TokenEvent& event) {
            written.ids[index].push_back(event.token.id);
            if (event.index == 0) send(index + 1);
        };
        const auto on_end = [&, index](const GenerationEnd& end) {
            ends[index].set_value(end.reason);
        };
        EXPECT_TRUE(engine.submit(requests[index], {.on_token = on_token, .on_end = on_end}).ok());
    };
    send(0);
    for (auto& end : ends) EXPECT_EQ(end.get_future().get(), FinishReason::length);
    written.counters = engine.counters();
    return written;
}

EngineOptions engine_options(const GpuSteps& steps, std::uint32_t num_pages) {
    const KvCacheOptions pages = steps.kv_pages();
    return {.sequences_max = 4,
            .step_rows_max = 64,
            .kv_bytes_max = num_pages * (steps.kv_bytes() / pages.num_pages),
            .page_tokens = pages.page_tokens,
            .kv_dtype = pages.dtype,
            .step_stretch_max = 1e6};
}

// Runs each request alone without the prefix cache, then all requests together with the prefix
// cache, in `num_pages` pages. Expects the same answers.
EngineCounters expect_same_texts(GpuSteps& steps, ExpertBackend& experts, std::uint32_t num_pages,
                                 std::span<const GenerationRequest> requests) {
    EngineOptions options = engine_options(steps, num_pages);
    options.prefix_cache = false;
    std::vector<std::vector<TokenId>> alone;
    for (const GenerationRequest& request : requests)
        alone.push_back(write_together(steps, experts, options, {&request, 1}).ids[0]);
    options.prefix_cache = true;
    const Written together = write_together(steps, experts, options, requests);
    EXPECT_EQ(together.ids, alone);
    return together.counters;
}

TEST_P(GpuStepsTest, EngineSharesPagesOfACommonPrefix) {
    auto first = test::random_tokens(131, 256, 8), second = first;
    second.back() = 7;
    const GenerationRequest requests[] = {greedy(first, 6), greedy(second, 4)};
    EXPECT_EQ(expect_same_texts(*steps_, experts_, 6, requests).cached_tokens, 128u);
}

// A page leaves the GPU, returns under another number, and the text continues with the same bits.
TEST_P(GpuStepsTest, PageThatLeftAndReturnedHasTheSameBits) {
    const auto ids = test::random_tokens(150, 256, 31);
    const std::vector<float> wanted = alone(ids);
    KvCache cache(package_->config(), pages(4));
    KvCache::Sequence first(cache), second(cache);
    const StepRows rows{.kv = &first, .tokens = std::span(ids).first(128)};
    step({&rows, 1});

    const ModelConfig& config = package_->config();
    const KvRowType types[] = {KvRowType::f32, KvRowType::f16, KvRowType::u8};
    KvSource source{.row_type = types[static_cast<int>(GetParam().kv_dtype)],
                    .end_layer = config.num_layers,
                    .num_kv_heads = config.num_kv_heads,
                    .head_dim = config.head_dim};
    Bytes page(kv_rows_bytes(source, 128)), again(page.size());
    ASSERT_TRUE(first.read_page(0, page).ok());
    EXPECT_FALSE(first.read_page(0, std::span(page).first(8)).ok());
    EXPECT_FALSE(second.append_page(ByteView(page).first(8)).ok());
    ASSERT_TRUE(second.append_page(page).ok());
    EXPECT_NE(first.pages()[0], second.pages()[0]);
    ASSERT_TRUE(second.read_page(0, again).ok());
    EXPECT_EQ(again, page);

    const StepRows rest{.kv = &second, .tokens = std::span(ids).subspan(128), .all_logits = true};
    const std::vector<float> logits = step({&rest, 1});
    ASSERT_EQ(logits.size(), 22u * 256);
    EXPECT_EQ(std::memcmp(logits.data(), wanted.data() + 128u * 256, logits.size() * 4), 0);
}

// The keys and values of the GPU have the layout of those of the cores: the values differ by the
// arithmetic only.
TEST_P(GpuStepsTest, PageOfTheGpuHasTheLayoutOfTheCores) {
    if (GetParam().kv_dtype != KvDtype::f32) return;
    const auto ids = test::random_tokens(128, 256, 32);
    auto decoder = must(Decoder::create(package_, test::compute_threads()));
    KvCache gpu_cache(package_->config(), pages(1)), cache(package_->config(), {128, 1});
    KvCache::Sequence on_gpu(gpu_cache), on_cores(cache);
    const StepRows gpu_rows{.kv = &on_gpu, .tokens = ids}, rows{.kv = &on_cores, .tokens = ids};
    step({&gpu_rows, 1});
    must(decoder->step({&rows, 1}, experts_));

    Bytes page(cache.page_bytes()), twin(page.size());
    ASSERT_TRUE(on_gpu.read_page(0, page).ok());
    ASSERT_TRUE(on_cores.read_page(0, twin).ok());
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < page.size(); i += 4) {
        float a = 0, b = 0;
        std::memcpy(&a, page.data() + i, 4);
        std::memcpy(&b, twin.data() + i, 4);
        error += (a - b) * (a - b);
        norm += b * b;
    }
    EXPECT_GT(norm, 0.0);
    EXPECT_LT(std::sqrt(error / norm), 1e-3);
}

// Both sequences begin on one page each, and the third page is for the growth of the older
// sequence.
TEST_P(GpuStepsTest, PreemptionDoesNotChangeTheText) {
    const GenerationRequest requests[] = {greedy(test::random_tokens(124, 256, 9), 30),
                                          greedy(test::random_tokens(125, 256, 10), 6)};
    EXPECT_GE(expect_same_texts(*steps_, experts_, 3, requests).preempted, 1u);
}

// Wraps a device so that the engine reads all logits instead of the likeliest tokens.
class AllLogits : public StepDevice {
  public:
    explicit AllLogits(StepDevice& device) : device_(device) {}
    const ModelConfig& config() const override { return device_.config(); }
    Result<StepResult> run(std::span<const StepRows> batch, ExpertBackend& experts,
                           std::uint32_t micro_batches, std::stop_token stop) override {
        for (const StepRows& rows : batch) EXPECT_EQ(rows.likeliest, 0u);
        return device_.run(batch, experts, micro_batches, std::move(stop));
    }
    void recycle(StepResult&& result) override { device_.recycle(std::move(result)); }
    ThreadPool& threads() const override { return device_.threads(); }
    KvPageMover page_mover() override { return device_.page_mover(); }

  private:
    StepDevice& device_;
};

// A mask that allows tokens by a fixed pattern of bits.
class EveryThird : public TokenMask {
  public:
    std::span<const std::uint64_t> allowed(std::span<const TokenId> answer,
                                           std::uint32_t) override {
        for (std::uint32_t id = 0; id < 256; ++id)
            words_[id / 64] = (words_[id / 64] & ~(1ull << id % 64)) |
                              std::uint64_t{id % 3 == answer.size() % 3} << id % 64;
        return words_;
    }

  private:
    std::array<std::uint64_t, 4> words_{};
};

// Requests that need all logits run together with requests that need only the likeliest tokens.
TEST_P(GpuStepsTest, LikeliestTokensAndAllLogitsDrawTheSame) {
    const SamplingOptions kinds[] = {{.temperature = 0},
                                     {.temperature = 1.3, .sample_top_k = 40},
                                     {.temperature = 0.9, .top_p = 0.7, .sample_top_k = 64},
                                     {.temperature = 1.5, .sample_top_k = 20, .min_p = 0.1},
                                     {.temperature = 1.1, .top_p = 0.9},
                                     {.sample_top_k = 8, .repetition_penalty = 1.4},
                                     {.temperature = 0, .frequency_penalty = 0.9},
                                     {.sample_top_k = 4, .logit_bias = {{9, 4.0f}, {3, -100.0f}}},
                                     {.temperature = 0, .mask = std::make_shared<EveryThird>()}};
    std::vector<GenerationRequest> requests;
    for (SamplingOptions sampling : kinds) {
        sampling.seed = 100 + requests.size();
        requests.push_back(greedy(test::random_tokens(5 + requests.size(), 256, 12), 6));
        requests.back().sampling = std::move(sampling);
    }
    const EngineOptions options = engine_options(*steps_, 6);
    AllLogits all(*steps_);
    EXPECT_EQ(write_together(*steps_, experts_, options, requests).ids,
              write_together(all, experts_, options, requests).ids);
}

// Rows of drafted tokens return their likeliest tokens or their logits, as the sampler needs.
TEST_P(GpuStepsTest, DraftedTokensChangeNoText) {
    const SamplingOptions kinds[] = {{.temperature = 0},
                                     {.temperature = 1.3, .sample_top_k = 40},
                                     {.temperature = 1.1, .top_p = 0.9},
                                     {.temperature = 0, .frequency_penalty = 0.9}};
    std::vector<GenerationRequest> requests;
    for (SamplingOptions sampling : kinds) {
        sampling.seed = 100 + requests.size();
        requests.push_back(greedy(test::random_tokens(5 + requests.size(), 256, 12), 24));
        requests.back().sampling = std::move(sampling);
    }
    EngineOptions options = engine_options(*steps_, 6);
    const Written plain = write_together(*steps_, experts_, options, requests);
    KnownTexts random(KnownTexts::Says::random);
    for (std::size_t i = 0; i < requests.size(); ++i)
        random.know(requests[i].prompt, requests[i].sampling.seed, 0, plain.ids[i]);
    options.draft_sources = {&random};
    options.draft_tokens = 4;
    const Written drafted = write_together(*steps_, experts_, options, requests);
    EXPECT_EQ(drafted.ids, plain.ids);
    EXPECT_GT(drafted.counters.accepted_tokens, 10u);
    EXPECT_LT(drafted.counters.accepted_tokens, drafted.counters.drafted_tokens);
    EXPECT_LT(drafted.counters.steps, plain.counters.steps);
}

TEST(GpuStepsSizeTest, TheDefaultCacheLeavesMemoryToAContributor) {
    constexpr std::uint64_t memory = 64u << 20, asked = 40u << 20;
    GpuStepsOptions options{.device = "0", .sequences_max = 4096, .memory_bytes_max = memory};
    const auto by_default = must(
        open_gpu_steps(test::tiny_package(), test::compute_threads(), options));
    EXPECT_GT(by_default->kv_bytes(), memory / 8);
    EXPECT_LE(by_default->kv_bytes(), memory / 4);

    options.kv_bytes_max = asked;
    const auto chosen = must(
        open_gpu_steps(test::tiny_package(), test::compute_threads(), options));
    EXPECT_GT(chosen->kv_bytes(), asked * 9 / 10);
    EXPECT_LE(chosen->kv_bytes(), asked);

    // Few short sequences need less than their share.
    options = {.device = "0", .sequences_max = 2};
    const auto few = must(open_gpu_steps(test::tiny_package(), test::compute_threads(), options));
    EXPECT_EQ(few->kv_pages().num_pages,
              2 * test::tiny_package()->config().context_tokens / few->kv_pages().page_tokens);
}

TEST(GpuStepsSizeTest, AModelBeyondTheMemoryIsRefusedWithBothSizes) {
    const auto opened = open_gpu_steps(test::tiny_package(), test::compute_threads(),
                                       {.device = "0", .memory_bytes_max = 1u << 20});
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::no_space);
    EXPECT_NE(opened.error().message.find("1 MB are there"), std::string::npos)
        << opened.error().message;
}

}  // namespace
}  // namespace moex
