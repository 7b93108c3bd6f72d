// A whole model on a processor, as a browser without WebGPU computes it: its logits have the bits
// of the hub's decoder, whatever the steps are, and a page that leaves continues a text elsewhere.
#include "web-worker/processor/processor_decoder.h"

#include <malloc.h>

#include <cstring>
#include <memory>

#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/must.h"
#include "tests/support/posted_loop.h"
#include "tests/support/some_drafts.h"
#include "web-worker/decoder/sampled_loop.h"
#include "web-worker/local/local_drafts.h"
#include "web-worker/local/sampler_chooser.h"

namespace moex {
namespace {

using test::must;

void require_ok(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.error().message);
}

// A decoder with all layers, and its event loop.
class Processor {
  public:
    explicit Processor(const std::shared_ptr<const ModelPackage>& package,
                       std::uint32_t context_tokens = 256)
        : decoder(must(ProcessorDecoder::create(package, context_tokens, 1, loop_.poster()))) {
        for (std::uint32_t layer = 0; layer < decoder->num_layers(); ++layer)
            require_ok(decoder->load_layer(layer));
    }

    void feed(std::span<const TokenId> tokens, StepLogits logits) {
        require_ok(feed_prompt(*decoder, tokens, logits));
    }
    Result<std::vector<float>> read() {
        Result<std::vector<float>> row = std::vector<float>();
        bool finished = false;
        decoder->read_logits([&](Result<std::span<const float>> read) {
            if (read.ok())
                row = std::vector<float>(read->begin(), read->end());
            else
                row = read.error();
            finished = true;
        });
        loop_.run_until(finished);
        return row;
    }
    std::vector<float> logits() { return must(read()); }
    void run_one() { loop_.run_one(); }
    // The state after `num_tokens` tokens; empty if it is not kept.
    Bytes state(std::uint32_t num_tokens) {
        Bytes state(decoder->state_bytes());
        bool finished = false;
        decoder->read_state(num_tokens, state, [&](Status read) {
            if (!read.ok()) state.clear();
            finished = true;
        });
        loop_.run_until(finished);
        return state;
    }
    Bytes page(std::uint32_t index) {
        Bytes rows(kv_rows_bytes(decoder->kv_source(), kv_page_tokens));
        bool finished = false;
        decoder->read_page(index, rows, [&](Status read) {
            require_ok(read);
            finished = true;
        });
        loop_.run_until(finished);
        return rows;
    }
    // Answers a greedy question, with drafted tokens or without.
    std::vector<std::uint32_t> answer(std::span<const TokenId> prompt, std::uint32_t max_tokens,
                                      TokenDrafts* drafts, DraftCounts* counts = nullptr) {
        std::vector<std::uint32_t> answer;
        bool finished = false;
        SamplingOptions greedy;
        greedy.temperature = 0;
        SampledLoop loop(*decoder, {.max_tokens = max_tokens, .stop_ids = {}, .drafts = drafts},
                         std::make_unique<SamplerChooser>(Sampler(greedy, prompt, max_tokens)),
                         {.on_tokens =
                              [&](std::span<const std::uint32_t> ids) {
                                  answer.insert(answer.end(), ids.begin(), ids.end());
                              },
                          .on_end =
                              [&](Result<AnswerEnd> how) {
                                  EXPECT_EQ(must(how), AnswerEnd::length);
                                  finished = true;
                              }});
        loop.start(prompt);
        loop_.run_until(finished);
        if (counts != nullptr) *counts = loop.draft_counts();
        return answer;
    }

  private:
    test::PostedLoop loop_;

