// Tests spans of the small models of tests/golden/families. Most of their layers need version 2 of
// a layer's blob (windows, sinks, biases, a clamp, yarn, norms over all heads, multipliers) or
// version 3 (shared experts, a router with sigmoids and groups). The hub computes dense layers and
// the last one, and one or two holders the others.
#include <fstream>
#include <iostream>
#include <optional>

#include <nlohmann/json.hpp>

#include "hub/model/pack/packer.h"
#include "hub/model/pack/synth.h"
#include "tests/hub/gpu/local_spans.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

const char* const all_families[] = {"gpt-oss-mxfp4", "mixtral",  "olmoe",      "granite-moe",
                                    "qwen2-moe",     "glm4-moe", "qwen3-next", "qwen35-moe"};

std::filesystem::path checkpoint_of(const std::string& family) {
    return repository() / "tests/golden/families" / family;
}

struct PackedFamily {
    explicit PackedFamily(const std::string& family) : folder("span-" + family) {
        must(pack_checkpoint(checkpoint_of(family), folder.path() / "package", {},
                             test::compute_threads(), {}));
        model.emplace(must(ModelPackage::open(folder.path() / "package")));
    }
    const test::TemporaryFolder folder;
    std::optional<SpannedModel> model;
};

// Returns a family's model with experts in INT4 (gpt-oss: MXFP4), which is packed once.
const SpannedModel& model_of(const std::string& family) {
    static std::map<std::string, PackedFamily> families;
    return *families.try_emplace(family, family).first->second.model;
}

class SpanFamiliesTest : public SpanTest, public testing::WithParamInterface<const char*> {
  protected:
    SpanFamiliesTest() : SpanTest(model_of(GetParam())) {}

    // The layers with experts but for the last layer.
    Range all() const {
        const auto is_routed = config().layer_is_moe();
        const auto first = std::find(is_routed.begin(), is_routed.end(), 1) - is_routed.begin();
        return {static_cast<std::uint32_t>(first), config().num_layers - 1};
    }
    // All of them among two holders, if there are several.
    LocalSpans halves() const {
        const auto [first, end] = all();
        if (end == first + 1) return whole();
        return {model_, {{first, end - 1}, {end - 1, end}}};
    }
    LocalSpans whole() const { return {model_, {all()}}; }

    const std::vector<TokenId> text_ = test::random_tokens(90, 320, 3);
};

INSTANTIATE_TEST_SUITE_P(Families, SpanFamiliesTest, testing::ValuesIn(all_families));

// Older workers compute the layers of Mixtral, which have no field of version 2.
TEST_P(SpanFamiliesTest, LayersHaveTheOldestVersionThatDescribesThem) {
    const std::string family = GetParam();
    const std::uint16_t wanted = family == "mixtral" ? 1
                                 : family == "qwen2-moe" || family == "glm4-moe" ||
                                         family.starts_with("qwen3")
                                     ? 3
                                     : 2;
    EXPECT_EQ(model_.layers->version(), wanted);
    const Bytes blob = *model_.layers->find(model_.layers->layer(all().first)->blob);
    EXPECT_EQ(blob[4], static_cast<std::byte>(wanted));
}

// gpt-oss's experts keep the codes of the checkpoint, so that the golden file says what two holders
// compute, with keys and values in f16.
TEST(SpanMxfp4Test, TwoHoldersAgreeWithTheGoldenWithin2em2) {
    struct GptOss : SpanTest {
        GptOss() : SpanTest(model_of("gpt-oss-mxfp4")) {}
        void TestBody() override {}
        double largest_difference(LocalSpans& spans) {
            std::ifstream in(checkpoint_of("gpt-oss-mxfp4") / "golden.json");
            double worst = 0;
            for (const auto& entry : nlohmann::json::parse(in)) {
                const auto ids = entry.at("ids").get<std::vector<TokenId>>();
                const std::vector<float> mine = logprobs(&spans, ids);
                for (std::size_t r = 0; r < ids.size(); ++r)
                    for (std::size_t i = 0; i < entry.at("top_ids")[r].size(); ++i) {
                        const float found = row(mine, r)[entry.at("top_ids")[r][i].get<TokenId>()];
                        worst = std::max(
                            worst, std::abs(found - entry.at("top_logprobs")[r][i].get<double>()));
                    }
            }
            return worst;
        }
    } test;
    EXPECT_EQ(model_of("gpt-oss-mxfp4").package->expert_dtype(), ExpertDtype::mxfp4);
    LocalSpans spans(model_of("gpt-oss-mxfp4"), {{0, 2}, {2, 3}});
    const double worst = test.largest_difference(spans);
    std::cout << "largest difference of a log-probability: " << worst << '\n';
    EXPECT_GT(spans.trips_, 0u);
    EXPECT_LE(worst, 2e-2);
}

