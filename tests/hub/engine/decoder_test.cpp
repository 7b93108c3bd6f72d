// Tests that the bits of a row do not depend on its batch, its chunk or its micro-batch, in exact
// and in int8 arithmetic and with every dtype of keys and values.
#include "hub/engine/decoder.h"

#include <cstring>

#include "hub/engine/divergence.h"
#include "hub/engine/perplexity.h"
#include "hub/engine/scores.h"
#include "protocol/expert_reference.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

struct Rounding {
    Arithmetic arithmetic = Arithmetic::exact;
    KvDtype kv = KvDtype::f32;
    PackedDtype hub = PackedDtype::int8;
};

class DecoderTest : public testing::TestWithParam<Rounding> {
  protected:
    DecoderTest()
        : package_(test::tiny_package()),
          decoder_(make({})),
          experts_(package_, test::compute_threads(), {}, GetParam().arithmetic),
          cache_(package_->config(), {5, 400, GetParam().kv}) {}

    std::unique_ptr<Decoder> make(DecoderOptions options) const {
        options.arithmetic = GetParam().arithmetic;
        options.hub_dtype = GetParam().hub;
        auto created = Decoder::create(package_, test::compute_threads(), options);
        if (!created.ok()) throw std::runtime_error(created.error().message);
        return std::move(created).value();
    }
    // Returns the logits of every row of a text, computed `chunk` tokens at a time.
    std::vector<float> logits(Decoder& decoder, KvCache::Sequence& sequence,
                              std::span<const TokenId> ids, std::size_t chunk) {
        std::vector<float> all;
        for (std::size_t first = 0; first < ids.size(); first += chunk) {
            const StepRows rows{.kv = &sequence,
                                .tokens = ids.subspan(first, std::min(chunk, ids.size() - first)),
                                .all_logits = true};
            auto step = decoder.step({&rows, 1}, experts_);
            EXPECT_TRUE(step.ok());
            if (!step.ok()) return {};
            all.insert(all.end(), step->logits.begin(), step->logits.end());
        }
        return all;
    }
    // Returns the keys and values of all positions.
    std::vector<float> rows_of(const KvCache::Sequence& sequence) const {
        std::vector<float> rows;
        for (std::uint32_t layer = 0; layer < package_->config().num_layers; ++layer)
            for (std::uint32_t position = 0; position < sequence.num_tokens(); ++position)
                for (const auto& part : {sequence.k(layer, position), sequence.v(layer, position)})
                    rows.insert(rows.end(), part.begin(), part.end());
        return rows;
    }
    static void expect_same_bits(std::span<const float> a, std::span<const float> b) {
        ASSERT_EQ(a.size(), b.size());
        ASSERT_FALSE(a.empty());
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
    }

    std::shared_ptr<const ModelPackage> package_;
    std::unique_ptr<Decoder> decoder_;
    LocalExperts experts_;
    KvCache cache_;
};

TEST_P(DecoderTest, ChunkedPrefillEqualsWholePrefillBitForBit) {
    const auto ids = test::random_tokens(41, 256, 1);
    KvCache::Sequence whole(cache_);
    const auto wanted = logits(*decoder_, whole, ids, ids.size());
    for (const std::size_t chunk : {1u, 2u, 7u, 16u}) {
        KvCache::Sequence chunked(cache_);
        expect_same_bits(logits(*decoder_, chunked, ids, chunk), wanted);
        expect_same_bits(rows_of(chunked), rows_of(whole));
    }
}

TEST_P(DecoderTest, BatchedRowsEqualSoloRowsBitForBit) {
    constexpr std::size_t num_sequences = 5;
    std::vector<KvCache::Sequence> sequences;
    std::vector<std::vector<TokenId>> ids;
    std::vector<std::vector<float>> solo;
    for (std::size_t i = 0; i < num_sequences; ++i) {
        ids.push_back(test::random_tokens(3 + 6 * i, 256, 10 + static_cast<std::uint32_t>(i)));
        KvCache::Sequence alone(cache_);
        solo.push_back(logits(*decoder_, alone, ids[i], 4));
        sequences.emplace_back(cache_);
    }

    for (const std::uint32_t parts : {1u, 3u, 2u, 4u}) {
        for (auto& sequence : sequences) sequence.roll_back(0);
        std::vector<StepRows> batch;
        for (std::size_t i = 0; i < num_sequences; ++i)
            batch.push_back({.kv = &sequences[i], .tokens = ids[i], .all_logits = true});
        const auto step = decoder_->step(batch, experts_, {}, {}, parts);
        ASSERT_TRUE(step.ok()) << step.error().message;
        std::size_t at = 0;
        for (std::size_t i = 0; i < num_sequences; ++i) {
            expect_same_bits(std::span(step->logits).subspan(at, solo[i].size()), solo[i]);
            at += solo[i].size();
        }
        // Each row uses two experts in each of three MoE layers, and this machine computes all of
        // them.
        for (const RowProvenance& row : step->rows) EXPECT_EQ(row.pairs_local, 6);
    }
}

