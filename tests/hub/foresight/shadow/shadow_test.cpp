// A shadow's rows against goldens, its experts against plain loops, its trial against a slow one.
#include <cmath>
#include <fstream>

#include "hub/foresight/predict/windows.h"
#include "hub/foresight/shadow/fewer_experts.h"
#include "hub/foresight/shadow/shadow_experts.h"
#include "hub/foresight/shadow/shadow_trial.h"
#include "hub/model/pack/shadow_writer.h"
#include "hub/model/strict_json.h"
#include "protocol/expert_reference.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

constexpr ShadowDtype all_dtypes[] = {ShadowDtype::int2, ShadowDtype::int3, ShadowDtype::nf4,
                                      ShadowDtype::int8};

// tests/golden/shadow/golden.json, by make_golden.py: rows packed and read again by plain Python.
TEST(ShadowCodesTest, RowsAreTheGoldensToTheBit) {
    std::ifstream file(std::string(MOEX_SOURCE_DIR) + "/tests/golden/shadow/golden.json");
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    const auto golden = parse_strict_json(content, "golden.json");
    ASSERT_TRUE(golden.ok()) << golden.error().message;

    const auto weights = (*golden)["weights"].get<std::vector<float>>();
    std::size_t cases = 0;
    for (const auto& one : (*golden)["cases"]) {
        const ShadowRow shape{parse_shadow_dtype(one["dtype"].get<std::string>()).value(),
                              static_cast<std::uint32_t>(weights.size()),
                              one["group_size"].get<std::uint32_t>()};
        const auto wanted = one["bytes"].get<std::vector<std::uint8_t>>();
        Bytes row(shape.size_bytes());
        ASSERT_EQ(row.size(), wanted.size());
        ASSERT_TRUE(
            quantize_shadow_row(shape, weights, one["source_codes"].get<std::uint32_t>(), row));
        for (std::size_t i = 0; i < row.size(); ++i)
            EXPECT_EQ(static_cast<std::uint8_t>(row[i]), wanted[i])
                << shadow_dtype_name(shape.dtype) << " byte " << i;

        std::vector<float> back(weights.size());
        dequantize_shadow_row(shape, row, back);
        EXPECT_EQ(back, one["weights"].get<std::vector<float>>());
        ++cases;
    }
    EXPECT_EQ(cases, 10u);
}

TEST(ShadowCodesTest, WhatNoScaleCanHoldIsRefused) {
    const ShadowRow shape{ShadowDtype::int3, 32, 32};
    Bytes row(shape.size_bytes());
    for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
        std::vector<float> weights(32);
        weights[7] = wrong;
        EXPECT_FALSE(quantize_shadow_row(shape, weights, 0, row));
    }
    EXPECT_FALSE(parse_shadow_dtype("int5").ok());
}

// 16 levels of one group become 8 or 4 with as many of them each, and no error beyond half a cell.
TEST(ShadowCodesTest, CellsTakeInAsManyOfTheSourcesLevelsEach) {
    std::vector<float> weights(32);
    for (std::size_t i = 0; i < 32; ++i) weights[i] = 0.25f * (static_cast<float>(i % 16) - 5);
    for (const ShadowDtype dtype : {ShadowDtype::int2, ShadowDtype::int3}) {
        const ShadowRow shape{dtype, 32, 32};
        Bytes row(shape.size_bytes());
        ASSERT_TRUE(quantize_shadow_row(shape, weights, 16, row));
        std::vector<std::uint8_t> codes(32);
        unpack_shadow_codes(shape, row, codes);
        std::vector<float> again(32);
        dequantize_shadow_row(shape, row, again);

        const std::size_t cell = 16 >> shape.code_bits();
        for (std::size_t i = 0; i < 32; ++i) {
            EXPECT_EQ(codes[i], i % 16 / cell);
            EXPECT_LE(std::fabs(again[i] - weights[i]), 0.125f * static_cast<float>(cell - 1));
        }
    }
}

