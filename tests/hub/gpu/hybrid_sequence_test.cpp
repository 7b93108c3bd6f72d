// The one sequence of a model with a gated delta rule, as a browser tab computes it, on a Vulkan
// device (lavapipe if there is no GPU): however a text is cut, whatever drafts are rolled back,
// wherever it is edited and whichever pages return, its bits are those of a decoder that reads the
// text once; and the golden files of both families hold.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hub/base/sha256.h"
#include "hub/commands/gpu/package_weights.h"
#include "hub/engine/scores.h"
#include "hub/model/pack/synth.h"
#include "tests/hub/gpu/arriving_weights.h"
#include "tests/hub/gpu/hybrid_packages.h"
#include "tests/support/posted_loop.h"
#include "tests/support/repository.h"
#include "tests/support/some_drafts.h"
#include "web-worker/decoder/sampled_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/local/gpu_sequence.h"
#include "web-worker/local/local_pages.h"
#include "web-worker/local/sampler_chooser.h"

namespace moex {
namespace {

using test::must;
using Origin = PageShelf::Origin;
using Taken = PageShelf::Taken;
using Tokens = std::vector<TokenId>;

Sha256 hash_of(std::span<const TokenId> tokens) { return sha256(std::as_bytes(tokens)); }

// `family`: a folder of tests/golden/families, or the shape of a package with random weights.
std::shared_ptr<const ModelPackage> package_of(const std::string& family) {
    if (std::filesystem::exists(repository() / "tests/golden/families" / family))
        return test::golden_package(family);
    static const test::TemporaryFolder folder("hybrid-sequence");
    static std::map<std::string, std::shared_ptr<const ModelPackage>> packages;
    auto& package = packages[family];
    if (!package) {
        must(synth_package(must(synth_shape(family)), family, 3, folder.path() / family,
                           {.expert_dtype = ExpertDtype::int4}, test::compute_threads(), {}));
        package = must(ModelPackage::open(folder.path() / family));
    }
    return package;
}

struct Answer {
    Tokens tokens;
    std::uint32_t held = 0;
    DraftCounts counts;
};

// A decoder with its sequence and its pages. Without `places` it has no journal, and its only state
// is changed by each step.
class Tab {
  public:
    // The experts of the layers from `num_here` on arrive later.
    Tab(const std::shared_ptr<const ModelPackage>& package,
        const std::optional<StateSlotSizes>& places, std::uint32_t num_here = ~0u)
        : device_(must(gpu::open_vulkan_device({}, loop_.poster()))),
          weights(package, must(decoder_model_of(*package))) {
        weights.num_here = num_here;
        const DecoderModel model = must(decoder_model_of(*package));
        GpuDecoderOptions options{.draft_rows = 8, .likeliest = true};
        if (places) {
            options.state_slots = places->num_slots();
            options.journals = places->sequences_max;
        }
        bool finished = false;
        GpuDecoder::create(*device_, model, options, weights,
                           [&](Result<std::unique_ptr<GpuDecoder>> made) {
                               decoder = must(std::move(made));
                               finished = true;
                           });
        if (!finished) loop_.run_until(finished);
        sequence.emplace(*decoder, places.value_or(StateSlotSizes{}));
        source = local_kv_source(package->config(), KvKind::f32, hash_of(Tokens{1}),
                                 hash_of(Tokens{2}));
        pages.emplace(*sequence, source);
    }
    static Tab with_places(const std::shared_ptr<const ModelPackage>& package) {
        return Tab(package, GpuSequence::places_for(must(decoder_model_of(*package))));
    }

