// Tests a sequence of which a part of the pages is outside of the GPU's memory, on a Vulkan device
// (lavapipe if there is no GPU): its bits are those of a sequence that is all in memory.
#include <cstring>
#include <iostream>
#include <map>
#include <memory>

#include <gtest/gtest.h>

#include "hub/commands/gpu/gpu_model.h"
#include "hub/commands/gpu/package_weights.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/gpu/requests.h"
#include "tests/support/posted_loop.h"
#include "web-worker/decoder/gpu_decoder.h"
#include "web-worker/decoder/sampled_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/local/gpu_sequence.h"
#include "web-worker/local/sampler_chooser.h"

namespace moex {
namespace {

constexpr std::uint32_t context_tokens = 1024, vocab_size = 256;

// A model whose first layer sees the last 100 positions only.
std::shared_ptr<const ModelPackage> long_package() {
    ModelConfig config = test::tiny_config();
    config.context_tokens = context_tokens;
    config.num_layers = 3;
    config.layers = plain_layers({}, std::vector<std::uint8_t>{1, 0, 1});
    config.layers[0].window = 100;
    static const std::shared_ptr<const ModelPackage> package = test::synth(config, "long");
    return package;
}

// A store in memory. Every other answer comes later, as from a file.
class MemoryStore : public EvictedPages {
  public:
    explicit MemoryStore(test::PostedLoop& loop) : post_(loop.poster()) {}

    void write(std::uint32_t page, ByteView layers, std::function<void(Status)> done) override {
        ++num_written;
        pages_[page].assign(layers.begin(), layers.end());
        answer([done = std::move(done), fails = fails] {
            done(fails ? Status(Error{ErrorCode::no_space, "the disk is full"}) : Status());
        });
    }
    void read(std::uint32_t layer, std::span<const std::uint32_t> pages,
              std::function<void(Result<ByteView>)> done) override {
        auto bytes = std::make_shared<Bytes>();
        for (const std::uint32_t page : pages) {
            const Bytes& all = pages_.at(page);
            const std::size_t layer_bytes = all.size() / num_layers;
            const auto first = all.begin() + static_cast<std::ptrdiff_t>(layer_bytes * layer);
            bytes->insert(bytes->end(), first, first + static_cast<std::ptrdiff_t>(layer_bytes));
        }
        bytes_read += bytes->size();
        answer([bytes, done = std::move(done)] { done(ByteView(*bytes)); });
    }

    std::uint32_t num_layers = 0, num_written = 0;
    std::uint64_t bytes_read = 0;
    bool fails = false;

  private:
    void answer(std::function<void()> now) {
        if (++turn_ % 2 == 0)
            now();
        else
            post_(std::move(now));
    }
    std::function<void(std::function<void()>)> post_;
    std::map<std::uint32_t, Bytes> pages_;
    std::uint32_t turn_ = 0;
};

// A decoder for one sequence, with `slots` pages in memory; 0: all.
class LongText {
  public:
    explicit LongText(std::uint32_t slots, KvKind kind = KvKind::f32)
        : device(must(gpu::open_vulkan_device({}, loop.poster()))) {
        const auto package = long_package();
        const DecoderModel model = must(decoder_model_of(*package));
        PackageWeights weights(package, model);
        open(
            model, weights,
            {.context_tokens = context_tokens, .draft_rows = 8, .likeliest = true, .kv_kind = kind},
            slots);
    }
    LongText(const DecoderModel& model, WeightSource& weights, GpuDecoderOptions options,
             std::uint32_t slots)
        : device(must(gpu::open_vulkan_device({}, loop.poster()))) {
        open(model, weights, options, slots);
    }

    // Returns the logits after the last of `ids`, read in chunks.
    Result<std::vector<float>> logits(std::span<const TokenId> ids, std::size_t chunk) {
        for (std::size_t first = 0; first < ids.size(); first += chunk) {
            const auto part = ids.subspan(first, std::min(chunk, ids.size() - first));
            const bool is_last = first + part.size() == ids.size();
            MOEX_TRY(decoder->feed(part, is_last ? StepLogits::last : StepLogits::none));
        }
        bool finished = false;
        Result<std::vector<float>> out = std::vector<float>();
        decoder->read_logits([&](Result<std::span<const float>> read) {
            finished = true;
            if (read.ok())
                out = std::vector<float>(read->begin(), read->end());
            else
                out = read.error();
        });
        if (!finished) loop.run_until(finished);
        return out;
    }
    std::vector<TokenId> answer(std::span<const TokenId> prompt, std::uint32_t max_tokens,
                                TokenDrafts* drafts = nullptr) {
        std::vector<TokenId> tokens;
        bool finished = false;
        const SamplingOptions sampling{.temperature = 0.8, .sample_top_k = 20, .seed = 3};
        GpuSequence sequence(*decoder);
        SampledLoop answering(sequence, SampledOptions{.max_tokens = max_tokens, .drafts = drafts},
                              std::make_unique<SamplerChooser>(Sampler(sampling, prompt)),
                              {.on_tokens =
                                   [&](std::span<const std::uint32_t> ids) {
                                       tokens.insert(tokens.end(), ids.begin(), ids.end());
                                   },
                               .on_end =
                                   [&](Result<AnswerEnd> how) {
                                       finished = true;
                                       EXPECT_TRUE(how.ok());
                                   }});
        answering.start(prompt);
        if (!finished) loop.run_until(finished);
        return tokens;
    }
    Bytes page(std::uint32_t index) {
        Bytes rows(kv_rows_of_page(kv_page_shape(decoder->model(), KvKind::f32)));
        bool finished = false;
        decoder->read_page(index, rows, [&](Status read) {
            finished = true;
            EXPECT_TRUE(read.ok());
        });
        if (!finished) loop.run_until(finished);
        return rows;
    }

