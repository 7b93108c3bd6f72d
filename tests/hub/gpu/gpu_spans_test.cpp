// Tests spans of a hub whose steps run on a Vulkan device (lavapipe if there is no GPU): the GPU
// computes some layers of a model, and a worker's decoder the others.
#include <cstring>
#include <future>
#include <iostream>

#include "hub/commands/gpu/gpu_steps.h"
#include "hub/engine/engine.h"
#include "tests/hub/gpu/local_spans.h"
#include "tests/hub/gpu/losable_device.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

struct Kind {
    bool is_demo = false;  // the demo model, all of whose layers are routed; false: a tiny one
    KvDtype kv_dtype = KvDtype::f32;
};
constexpr Kind kinds[] = {
    {true, KvDtype::f32}, {true, KvDtype::f16}, {false, KvDtype::f32}, {false, KvDtype::int8}};

const SpannedModel& model_of(bool is_demo) {
    static const SpannedModel demo(must(ModelPackage::open(repository() / "static/models/demo")));
    static const SpannedModel tiny(test::tiny_package());
    return is_demo ? demo : tiny;
}

class GpuSpansTest : public testing::TestWithParam<Kind> {
  protected:
    // The tiny model has a dense layer before its only span.
    static std::vector<Range> whole() {
        return GetParam().is_demo ? std::vector<Range>{{2, 7}} : std::vector<Range>{{2, 3}};
    }
    static std::vector<Range> parts() {
        return GetParam().is_demo ? std::vector<Range>{{2, 4}, {4, 5}, {6, 7}} : whole();
    }
    GpuStepsOptions options() const {
        return {.device = "0",
                .sequences_max = 4,
                .step_rows_max = 16,
                .micro_batches_max = 3,
                .kv_bytes_max = 8u << 20,
                .kv_dtype = GetParam().kv_dtype,
                .uses_spans = true};
    }
    GpuSteps& steps() {
        if (!steps_)
            steps_ = must(open_gpu_steps(model_.package, test::compute_threads(), options()));
        return *steps_;
    }
    KvCacheOptions pages() {
        KvCacheOptions options = steps().kv_pages();
        options.num_pages = 6;
        options.mover = steps().page_mover();
        return options;
    }
    const ModelConfig& config() const { return model_.package->config(); }
    std::vector<TokenId> tokens(std::size_t count, std::uint32_t seed) const {
        return test::random_tokens(count, config().vocab_size, seed);
    }

    // Returns the logits of every row of a text that is computed `chunk` tokens at a time.
    std::vector<float> logits(SpanBackend* spans, std::span<const TokenId> ids,
                              std::size_t chunk = 7, std::uint32_t micro_batches = 1) {
        KvCache cache(config(), pages());
        KvCache::Sequence kv(cache);
        std::vector<float> all;
        for (std::size_t i = 0; i < ids.size(); i += chunk) {
            const auto part = step(spans, kv, ids.subspan(i, std::min(chunk, ids.size() - i)),
                                   micro_batches);
            all.insert(all.end(), part.begin(), part.end());
        }
        if (spans != nullptr) spans->ended(kv.id());
        return all;
    }
    std::vector<float> step(SpanBackend* spans, KvCache::Sequence& kv, std::span<const TokenId> ids,
                            std::uint32_t micro_batches = 1) {
        steps().use_spans(spans);
        const StepRows rows{.kv = &kv, .tokens = ids, .all_logits = true};
        auto result = steps().run({&rows, 1}, experts_, micro_batches, {});
        steps().use_spans(nullptr);
        return must(std::move(result)).logits;
    }
    std::span<const float> row(const std::vector<float>& logits, std::size_t index) const {
        return std::span(logits).subspan(index * config().vocab_size, config().vocab_size);
    }
    static void expect_same_bits(std::span<const float> a, std::span<const float> b) {
        ASSERT_EQ(a.size(), b.size());
        ASSERT_FALSE(a.empty());
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
    }
    // Returns the largest difference of a log-probability.
    double difference(std::vector<float> a, std::vector<float> b) const {
        const std::size_t size = config().vocab_size;
        double worst = 0;
        for (std::size_t first = 0; first < a.size(); first += size) {
            const auto x = std::span(a).subspan(first, size), y = std::span(b).subspan(first, size);
            log_softmax(x, x);
            log_softmax(y, y);
            for (std::size_t i = 0; i < size; ++i)
                worst = std::max(worst, std::abs(double{x[i]} - y[i]));
        }
        return worst;
    }