    // Feeds the tokens in steps of `rows` rows, or of random ones.
    void feed(std::span<const TokenId> tokens, std::uint32_t rows, std::mt19937* random = nullptr) {
        while (!tokens.empty()) {
            const std::size_t count = random == nullptr ? rows : 1 + (*random)() % rows;
            const auto chunk = tokens.first(std::min(tokens.size(), count));
            tokens = tokens.subspan(chunk.size());
            const Status fed = sequence->feed(chunk, StepLogits::last);
            ASSERT_TRUE(fed.ok()) << fed.error().message;
        }
    }
    std::vector<float> logits() {
        std::vector<float> row;
        bool finished = false;
        sequence->read_logits([&](Result<std::span<const float>> read) {
            const auto values = must(std::move(read));
            row.assign(values.begin(), values.end());
            finished = true;
        });
        if (!finished) loop_.run_until(finished);
        return row;
    }
    // Continues the text by `count` likeliest tokens, in steps that the GPU issues itself. The
    // logits afterwards are those behind all of these tokens but the last.
    Tokens likeliest(std::uint32_t count) {
        decoder->choose();
        for (std::uint32_t i = 1; i < count; ++i) EXPECT_TRUE(decoder->step().ok());
        Tokens ids;
        bool finished = false;
        decoder->read_chosen(count, [&](Result<GpuDecoder::TokenIds> read) {
            const auto chosen = must(std::move(read));
            ids.assign(chosen.begin(), chosen.end());
            finished = true;
        });
        if (!finished) loop_.run_until(finished);
        return ids;
    }
    Answer answer(std::span<const TokenId> prompt, std::uint32_t seed, TokenDrafts* drafts) {
        sequence->rewind(0);
        Answer out;
        bool finished = false;
        SamplingOptions sampling{.temperature = seed % 3 == 0 ? 0 : 0.9, .seed = seed};
        if (seed % 2 == 0) sampling.sample_top_k = 20;
        SampledLoop loop(*sequence, SampledOptions{.max_tokens = 40, .drafts = drafts},
                         std::make_unique<SamplerChooser>(Sampler(sampling, prompt)),
                         {.on_tokens =
                              [&](std::span<const std::uint32_t> ids) {
                                  out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
                              },
                          .on_end =
                              [&](Result<AnswerEnd> how) {
                                  finished = true;
                                  must(std::move(how));
                              }});
        loop.start(prompt);
        if (!finished) loop_.run_until(finished);
        out.held = sequence->num_tokens();
        out.counts = loop.draft_counts();
        return out;
    }
    Result<Bytes> page(std::span<const TokenId> tokens, std::uint32_t index,
                       KvPart part = KvPart::whole) {
        Result<Bytes> bytes = Bytes();
        bool finished = false;
        pages->read(tokens, index, part, before(tokens, index), [&](Result<Bytes> read) {
            bytes = std::move(read);
            finished = true;
        });
        if (!finished) loop_.run_until(finished);
        return bytes;
    }
    static Sha256 before(std::span<const TokenId> tokens, std::uint32_t index) {
        return hash_of(tokens.first(std::size_t{index} * kv_page_tokens));
    }
    Taken take(std::span<const TokenId> tokens, std::uint32_t index, const Bytes& bytes) {
        return pages->take(Origin::here, before(tokens, index), bytes);
    }

  private:
    test::PostedLoop loop_;
    std::unique_ptr<gpu::Device> device_;

  public:
    ArrivingWeights weights;
    std::unique_ptr<GpuDecoder> decoder;
    std::optional<GpuSequence> sequence;
    KvSource source;
    std::optional<LocalPages> pages;
};

void expect_same_bits(std::span<const float> a, std::span<const float> b) {
    ASSERT_EQ(a.size(), b.size());
    ASSERT_FALSE(a.empty());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
}

class HybridSequenceTest : public testing::TestWithParam<const char*> {
  protected:
    HybridSequenceTest() : package_(package_of(GetParam())) {}
    Tokens text_of(std::size_t count, std::uint32_t seed) const {
        return test::random_tokens(count, package_->config().vocab_size, seed);
    }
    // The logits after a text that is read once, without a journal.
    std::vector<float> plain_logits(std::span<const TokenId> text) {
        if (!plain_) plain_.emplace(package_, std::nullopt);
        plain_->sequence->rewind(0);
        plain_->feed(text, 64);
        return plain_->logits();
    }
    const std::shared_ptr<const ModelPackage> package_;