  public:
    std::unique_ptr<ProcessorDecoder> decoder;
};

// The logits of all tokens by the hub: its own pages of 16 tokens, two threads, one step.
std::vector<float> logits_of_hub(const std::shared_ptr<const ModelPackage>& package,
                                 std::span<const TokenId> tokens) {
    const bool is_exact = !has_codes(package->expert_dtype());
    const Arithmetic arithmetic = is_exact ? Arithmetic::exact : Arithmetic::int8;
    const auto decoder = must(
        Decoder::create(package, test::compute_threads(), {.arithmetic = arithmetic}));
    LocalExperts experts(package, test::compute_threads(), ExpertRounding{}, arithmetic);
    KvCache cache(package->config(),
                  {.num_pages = 64, .dtype = is_exact ? KvDtype::f32 : KvDtype::f16});
    KvCache::Sequence sequence(cache);
    EXPECT_TRUE(sequence.reserve(static_cast<std::uint32_t>(tokens.size())));
    const StepRows rows{.kv = &sequence, .tokens = tokens, .all_logits = true};
    return must(decoder->step({&rows, 1}, experts)).logits;
}

void expect_same_bits(std::span<const float> a, std::span<const float> b) {
    ASSERT_EQ(a.size(), b.size());
    ASSERT_FALSE(a.empty());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
}

std::span<const float> rows_of(std::span<const float> logits, std::size_t first,
                               std::size_t count) {
    const std::size_t vocab_size = test::tiny_config().vocab_size;
    return logits.subspan(first * vocab_size, count * vocab_size);
}

TEST(ProcessorDecoder, LogitsHaveTheBitsOfTheHub) {
    for (const ExpertDtype dtype : {ExpertDtype::int4, ExpertDtype::bf16}) {
        const auto package = test::synth(test::tiny_config(), text("processor-", int(dtype)),
                                         dtype);
        const auto tokens = test::random_tokens(150, package->config().vocab_size, 5);
        const auto wanted = logits_of_hub(package, tokens);

        // A prompt of several steps over a page's end, then drafted rows, then one row.
        Processor processor(package);
        processor.feed(std::span(tokens).first(140), StepLogits::last);
        expect_same_bits(processor.logits(), rows_of(wanted, 139, 1));
        processor.feed(std::span(tokens).subspan(140, 8), StepLogits::every);
        expect_same_bits(processor.logits(), rows_of(wanted, 140, 8));
        processor.decoder->rewind(141);
        processor.feed(std::span(tokens).subspan(141, 1), StepLogits::last);
        expect_same_bits(processor.logits(), rows_of(wanted, 141, 1));
    }
}

TEST(ProcessorDecoder, MeasureLeavesAnEmptySequence) {
    Processor processor(test::tiny_package());
    const ProcessorSpeed speed = must(processor.decoder->measure());
    EXPECT_GT(speed.prompt_tokens_per_s, 0);
    EXPECT_GT(speed.answer_tokens_per_s, 0);
    EXPECT_EQ(processor.decoder->num_tokens(), 0u);
}

TEST(ProcessorDecoder, DraftsChangeNoToken) {
    Processor processor(test::tiny_package());
    std::vector<TokenId> prompt;
    for (int i = 0; i < 12; ++i)
        for (const TokenId token : test::random_tokens(5, 256, 3)) prompt.push_back(token);
    const auto plain = processor.answer(prompt, 60, nullptr);
    processor.decoder->rewind(0);

    LocalDrafts drafts;
    drafts.begin(prompt, LocalDrafts::Steps::waited_for, 7);
    DraftCounts counts;
    EXPECT_EQ(processor.answer(prompt, 60, &drafts, &counts), plain);
    EXPECT_EQ(plain.size(), 60u);
    EXPECT_GT(counts.drafts, 0u);
}

TEST(ProcessorDecoder, DroppedStepsLeaveWhatWasComputed) {
    const auto package = test::tiny_package();
    const auto tokens = test::random_tokens(100, package->config().vocab_size, 6);
    Processor processor(package);
    processor.feed(tokens, StepLogits::last);
    EXPECT_EQ(processor.decoder->num_tokens(), 100u);
    processor.run_one();
    processor.decoder->drop_steps();
    const std::uint32_t held = processor.decoder->num_tokens();
    EXPECT_EQ(held, processor.decoder->rows_max());
    const auto read = processor.read();
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::cancelled);

    processor.feed(std::span(tokens).subspan(held), StepLogits::last);
    expect_same_bits(processor.logits(), rows_of(logits_of_hub(package, tokens), 99, 1));
}

TEST(ProcessorDecoder, TextContinuesAfterPagesOfAnotherDecoder) {
    const auto package = test::tiny_package();
    const auto tokens = test::random_tokens(200, package->config().vocab_size, 7);
    Processor first(package), second(package);
    first.feed(tokens, StepLogits::last);
    const auto wanted = first.logits();
    require_ok(second.decoder->write_page(0, first.page(0)));
    require_ok(second.decoder->write_page(1, first.page(1)));
    EXPECT_EQ(first.decoder->num_tokens(), 200u);

    second.decoder->resume(199);
    second.feed(std::span(tokens).last(1), StepLogits::last);
    expect_same_bits(second.logits(), wanted);
    EXPECT_EQ(second.decoder->write_page(0, Bytes(8)).error().code, ErrorCode::payload_size);
}

// ---- a model with a gated delta rule

std::shared_ptr<const ModelPackage> hybrid_package() {
    static const auto package = [] {
        ModelConfig config = test::hybrid_config();
        config.context_tokens = 512;
        return test::synth(config, "long-hybrid");
    }();
    return package;
}

std::vector<float> last_logits_of_hub(std::span<const TokenId> tokens) {
    const auto all = logits_of_hub(hybrid_package(), tokens);
    const auto row = std::span(all).last(test::hybrid_config().vocab_size);
    return {row.begin(), row.end()};
}

