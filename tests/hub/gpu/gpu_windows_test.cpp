// Tests that a hub's GPU frees keys and values that no window sees (lavapipe if there is no GPU):
// slots change no bit, texts that begin alike and texts on other pages go on, and the memory is
// that of the formula.
#include <cstring>
#include <future>

#include <gtest/gtest.h>

#include "hub/commands/gpu/gpu_steps.h"
#include "hub/engine/decoder.h"
#include "hub/engine/engine.h"
#include "hub/engine/local_experts.h"
#include "hub/engine/span_backend.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/gpu/losable_device.h"
#include "tests/hub/gpu/requests.h"

namespace moex {
namespace {

constexpr std::uint32_t context_tokens = 1024, num_pages = context_tokens / 128;

// Layers 0 and 2 have a window of 40 positions.
std::shared_ptr<const ModelPackage> windowed_package() {
    ModelConfig config = test::tiny_config();
    config.context_tokens = context_tokens;
    for (const std::size_t layer : {0, 2}) config.layers[layer].window = 40;
    static const std::shared_ptr<const ModelPackage> package = test::synth(config, "windowed");
    return package;
}

class GpuWindowsTest : public testing::TestWithParam<KvDtype> {
  protected:
    std::unique_ptr<GpuSteps> open(std::uint32_t sequences_max, std::uint64_t kv_bytes_max,
                                   bool uses_spans = false) const {
        return must(open_gpu_steps(package_, test::compute_threads(),
                                   {.device = "0",
                                    .holds_experts = !uses_spans,
                                    .sequences_max = sequences_max,
                                    .step_rows_max = 64,
                                    .kv_bytes_max = kv_bytes_max,
                                    .kv_dtype = GetParam(),
                                    .uses_spans = uses_spans}));
    }
    // 16 pages, half of which are in 8 slots.
    std::unique_ptr<GpuSteps> slotted(bool uses_spans = false) const {
        auto steps = open(2, 64u << 20, uses_spans);
        EXPECT_EQ(steps->kv_pages().num_pages, 2 * num_pages);
        EXPECT_EQ(steps->page_mover().num_window_slots, 8u);
        return steps;
    }
    // 16 whole pages: for 16 sequences, as many slots would be needed.
    std::unique_ptr<GpuSteps> whole() const {
        const std::uint64_t page_bytes = slotted()->kv_bytes() / (2 * num_pages + 8) * 2;
        auto steps = open(16, 2 * num_pages * page_bytes);
        EXPECT_EQ(steps->kv_pages().num_pages, 2 * num_pages);
        EXPECT_EQ(steps->page_mover().num_window_slots, 0u);
        return steps;
    }
    static KvCacheOptions pages_of(GpuSteps& steps) {
        KvCacheOptions options = steps.kv_pages();
        options.mover = steps.page_mover();
        return options;
    }
    // Returns the logits of each step's last row of all texts, `chunk` tokens at a time.
    std::vector<float> logits(GpuSteps& steps, std::span<const std::vector<TokenId>> texts,
                              std::size_t chunk) {
        KvCache cache(package_->config(), pages_of(steps));
        std::vector<KvCache::Sequence> kv;
        for (std::size_t i = 0; i < texts.size(); ++i) kv.emplace_back(cache);
        std::vector<float> all;
        for (std::size_t first = 0; first < texts[0].size(); first += chunk) {
            std::vector<StepRows> rows;
            for (std::size_t i = 0; i < texts.size(); ++i) {
                const auto ids = std::span(texts[i]).subspan(first);
                rows.push_back({.kv = &kv[i], .tokens = ids.first(std::min(chunk, ids.size()))});
            }
            const StepResult result = must(steps.run(rows, experts_, 1, {}));
            all.insert(all.end(), result.logits.begin(), result.logits.end());
            for (KvCache::Sequence& one : kv) one.forget_unseen();
        }
        return all;
    }
    std::vector<std::vector<TokenId>> write(GpuSteps& steps,
                                            std::span<const GenerationRequest> requests,
                                            const std::function<void()>& on_token = {}) {
        std::vector<std::vector<TokenId>> answers(requests.size());
        std::vector<std::promise<FinishReason>> ends(requests.size());
        const KvCacheOptions pages = steps.kv_pages();
        const KvCache probe(package_->config(), {pages.page_tokens, 0, pages.dtype});
        Engine engine(steps, experts_,
                      {.sequences_max = 2,
                       .step_rows_max = 64,
                       .kv_bytes_max = pages.num_pages * probe.page_bytes(),
                       .page_tokens = pages.page_tokens,
                       .kv_dtype = pages.dtype});
        for (std::size_t i = 0; i < requests.size(); ++i)
            EXPECT_TRUE(engine
                            .submit(requests[i], {.on_token =
                                                      [&, i](const TokenEvent& one) {
                                                          answers[i].push_back(one.token.id);
                                                          if (on_token) on_token();
                                                      },
                                                  .on_end =
                                                      [&, i](const GenerationEnd& one) {
                                                          ends[i].set_value(one.reason);
                                                      }})
                            .ok());
        for (auto& end : ends) EXPECT_EQ(end.get_future().get(), FinishReason::length);
        counters_ = engine.counters();
        return answers;
    }