class ShadowTest : public testing::Test {
  protected:
    ShadowTest()
        : folder_("shadow"),
          package_(test::tiny_package()),
          served_(package_, test::compute_threads(), {}, Arithmetic::int8) {
        auto decoder = Decoder::create(package_, test::compute_threads());
        if (!decoder.ok()) throw std::runtime_error(decoder.error().message);
        decoder_ = std::move(decoder).value();
    }
    std::filesystem::path write(ShadowDtype dtype) const {
        const auto path = folder_.path() / shadow_dtype_name(dtype);
        const auto report = write_shadow(*package_, {.dtype = dtype}, path, test::compute_threads(),
                                         {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        return path;
    }
    ShadowPackage shadow(ShadowDtype dtype) const {
        auto opened = ShadowPackage::open(write(dtype), *package_);
        if (!opened.ok()) throw std::runtime_error(opened.error().message);
        return std::move(opened).value();
    }
    RecallMeter meter() const {
        const ModelConfig& config = package_->config();
        return RecallMeter(
            {.num_layers = 3, .top_k = config.top_k, .fetches = {config.top_k}, .tokens_max = 64});
    }

    test::TemporaryFolder folder_;
    std::shared_ptr<const ModelPackage> package_;
    LocalExperts served_;
    std::unique_ptr<Decoder> decoder_;
};

// down · (silu(gate · x) * (up · x)) in doubles, over the rows as they are read again.
TEST_F(ShadowTest, ExpertsAreTheirRowsInPlainLoops) {
    const ModelConfig& config = package_->config();
    const std::uint32_t hidden = config.hidden_size, inner = config.moe_intermediate_size, rows = 3,
                        layer = 2;
    const auto x = test::random_floats(rows * hidden, 4);
    const std::vector<std::uint16_t> ids{5, 1, 1, 6, 0, 5};
    const std::vector<float> gates{0.75f, 0.25f, 0.5f, 0.5f, 0.125f, 0.875f};

    for (const ShadowDtype dtype : all_dtypes) {
        const ShadowPackage shadow = this->shadow(dtype);
        const ShadowRecord& record = shadow.record();
        std::vector<double> wanted(rows * hidden);
        for (std::size_t pair = 0; pair < ids.size(); ++pair) {
            ExpertWeights weights{record.shape, {}, {}, {}};
            ByteView bytes = shadow.expert(layer, ids[pair]);
            const auto read = [&](std::vector<float>& to, std::uint32_t count, ShadowRow shape) {
                to.resize(std::size_t{count} * shape.row_size);
                for (std::uint32_t row = 0; row < count; ++row) {
                    dequantize_shadow_row(
                        shape, bytes.first(shape.size_bytes()),
                        std::span(to).subspan(row * shape.row_size, shape.row_size));
                    bytes = bytes.subspan(shape.size_bytes());
                }
            };
            read(weights.gate, inner, record.up_row());
            read(weights.up, inner, record.up_row());
            read(weights.down, hidden, record.down_row());
            ASSERT_TRUE(bytes.empty());

            const std::size_t row = pair / config.top_k;
            const std::vector<double> in(
                x.begin() + static_cast<std::ptrdiff_t>(row * hidden),
                x.begin() + static_cast<std::ptrdiff_t>((row + 1) * hidden));
            std::vector<double> answer(hidden);
            expert_reference(std::span<double>(answer), weights, std::span<const double>(in));
            for (std::uint32_t i = 0; i < hidden; ++i)
                wanted[row * hidden + i] += gates[pair] * answer[i];
        }

        ShadowExperts experts(shadow, test::compute_threads());
        const auto run = [&](std::uint32_t first, std::uint32_t count) {
            std::vector<float> y(count * hidden, 7.0f);
            const auto done =
                experts
                    .submit({.layer = layer,
                             .num_tokens = count,
                             .hidden_size = hidden,
                             .top_k = 2,
                             .x = std::span(x).subspan(first * hidden, count * hidden),
                             .expert_ids = std::span(ids).subspan(2 * first, 2 * count),
                             .expert_weights = std::span(gates).subspan(2 * first, 2 * count),
                             .y = y})
                    ->wait();
            EXPECT_TRUE(done.ok());
            return y;
        };
        const std::vector<float> together = run(0, rows);
        EXPECT_LT(normalized_rms_error(together, wanted), 0.02) << shadow_dtype_name(dtype);
        for (std::uint32_t row = 0; row < rows; ++row)
            EXPECT_TRUE(
                std::ranges::equal(run(row, 1), std::span(together).subspan(row * hidden, hidden)));
    }
}

TEST_F(ShadowTest, FewerBitsAreFewerBytesAndAnotherModelsShadowIsRefused) {
    // A group of 32 of the 96 inner weights: 2 + 1, 3 + 1, 4 + 0.5 and 8 + 0.5 bits a weight.
    const double bits[] = {3, 4, 4.5, 8.5};
    for (int i = 0; i < 4; ++i) {
        const ShadowPackage shadow = this->shadow(all_dtypes[i]);
        EXPECT_EQ(static_cast<double>(shadow.size_bytes()), 3 * 8 * 3 * 64 * 96 * bits[i] / 8);
    }

    const auto folder = folder_.path() / "int3";
    EXPECT_FALSE(write_shadow(*package_, {}, folder, test::compute_threads(), {}).ok());
    const auto other_folder = folder_.path() / "other";
    ASSERT_TRUE(synth_package(test::tiny_config(), "other", 8, other_folder, {},
                              test::compute_threads(), {})
                    .ok());
    const auto other = *ModelPackage::open(other_folder);
    EXPECT_NE(ShadowPackage::open(folder, *other).error().message.find("of other experts"),
              std::string::npos);

    std::fstream damaged(folder / "layer-2.experts",
                         std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(40);
    damaged.put('\x55').put('\xaa');
    damaged.close();
    EXPECT_EQ(ShadowPackage::open(folder, *package_).error().code, ErrorCode::hash_mismatch);
    std::filesystem::resize_file(folder / "layer-2.experts", 100);
    EXPECT_EQ(ShadowPackage::open(folder, *package_).error().code, ErrorCode::bad_file);
    std::filesystem::remove(folder / "shadow.json");
    EXPECT_EQ(ShadowPackage::open(folder, *package_).error().code, ErrorCode::not_found);
}

// The heaviest of each row, weighing as much as all did: what a plain loop over experts gives.
TEST_F(ShadowTest, FewerExpertsAreTheHeaviestWithAllTheWeight) {
    const ModelConfig& config = package_->config();
    const std::uint32_t hidden = config.hidden_size, layer = 2, rows = 2;
    const auto x = test::random_floats(rows * hidden, 4);
    const std::vector<std::uint16_t> ids{5, 1, 1, 6}, heaviest{1, 6};
    const std::vector<float> weights{0.25f, 0.75f, 0.25f, 0.5f};
    std::vector<float> y(rows * hidden), wanted(rows * hidden);
    const auto answer = [&](ExpertBackend& experts, std::uint32_t top_k,
                            std::span<const std::uint16_t> asked, std::span<const float> gates,
                            std::span<float> out) {
        auto round = experts.submit({.layer = layer,
                                     .num_tokens = rows,
                                     .hidden_size = hidden,
                                     .top_k = top_k,
                                     .x = x,
                                     .expert_ids = asked,
                                     .expert_weights = gates,
                                     .y = out});
        ASSERT_TRUE(round->wait().ok());
    };

    const auto one = make_fewer_experts(served_, 1);
    answer(*one, 2, ids, weights, y);
    answer(served_, 1, heaviest, std::vector<float>{1.0f, 0.75f}, wanted);
    EXPECT_EQ(y, wanted);

    // More than a row has are all of them, the heaviest first.
    const auto many = make_fewer_experts(served_, 9);
    answer(*many, 2, ids, weights, y);
    answer(served_, 2, ids, weights, wanted);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], wanted[i], 1e-5f);
}

// A shadow whose experts are the model's own says what the model does, however it is aligned.
TEST_F(ShadowTest, TheModelItselfIsItsPerfectShadow) {
    const auto tokens = test::random_tokens(80, package_->config().vocab_size, 3);
    const std::span<const TokenId> windows[] = {std::span(tokens).first(40),
                                                std::span(tokens).subspan(40)};
    for (const std::uint32_t prompt : {0u, 9u}) {
        ShadowTrial trial(*decoder_, {.windows_max = 2, .num_tokens = 40, .prompt_tokens = prompt});
        ASSERT_TRUE(trial.serve(windows, served_).ok());
        for (const ShadowAlignment alignment :
             {ShadowAlignment{1, 0}, {1, 1}, {1, 5}, {0, 0}, {3, 2}}) {
            if (prompt == 0 && alignment.token_period != 1) continue;
            RecallMeter recall = meter();
            RecallMeter* const meters[] = {&recall};
            ASSERT_TRUE(trial.follow(alignment, served_, meters).ok());
            EXPECT_EQ(recall.recall(0).count(), 2u);
            EXPECT_EQ(recall.recall(0).mean(), 1.0);
            EXPECT_EQ(recall.at_token(0).mean(), 1.0);
            EXPECT_EQ(recall.at_token(39 - prompt).count(), 2u);
            EXPECT_EQ(recall.at_token(40 - prompt).count(), 0u);

            // Of what is decoded token by token; what is never aligned costs nothing to align.
            const ShadowTimes& times = trial.times();
            EXPECT_EQ(times.served_ms > 0, prompt > 0);
            EXPECT_EQ(times.shadow_ms > 0, prompt > 0);
            EXPECT_EQ(times.align_ms > 0, prompt > 0 && alignment.kv_period > 0);
        }
    }
}

// Answers that are far too large: random experts change little of a random model otherwise.
class LoudExperts : public ExpertBackend {
  public:
    explicit LoudExperts(ExpertBackend& experts) : experts_(experts) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        return std::make_unique<Round>(experts_.submit(batch), batch.y);
    }
    const char* name() const override { return "loud"; }