  private:
    std::optional<Tab> plain_;
};

TEST_P(HybridSequenceTest, ATextInAnyStepsHasTheSameBits) {
    Tab tab = Tab::with_places(package_);
    std::mt19937 random(11);
    for (const std::uint32_t rows : {3u, 9u, 12u, 64u}) {
        const Tokens text = text_of(290 + rows, rows);
        tab.sequence->rewind(0);
        tab.feed(text, rows, &random);
        expect_same_bits(tab.logits(), plain_logits(text));
    }
}

class HybridGoldenTest : public testing::TestWithParam<const char*> {};

// A decoder without a journal, which chooses its tokens on the GPU.
TEST_P(HybridSequenceTest, StepsOfTokensThatTheGpuChoosesHaveTheSameBits) {
    Tab tab(package_, std::nullopt);
    Tokens text = text_of(70, 5);
    tab.sequence->rewind(0);
    tab.feed(text, 64);
    const Tokens chosen = tab.likeliest(4);
    ASSERT_EQ(chosen.size(), 4u);
    text.insert(text.end(), chosen.begin(), chosen.end() - 1);
    expect_same_bits(tab.logits(), plain_logits(text));
}

TEST_P(HybridGoldenTest, LogitsAgreeWithTheGoldenFile) {
    Tab tab = Tab::with_places(package_of(GetParam()));
    std::ifstream in(repository() / "tests/golden/families" / GetParam() / "golden.json");
    double worst = 0;
    std::size_t num_greedy = 0;
    for (const auto& entry : nlohmann::json::parse(in)) {
        const auto ids = entry.at("ids").get<Tokens>(), greedy = entry.at("greedy").get<Tokens>();
        tab.sequence->rewind(0);
        tab.feed(std::span(ids).first(1), 1);
        // Each token of the prompt by itself, then the greedy tokens.
        for (std::size_t i = 1; i < ids.size() + greedy.size(); ++i) {
            std::vector<float> row = tab.logits();
            log_softmax(row, row);
            const TokenId next = i < ids.size() ? ids[i] : greedy[i - ids.size()];
            if (i < ids.size())
                worst = std::max(worst,
                                 std::abs(-row[next] - entry.at("nll")[i - 1].get<double>()));
            else if (entry.at("greedy_margin")[i - ids.size()].get<double>() > 1e-3) {
                EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), next);
                ++num_greedy;
            }
            tab.feed(std::span(&next, 1), 1);
        }
    }
    std::cout << "largest difference " << worst << ", " << num_greedy << " greedy tokens\n";
    EXPECT_LE(worst, 1e-3);
    EXPECT_GT(num_greedy, 10u);
}

TEST_P(HybridSequenceTest, DraftsThatAreRolledBackChangeNoToken) {
    Tab tab = Tab::with_places(package_);
    std::uint64_t accepted = 0, rolled_back = 0;
    for (std::uint32_t seed = 0; seed < 16; ++seed) {
        SCOPED_TRACE(seed);
        // Some answers pass the end of a page.
        const Tokens prompt = text_of(1 + seed * 37 % 150, seed);
        const Answer plain = tab.answer(prompt, seed, nullptr);
        test::SomeDrafts drafts(plain.tokens, seed);
        const Answer drafted = tab.answer(prompt, seed, &drafts);
        EXPECT_EQ(drafted.tokens, plain.tokens);
        EXPECT_EQ(drafted.held, plain.held);
        accepted += drafted.counts.accepted_tokens;
        rolled_back += drafted.counts.drafted_tokens - drafted.counts.accepted_tokens;

        // The next turn goes on behind the answer. Its last rows may be in the journal.
        Tokens text = prompt;
        text.insert(text.end(), plain.tokens.begin(), plain.tokens.end());
        text.push_back(7);
        if (seed % 8 != 0) continue;
        tab.feed(std::span(text).subspan(drafted.held), 64);
        expect_same_bits(tab.logits(), plain_logits(text));
    }
    std::cout << accepted << " drafted tokens accepted, " << rolled_back << " rolled back\n";
    EXPECT_GT(accepted, 100u);
    EXPECT_GT(rolled_back, 100u);
}

// The first rows of a text are read while layers arrive, or given up before all are here.
TEST_P(HybridSequenceTest, RowsThatAreReadEarlyHaveTheSameBits) {
    const StateSlotSizes places = GpuSequence::places_for(must(decoder_model_of(*package_)));
    const Tokens words = text_of(200, 8);
    for (const std::uint32_t early : {1u, 5u, 64u})
        for (const bool is_given_up : {false, true}) {
            SCOPED_TRACE(text("early ", early, is_given_up ? ", given up" : ""));
            Tab tab(package_, places, 1);
            const auto first = std::span(words).first(early);
            ASSERT_TRUE(tab.sequence->begin_early(first, [](std::uint32_t) {}).ok());
            if (is_given_up) tab.sequence->rewind(0);
            for (std::uint32_t layer = 1; layer < tab.decoder->num_layers(); ++layer) {
                tab.weights.num_here = layer + 1;
                ASSERT_TRUE(tab.decoder->load_layer(layer, tab.weights).ok());
            }
            const std::uint32_t held = tab.sequence->num_tokens();
            EXPECT_EQ(held, is_given_up ? 0 : early);
            tab.feed(std::span(words).subspan(held), 64);
            expect_same_bits(tab.logits(), plain_logits(words));
        }
}