    std::shared_ptr<const ModelPackage> package_ = windowed_package();
    LocalExperts experts_{package_, test::compute_threads(), {}, Arithmetic::exact};
    EngineCounters counters_;
};

INSTANTIATE_TEST_SUITE_P(Kv, GpuWindowsTest,
                         testing::Values(KvDtype::f32, KvDtype::f16, KvDtype::int8));

TEST_P(GpuWindowsTest, SlotsChangeNoBit) {
    const auto slotted = this->slotted(), whole = this->whole();
    EXPECT_EQ(4 * slotted->kv_bytes(), 3 * whole->kv_bytes());

    const std::vector<TokenId> texts[] = {test::random_tokens(600, 256, 1),
                                          test::random_tokens(600, 256, 2)};
    expect_same_bits(logits(*slotted, texts, 32), logits(*whole, texts, 32));
}

// The texts begin alike, and have more pages than there are slots.
TEST_P(GpuWindowsTest, AnswersAreThoseOfWholePages) {
    const auto slotted = this->slotted(), whole = this->whole();
    std::vector<GenerationRequest> requests;
    for (const std::size_t length : {300, 700, 301, 640, 130, 700}) {
        auto ids = test::random_tokens(700, 256, 4);
        ids.resize(length);
        ids.back() = static_cast<TokenId>(length % 256);
        requests.push_back(greedy(ids, 20));
    }
    const auto answers = write(*slotted, requests);
    EXPECT_EQ(counters_.kv_pages, 2 * num_pages);
    EXPECT_EQ(counters_.memory_max.pages, slotted->kv_bytes());
    EXPECT_GT(counters_.cached_tokens, 0u);
    EXPECT_EQ(answers, write(*whole, requests));
}

// The first prompt has read few of its tokens when the second one asks for room.
TEST_P(GpuWindowsTest, PromptsThatBeginTogetherPreemptNoneOfThem) {
    const std::uint64_t page_bytes = slotted()->kv_bytes() / (2 * num_pages + 8) * 2;
    const auto steps = open(2, 8 * page_bytes);
    const std::uint32_t pages = steps->kv_pages().num_pages;
    ASSERT_GT(steps->page_mover().num_window_slots, 0u);
    ASSERT_LT(pages, 2 * num_pages);
    std::vector<GenerationRequest> requests;
    for (const std::uint64_t seed : {1, 2, 3})
        requests.push_back(greedy(test::random_tokens((pages / 2 + 1) * 128 - 64, 256, seed), 8));
    const auto answers = write(*steps, requests);
    EXPECT_EQ(counters_.preempted, 0u);
    EXPECT_EQ(counters_.running_max, 1u);
    EXPECT_EQ(answers, write(*whole(), requests));
    EXPECT_EQ(counters_.running_max, 2u);
}

// Four pages with two slots, the least for one sequence: texts wait for each other, and a text
// whose begin was taken over does not wait for the slots that it has.
TEST_P(GpuWindowsTest, FewestSlotsSufficeForOneText) {
    const std::uint64_t page_bytes = slotted()->kv_bytes() / (2 * num_pages + 8) * 2;
    const auto steps = open(1, 4 * page_bytes);
    ASSERT_EQ(steps->kv_pages().num_pages, 4u);
    ASSERT_EQ(steps->page_mover().num_window_slots, 2u);
    std::vector<GenerationRequest> requests;
    for (const std::size_t length : {200, 400, 300}) {
        auto ids = test::random_tokens(400, 256, 8);
        ids.resize(length);
        requests.push_back(greedy(ids, 12));
    }
    EXPECT_EQ(write(*steps, requests), write(*slotted(), requests));
}

// The next device has as many slots. The cores after it have the bytes of the first device.
TEST_P(GpuWindowsTest, LostGpuChangesNoText) {
    if (GetParam() == KvDtype::int8) return;  // the cores have other codes
    const GenerationRequest requests[] = {greedy(test::random_tokens(290, 256, 6), 12),
                                          greedy(test::random_tokens(500, 256, 7), 12)};
    const auto undisturbed = write(*slotted(), requests);
    Fate fate{.devices = 2};
    const auto cores = must(Decoder::create(package_, test::compute_threads()));
    const auto steps = must(
        open_gpu_steps(package_, test::compute_threads(),
                       {.device = "0",
                        .holds_experts = true,
                        .sequences_max = 2,
                        .step_rows_max = 64,
                        .kv_bytes_max = 64u << 20,
                        .kv_dtype = GetParam(),
                        .cores = [&]() -> Result<StepDevice*> { return cores.get(); },
                        .open_device = losable(fate)}));
    std::uint32_t tokens = 0;
    EXPECT_EQ(undisturbed, write(*steps, requests, [&] {
                  ++tokens;
                  if (tokens == 5 || tokens == 15) fate.next_submit_breaks = true;
              }));
    EXPECT_EQ(fate.opened, 2u);
    EXPECT_EQ(counters_.kv_pages, 2 * num_pages * 3 / 4);
}

TEST_P(GpuWindowsTest, PartsOfAPageAreReadAndWritten) {
    const auto steps = slotted();
    const auto ids = test::random_tokens(200, 256, 9);
    KvCache cache(package_->config(), pages_of(*steps));
    KvCache::Sequence first(cache), second(cache);
    for (std::size_t at = 0; at < 200; at += 50) {
        const StepRows rows{.kv = &first, .tokens = std::span(ids).subspan(at, 50)};
        must(steps->run({&rows, 1}, experts_, 1, {}));
    }
    const StepRows more{.kv = &first, .tokens = std::span(ids).first(9)};
    const std::vector<float> wanted = must(steps->run({&more, 1}, experts_, 1, {})).logits;

    Bytes rows(cache.page_bytes() - cache.window_bytes()), window_rows(cache.window_bytes());
    EXPECT_EQ(first.read_page(0, rows, std::span(window_rows).first(8)).error().code,
              ErrorCode::payload_size);
    ASSERT_TRUE(first.read_page(0, rows, window_rows).ok());
    ASSERT_TRUE(second.append_page(rows, window_rows).ok());
    const StepRows rest{.kv = &second, .tokens = std::span(ids).subspan(128)};
    must(steps->run({&rest, 1}, experts_, 1, {}));
    const StepRows again{.kv = &second, .tokens = std::span(ids).first(9)};
    expect_same_bits(must(steps->run({&again, 1}, experts_, 1, {})).logits, wanted);

    first.forget_unseen();
    EXPECT_EQ(first.read_page(0, rows, window_rows).error().code, ErrorCode::not_found);
    EXPECT_TRUE(first.read_page(0, rows).ok());
}

// Reads the keys and values of a step's first sequence, and computes nothing.
struct ReadingSpans : SpanBackend {
    std::vector<PlannedSpan> plan(const SpanBatch& batch) override {
        const std::uint32_t count = batch.sequences[0].num_before;
        for (Bytes& layer : layers) layer.resize(count * row_bytes);
        for (std::uint32_t layer = 2; layer < 4; ++layer)
            if (count > 0)
                EXPECT_TRUE(batch.read_kv(0, layer, layer + 1, 0, count, layers[layer - 2]).ok());
        return {};
    }
    std::unique_ptr<SpanRound> submit(const PlannedSpan&, std::span<const SpanSequence>,
                                      std::span<const float>) override {
        return nullptr;
    }
    void record(const PlannedSpan&, std::uint32_t, Duration) override {}
    void ended(std::uint64_t) override {}