// A span is compared with the hub's own exact arithmetic over the same experts, and with keys and
// values in f16 as a span has them.
TEST_P(SpanFamiliesTest, LogProbabilitiesOfTheGoldenTextsAreTheHubs) {
    LocalSpans spans = halves();
    std::ifstream in(checkpoint_of(GetParam()) / "golden.json");
    double worst = 0;
    std::size_t num_rows = 0;
    for (const auto& entry : nlohmann::json::parse(in)) {
        auto ids = entry.at("ids").get<std::vector<TokenId>>();
        const auto greedy = entry.at("greedy").get<std::vector<TokenId>>();
        ids.insert(ids.end(), greedy.begin(), greedy.end());
        const std::vector<float> mine = logprobs(&spans, ids), hubs = logprobs(nullptr, ids);
        for (std::size_t i = 0; i < mine.size(); ++i)
            worst = std::max(worst, std::abs(double{mine[i]} - hubs[i]));
        num_rows += ids.size();
    }
    std::cout << GetParam() << ": largest difference of a log-probability: " << worst << " over "
              << num_rows << " positions\n";
    EXPECT_GT(spans.trips_, 0u);
    EXPECT_LE(worst, 5e-3);
}

TEST_P(SpanFamiliesTest, ChunkAndSplitChangeNoBit) {
    LocalSpans spans = halves(), one = whole();
    const std::vector<float> wanted = logits(&spans, text_, 1);
    for (const std::size_t chunk : {5, 16}) {
        SCOPED_TRACE(chunk);
        expect_same_bits(logits(&spans, text_, chunk), wanted);
    }
    SCOPED_TRACE("whole");
    expect_same_bits(logits(&one, text_, 7), wanted);
}

// Drafted rows that are rejected are overwritten by the next step, and a window sees the new ones.
TEST_P(SpanFamiliesTest, RejectedDraftsChangeNoBit) {
    LocalSpans spans = halves();
    const std::vector<float> wanted = logits(&spans, text_, 1);
    decoder_->use_spans(&spans);
    KvCache::Sequence kv(cache_);
    step(kv, std::span(text_).first(8));
    for (std::size_t next = 8; next + 3 < text_.size(); next += 3) {
        std::vector<TokenId> drafted(text_.begin() + static_cast<std::ptrdiff_t>(next),
                                     text_.begin() + static_cast<std::ptrdiff_t>(next + 3));
        for (const TokenId wrong : test::random_tokens(4, 320, next)) drafted.push_back(wrong);
        const std::vector<float> rows = step(kv, drafted);
        for (std::size_t r = 0; r < 3; ++r) expect_same_bits(row(rows, r), row(wanted, next + r));
        kv.roll_back(static_cast<std::uint32_t>(next + 3));
    }
    spans.ended(kv.id());
    decoder_->use_spans(nullptr);
}

// A worker that takes over in the midst of a text gets the rows that the hub still has. Those that
// no window sees any more are gone there, and no bit depends on them. A recurrent state that it
// gets was computed from inputs in f16, by the hub's sums.
TEST_P(SpanFamiliesTest, StandbyNeedsNoRowsBehindTheWindows) {
    LocalSpans first = halves(), second = halves();
    const std::vector<float> wanted = logits(&first, text_, 10);
    decoder_->use_spans(&first);
    KvCache::Sequence kv(cache_);
    for (const std::size_t at : {0, 16, 32, 48}) {
        step(kv, std::span(text_).subspan(at, 16));
        kv.forget_unseen();
    }
    EXPECT_EQ(kv.has_window_rows(0), !cache_.has_windows());
    decoder_->use_spans(&second);
    const auto later = step(kv, std::span(text_).subspan(64, 8));
    // Layers without keys are brought as states.
    EXPECT_EQ(second.brought_, config().has_delta_net()         ? 0
                               : all().second - all().first > 1 ? 128u
                                                                : 64u);
    const bool is_recurrent = config().has_delta_net();
    EXPECT_EQ(second.states_, is_recurrent ? 2u : 0u);
    for (std::size_t r = 0; r < 8; ++r) {
        const std::vector<float> a = row(later, r), b = row(wanted, 64 + r);
        if (!is_recurrent) {
            expect_same_bits(a, b);
            continue;
        }
        for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-2) << r << ' ' << i;
    }
    decoder_->use_spans(nullptr);
}

class SpanHybridTest : public SpanTest {
  protected:
    SpanHybridTest() : SpanTest(hybrid_model()) {}

    static double largest_difference(std::span<const float> a, std::span<const float> b) {
        EXPECT_EQ(a.size(), b.size());
        double worst = 0;
        for (std::size_t i = 0; i < a.size(); ++i)
            worst = std::max(worst, std::abs(double{a[i]} - b[i]));
        return worst;
    }

    const std::vector<TokenId> text_ = test::random_tokens(120, 256, 5);
};

