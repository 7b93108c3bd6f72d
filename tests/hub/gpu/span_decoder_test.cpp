// Tests spans on a Vulkan device (lavapipe if there is no GPU): the hub's decoder computes some
// layers, and a worker's decoder the others, over the same wire messages as between processes.
#include "web-worker/spans/span_decoder.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "hub/commands/gpu/span_layers.h"
#include "hub/engine/scores.h"
#include "hub/engine/span_backend.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/gpu/requests.h"
#include "tests/support/posted_loop.h"
#include "tests/support/repository.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/spans/span_weights.h"

namespace moex {
namespace {

using Range = std::pair<std::uint32_t, std::uint32_t>;

std::shared_ptr<const ModelPackage> demo() {
    static const auto package = must(ModelPackage::open(repository() / "static/models/demo"));
    return package;
}

// The demo's layers, once all of them are hashed.
SpanLayers& demo_layers() {
    static const auto layers = must(SpanLayers::open(demo(), {}));
    while (!layers->layer(demo()->config().num_layers - 1)) std::this_thread::yield();
    return *layers;
}

// A worker's part: the spans of one GPU.
class Holder {
  public:
    Holder() : device_(must(gpu::open_vulkan_device({}, loop_.poster()))) {}

    std::unique_ptr<SpanDecoder> load(Range range, std::uint32_t pages = 8) {
        std::vector<Bytes> blobs;
        for (std::uint32_t layer = range.first; layer < range.second; ++layer)
            blobs.push_back(*demo_layers().find(demo_layers().layer(layer)->blob));
        SpanWeights weights = must(SpanWeights::of_layers(std::move(blobs), range.first));
        for (std::uint32_t i = 0; i < weights.layers().size(); ++i)
            for (std::uint32_t expert = 0; expert < weights.layers()[i].experts.size(); ++expert) {
                const ByteView blob = must(demo()->blob(weights.layers()[i].experts[expert]));
                weights.add_expert(i, expert, Bytes(blob.begin(), blob.end()));
            }
        constexpr std::uint32_t context_tokens = 512;
        bool finished = false;
        std::unique_ptr<GpuDecoder> decoder;
        GpuDecoder::create(*device_, weights.model(context_tokens),
                           {.rows_max = 16, .pages = pages, .kv_kind = KvKind::f16}, weights,
                           [&](Result<std::unique_ptr<GpuDecoder>> made) {
                               finished = true;
                               decoder = must(std::move(made));
                           });
        if (!finished) loop_.run_until(finished);
        return std::make_unique<SpanDecoder>(std::move(decoder), context_tokens);
    }

    SpanAnswer step(SpanDecoder& span, const SpanStep& step) {
        bool finished = false;
        std::optional<Result<SpanAnswer>> answer;
        span.step(step, [&](Result<SpanAnswer> came) {
            finished = true;
            answer.emplace(std::move(came));
        });
        if (!finished) loop_.run_until(finished);
        return must(std::move(*answer));
    }

  private:
    test::PostedLoop loop_;
    std::unique_ptr<gpu::Device> device_;
};

Holder& holder() {
    static Holder one;
    return one;
}

// Sends every step through the given spans. Each message is encoded and decoded, as on a wire.
class LocalSpans : public SpanBackend {
  public:
    explicit LocalSpans(const std::vector<Range>& ranges) {
        for (const Range& range : ranges) spans_[range] = {holder().load(range), {}};
        limits_.hidden_size = demo()->config().hidden_size;
        limits_.num_layers = demo()->config().num_layers;
        limits_.num_experts = demo()->config().num_experts;
    }

    std::vector<PlannedSpan> plan(const SpanBatch& batch) override {
        std::vector<PlannedSpan> plan;
        for (auto& [range, held] : spans_) {
            plan.push_back({range.first, range.first, range.second, use_});
            if (use_ == SpanUse::here) continue;
            for (std::size_t i = 0; i < batch.sequences.size(); ++i) bring(range, held, batch, i);
        }
        return plan;
    }