TEST_P(HybridSequenceTest, AnEditGoesOnFromTheLastStateBeforeIt) {
    Tab tab = Tab::with_places(package_);
    const Tokens text = text_of(500, 3);
    for (const std::uint32_t at : {0u, 1u, 127u, 128u, 383u, 384u, 499u, 500u}) {
        SCOPED_TRACE(at);
        tab.sequence->rewind(0);
        tab.feed(text, 60);
        tab.sequence->rewind(at);
        EXPECT_EQ(tab.sequence->num_tokens(), at == 500 ? 500 : at / 128 * 128);
        if (at == 500) continue;
        Tokens edited(text.begin(), text.begin() + at);
        for (const TokenId token : text_of(11, at)) edited.push_back(token);
        tab.feed(std::span(edited).subspan(tab.sequence->num_tokens()), 64);
        expect_same_bits(tab.logits(), plain_logits(edited));
    }
}

// Of states after 128, 256 and 384 tokens, two have room.
TEST_P(HybridSequenceTest, StatesLeaveWhereThereIsNoRoom) {
    StateSlotSizes places = GpuSequence::places_for(must(decoder_model_of(*package_)));
    EXPECT_EQ(places.copies_max, GpuSequence::states_max);
    places.copies_max = 2;
    Tab tab(package_, places);
    const Tokens text = text_of(510, 4);
    const auto last_before = [&](std::uint32_t at) {
        tab.sequence->rewind(0);
        tab.feed(text, 64);
        tab.feed(std::span(&text[5], 1), 1);
        tab.sequence->rewind(at);
        return tab.sequence->num_tokens();
    };
    EXPECT_EQ(last_before(500), 384u);
    EXPECT_EQ(last_before(383), 256u);
    const std::uint32_t num_tokens = last_before(200);
    EXPECT_EQ(num_tokens, 0u);
    tab.feed(std::span(text).first(300).subspan(num_tokens), 64);
    expect_same_bits(tab.logits(), plain_logits(std::span(text).first(300)));
}

// Of states after 128, 256 and 384 tokens, two have room, and the first one is held.
TEST_P(HybridSequenceTest, TheHeldStateStaysWhereThereIsNoRoom) {
    StateSlotSizes places = GpuSequence::places_for(must(decoder_model_of(*package_)));
    places.copies_max = 2;
    Tab tab(package_, places);
    const Tokens text = text_of(511, 4);
    tab.sequence->hold_state(128);
    tab.feed(std::span(text).first(510), 64);
    tab.feed(std::span(text).last(1), 1);
    EXPECT_TRUE(tab.sequence->keeps_state(128)) << "not held, it would have left";
    EXPECT_FALSE(tab.sequence->keeps_state(384));
    EXPECT_TRUE(tab.sequence->keeps_state(511)) << "the state of the end";
    tab.sequence->rewind(200);
    EXPECT_EQ(tab.sequence->num_tokens(), 128u);
    tab.feed(std::span(text).subspan(128), 64);
    expect_same_bits(tab.logits(), plain_logits(text));
}

TEST_P(HybridSequenceTest, ATextContinuesAfterPagesAndAState) {
    Tab first = Tab::with_places(package_), second = Tab::with_places(package_);
    const Tokens text = text_of(330, 5), known(text.begin(), text.begin() + 300);
    first.feed(known, 64);
    const Bytes zero = must(first.page(known, 0)), one = must(first.page(known, 1)),
                two = must(first.page(known, 2)), state = must(first.page(known, 1, KvPart::state)),
                last_state = must(first.page(known, 2, KvPart::state));
    EXPECT_TRUE(must(decode_kv_page(one)).state.empty());
    EXPECT_LT(last_state.size(), first.sequence->state_bytes() + 1024) << "no rows";

    // Pages count once the state behind them has come.
    second.pages->begin(text, 0);
    EXPECT_EQ(second.take(text, 0, last_state), Taken::refused) << "its rows are not here";
    EXPECT_EQ(second.take(text, 0, zero), Taken::wholly);
    EXPECT_EQ(second.take(text, 1, one), Taken::wholly);
    EXPECT_EQ(second.take(text, 2, two), Taken::partly);
    EXPECT_EQ(second.pages->num_held(), 0u);
    EXPECT_EQ(second.take(text, 2, last_state), Taken::wholly);
    EXPECT_EQ(second.pages->num_held(), 300u);
    EXPECT_EQ(second.take(text, 1, state), Taken::partly) << "a later one is here";
    second.sequence->resume(300);
    EXPECT_EQ(second.sequence->num_tokens(), 300u);
    second.feed(std::span(text).subspan(300), 64);
    expect_same_bits(second.logits(), plain_logits(text));

    // Of an edited text, the pages and the state before the edit are taken.
    Tokens edited = text;
    edited[260] = (edited[260] + 1) % package_->config().vocab_size;
    second.sequence->rewind(0);
    second.pages->begin(edited, 0);
    EXPECT_EQ(second.take(edited, 0, zero), Taken::wholly);
    EXPECT_EQ(second.take(edited, 1, one), Taken::wholly);
    EXPECT_EQ(second.take(edited, 2, two), Taken::partly);
    EXPECT_EQ(second.take(edited, 2, last_state), Taken::refused);
    EXPECT_EQ(second.take(edited, 1, state), Taken::wholly);
    EXPECT_EQ(second.pages->num_held(), 256u);
    second.sequence->resume(256);
    second.feed(std::span(edited).subspan(256), 64);
    expect_same_bits(second.logits(), plain_logits(edited));
}