// What the worker returns of each row moves the hub's own states on: the hub goes on alone in the
// midst of a text, and the worker goes on after that with states that it gets.
TEST_F(SpanHybridTest, HubAndWorkersTakeTurns) {
    LocalSpans spans(model_, {{1, 3}, {3, 5}, {5, 7}});
    const std::vector<float> wanted = logits(nullptr, text_, 120, KvDtype::f16);
    KvCache cache(config(), {.page_tokens = 16, .num_pages = 64, .dtype = KvDtype::f16});
    KvCache::Sequence kv(cache);
    double worst = 0;
    std::size_t at = 0, turn = 0;
    for (const std::size_t count : {16, 1, 3, 16, 12, 1, 1, 9, 10, 1, 16, 9, 1, 16, 8}) {
        decoder_->use_spans(turn++ % 3 == 2 ? nullptr : &spans);
        const auto rows = step(kv, std::span(text_).subspan(at, count));
        const std::size_t size = config().vocab_size;
        worst = std::max(
            worst, largest_difference(rows, std::span(wanted).subspan(at * size, count * size)));
        at += count;
    }
    EXPECT_EQ(at, text_.size());
    decoder_->use_spans(nullptr);
    spans.ended(kv.id());
    std::cout << spans.trips_ << " trips, " << spans.states_ << " sets of states, "
              << spans.brought_ << " rows, largest difference of a logit: " << worst << '\n';
    EXPECT_EQ(spans.trips_, 10u * 3);
    // After each turn of the hub, but for the last one.
    EXPECT_EQ(spans.states_, 4u * 3);
    EXPECT_LE(worst, 5e-3);
}

TEST_F(SpanHybridTest, SplitAndChunkChangeNoBit) {
    LocalSpans whole(model_, {{1, 7}}), parts(model_, {{1, 2}, {2, 3}, {3, 6}, {6, 7}});
    const std::vector<float> wanted = logits(&whole, text_, 16);
    for (const std::size_t chunk : {1, 5, 16}) {
        SCOPED_TRACE(chunk);
        expect_same_bits(logits(&parts, text_, chunk), wanted);
    }
    EXPECT_EQ(parts.states_, 0u);
}

TEST_F(SpanHybridTest, CheckComparesAndUsesNothing) {
    LocalSpans spans(model_, {{1, 4}, {4, 7}});
    spans.use_ = SpanUse::check;
    // With keys and values in f16 as the worker has them, so that both choose the same experts.
    expect_same_bits(logits(&spans, text_, 7, KvDtype::f16),
                     logits(nullptr, text_, 7, KvDtype::f16));
    EXPECT_EQ(spans.states_, 0u);
    EXPECT_EQ(spans.trips_, 2u * 18);
}

TEST_F(SpanHybridTest, HubGoesOnWithoutTheAnswer) {
    LocalSpans spans(model_, {{1, 7}});
    spans.fails_ = true;
    expect_same_bits(logits(&spans, text_, 7), logits(nullptr, text_, 7));
}

// Several sequences in one step, in one and in two micro-batches, with rejected drafts.
TEST_F(SpanHybridTest, SequencesDoNotMix) {
    LocalSpans spans(model_, {{1, 4}, {4, 7}});
    const std::vector<TokenId> other = test::random_tokens(12, 256, 8);
    const std::vector<float> first = logits(&spans, text_, 16), second = logits(&spans, other, 12);
    for (const std::uint32_t parts : {1u, 2u}) {
        SCOPED_TRACE(parts);
        decoder_->use_spans(&spans);
        KvCache::Sequence a(cache_), b(cache_);
        step(a, std::span(text_).first(8));
        step(b, std::span(other).first(4));
        std::vector<TokenId> drafted(other.begin() + 4, other.begin() + 7);
        drafted.push_back(1);
        drafted.push_back(2);
        for (const bool again : {false, true}) {
            const StepRows rows[] = {{.kv = &a,
                                      .tokens = std::span(text_).subspan(again ? 10 : 8, 2),
                                      .all_logits = true},
                                     {.kv = &b, .tokens = drafted, .all_logits = true}};
            const std::vector<float> both =
                must(decoder_->step(rows, experts_, {}, {}, parts)).logits;
            for (std::size_t r = 0; r < 2; ++r)
                expect_same_bits(row(both, r), row(first, (again ? 10 : 8) + r));
            for (std::size_t r = 0; r < 3; ++r)
                expect_same_bits(row(both, 2 + r), row(second, (again ? 7 : 4) + r));
            b.roll_back(again ? 10 : 7);
            drafted.assign(other.begin() + 7, other.begin() + 10);
        }
        for (const KvCache::Sequence* one : {&a, &b}) spans.ended(one->id());
        decoder_->use_spans(nullptr);
    }
    EXPECT_EQ(spans.states_, 0u);
}

}  // namespace
}  // namespace moex