    std::unique_ptr<SpanRound> submit(const PlannedSpan& planned,
                                      std::span<const SpanSequence> sequences,
                                      std::span<const float> x) override {
        auto& held = spans_.at({planned.first_layer, planned.end_layer});
        const std::uint32_t hidden = limits_.hidden_size;
        SpanStep step{.step = ++steps_,
                      .span = planned.id,
                      .sequences = {sequences.begin(), sequences.end()},
                      .x = {x.begin(), x.end()}};
        for (const SpanSequence& one : sequences)
            held.known[one.id] = one.num_before + one.num_rows;
        const SpanStep received = must(decode_span_step(encode_span_step(step, hidden), limits_));
        const SpanAnswer answer = must(decode_span_answer(
            encode_span_answer(holder().step(*held.decoder, received), hidden), limits_));
        EXPECT_EQ(answer.verdict, SpanVerdict::done);
        ++trips_;
        return std::make_unique<Round>(answer, fails_);
    }
    void record(const PlannedSpan&, std::uint32_t, Duration took) override {
        EXPECT_GT(took.count(), 0);
    }
    void ended(std::uint64_t sequence) override {
        for (auto& [range, held] : spans_) held.decoder->end({&sequence, 1});
    }

    SpanUse use_ = SpanUse::away;
    bool fails_ = false;
    std::uint32_t trips_ = 0, brought_ = 0, compared_ = 0;

  private:
    struct Held {
        std::unique_ptr<SpanDecoder> decoder;
        std::map<std::uint64_t, std::uint32_t> known;
    };
    class Round : public SpanRound {
      public:
        Round(SpanAnswer answer, bool fails) : answer_(std::move(answer)), fails_(fails) {}
        Result<SpanResult> wait(std::stop_token) override {
            if (fails_) return Error{ErrorCode::timeout, "the answer is late"};
            return SpanResult{answer_.x, answer_.kv, 7, true};
        }
        // The hub's own arithmetic differs from the GPU's by its order of sums and by f16 keys.
        void compare(std::span<const float> before, std::span<const float> x, Bytes kv) override {
            double difference = 0, change = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                difference += std::pow(double{x[i]} - answer_.x[i], 2);
                change += std::pow(double{x[i]} - before[i], 2);
            }
            EXPECT_LT(std::sqrt(difference / change), 1e-2);
            EXPECT_EQ(kv.size(), answer_.kv.size());
        }

      private:
        SpanAnswer answer_;
        bool fails_;
    };

    void bring(const Range& range, Held& held, const SpanBatch& batch, std::size_t index) {
        const SpanSequence& one = batch.sequences[index];
        const std::uint32_t known = held.known[one.id];
        if (known >= one.num_before) return;
        const ModelConfig& config = demo()->config();
        SpanKv kv{.span = range.first,
                  .sequence = one.id,
                  .first = known,
                  .num_rows = one.num_before - known,
                  .num_layers = range.second - range.first,
                  .kv_size = config.num_kv_heads * config.head_dim};
        kv.rows.resize(span_kv_bytes(kv.num_layers, kv.num_rows, kv.kv_size));
        batch.read_kv(index, range.first, range.second, known, kv.num_rows, kv.rows);
        EXPECT_EQ(held.decoder->take_kv(must(decode_span_kv(encode_span_kv(kv), limits_))),
                  SpanVerdict::done);
        brought_ += kv.num_rows;
    }

    std::map<Range, Held> spans_;
    WireLimits limits_;
    std::uint32_t steps_ = 0;
};

// The hub's decoder over the demo, in exact arithmetic, with keys and values as f32.
class SpanDecoderTest : public testing::Test {
  protected:
    SpanDecoderTest()
        : experts_(demo(), test::compute_threads(), {}, Arithmetic::exact),
          decoder_(must(Decoder::create(demo(), test::compute_threads()))),
          cache_(demo()->config(), {.page_tokens = 16, .num_pages = 64}) {}

