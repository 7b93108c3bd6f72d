// Tests spans of the small models of tests/golden/families. Most of their layers need version 2 of
// a layer's blob (windows, sinks, biases, a clamp, yarn, norms over all heads, multipliers) or
// version 3 (shared experts, a router with sigmoids and groups). The hub computes dense layers and
// the last one, and one or two holders the others.
#include <fstream>
#include <iostream>
#include <optional>

#include <nlohmann/json.hpp>

#include "hub/model/pack/packer.h"
#include "tests/hub/gpu/local_spans.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

const char* const all_families[] = {"gpt-oss-mxfp4", "mixtral",   "olmoe",
                                    "granite-moe",   "qwen2-moe", "glm4-moe"};

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
    const std::uint16_t wanted = family == "mixtral"                             ? 1
                                 : family == "qwen2-moe" || family == "glm4-moe" ? 3
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
// no window sees any more are gone there, and no bit depends on them.
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
    EXPECT_EQ(second.brought_, (all().second - all().first > 1 ? 2 : 1) * 64u);
    for (std::size_t r = 0; r < 8; ++r) expect_same_bits(row(later, r), row(wanted, 64 + r));
    decoder_->use_spans(nullptr);
}

}  // namespace
}  // namespace moex