TEST(ProcessorDecoder, StepsOfAHybridHaveTheBitsOfTheHub) {
    Processor processor(hybrid_package(), 512);
    const auto tokens = test::random_tokens(400, 256, 15);
    for (const std::uint32_t rows : {1u, 5u, 8u, 11u, 32u}) {
        SCOPED_TRACE(rows);
        processor.decoder->rewind(0);
        const auto text = std::span(tokens).first(rows == 1 ? 150 : 400);
        for (std::size_t at = 0; at < text.size(); at += rows)
            processor.feed(text.subspan(at, std::min<std::size_t>(rows, text.size() - at)),
                           StepLogits::last);
        expect_same_bits(processor.logits(), last_logits_of_hub(text));
        for (std::uint32_t end = 128; end + 1 < text.size(); end += 128)
            EXPECT_FALSE(processor.state(end).empty()) << end;
    }
}

TEST(ProcessorDecoder, AnEditOfAHybridGoesOnFromTheLastState) {
    Processor processor(hybrid_package(), 512);
    const auto tokens = test::random_tokens(400, 256, 16);
    for (const std::uint32_t at : {0u, 1u, 127u, 128u, 300u, 383u, 384u, 390u}) {
        SCOPED_TRACE(at);
        processor.decoder->rewind(0);
        processor.feed(tokens, StepLogits::last);
        processor.logits();
        processor.decoder->rewind(at);
        EXPECT_EQ(processor.decoder->num_tokens(), at / 128 * 128);
        std::vector<TokenId> edited(tokens.begin(), tokens.begin() + at);
        for (const TokenId token : test::random_tokens(15, 256, at)) edited.push_back(token);
        processor.feed(std::span(edited).subspan(processor.decoder->num_tokens()),
                       StepLogits::last);
        expect_same_bits(processor.logits(), last_logits_of_hub(edited));
    }
}

TEST(ProcessorDecoder, DraftsOfAHybridChangeNoToken) {
    Processor processor(hybrid_package(), 512);
    std::uint64_t drafted = 0, accepted = 0;
    for (std::uint32_t seed = 0; seed < 12; ++seed) {
        const auto prompt = test::random_tokens(1 + seed * 37 % 150, 256, seed);
        processor.decoder->rewind(0);
        const auto plain = processor.answer(prompt, 40, nullptr);
        processor.decoder->rewind(0);
        test::SomeDrafts drafts(plain, seed);
        DraftCounts counts;
        EXPECT_EQ(processor.answer(prompt, 40, &drafts, &counts), plain);
        drafted += counts.drafted_tokens;
        accepted += counts.accepted_tokens;
    }
    EXPECT_GT(accepted, 100u);
    EXPECT_GT(drafted, accepted + 100);
}

TEST(ProcessorDecoder, AHybridContinuesAfterPagesAndAState) {
    Processor first(hybrid_package(), 512), second(hybrid_package(), 512);
    const auto tokens = test::random_tokens(330, 256, 17);
    first.feed(tokens, StepLogits::last);
    const auto wanted = first.logits();
    EXPECT_TRUE(first.state(330).empty());

    EXPECT_TRUE(first.decoder->keeps_state(256));
    EXPECT_FALSE(first.decoder->keeps_state(330));

    // The second text begins alike, and goes on from its own 40 tokens.
    second.feed(std::span(tokens).first(40), StepLogits::none);
    second.run_one();
    second.run_one();
    require_ok(second.decoder->write_page(0, first.page(0)));
    require_ok(second.decoder->write_page(1, first.page(1)));
    EXPECT_EQ(second.decoder->num_tokens(), 40u);
    require_ok(second.decoder->write_state(256, first.state(256)));
    second.decoder->resume(329);
    EXPECT_EQ(second.decoder->num_tokens(), 256u);
    second.feed(std::span(tokens).subspan(256), StepLogits::last);
    expect_same_bits(second.logits(), wanted);

    // Pages without a state count for nothing, and the text goes on from its own tokens.
    second.decoder->rewind(0);
    second.feed(std::span(tokens).first(40), StepLogits::none);
    second.run_one();
    second.run_one();
    require_ok(second.decoder->write_page(0, first.page(0)));
    require_ok(second.decoder->write_page(1, first.page(1)));
    second.decoder->resume(40);
    EXPECT_EQ(second.decoder->num_tokens(), 40u);
    second.feed(std::span(tokens).subspan(40), StepLogits::last);
    expect_same_bits(second.logits(), wanted);

    // A state may be before the last page that was written.
    second.decoder->rewind(0);
    for (const std::uint32_t page : {0u, 1u})
        require_ok(second.decoder->write_page(page, first.page(page)));
    require_ok(second.decoder->write_state(128, first.state(128)));
    EXPECT_EQ(second.decoder->num_tokens(), 128u);
    second.feed(std::span(tokens).subspan(128), StepLogits::last);
    expect_same_bits(second.logits(), wanted);
    EXPECT_FALSE(second.decoder->write_page(0, first.page(0)).ok()) << "it has this page";
    second.decoder->rewind(0);
    require_ok(second.decoder->write_page(0, first.page(0)));
    second.decoder->resume(128);
    EXPECT_EQ(second.decoder->num_tokens(), 0u);
    EXPECT_FALSE(second.decoder->write_state(128, first.state(128)).ok());
    EXPECT_EQ(second.decoder->write_state(128, Bytes(8)).error().code, ErrorCode::payload_size);
}