    std::vector<float> step(KvCache::Sequence& kv, std::span<const TokenId> tokens) {
        const StepRows rows{.kv = &kv, .tokens = tokens, .all_logits = true};
        return must(decoder_->step({&rows, 1}, experts_)).logits;
    }
    // Returns the logits of every row of a text that is computed `chunk` tokens at a time.
    std::vector<float> logits(SpanBackend* spans, std::span<const TokenId> ids,
                              std::size_t chunk = 7, KvDtype dtype = KvDtype::f32) {
        decoder_->use_spans(spans);
        KvCache cache(demo()->config(), {.page_tokens = 16, .num_pages = 64, .dtype = dtype});
        KvCache::Sequence kv(cache);
        std::vector<float> all;
        for (std::size_t i = 0; i < ids.size(); i += chunk) {
            const auto part = step(kv, ids.subspan(i, std::min(chunk, ids.size() - i)));
            all.insert(all.end(), part.begin(), part.end());
        }
        if (spans != nullptr) spans->ended(kv.id());
        decoder_->use_spans(nullptr);
        return all;
    }
    std::vector<float> row(const std::vector<float>& logits, std::size_t index) const {
        const std::size_t size = demo()->config().vocab_size;
        return {logits.begin() + static_cast<std::ptrdiff_t>(index * size),
                logits.begin() + static_cast<std::ptrdiff_t>((index + 1) * size)};
    }
    // Returns the log-probabilities of the tokens after each row, with keys and values in f16.
    std::vector<float> logprobs(SpanBackend* spans, std::span<const TokenId> ids) {
        const std::size_t size = demo()->config().vocab_size;
        std::vector<float> all = logits(spans, ids, 16, KvDtype::f16);
        for (std::size_t r = 0; r < ids.size(); ++r) {
            const auto row = std::span(all).subspan(r * size, size);
            log_softmax(row, row);
        }
        return all;
    }
    // Returns the greedy text behind a prompt.
    std::vector<TokenId> greedy(SpanBackend* spans, std::span<const TokenId> prompt,
                                std::size_t num_tokens) {
        decoder_->use_spans(spans);
        KvCache::Sequence kv(cache_);
        std::vector<TokenId> text;
        std::vector<float> last = step(kv, prompt);
        while (text.size() < num_tokens) {
            const auto row = last.end() - demo()->config().vocab_size;
            text.push_back(static_cast<TokenId>(std::max_element(row, last.end()) - row));
            last = step(kv, std::span(text).last(1));
        }
        if (spans != nullptr) spans->ended(kv.id());
        decoder_->use_spans(nullptr);
        return text;
    }
    // Returns the likeliest token after each row of `logits`.
    static std::vector<TokenId> likeliest(const std::vector<float>& logits) {
        const std::size_t size = demo()->config().vocab_size;
        std::vector<TokenId> all;
        for (auto row = logits.begin(); row < logits.end(); row += static_cast<long>(size))
            all.push_back(
                static_cast<TokenId>(std::max_element(row, row + static_cast<long>(size)) - row));
        return all;
    }
    // A greedy text of spans, and how many of its tokens the hub alone would have written, too.
    struct LongText {
        std::vector<TokenId> ids;
        std::size_t num_compared = 0, num_equal = 0;
    };
    // Writes the greedy text of `spans` after `prompt` until it has `num_tokens` ids. The hub alone
    // drafts tokens, and the spans compute all of them in one step, so that a text takes few steps:
    // rows of one step have the bits of rows one by one (ChunkAndBatchChangeNoBit).
    LongText long_text(SpanBackend& spans, std::span<const TokenId> prompt,
                       std::size_t num_tokens) {
        constexpr std::size_t drafts_max = 15;
        KvCache::Sequence away(cache_), here(cache_);
        LongText text{.ids = {prompt.begin(), prompt.end()}};
        const auto rest = [&](const KvCache::Sequence& kv) {
            return std::span<const TokenId>(text.ids).subspan(kv.num_tokens());
        };
        decoder_->use_spans(&spans);
        text.ids.push_back(likeliest(step(away, rest(away))).back());
        while (text.ids.size() < num_tokens) {
            decoder_->use_spans(nullptr);
            std::vector<TokenId> rows{text.ids.back()};
            std::vector<TokenId> next = likeliest(step(here, rest(here)));
            while (rows.push_back(next.back()), rows.size() <= drafts_max)
                next = likeliest(step(here, std::span(rows).last(1)));

            decoder_->use_spans(&spans);
            const std::vector<TokenId> own = likeliest(
                step(away, std::span(rows).first(drafts_max)));
            std::size_t agreed = 0;
            while (agreed < drafts_max && own[agreed] == rows[agreed + 1]) ++agreed;
            const std::size_t taken = std::min(agreed + 1, drafts_max);
            text.num_equal += agreed;
            text.num_compared += taken;
            text.ids.insert(text.ids.end(), own.begin(), own.begin() + static_cast<long>(taken));
            for (KvCache::Sequence* kv : {&away, &here})
                kv->roll_back(
                    std::min(kv->num_tokens(), static_cast<std::uint32_t>(text.ids.size() - 1)));
        }
        spans.ended(away.id());
        decoder_->use_spans(nullptr);
        return text;
    }
    static void expect_same_bits(std::span<const float> a, std::span<const float> b) {
        ASSERT_EQ(a.size(), b.size());
        ASSERT_FALSE(a.empty());
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
    }