// Older versions kept a state in the bytes of its page.
TEST_P(HybridSequenceTest, APageMayHaveItsStateInItself) {
    Tab first = Tab::with_places(package_), second = Tab::with_places(package_);
    const Tokens text = text_of(200, 7);
    first.feed(text, 64);
    const Bytes rows = must(first.page(text, 0)), state = must(first.page(text, 0, KvPart::state));
    KvPage page = must(decode_kv_page(rows));
    page.state = must(decode_kv_page(state, KvPart::state)).state;
    second.pages->begin(text, 0);
    EXPECT_EQ(second.take(text, 0, encode_kv_page(page)), Taken::wholly);
    EXPECT_EQ(second.pages->num_held(), 128u);
    second.sequence->resume(128);
    second.feed(std::span(text).subspan(128), 64);
    expect_same_bits(second.logits(), plain_logits(text));
}

TEST_P(HybridSequenceTest, PagesWithAWrongStateAreRefused) {
    Tab first = Tab::with_places(package_), second = Tab::with_places(package_);
    const Tokens text = text_of(200, 6);
    first.feed(text, 64);
    const Bytes bytes = must(first.page(text, 0)),
                state_bytes = must(first.page(text, 0, KvPart::state));
    const KvPage state = must(decode_kv_page(state_bytes, KvPart::state));
    KvPage page = must(decode_kv_page(bytes)), shorter = state, other = state;
    page.state = shorter.state = state.state.first(state.state.size() - 4);
    second.pages->begin(text, 0);
    EXPECT_EQ(second.take(text, 0, encode_kv_page(page)), Taken::refused);
    EXPECT_EQ(second.pages->take(Origin::hub, Tab::before(text, 0), bytes), Taken::refused);

    EXPECT_EQ(second.take(text, 0, bytes), Taken::wholly);
    other.source.model[3] ^= std::byte{1};
    for (const KvPage& wrong : {shorter, other})
        EXPECT_EQ(second.take(text, 0, encode_kv_page(wrong)), Taken::refused);
    EXPECT_EQ(second.pages->take(Origin::hub, Tab::before(text, 0), state_bytes), Taken::refused);
    EXPECT_EQ(second.pages->num_held(), 0u);
    EXPECT_EQ(second.take(text, 0, state_bytes), Taken::wholly);

    // The rows of a few tokens are in the journal, so that no state is kept after them.
    first.feed(std::span(text).first(4), 4);
    Tokens longer = text;
    longer.insert(longer.end(), text.begin(), text.begin() + 4);
    for (const KvPart part : {KvPart::whole, KvPart::state}) {
        const auto missing = first.page(longer, 1, part);
        ASSERT_FALSE(missing.ok());
        EXPECT_EQ(missing.error().code, ErrorCode::not_found);
    }
}

std::string name_of(const testing::TestParamInfo<const char*>& one) {
    std::string name = one.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}
INSTANTIATE_TEST_SUITE_P(Families, HybridSequenceTest,
                         testing::Values("qwen35-moe", "qwen3-next", "tiny-hybrid"), name_of);
INSTANTIATE_TEST_SUITE_P(Families, HybridGoldenTest, testing::Values("qwen35-moe", "qwen3-next"),
                         name_of);

}  // namespace
}  // namespace moex