    std::size_t row_bytes = 0;
    Bytes layers[2];  // layer 2, which has a window, and layer 3
};

// A worker gets zeros instead of rows that are gone: their slots have rows of other texts.
TEST_P(GpuWindowsTest, RowsBehindTheWindowLeaveAsZeros) {
    const auto steps = slotted(true);
    ReadingSpans spans;
    const ModelConfig& config = package_->config();
    spans.row_bytes = 2 * sizeof(half) * config.num_kv_heads * config.head_dim;
    const std::vector<TokenId> text[] = {test::random_tokens(520, 256, 5)};
    steps->use_spans(&spans);
    logits(*steps, text, 50);
    // The last step had 500 rows before it, and windows see none of the first three pages.
    ASSERT_EQ(spans.layers[0].size(), 500 * spans.row_bytes);
    const auto is_zero = [&](const Bytes& layer, std::size_t row) {
        const auto bytes = std::span(layer).subspan(row * spans.row_bytes, spans.row_bytes);
        return std::ranges::all_of(bytes, [](std::byte one) { return one == std::byte{0}; });
    };
    for (std::size_t row = 0; row < 500; ++row) {
        EXPECT_EQ(is_zero(spans.layers[0], row), row < 3 * 128) << row;
        EXPECT_FALSE(is_zero(spans.layers[1], row)) << row;
    }
}

}  // namespace
}  // namespace moex
