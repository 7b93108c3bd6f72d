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

// The hub's GPU over a model, with experts in exact arithmetic.
class GpuOfHub {
  protected:
    GpuOfHub(const SpannedModel& model, KvDtype kv_dtype) : model_(model), kv_dtype_(kv_dtype) {}

    GpuStepsOptions options() const {
        return {.device = "0",
                .sequences_max = 4,
                .step_rows_max = 16,
                .micro_batches_max = 3,
                .kv_bytes_max = 8u << 20,
                .kv_dtype = kv_dtype_,
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
        options.slots = steps().state_slots();
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

    // Returns the greedy text that an engine writes behind the first nine tokens.
    std::vector<TokenId> write(LocalSpans& spans) {
        std::vector<TokenId> ids;
        std::promise<FinishReason> end;
        const KvCacheOptions pages = steps().kv_pages();
        Engine engine(steps(), experts_,
                      {.sequences_max = 4,
                       .step_rows_max = 16,
                       .kv_bytes_max = steps().kv_bytes() + steps().state_slots().all_bytes(),
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
    }
    // Loses the hub's GPU while the rows of a step are at a worker. The engine computes the text
    // again on the next device.
    void expect_same_text_after_loss(const std::vector<Range>& ranges) {
        Fate fate;
        GpuStepsOptions options = this->options();
        options.open_device = losable(fate);
        steps_ = must(open_gpu_steps(model_.package, test::compute_threads(), options));
        struct Losing : LocalSpans {
            Losing(const SpannedModel& model, const std::vector<Range>& ranges, Fate& fate)
                : LocalSpans(model, ranges),
                  fate_(fate) {}
            std::unique_ptr<SpanRound> submit(const PlannedSpan& span,
                                              std::span<const SpanSequence> sequences,
                                              std::span<const float> x) override {
                if (trips_ == loses_at_) fate_.next_submit_breaks = true;
                return LocalSpans::submit(span, sequences, x);
            }
            Fate& fate_;
            std::uint32_t loses_at_ = ~0u;
        } spans(model_, ranges, fate);
        steps().use_spans(&spans);
        const std::vector<TokenId> undisturbed = write(spans);
        spans.loses_at_ = spans.trips_ + 5;
        EXPECT_EQ(write(spans), undisturbed);
        EXPECT_EQ(fate.opened, 2u);
    }

    const SpannedModel& model_;
    const KvDtype kv_dtype_;
    LocalExperts experts_{model_.package, test::compute_threads(), {}, Arithmetic::exact};
    std::unique_ptr<GpuSteps> steps_;
    const std::vector<TokenId> text_ = tokens(40, 3);
};

class GpuSpansTest : public testing::TestWithParam<Kind>, protected GpuOfHub {
  protected:
    GpuSpansTest() : GpuOfHub(model_of(GetParam().is_demo), GetParam().kv_dtype) {}

    // The tiny model has a dense layer before its only span.
    static std::vector<Range> whole() {
        return GetParam().is_demo ? std::vector<Range>{{2, 7}} : std::vector<Range>{{2, 3}};
    }
    static std::vector<Range> parts() {
        return GetParam().is_demo ? std::vector<Range>{{2, 4}, {4, 5}, {6, 7}} : whole();
    }
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

TEST_P(GpuSpansTest, LostGpuChangesNoText) { expect_same_text_after_loss(whole()); }

class GpuHybridSpansTest : public testing::TestWithParam<KvDtype>, protected GpuOfHub {
  protected:
    GpuHybridSpansTest() : GpuOfHub(hybrid_model(), GetParam()) {}
};

INSTANTIATE_TEST_SUITE_P(Kv, GpuHybridSpansTest, testing::Values(KvDtype::f16, KvDtype::f32));

// What the worker returns of each row moves the states on the hub's GPU on: the GPU goes on alone
// in the midst of a text, and the worker goes on after that with states that it gets.
TEST_P(GpuHybridSpansTest, HubAndWorkersTakeTurns) {
    LocalSpans spans(model_, {{1, 3}, {3, 5}, {5, 7}});
    const std::vector<TokenId> text = tokens(120, 5);
    const std::vector<float> wanted = logits(nullptr, text, 16);
    KvCache cache(config(), pages());
    KvCache::Sequence kv(cache);
    std::size_t at = 0, turn = 0;
    std::vector<float> all;
    for (const std::size_t count : {16, 1, 3, 16, 12, 1, 1, 9, 10, 1, 16, 9, 1, 16, 8}) {
        const auto rows = step(turn++ % 3 == 2 ? nullptr : &spans, kv,
                               std::span(text).subspan(at, count));
        all.insert(all.end(), rows.begin(), rows.end());
        at += count;
    }
    spans.ended(kv.id());
    const double worst = difference(all, wanted);
    std::cout << spans.trips_ << " trips, " << spans.states_ << " sets of states, "
              << spans.brought_ << " rows, largest difference of a log-probability: " << worst
              << '\n';
    EXPECT_EQ(spans.trips_, 10u * 3);
    // After each turn of the hub, but for the last one.
    EXPECT_EQ(spans.states_, 4u * 3);
    // The worker's keys and values are f16. Beside f32, a route near a tie may be another one.
    EXPECT_LE(worst, GetParam() == KvDtype::f16 ? 5e-3 : 0.5);
}

TEST_P(GpuHybridSpansTest, SplitAndChunkChangeNoBit) {
    LocalSpans whole(model_, {{1, 7}}), parts(model_, {{1, 2}, {2, 3}, {3, 6}, {6, 7}});
    const std::vector<float> wanted = logits(&whole, text_, 16);
    EXPECT_LE(difference(wanted, logits(nullptr, text_, 16)), 5e-3);
    for (const std::size_t chunk : {1, 5, 16}) {
        SCOPED_TRACE(chunk);
        expect_same_bits(logits(&parts, text_, chunk), wanted);
    }
    expect_same_bits(logits(&whole, text_, 16, 3), wanted);
    EXPECT_EQ(parts.states_, 0u);
}

TEST_P(GpuHybridSpansTest, CheckComparesAndUsesNothing) {
    LocalSpans spans(model_, {{1, 4}, {4, 7}});
    spans.use_ = SpanUse::check;
    for (const std::uint32_t number : {1u, 3u})
        expect_same_bits(logits(&spans, text_, 7, number), logits(nullptr, text_, 7));
    EXPECT_GE(spans.compared_, 2u * 6 * 2);
    EXPECT_EQ(spans.states_, 0u);
}

TEST_P(GpuHybridSpansTest, GpuGoesOnWithoutTheAnswer) {
    LocalSpans spans(model_, {{1, 4}, {4, 7}});
    spans.fails_ = true;
    const std::vector<float> wanted = logits(nullptr, text_, 7);
    for (const std::uint32_t number : {1u, 3u})
        expect_same_bits(logits(&spans, text_, 7, number), wanted);
}

// Several sequences in one step, in one and in three micro-batches, with rejected drafts.
TEST_P(GpuHybridSpansTest, SequencesDoNotMix) {
    LocalSpans spans(model_, {{1, 4}, {4, 7}});
    const std::vector<TokenId> other = tokens(12, 8);
    const std::vector<float> first = logits(&spans, text_, 16), second = logits(&spans, other, 12);
    for (const std::uint32_t parts : {1u, 3u}) {
        SCOPED_TRACE(parts);
        KvCache cache(config(), pages());
        KvCache::Sequence a(cache), b(cache);
        step(&spans, a, std::span(text_).first(8));
        step(&spans, b, std::span(other).first(4));
        std::vector<TokenId> drafted(other.begin() + 4, other.begin() + 7);
        drafted.push_back(1);
        drafted.push_back(2);
        steps().use_spans(&spans);
        for (const bool again : {false, true}) {
            const StepRows rows[] = {{.kv = &a,
                                      .tokens = std::span(text_).subspan(again ? 10 : 8, 2),
                                      .all_logits = true},
                                     {.kv = &b, .tokens = drafted, .all_logits = true}};
            const std::vector<float> both = must(steps().run(rows, experts_, parts, {})).logits;
            for (std::size_t r = 0; r < 2; ++r)
                expect_same_bits(row(both, r), row(first, (again ? 10 : 8) + r));
            for (std::size_t r = 0; r < 3; ++r)
                expect_same_bits(row(both, 2 + r), row(second, (again ? 7 : 4) + r));
            b.roll_back(again ? 10 : 7);
            drafted.assign(other.begin() + 7, other.begin() + 10);
        }
        steps().use_spans(nullptr);
        for (const KvCache::Sequence* one : {&a, &b}) spans.ended(one->id());
    }
    EXPECT_EQ(spans.states_, 0u);
}

// A worker that joins in the midst of drafts gets the state behind the rows that stayed.
TEST_P(GpuHybridSpansTest, WorkerGetsTheStateBehindDraftsThatStayed) {
    LocalSpans spans(model_, {{1, 7}});
    const std::vector<float> wanted = logits(nullptr, text_, 16);
    KvCache cache(config(), pages());
    KvCache::Sequence kv(cache);
    step(nullptr, kv, std::span(text_).first(8));
    step(nullptr, kv, std::span(text_).subspan(8, 5));
    kv.roll_back(11);
    const auto later = step(&spans, kv, std::span(text_).subspan(11, 5));
    EXPECT_EQ(spans.states_, 1u);
    const auto same = std::span(wanted).subspan(11 * config().vocab_size, later.size());
    EXPECT_LE(difference(later, {same.begin(), same.end()}), 5e-3);
    spans.ended(kv.id());
}

TEST_P(GpuHybridSpansTest, LostGpuChangesNoText) { expect_same_text_after_loss({{1, 7}}); }

}  // namespace
}  // namespace moex