    test::PostedLoop loop;
    MemoryStore store{loop};
    std::unique_ptr<gpu::Device> device;
    std::unique_ptr<GpuDecoder> decoder;

  private:
    void open(const DecoderModel& model, WeightSource& weights, GpuDecoderOptions options,
              std::uint32_t slots) {
        options.slots = slots;
        options.evicted = &store;
        store.num_layers = model.num_layers;
        bool finished = false;
        GpuDecoder::create(*device, model, options, weights,
                           [&](Result<std::unique_ptr<GpuDecoder>> made) {
                               finished = true;
                               decoder = must(std::move(made));
                           });
        if (!finished) loop.run_until(finished);
    }
};

TEST(WorkingSetTest, FirstPagesAreEvictedAndReturnAfterAnEdit) {
    WorkingSet set(8, 4, 1);
    const auto prepare = [&](std::uint32_t page) {
        std::vector<std::uint32_t> evicted;
        while (const auto move = set.next_move(page, page + 1)) {
            if (move->is_eviction) evicted.push_back(move->page);
            set.moved(*move);
        }
        set.write(page, page + 1);
        return evicted;
    };
    using Pages = std::vector<std::uint32_t>;
    for (const std::uint32_t page : {0u, 1u, 2u}) EXPECT_EQ(prepare(page), Pages{});
    EXPECT_EQ(prepare(3), Pages{0});
    EXPECT_EQ(prepare(4), Pages{1});
    EXPECT_EQ(prepare(5), Pages{2});
    EXPECT_EQ(set.evicted(0, 6), (Pages{0, 1, 2}));
    EXPECT_EQ(set.evicted(2, 6), Pages{2});
    EXPECT_EQ(set.table(6),
              (Pages{WorkingSet::absent, WorkingSet::absent, WorkingSet::absent, 0, 1, 2}));
    EXPECT_EQ(set.staging_slot(0), 3u);

    // The text is cut in its third page: the pages before it are stored, and return.
    set.shorten(3);
    EXPECT_EQ(prepare(2), Pages{});
    while (const auto back = set.next_return(2)) {
        EXPECT_TRUE(set.is_stored(back->page));
        set.moved(*back);
    }
    EXPECT_EQ(set.evicted(0, 3), Pages{});
    // The page that was written again has to be stored again; the others have not.
    EXPECT_FALSE(set.is_stored(2));
    EXPECT_TRUE(set.is_stored(1));
}

TEST(PagedAnswersTest, AThirdOfThePagesInMemoryGivesTheSameBits) {
    const auto ids = test::random_tokens(900, vocab_size, 1);
    for (const KvKind kind : {KvKind::f32, KvKind::f16, KvKind::u8}) {
        LongText whole(0, kind), paged(4, kind);
        EXPECT_FALSE(whole.decoder->is_paged());
        EXPECT_TRUE(paged.decoder->is_paged());
        EXPECT_EQ(2 * paged.decoder->kv_bytes(), whole.decoder->kv_bytes());
        EXPECT_EQ(paged.decoder->context_tokens(), context_tokens);
        std::size_t first = 0;
        // within the working set, at its end, behind it, and in single rows
        for (const auto& [end, chunk] : {std::pair{300u, 64u},
                                         {384u, 64u},
                                         {390u, 1u},
                                         {700u, 50u},
                                         {896u, 64u},
                                         {900u, 1u}}) {
            const auto part = std::span(ids).subspan(first, end - first);
            expect_same_bits(must(paged.logits(part, chunk)), must(whole.logits(part, chunk)));
            first = end;
        }
        EXPECT_EQ(whole.store.num_written, 0u);
        EXPECT_EQ(paged.store.num_written, 5u);  // pages 0 to 4 of 8, each once
    }
}

TEST(PagedAnswersTest, AnswersOverEvictedPagesAreThoseOfAWholeCache) {
    const auto prompt = test::random_tokens(760, vocab_size, 2);
    LongText whole(0), paged(5);
    EXPECT_EQ(paged.answer(prompt, 20), whole.answer(prompt, 20));
    EXPECT_GT(paged.store.bytes_read, 0u);
}

// Drafts that are right and wrong in turn. The answer passes a page's end, so that pages are
// evicted for rows that are then dropped.
class HalfRight : public TokenDrafts {
  public:
    explicit HalfRight(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}
    TokenIds propose(std::uint32_t tokens_max) override {
        proposed_.clear();
        for (std::size_t i = drawn_; i < tokens_.size() && proposed_.size() < tokens_max; ++i)
            proposed_.push_back(i % 3 == 2 ? (tokens_[i] + 1) % vocab_size : tokens_[i]);
        return proposed_;
    }
    std::uint32_t num_paying() override { return static_cast<std::uint32_t>(proposed_.size()); }
    void record(TokenIds drawn, std::uint32_t, std::chrono::nanoseconds) override {
        drawn_ += drawn.size();
    }