  private:
    struct Round : ExpertRound {
        Round(std::unique_ptr<ExpertRound> of, std::span<float> out)
            : round(std::move(of)),
              y(out) {}
        Result<ExpertAnswer> wait(std::stop_token stop) override {
            auto answer = round->wait(stop);
            for (float& value : y) value *= 64;
            return answer;
        }
        std::unique_ptr<ExpertRound> round;
        std::span<float> y;
    };
    ExpertBackend& experts_;
};

// The same one token at a time, with a cache of its own that is written anew at each alignment.
TEST_F(ShadowTest, ATrialIsWhatOneTokenAtATimeGives) {
    const ModelConfig& config = package_->config();
    const auto tokens = test::random_tokens(72, config.vocab_size, 11);
    const std::uint32_t size = 36, prompt = 6;
    ShadowExperts quiet(shadow(ShadowDtype::int2), test::compute_threads());
    LoudExperts experts(quiet);
    ShadowTrial trial(*decoder_, {.windows_max = 2, .num_tokens = size, .prompt_tokens = prompt});
    const std::span<const TokenId> windows[] = {std::span(tokens).first(size),
                                                std::span(tokens).subspan(size)};
    ASSERT_TRUE(trial.serve(windows, served_).ok());

    for (const ShadowAlignment alignment :
         {ShadowAlignment{1, 0}, {1, 1}, {1, 4}, {0, 0}, {0, 1}, {4, 2}}) {
        RecallMeter recall = meter(), wanted = meter();
        RecallMeter* const meters[] = {&recall};
        ASSERT_TRUE(trial.follow(alignment, experts, meters).ok());

        for (std::size_t window = 0; window < 2; ++window) {
            const auto read = trial.tokens(window);
            ASSERT_TRUE(std::ranges::equal(read.first(prompt), windows[window].first(prompt)));
            KvCache cache(config, {16, 6});
            KvCache::Sequence own(cache), model(cache);
            std::vector<std::vector<std::uint16_t>> asked;
            TokenId said = 0;
            const auto step = [&](KvCache::Sequence& kv, ExpertBackend& backend, TokenId token,
                                  const RouteWatch& watch) {
                const StepRows rows{.kv = &kv, .tokens = {&token, 1}};
                const auto result = decoder_->step({&rows, 1}, backend, watch);
                ASSERT_TRUE(result.ok());
                said = static_cast<TokenId>(
                    std::max_element(result->logits.begin(), result->logits.end()) -
                    result->logits.begin());
            };

            for (std::uint32_t position = 0; position < size; ++position) {
                const bool counts = position >= prompt;
                const std::uint32_t token = position - prompt;
                const TokenId own_token = said;
                asked.clear();
                step(model, served_, read[position], [&](const RouteView& route) {
                    asked.emplace_back(route.expert_ids.begin(), route.expert_ids.end());
                });
                if (position + 1 >= prompt && position + 1 < size) {
                    EXPECT_EQ(said, read[position + 1]);
                }

                if (counts && alignment.kv_period > 0 && token % alignment.kv_period == 0)
                    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
                        for (std::uint32_t past = 0; past < position; ++past)
                            own.store(layer, past, model.k(layer, past), model.v(layer, past));
                const bool given = !counts || (alignment.token_period > 0 &&
                                               token % alignment.token_period == 0);
                std::uint32_t layer = 0;
                step(own, experts, given ? read[position] : own_token, [&](const RouteView& route) {
                    if (counts) wanted.record(layer, token, route.router_logits, asked[layer]);
                    ++layer;
                });
            }
            wanted.end_window();
        }
        EXPECT_EQ(recall.recall(0).mean(), wanted.recall(0).mean())
            << alignment.token_period << '/' << alignment.kv_period;
        for (std::uint32_t token = 0; token < size - prompt; ++token)
            EXPECT_EQ(recall.at_token(token).mean(), wanted.at_token(token).mean());
        EXPECT_LT(recall.recall(0).mean(), 1.0);
    }
}

}  // namespace
}  // namespace moex