TEST_P(DecoderTest, RequestedRowsGetLogitsInBatchOrder) {
    const auto a = test::random_tokens(6, 256, 20), b = test::random_tokens(3, 256, 21),
               c = test::random_tokens(4, 256, 22);
    KvCache::Sequence sa(cache_), sb(cache_), sc(cache_), solo_a(cache_), solo_c(cache_);
    const auto wanted_a = logits(*decoder_, solo_a, a, a.size()),
               wanted_c = logits(*decoder_, solo_c, c, c.size());
    const StepRows batch[] = {{.kv = &sa, .tokens = a},
                              {.kv = &sb, .tokens = b, .no_logits = true},
                              {.kv = &sc, .tokens = c, .all_logits = true}};
    const auto step = decoder_->step(batch, experts_);
    ASSERT_TRUE(step.ok());
    ASSERT_EQ(step->logits.size(), 5u * 256);

    expect_same_bits(std::span(step->logits).first(256), std::span(wanted_a).last(256));
    expect_same_bits(std::span(step->logits).subspan(256), wanted_c);
    EXPECT_EQ(sb.num_tokens(), 3u);
}

TEST_P(DecoderTest, RolledBackAndContinuedEqualsFresh) {
    const auto ids = test::random_tokens(30, 256, 2), draft = test::random_tokens(9, 256, 3);
    KvCache::Sequence fresh(cache_), rolled(cache_);
    const auto wanted = logits(*decoder_, fresh, ids, ids.size());
    logits(*decoder_, rolled, std::span(ids).first(18), 18);
    logits(*decoder_, rolled, draft, 9);  // rejected
    rolled.roll_back(18);

    // Three of the pages of five tokens are full; the rest is computed again.
    KvCache::Sequence restored(cache_);
    Bytes page(cache_.page_bytes());
    for (std::uint32_t i = 0; i < 3; ++i) {
        ASSERT_TRUE(rolled.read_page(i, page).ok());
        ASSERT_TRUE(restored.append_page(page).ok());
    }
    logits(*decoder_, restored, std::span(ids).subspan(15, 3), 3);
    const auto rest = logits(*decoder_, rolled, std::span(ids).subspan(18), 5);
    expect_same_bits(rest, std::span(wanted).subspan(18 * 256));
    expect_same_bits(logits(*decoder_, restored, std::span(ids).subspan(18), 12), rest);
}

TEST_P(DecoderTest, OneThreadGivesTheBitsOfTwo) {
    ThreadPool alone(1);
    const auto decoder = Decoder::create(
        package_, alone, {.arithmetic = GetParam().arithmetic, .hub_dtype = GetParam().hub});
    ASSERT_TRUE(decoder.ok());
    const auto ids = test::random_tokens(23, 256, 6);
    KvCache::Sequence two(cache_), one(cache_);
    expect_same_bits(logits(**decoder, one, ids, 23), logits(*decoder_, two, ids, 5));
}

// The results of int8 arithmetic are near those of f32, but not equal to them.
TEST_P(DecoderTest, LogitsAreNearThoseOfExactArithmetic) {
    const auto exact = Decoder::create(package_, test::compute_threads());
    ASSERT_TRUE(exact.ok());
    const auto ids = test::random_tokens(12, 256, 7);
    KvCache exact_cache(package_->config(), {5, 400});
    KvCache::Sequence a(cache_), b(exact_cache);
    const auto mine = logits(*decoder_, a, ids, 12), wanted = logits(**exact, b, ids, 12);
    const std::vector<double> reference(wanted.begin(), wanted.end());

    const double error = normalized_rms_error(mine, reference);
    std::cout << "relative RMS error of the logits: " << error << "\n";
    if (GetParam().arithmetic == Arithmetic::exact)
        EXPECT_EQ(error, 0.0);
    else
        EXPECT_TRUE(error > 1e-4 && error < (GetParam().hub == PackedDtype::int4   ? 0.3
                                             : GetParam().hub == PackedDtype::int6 ? 0.1
                                                                                   : 0.05))
            << error;
}