    const SpannedModel& model_ = model_of(GetParam().is_demo);
    LocalExperts experts_{model_.package, test::compute_threads(), {}, Arithmetic::exact};
    std::unique_ptr<GpuSteps> steps_;
    const std::vector<TokenId> text_ = tokens(40, 3);
};

INSTANTIATE_TEST_SUITE_P(ModelsAndKv, GpuSpansTest, testing::ValuesIn(kinds));

TEST_P(GpuSpansTest, LogitsEqualThoseOfTheGpuAlone) {
    LocalSpans spans(model_, whole());
    const double worst = difference(logits(&spans, text_), logits(nullptr, text_));
    std::cout << "largest difference of a log-probability: " << worst << '\n';
    EXPECT_LE(worst, GetParam().kv_dtype == KvDtype::int8 ? 2e-2 : 5e-3);
    EXPECT_EQ(spans.trips_, 6u);
}

TEST_P(GpuSpansTest, ChunkAndSplitChangeNoBit) {
    LocalSpans one(model_, whole()), several(model_, parts());
    const std::vector<float> wanted = logits(&one, text_, 16);
    expect_same_bits(logits(&one, text_, 1), wanted);
    expect_same_bits(logits(&one, text_, 16, 3), wanted);
    // More rows than a pass of the GPU has: several trips for one step.
    LocalSpans passes(model_, whole());
    expect_same_bits(logits(&passes, text_, 40), wanted);
    EXPECT_EQ(passes.trips_, 3u);
    if (GetParam().is_demo) {
        const std::vector<float> split = logits(&several, text_, 16);
        EXPECT_LE(difference(split, wanted), 5e-3);
        EXPECT_EQ(several.trips_, 9u);
        expect_same_bits(logits(&several, text_, 5), split);
    }
}

// The rows of a prompt are no neighbours on the GPU: its last row has logits.
TEST_P(GpuSpansTest, BatchesAndMicroBatchesChangeNoBit) {
    const auto a = tokens(12, 11), b = tokens(6, 12), c = tokens(3, 13);
    LocalSpans spans(model_, whole());
    const std::vector<float> a_alone = logits(&spans, a, 1), b_alone = logits(&spans, b),
                             c_alone = logits(&spans, c);
    for (const std::uint32_t number : {1u, 2u, 3u}) {
        KvCache cache(config(), pages());
        KvCache::Sequence of_a(cache), of_b(cache), of_c(cache);
        steps().use_spans(&spans);
        const StepRows prompts[] = {{.kv = &of_a, .tokens = std::span(a).first(5)},
                                    {.kv = &of_b, .tokens = b, .all_logits = true},
                                    {.kv = &of_c, .tokens = c, .likeliest = 2}};
        const StepResult first = must(steps().run(prompts, experts_, number, {}));
        const StepRows later[] = {
            {.kv = &of_a, .tokens = std::span(a).subspan(5), .all_logits = true}};
        const StepResult second = must(steps().run(later, experts_, number, {}));
        steps().use_spans(nullptr);

        expect_same_bits(row(first.logits, 0), row(a_alone, 4));
        for (std::size_t i = 0; i < b.size(); ++i)
            expect_same_bits(row(first.logits, 1 + i), row(b_alone, i));
        EXPECT_EQ(first.likeliest.front().tokens.front().logit, std::ranges::max(row(c_alone, 2)));
        for (std::size_t i = 0; i < 7; ++i)
            expect_same_bits(row(second.logits, i), row(a_alone, 5 + i));

        const std::uint32_t away = (whole()[0].second - whole()[0].first) * config().top_k;
        for (std::size_t i = 0; i < first.rows.size(); ++i) {
            EXPECT_EQ(first.rows[i].pairs_remote, away);
            EXPECT_EQ(first.rows[i].pairs_proven, away);
            EXPECT_EQ(first.row_workers[i], std::vector<std::uint64_t>{7});
        }
        for (const KvCache::Sequence* kv : {&of_a, &of_b, &of_c}) spans.ended(kv->id());
    }
}