constexpr std::uint32_t num_long_pages = 40;

std::shared_ptr<const ModelPackage> longer_package() {
    static const auto package = [] {
        ModelConfig config = test::hybrid_config();
        config.context_tokens = (num_long_pages + 1) * kv_page_tokens;
        return test::synth(config, "longer-hybrid");
    }();
    return package;
}

// The bytes that this thread has from the heap. Keys and values in the cache are not among them.
std::size_t heap_bytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

// Pages that return are copied to the cache one by one, and nowhere else.
TEST(ProcessorDecoder, PagesOfAHybridAreInMemoryOnce) {
    constexpr std::uint32_t end = num_long_pages * kv_page_tokens;
    Processor first(longer_package(), end + 1), second(longer_package(), end + 1);
    const auto tokens = test::random_tokens(end + 1, 256, 18);
    first.feed(tokens, StepLogits::last);
    const auto wanted = first.logits();
    const Bytes state = first.state(end);

    const std::uint64_t page_bytes = first.page(0).size();
    const std::size_t before = heap_bytes();
    const auto probe = std::make_unique<Bytes>(4 * page_bytes);
    if (heap_bytes() < before + probe->size()) GTEST_SKIP() << "a sanitizer's heap is not counted";
    for (std::uint32_t page = 0; page < num_long_pages; ++page)
        require_ok(second.decoder->write_page(page, first.page(page)));
    const std::size_t held = heap_bytes();
    EXPECT_LT(held, before + probe->size() + page_bytes)
        << num_long_pages << " pages of " << page_bytes << " bytes";
    require_ok(second.decoder->write_state(end, state));
    second.feed(std::span(tokens).subspan(end), StepLogits::last);
    expect_same_bits(second.logits(), wanted);
}

// States at all ends of 40 pages exceed the most that are kept.
TEST(ProcessorDecoder, TheHeldStateOfAHybridStays) {
    constexpr std::uint32_t end = num_long_pages * kv_page_tokens;
    const auto tokens = test::random_tokens(end + 1, 256, 19);
    for (const std::uint32_t held : {0u, 128u, 256u}) {
        Processor processor(longer_package(), end + 1);
        processor.decoder->hold_state(held);
        processor.feed(tokens, StepLogits::last);
        processor.logits();
        EXPECT_EQ(processor.decoder->keeps_state(128), held == 128);
        EXPECT_TRUE(held == 0 || processor.decoder->keeps_state(held));
        EXPECT_TRUE(processor.decoder->keeps_state(end));
    }
}

TEST(ProcessorDecoder, StepsBeyondTheContextAreRefused) {
    Processor processor(test::tiny_package(), 128);
    const auto tokens = test::random_tokens(129, 256, 8);
    EXPECT_EQ(processor.decoder->context_tokens(), 128u);
    const Status fed = feed_prompt(*processor.decoder, tokens, StepLogits::last);
    ASSERT_FALSE(fed.ok());
    EXPECT_EQ(fed.error().code, ErrorCode::invalid_argument);
    EXPECT_FALSE(processor.decoder->feed(std::vector<TokenId>{256}, StepLogits::last).ok());
}

TEST(ProcessorMemory, ContextShrinksToWhatFitsOrIsRefused) {
    const ProcessorMemory memory{.weight_bytes = 1'000'000'000, .kv_page_bytes = 10'000'000};
    EXPECT_EQ(must(context_that_fits(memory, 4'000'000'000, 512, 4096)), 4096u);
    EXPECT_EQ(must(context_that_fits(memory, 1'100'000'000, 512, 4096)), 1280u);
    EXPECT_EQ(must(context_that_fits(memory, 1'040'000'000, 512, 4096)), 512u);
    const auto refused = context_that_fits(memory, 1'039'999'999, 512, 4096);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::no_space);
    EXPECT_EQ(refused.error().message,
              "it takes 1040 MB of this browser's memory, which has room for 1040 MB");
    // A model with a short context of its own needs no more than that.
    EXPECT_EQ(must(context_that_fits(memory, 1'020'000'000, 512, 256)), 256u);
}

}  // namespace
}  // namespace moex