TEST_P(DecoderTest, ErrorsLeaveTheSequencesAsTheyWere) {
    const auto ids = test::random_tokens(257, 256, 4);
    KvCache::Sequence sequence(cache_);
    const StepRows too_long{.kv = &sequence, .tokens = ids};
    const auto refused = decoder_->step({&too_long, 1}, experts_);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("257"), std::string::npos);
    EXPECT_NE(refused.error().message.find("256"), std::string::npos);

    const std::vector<TokenId> foreign{1, 256};
    const StepRows bad{.kv = &sequence, .tokens = foreign};
    EXPECT_EQ(decoder_->step({&bad, 1}, experts_).error().code, ErrorCode::invalid_argument);

    KvCache small(package_->config(), {5, 2});
    KvCache::Sequence crowded(small);
    const StepRows many{.kv = &crowded, .tokens = std::span(ids).first(11)};
    EXPECT_EQ(decoder_->step({&many, 1}, experts_).error().code, ErrorCode::overloaded);
    EXPECT_EQ(sequence.num_tokens(), 0u);
    EXPECT_EQ(crowded.num_tokens(), 0u);
}

TEST_P(DecoderTest, PerplexityNeedsWholeWindowsAndReportsMissingTokens) {
    const auto ids = test::random_tokens(70, 256, 5);
    std::uint32_t told = 0;
    const auto measured = measure_perplexity(
        *decoder_, experts_, ids, {.window_tokens = 32},
        [&](std::uint32_t done, std::uint32_t, double) { told = done; });
    ASSERT_TRUE(measured.ok());
    EXPECT_EQ(measured->num_windows, 2u);
    EXPECT_EQ(told, 2u);
    EXPECT_EQ(measured->num_predictions, 62u);
    // a model with random weights cannot predict tokens of a vocabulary of 256
    EXPECT_GT(measured->perplexity, 50.0);
    EXPECT_FALSE(
        measure_perplexity(*decoder_, experts_, ids, {.window_tokens = 32, .num_windows = 3}, {})
            .ok());
    EXPECT_FALSE(measure_perplexity(*decoder_, experts_, ids, {.window_tokens = 512}, {}).ok());
}

TEST_P(DecoderTest, BeginTokenPrecedesEveryWindow) {
    const auto ids = test::random_tokens(64, 256, 5);
    const auto plain = measure_perplexity(*decoder_, experts_, ids, {.window_tokens = 32}, {});
    const auto begun = measure_perplexity(*decoder_, experts_, ids,
                                          {.window_tokens = 32, .begin_token = 7}, {});
    ASSERT_TRUE(plain.ok() && begun.ok());
    EXPECT_EQ(begun->num_predictions, plain->num_predictions);
    EXPECT_NE(begun->perplexity, plain->perplexity);

    // The same by hand: one sequence a window, with the token in front.
    KvCache cache(package_->config(), {16, 2});
    double sum = 0;
    for (std::size_t window = 0; window < 2; ++window) {
        std::vector<TokenId> rows{7};
        rows.insert(rows.end(), ids.begin() + 32 * window, ids.begin() + 32 * window + 31);
        KvCache::Sequence sequence(cache);
        const StepRows batch{.kv = &sequence, .tokens = rows, .all_logits = true};
        const auto step = decoder_->step({&batch, 1}, experts_);
        ASSERT_TRUE(step.ok());
        for (std::size_t i = 1; i < 32; ++i)
            sum -= score(std::span(step->logits).subspan(i * 256, 256), ids[32 * window + i], 0)
                       .logprob;
    }
    EXPECT_NEAR(begun->mean_nll, sum / 62, 1e-5);
}

TEST_P(DecoderTest, DivergenceFromItselfIsZeroAndFromAnotherIsNot) {
    const auto ids = test::random_tokens(64, package_->config().vocab_size, 5);
    const ReadingModel self{*decoder_, experts_};
    const ReadingModel models[] = {self, {*decoder_, experts_, KvDtype::int8}};
    const auto found = measure_divergence(self, models, ids, {.window_tokens = 32}, {});
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ((*found)[0].mean_kl, 0.0);
    EXPECT_EQ((*found)[0].same_likeliest, 1.0);
    EXPECT_EQ((*found)[0].perplexity, (*found)[0].reference_perplexity);
    EXPECT_GT((*found)[1].mean_kl, 0.0);
    EXPECT_LT((*found)[1].mean_kl, 0.1);
    EXPECT_EQ((*found)[1].num_predictions, 62u);

    const auto measured = measure_perplexity(*decoder_, experts_, ids, {.window_tokens = 32}, {});
    EXPECT_NEAR((*found)[0].perplexity / measured->perplexity, 1.0, 1e-5);
}