    const std::vector<TokenId> text_ = test::random_tokens(40, 8000, 3);
    LocalExperts experts_;
    std::unique_ptr<Decoder> decoder_;
    KvCache cache_;
};

TEST_F(SpanDecoderTest, LogitsEqualThoseOfTheHubAlone) {
    LocalSpans spans({{2, 7}});
    std::vector<float> mine = logits(&spans, text_), hubs = logits(nullptr, text_);
    EXPECT_EQ(spans.trips_, 6u);
    const std::size_t size = demo()->config().vocab_size;
    double worst = 0;
    for (std::size_t r = 0; r < text_.size(); ++r) {
        const auto a = std::span(mine).subspan(r * size, size),
                   b = std::span(hubs).subspan(r * size, size);
        log_softmax(a, a);
        log_softmax(b, b);
        for (std::size_t i = 0; i < size; ++i)
            worst = std::max(worst, std::abs(double{a[i]} - b[i]));
    }
    std::cout << "largest difference of a log-probability: " << worst << '\n';
    EXPECT_LE(worst, 5e-3);
}

// The prompts and greedy texts of tests/golden/demo, which was computed by an independent
// implementation with bf16 experts. A span has INT4 experts, so it is compared with the hub's own
// exact arithmetic over the same experts, which agrees with that golden (golden_test), and with
// keys and values in f16 as a span has them. Compared are the values that the golden has: the
// log-probabilities of the next token and of the 20 likeliest. Greedy tokens are equal where the
// hub's own margin is larger than twice the tolerance.
TEST_F(SpanDecoderTest, TextsOfTheGoldenHaveTheSameLogProbabilities) {
    std::ifstream in(repository() / "tests/golden/demo/golden.json");
    const std::size_t size = demo()->config().vocab_size;
    double worst = 0;
    std::size_t compared = 0;
    LocalSpans spans({{2, 4}, {5, 7}});
    for (const auto& entry : nlohmann::json::parse(in)) {
        auto ids = entry.at("ids").get<std::vector<TokenId>>();
        const auto greedy = entry.at("greedy").get<std::vector<TokenId>>();
        ids.insert(ids.end(), greedy.begin(), greedy.end());
        const std::vector<float> mine = logprobs(&spans, ids), hubs = logprobs(nullptr, ids);
        for (std::size_t r = 0; r < ids.size(); ++r) {
            const std::vector<float> a = row(mine, r), b = row(hubs, r);
            std::vector<TokenId> likely(size);
            std::iota(likely.begin(), likely.end(), TokenId{0});
            std::partial_sort(likely.begin(), likely.begin() + 20, likely.end(),
                              [&](TokenId x, TokenId y) { return b[x] > b[y]; });
            const float margin = b[likely[0]] - b[likely[1]];
            if (margin > 4e-3f) {
                EXPECT_EQ(std::max_element(a.begin(), a.end()) - a.begin(), likely[0]) << r;
                ++compared;
            }
            likely.resize(20);
            if (r + 1 < ids.size()) likely.push_back(ids[r + 1]);
            for (const TokenId id : likely)
                worst = std::max(worst, std::abs(double{a[id]} - b[id]));
        }
    }
    std::cout << "largest difference of a log-probability: " << worst << ", " << compared
              << " greedy tokens compared\n";
    EXPECT_GT(compared, 150u);
    EXPECT_LE(worst, 2e-3);
}

TEST_F(SpanDecoderTest, GreedyTextIsTheSameWhateverTheSplit) {
    const std::span<const TokenId> prompt = std::span(text_).first(6);
    LocalSpans whole({{2, 7}}), parts({{2, 5}, {5, 7}}),
        single({{2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}});
    const std::vector<TokenId> wanted = greedy(&whole, prompt, 60);
    EXPECT_EQ(greedy(&parts, prompt, 60), wanted);
    EXPECT_EQ(greedy(&single, prompt, 60), wanted);
    EXPECT_GT(single.trips_, 4 * whole.trips_);
}

// By hand with MOEX_SPAN_TOKENS=10000: at least so many tokens, in texts of 480.
TEST_F(SpanDecoderTest, LongGreedyTextsAreTheSameWhateverTheSplit) {
    const char* wanted = std::getenv("MOEX_SPAN_TOKENS");
    const std::size_t num_wanted = wanted ? std::strtoull(wanted, nullptr, 10) : 100;
    constexpr std::size_t text_tokens = 480, prompt_tokens = 6;
    LocalSpans whole({{2, 7}}), halves({{2, 5}, {5, 7}});
    LocalSpans single({{2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}});
    std::size_t written = 0, num_compared = 0, num_equal = 0;
    for (unsigned seed = 1; written < num_wanted; ++seed) {
        const std::size_t num_ids = std::min(text_tokens, num_wanted - written + prompt_tokens);
        const LongText text = long_text(whole, test::random_tokens(prompt_tokens, 8000, seed),
                                        num_ids);
        const auto ids = std::span(text.ids);
        for (LocalSpans* split : {&halves, &single}) {
            const std::vector<TokenId> next = likeliest(logits(split, ids, 16));
            for (std::size_t at = prompt_tokens; at < ids.size(); ++at)
                ASSERT_EQ(next[at - 1], ids[at]) << "text " << seed << ", token " << at;
        }
        written += ids.size() - prompt_tokens;
        num_compared += text.num_compared;
        num_equal += text.num_equal;
    }
    std::cout << written << " tokens, the same for spans of 5, 3 + 2 and 1 layers; the hub alone "
              << "would have written " << num_equal << " of " << num_compared << '\n';
    EXPECT_GE(static_cast<double>(num_equal), 0.99 * static_cast<double>(num_compared));
}

TEST_F(SpanDecoderTest, SplitAmongSpansChangesNoBit) {
    LocalSpans whole({{2, 7}}), parts({{2, 4}, {4, 7}}), single({{3, 4}, {4, 5}, {5, 6}});
    const std::vector<float> wanted = logits(&whole, text_);
    expect_same_bits(logits(&parts, text_), wanted);
    EXPECT_EQ(parts.trips_, 2 * whole.trips_);
    LocalSpans joined({{3, 6}});
    expect_same_bits(logits(&single, text_), logits(&joined, text_));
}

TEST_F(SpanDecoderTest, ChunkAndBatchChangeNoBit) {
    LocalSpans spans({{2, 7}});
    const std::vector<float> wanted = logits(&spans, text_, 16);
    for (const std::size_t chunk : {1, 5}) expect_same_bits(logits(&spans, text_, chunk), wanted);

    // Two sequences in one step, in one and in two micro-batches.
    const std::vector<TokenId> other = test::random_tokens(6, 8000, 4);
    for (const std::uint32_t parts : {1u, 2u}) {
        decoder_->use_spans(&spans);
        KvCache::Sequence a(cache_), b(cache_);
        const StepRows rows[] = {
            {.kv = &a, .tokens = std::span(text_).first(9), .all_logits = true},
            {.kv = &b, .tokens = other, .all_logits = true}};
        const std::vector<float> both = must(decoder_->step(rows, experts_, {}, {}, parts)).logits;
        for (std::size_t r = 0; r < 9; ++r) expect_same_bits(row(both, r), row(wanted, r));
        const auto alone = logits(&spans, other);
        for (std::size_t r = 0; r < other.size(); ++r)
            expect_same_bits(row(both, 9 + r), row(alone, r));
    }
}

TEST_F(SpanDecoderTest, RolledBackSequenceHasTheSameBits) {
    LocalSpans spans({{2, 7}});
    const std::vector<float> wanted = logits(&spans, text_, 8);
    decoder_->use_spans(&spans);
    KvCache::Sequence kv(cache_);
    step(kv, std::span(text_).first(16));
    step(kv, test::random_tokens(8, 8000, 5));
    kv.roll_back(11);
    const auto again = step(kv, std::span(text_).subspan(11, 8));
    for (std::size_t r = 0; r < 8; ++r) expect_same_bits(row(again, r), row(wanted, 11 + r));
}

TEST_F(SpanDecoderTest, BroughtKeysAndValuesGiveTheSameBits) {
    LocalSpans first({{2, 7}}), second({{2, 7}});
    const std::vector<float> wanted = logits(&first, text_, 8);
    decoder_->use_spans(&first);
    KvCache::Sequence kv(cache_);
    for (const std::size_t first_row : {0, 12}) step(kv, std::span(text_).subspan(first_row, 12));
    // The first worker has left: the second one gets what the first one returned.
    decoder_->use_spans(&second);
    const auto later = step(kv, std::span(text_).subspan(24, 8));
    EXPECT_EQ(second.brought_, 24u);
    for (std::size_t r = 0; r < 8; ++r) expect_same_bits(row(later, r), row(wanted, 24 + r));
}

TEST_F(SpanDecoderTest, HubGoesOnWithoutTheAnswer) {
    LocalSpans spans({{2, 7}});
    spans.fails_ = true;
    const std::vector<float> wanted = logits(nullptr, text_);
    // No answer is used, so every bit is the hub's own.
    expect_same_bits(logits(&spans, text_), wanted);
    EXPECT_EQ(spans.trips_, 6u);
}

// Two workers hold the layers and the first one answers no step: the second one gets the same rows
// and what it lacks before them.
TEST_F(SpanDecoderTest, StandbyAnswersInTheSameStep) {
    struct First : LocalSpans {
        First(const Range& range, LocalSpans& standby) : LocalSpans({range}), standby_(standby) {
            fails_ = true;
        }
        std::unique_ptr<SpanRound> submit_again(const PlannedSpan& span, const SpanBatch& batch,
                                                std::span<const float> x) override {
            standby_.plan(batch);
            return standby_.submit(span, batch.sequences, x);
        }
        LocalSpans& standby_;
    };
    LocalSpans alone({{2, 7}}), standby({{2, 7}});
    First first({2, 7}, standby);
    expect_same_bits(logits(&first, text_), logits(&alone, text_));
    EXPECT_EQ(first.trips_, 6u);
    EXPECT_EQ(standby.trips_, 6u);
}

TEST_F(SpanDecoderTest, CheckComparesAndUsesNothing) {
    LocalSpans spans({{2, 4}, {4, 7}});
    spans.use_ = SpanUse::check;
    expect_same_bits(logits(&spans, text_), logits(nullptr, text_));
    EXPECT_EQ(spans.trips_, 12u);
}

TEST_F(SpanDecoderTest, RowsThatStayHereAreNotSent) {
    struct Asked : LocalSpans {
        using LocalSpans::LocalSpans;
        std::vector<PlannedSpan> plan(const SpanBatch& batch) override {
            may_leave_ = batch.may_leave;
            return {};
        }
        bool may_leave_ = true;
    } spans(std::vector<Range>{});
    decoder_->use_spans(&spans);
    KvCache::Sequence kv(cache_);
    const StepRows rows{.kv = &kv, .tokens = std::span(text_).first(3), .stays_here = true};
    must(decoder_->step({&rows, 1}, experts_));
    EXPECT_FALSE(spans.may_leave_);
}

TEST_F(SpanDecoderTest, StepsBeyondWhatIsHeldAreRefused) {
    const auto span = holder().load({2, 3}, 2);
    const std::uint32_t hidden = demo()->config().hidden_size;
    const auto rows = [&](std::uint64_t id, std::uint32_t before, std::uint32_t count) {
        return SpanStep{.sequences = {{id, before, count}},
                        .x = std::vector<float>(std::size_t{count} * hidden, 0.25f)};
    };
    EXPECT_EQ(holder().step(*span, rows(1, 5, 1)).verdict, SpanVerdict::unknown_sequence);
    EXPECT_EQ(holder().step(*span, rows(1, 0, 3)).verdict, SpanVerdict::done);
    EXPECT_EQ(holder().step(*span, rows(1, 4, 1)).verdict, SpanVerdict::unknown_sequence);
    EXPECT_EQ(holder().step(*span, rows(2, 0, 1)).verdict, SpanVerdict::done);
    EXPECT_EQ(holder().step(*span, rows(3, 0, 1)).verdict, SpanVerdict::no_pages);
    const std::uint64_t ended = 1;
    span->end({&ended, 1});
    EXPECT_EQ(holder().step(*span, rows(3, 0, 1)).verdict, SpanVerdict::done);
    // A repeated step gives the same answer.
    const SpanAnswer once = holder().step(*span, rows(2, 1, 2)),
                     again = holder().step(*span, rows(2, 1, 2));
    expect_same_bits(once.x, again.x);
    EXPECT_EQ(once.kv, again.kv);
}

}  // namespace
}  // namespace moex