  private:
    std::vector<TokenId> tokens_, proposed_;
    std::size_t drawn_ = 0;
};

TEST(PagedAnswersTest, DraftsOverEvictedPagesChangeNoToken) {
    const auto prompt = test::random_tokens(760, vocab_size, 2);
    LongText whole(0), paged(4);
    const auto wanted = whole.answer(prompt, 20);
    HalfRight drafts(wanted);
    EXPECT_EQ(paged.answer(prompt, 20, &drafts), wanted);
    EXPECT_EQ(paged.decoder->num_tokens(), whole.decoder->num_tokens());
}

// An edit of an early message keeps the pages before it, whether they are in memory or not.
TEST(PagedAnswersTest, PagesBeforeAnEditAreKept) {
    const auto text = test::random_tokens(900, vocab_size, 3),
               other = test::random_tokens(300, vocab_size, 4);
    LongText whole(0), paged(4);
    must(paged.logits(text, 64));
    must(whole.logits(text, 64));
    for (const std::uint32_t kept : {500u, 384u, 130u, 1u}) {
        SCOPED_TRACE(kept);
        paged.decoder->rewind(kept);
        whole.decoder->rewind(kept);
        expect_same_bits(must(paged.logits(other, 64)), must(whole.logits(other, 64)));
    }
}

TEST(PagedAnswersTest, PagesEnterAndLeaveWhereverTheyAre) {
    const auto text = test::random_tokens(900, vocab_size, 5);
    LongText whole(0), paged(4), filled(4);
    const auto next = std::span(text).last(4);
    const auto head = std::span(text).first(896);
    must(whole.logits(head, 64));
    must(paged.logits(head, 64));
    for (std::uint32_t index = 0; index < 7; ++index) {
        const Bytes rows = whole.page(index);
        EXPECT_EQ(paged.page(index), rows);
        EXPECT_TRUE(filled.decoder->write_page(index, rows).ok());
    }
    filled.decoder->resume(896);
    expect_same_bits(must(filled.logits(next, 4)), must(whole.logits(next, 4)));
}

// The steps of a paged sequence are computed later, so that another step may begin before the
// logits of the first one are copied. In an earlier version the second step's counts were used.
TEST(PagedAnswersTest, LogitsThatAreReadBelongToTheStepBefore) {
    const auto text = test::random_tokens(700, vocab_size, 7),
               next = test::random_tokens(8, vocab_size, 8);
    LongText whole(0), paged(4);
    const std::vector<float> wanted = must(whole.logits(text, 64));

    for (std::size_t first = 0; first < text.size(); first += 64) {
        const auto part = std::span(text).subspan(first, std::min<std::size_t>(64, 700 - first));
        const bool is_last = first + part.size() == text.size();
        ASSERT_TRUE(paged.decoder->feed(part, is_last ? StepLogits::last : StepLogits::none).ok());
    }
    bool finished = false;
    std::vector<float> found;
    paged.decoder->read_logits([&](Result<std::span<const float>> read) {
        finished = true;
        if (read.ok()) found.assign(read->begin(), read->end());
    });
    ASSERT_TRUE(paged.decoder->feed(next, StepLogits::none).ok());
    paged.loop.run_until(finished);
    expect_same_bits(found, wanted);
}

TEST(PagedAnswersTest, AFullStoreIsReportedAndTheNextTextIsWhole) {
    const auto text = test::random_tokens(600, vocab_size, 6);
    LongText whole(0), paged(4);
    paged.store.fails = true;
    const auto failed = paged.logits(text, 64);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::no_space);
    paged.store.fails = false;
    paged.decoder->rewind(0);
    expect_same_bits(must(paged.logits(text, 64)), must(whole.logits(text, 64)));
}

}  // namespace
}  // namespace moex