// A RouteWatch sees the rows that the routers read, and changes no bit of the result.
TEST_P(DecoderTest, AWatcherSeesEachRouterAndChangesNothing) {
    const auto ids = test::random_tokens(11, package_->config().vocab_size, 3);
    KvCache::Sequence plain(cache_), watched(cache_);
    const auto wanted = logits(*decoder_, plain, ids, ids.size());

    std::vector<std::uint32_t> layers;
    const RouteWatch watch = [&](const RouteView& route) {
        layers.push_back(route.layer);
        ASSERT_EQ(route.rows.size(), route.num_tokens);
        EXPECT_EQ(route.rows[0].position, route.first_row);
        EXPECT_EQ(route.rows[0].token, ids[route.first_row]);
        EXPECT_EQ(route.rows[0].kv, &watched);
        ASSERT_EQ(route.hidden.size(), std::size_t{route.num_tokens} * route.hidden_size);
        ASSERT_EQ(route.expert_weights.size(), route.expert_ids.size());

        const std::string at = text("model.layers.", route.layer, ".");
        const auto values = [&](const std::string& name) {
            const auto found = package_->tensor(at + name);
            std::vector<float> out(found->num_elements());
            tensor_to_float(*found, 0, out);
            return out;
        };
        const auto norm = values("post_attention_layernorm.weight"),
                   router = values("mlp.gate.weight");
        const auto residual = route.residual.first(route.hidden_size),
                   hidden = route.hidden.first(route.hidden_size);
        double squares = 0, logit = 0;
        for (const float value : residual) squares += double{value} * value;
        const double scale = 1 / std::sqrt(squares / route.hidden_size + 1e-6);
        for (std::size_t i = 0; i < hidden.size(); ++i) {
            EXPECT_NEAR(hidden[i], residual[i] * scale * norm[i], 1e-4);
            logit += double{hidden[i]} * router[i];
        }
        EXPECT_NEAR(route.router_logits[0], logit, 1e-4);
    };

    const StepRows rows{.kv = &watched, .tokens = ids, .all_logits = true};
    const auto step = decoder_->step({&rows, 1}, experts_, watch, {}, 2);
    ASSERT_TRUE(step.ok());
    expect_same_bits(wanted, step->logits);
    EXPECT_EQ(layers, (std::vector<std::uint32_t>{0, 0, 2, 2, 3, 3}));
}

INSTANTIATE_TEST_SUITE_P(
    EveryArithmetic, DecoderTest,
    testing::Values(Rounding{}, Rounding{Arithmetic::int8, KvDtype::f16},
                    Rounding{Arithmetic::int8, KvDtype::int8},
                    Rounding{Arithmetic::int8, KvDtype::f16, PackedDtype::int6},
                    Rounding{Arithmetic::int8, KvDtype::f16, PackedDtype::int4}),
    [](const auto& info) {
        return std::string(info.param.arithmetic == Arithmetic::exact ? "Exact" : "Int8") + "Kv" +
               kv_dtype_name(info.param.kv) +
               (info.param.hub == PackedDtype::int4   ? "Hub4"
                : info.param.hub == PackedDtype::int6 ? "Hub6"
                                                      : "");
    });

// With few rows and a long cache, the threads share the blocks of the cache; with many rows, each
// thread computes whole tasks.
TEST(LongContextTest, AttentionSplitOverThreadsGivesTheSameBits) {
    ModelConfig config = test::tiny_config();
    config.num_layers = 1;
    config.layers.resize(1);
    config.context_tokens = 4096;
    const test::TemporaryFolder folder("long-context");
    const auto made = synth_package(config, "long", 3, folder.path() / "package", {},
                                    test::compute_threads(), {});
    ASSERT_TRUE(made.ok()) << made.error().message;
    const auto package = ModelPackage::open(folder.path() / "package");
    ASSERT_TRUE(package.ok());
    LocalExperts experts(*package, test::compute_threads(), {});
    // with two kv heads, the task of each head is more than a thread's share of the work
    ThreadPool alone(1), three(3);
    const auto ids = test::random_tokens(2000, 256, 1);

    for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::int8}) {
        std::vector<std::vector<float>> answers;
        for (ThreadPool* threads : {&three, &alone})
            for (const std::size_t last_rows : {1u, 3u, 2000u}) {
                const auto decoder = Decoder::create(*package, *threads);
                ASSERT_TRUE(decoder.ok());
                KvCache cache(config, {16, 130, dtype});
                KvCache::Sequence sequence(cache);
                const auto step = [&](std::span<const TokenId> tokens) {
                    const StepRows rows{.kv = &sequence, .tokens = tokens};
                    auto result = (*decoder)->step({&rows, 1}, experts);
                    EXPECT_TRUE(result.ok());
                    return result->logits;
                };
                if (last_rows < ids.size())
                    (void)step(std::span(ids).first(ids.size() - last_rows));
                answers.push_back(step(std::span(ids).last(last_rows)));
            }
        for (const auto& answer : answers) EXPECT_EQ(answer, answers.front());
    }
}

}  // namespace
}  // namespace moex