TEST_P(GpuSpansTest, GpuGoesOnWithoutTheAnswer) {
    LocalSpans spans(model_, parts());
    spans.fails_ = true;
    const std::vector<float> wanted = logits(nullptr, text_);
    for (const std::uint32_t number : {1u, 3u})
        expect_same_bits(logits(&spans, text_, 7, number), wanted);
    EXPECT_GE(spans.trips_, 12u * parts().size());
}

// The first worker answers no step. In the midst of the pass a standby gets the same rows, and the
// keys and values before them from the GPU's pages where it lacks some.
TEST_P(GpuSpansTest, StandbyAnswersInTheSameStep) {
    struct First : LocalSpans {
        First(const SpannedModel& model, LocalSpans& standby)
            : LocalSpans(model, whole()),
              standby_(standby) {}
        std::unique_ptr<SpanRound> submit_again(const PlannedSpan& span, const SpanBatch& batch,
                                                std::span<const float> x) override {
            standby_.plan(batch);
            return standby_.submit(span, batch.sequences, x);
        }
        LocalSpans& standby_;
    };
    LocalSpans alone(model_, whole());
    const std::vector<float> wanted = logits(&alone, text_, 8);
    for (const std::uint32_t number : {1u, 3u}) {
        LocalSpans standby(model_, whole());
        First first(model_, standby);
        KvCache cache(config(), pages());
        KvCache::Sequence kv(cache);
        for (std::size_t i = 0; i < text_.size(); i += 8) {
            first.fails_ = i >= 16;
            const auto mine = step(&first, kv, std::span(text_).subspan(i, 8), number);
            const auto same = std::span(wanted).subspan(i * config().vocab_size, mine.size());
            // Keys and values that were u8 codes in between differ in their last bits.
            if (GetParam().kv_dtype != KvDtype::int8 || i < 16) expect_same_bits(mine, same);
        }
        EXPECT_EQ(standby.brought_, 16u);
        EXPECT_EQ(standby.trips_, 3 * number);
        first.ended(kv.id());
        standby.ended(kv.id());
    }
}

TEST_P(GpuSpansTest, CheckComparesAndUsesNothing) {
    LocalSpans spans(model_, parts());
    spans.use_ = SpanUse::check;
    // The worker's keys and values are f16. Beside f32, a route near a tie may be another one.
    if (GetParam().kv_dtype == KvDtype::f32) spans.tolerance_ = 0.2;
    if (GetParam().kv_dtype == KvDtype::int8) spans.tolerance_ = 5e-2;
    for (const std::uint32_t number : {1u, 3u})
        expect_same_bits(logits(&spans, text_, 7, number), logits(nullptr, text_));
    EXPECT_GE(spans.compared_, 12u * parts().size());
}

// A worker that has left is replaced by one that gets the keys and values from the GPU's pages.
TEST_P(GpuSpansTest, NextWorkerGetsThePagesOfTheGpu) {
    LocalSpans first(model_, whole()), second(model_, whole());
    const std::vector<float> wanted = logits(&first, text_, 8);
    KvCache cache(config(), pages());
    KvCache::Sequence kv(cache);
    step(&first, kv, std::span(text_).first(16));
    step(&first, kv, std::span(text_).subspan(16, 8));
    const auto later = step(&second, kv, std::span(text_).subspan(24, 8));
    EXPECT_EQ(second.brought_, 24u);
    for (std::size_t r = 0; r < 8; ++r)
        if (GetParam().kv_dtype == KvDtype::int8)
            EXPECT_LE(difference({row(later, r).begin(), row(later, r).end()},
                                 {row(wanted, 24 + r).begin(), row(wanted, 24 + r).end()}),
                      3e-2);
        else
            expect_same_bits(row(later, r), row(wanted, 24 + r));
    // The GPU alone goes on from what the workers returned. Beside keys and values as f32, a route
    // near a tie may be another one.
    if (GetParam().kv_dtype == KvDtype::f32) return;
    const auto here = step(nullptr, kv, std::span(text_).subspan(32));
    const std::vector<float> both = logits(&first, text_, 8);
    const std::vector<float> last(both.end() - static_cast<std::ptrdiff_t>(here.size()),
                                  both.end());
    EXPECT_LE(difference(here, last), GetParam().kv_dtype == KvDtype::int8 ? 3e-2 : 5e-3);
}

TEST_P(GpuSpansTest, RolledBackSequenceHasTheSameBits) {
    LocalSpans spans(model_, whole());
    const std::vector<float> wanted = logits(&spans, text_, 8);
    KvCache cache(config(), pages());
    KvCache::Sequence kv(cache);
    step(&spans, kv, std::span(text_).first(16));
    step(&spans, kv, tokens(8, 5));
    kv.roll_back(11);
    const auto again = step(&spans, kv, std::span(text_).subspan(11, 8));
    for (std::size_t r = 0; r < 8; ++r) expect_same_bits(row(again, r), row(wanted, 11 + r));
}

TEST_P(GpuSpansTest, RowsThatStayHereAreNotSent) {
    struct Asked : LocalSpans {
        using LocalSpans::LocalSpans;
        std::vector<PlannedSpan> plan(const SpanBatch& batch) override {
            may_leave_ = batch.may_leave;
            return {};
        }
        bool may_leave_ = true;
    } spans(model_, std::vector<Range>{});
    steps().use_spans(&spans);
    KvCache cache(config(), pages());
    KvCache::Sequence kv(cache);
    const StepRows rows{.kv = &kv, .tokens = std::span(text_).first(3), .stays_here = true};
    must(steps().run({&rows, 1}, experts_, 1, {}));
    steps().use_spans(nullptr);
    EXPECT_FALSE(spans.may_leave_);
}

// The rows of the step are at a worker while the hub's GPU is lost. The engine computes the text
// again on the next device.
TEST_P(GpuSpansTest, LostGpuChangesNoText) {
    Fate fate;
    GpuStepsOptions options = this->options();
    options.open_device = losable(fate);
    steps_ = must(open_gpu_steps(model_.package, test::compute_threads(), options));
    struct Losing : LocalSpans {
        Losing(const SpannedModel& model, Fate& fate) : LocalSpans(model, whole()), fate_(fate) {}
        std::unique_ptr<SpanRound> submit(const PlannedSpan& span,
                                          std::span<const SpanSequence> sequences,
                                          std::span<const float> x) override {
            if (trips_ == loses_at_) fate_.next_submit_breaks = true;
            return LocalSpans::submit(span, sequences, x);
        }
        Fate& fate_;
        std::uint32_t loses_at_ = ~0u;
    } spans(model_, fate);
    const auto write = [&] {
        std::vector<TokenId> ids;
        std::promise<FinishReason> end;
        const KvCacheOptions pages = steps().kv_pages();
        Engine engine(steps(), experts_,
                      {.step_rows_max = 16,
                       .kv_bytes_max = steps().kv_bytes(),
                       .page_tokens = pages.page_tokens,
                       .kv_dtype = pages.dtype,
                       .sequence_ended = [&](std::uint64_t id) { spans.ended(id); }});
        EXPECT_TRUE(
            engine
                .submit(
                    greedy(std::vector(text_.begin(), text_.begin() + 9), 12),
                    {.on_token = [&](const TokenEvent& event) { ids.push_back(event.token.id); },
                     .on_end = [&](const GenerationEnd& ended) { end.set_value(ended.reason); }})
                .ok());
        EXPECT_EQ(end.get_future().get(), FinishReason::length);
        return ids;
    };
    steps().use_spans(&spans);
    const std::vector<TokenId> undisturbed = write();
    spans.loses_at_ = spans.trips_ + 5;
    EXPECT_EQ(write(), undisturbed);
    EXPECT_EQ(fate.opened, 2u);
}

}  // namespace
}  // namespace moex
