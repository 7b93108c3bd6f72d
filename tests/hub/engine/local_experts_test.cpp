#include "hub/engine/local_experts.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <future>

#include "protocol/expert_reference.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

// A fixture that runs each test with a package for each dtype of experts.
class LocalExpertsTest : public testing::TestWithParam<ExpertDtype> {
  protected:
    LocalExpertsTest() : folder_("local-experts") {
        PackOptions options;
        options.expert_dtype = GetParam();
        const auto report = synth_package(test::tiny_config(), "tiny", 11,
                                          folder_.path() / "package", options,
                                          test::compute_threads(), {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        auto opened = ModelPackage::open(folder_.path() / "package");
        if (!opened.ok()) throw std::runtime_error(opened.error().message);
        package_ = std::move(opened).value();
    }
    // Computes one expert over one row, in double.
    std::vector<double> exact(std::uint32_t layer, std::uint32_t expert,
                              std::span<const float> x) const {
        const auto view = view_expert_blob(*package_->blob(layer, expert), package_->expert_shape(),
                                           package_->expert_dtype());
        std::vector<double> y(x.size());
        expert_reference(y, dequantize_expert(*view), std::vector<double>(x.begin(), x.end()));
        return y;
    }
    test::TemporaryFolder folder_;
    std::shared_ptr<const ModelPackage> package_;
};

TEST_P(LocalExpertsTest, ComputeEqualsTheReferenceInAnyBatch) {
    const LocalExperts experts(package_, test::compute_threads(), {});
    const std::uint32_t hidden = package_->config().hidden_size;
    for (const std::uint32_t num_rows : {1u, 2u, 3u, 4u, 5u, 8u, 16u, 17u, 33u}) {
        const auto x = test::random_floats(std::size_t{num_rows} * hidden, num_rows),
                   gates = test::random_floats(num_rows, 99);
        std::vector<float> y(x.size()), alone(hidden);
        ASSERT_TRUE(experts.compute(2, 5, x, gates, y).ok());
        for (std::uint32_t row = 0; row < num_rows; ++row) {
            auto wanted = exact(2, 5, std::span(x).subspan(std::size_t{row} * hidden, hidden));
            for (double& value : wanted) value *= gates[row];
            EXPECT_LE(normalized_rms_error(std::span(y).subspan(std::size_t{row} * hidden, hidden),
                                           wanted),
                      1e-6);
            ASSERT_TRUE(experts
                            .compute(2, 5, std::span(x).subspan(std::size_t{row} * hidden, hidden),
                                     std::span(gates).subspan(row, 1), alone)
                            .ok());
            EXPECT_EQ(std::memcmp(alone.data(), y.data() + std::size_t{row} * hidden,
                                  hidden * sizeof(float)),
                      0)
                << num_rows << " rows, row " << row;
        }
    }
}

TEST_P(LocalExpertsTest, ARoundIsTheWeightedSumInExpertOrder) {
    const std::uint32_t hidden = package_->config().hidden_size, num_tokens = 9, top_k = 2;
    const auto x = test::random_floats(std::size_t{num_tokens} * hidden, 3);
    std::vector<std::uint16_t> ids;
    std::vector<float> weights;
    for (std::uint32_t token = 0; token < num_tokens; ++token)
        for (std::uint32_t i = 0; i < top_k; ++i) {
            // Choose expert ids that do not ascend within a row.
            ids.push_back(static_cast<std::uint16_t>((token * 3 + (1 - i) * 5) % 8));
            weights.push_back(0.3f + 0.1f * static_cast<float>(i));
        }

    for (const ExpertRounding rounding :
         {ExpertRounding{}, ExpertRounding{.deterministic = true, .wire_dtype = Dtype::f16},
          ExpertRounding{.deterministic = true, .wire_dtype = Dtype::f32}}) {
        LocalExperts experts(package_, test::compute_threads(), rounding);
        std::vector<float> y(x.size());
        const auto answer = experts
                                .submit({.layer = 0,
                                         .num_tokens = num_tokens,
                                         .hidden_size = hidden,
                                         .top_k = top_k,
                                         .x = x,
                                         .expert_ids = ids,
                                         .expert_weights = weights,
                                         .y = y})
                                ->wait();
        ASSERT_TRUE(answer.ok()) << answer.error().message;
        ASSERT_EQ(answer->rows.size(), num_tokens);
        EXPECT_EQ(answer->rows[0].pairs_local, top_k);
        EXPECT_EQ(answer->rows[0].pairs_remote, 0);
        for (std::uint32_t token = 0; token < num_tokens; ++token) {
            std::vector<float> row(x.begin() + token * hidden, x.begin() + (token + 1) * hidden);
            const std::span<const float> mine = std::span(y).subspan(std::size_t{token} * hidden,
                                                                     hidden);
            if (!rounding.deterministic) {
                std::vector<double> wanted(hidden, 0.0);
                for (std::uint32_t i = 0; i < top_k; ++i) {
                    const auto one = exact(0, ids[token * top_k + i], row);
                    for (std::uint32_t j = 0; j < hidden; ++j)
                        wanted[j] += weights[token * top_k + i] * one[j];
                }
                EXPECT_LE(normalized_rms_error(mine, wanted), 1e-6);
                continue;
            }
            // The results of compute() for rounded rows and gates, added in ascending expert order,
            // have the same bits as the round's result. Beside f32 rows the gates are not rounded.
            round_rows(rounding.wire_dtype, row, hidden);
            std::vector<float> sum(hidden, 0.0f), one(hidden);
            std::vector<std::uint32_t> order{0, 1};
            if (ids[token * top_k] > ids[token * top_k + 1]) std::swap(order[0], order[1]);
            for (const std::uint32_t i : order) {
                const float exact_gate = weights[token * top_k + i],
                            gate = rounding.wire_dtype == Dtype::f32
                                       ? exact_gate
                                       : half_to_float(float_to_half(exact_gate));
                ASSERT_TRUE(experts.compute(0, ids[token * top_k + i], row, {&gate, 1}, one).ok());
                for (std::uint32_t j = 0; j < hidden; ++j) sum[j] += one[j];
            }
            EXPECT_EQ(std::memcmp(sum.data(), mine.data(), hidden * sizeof(float)), 0)
                << "token " << token;
        }
    }
}

// f16 ends at 65504. A row with larger values is sent as bf16, and so are its answers. The local
// backend once turned such a row into infinities, and its answers into f16.
TEST_P(LocalExpertsTest, RowsBeyondF16AreRoundedAsTheWireDoes) {
    const std::uint32_t hidden = package_->config().hidden_size;
    LocalExperts experts(package_, test::compute_threads(),
                         {.deterministic = true, .wire_dtype = Dtype::f16});
    auto x = test::random_floats(2 * hidden, 5);
    const std::vector<float> ordinary(x.begin() + hidden, x.end());
    x[3] = 70000.0f;
    const std::vector<std::uint16_t> ids{1, 6, 1, 6};
    const std::vector<float> weights{0.5f, 0.25f, 0.5f, 0.25f};

    const auto run = [&](std::span<const float> rows) {
        std::vector<float> y(rows.size());
        const auto num_tokens = static_cast<std::uint32_t>(rows.size() / hidden);
        const auto answer = experts
                                .submit({.layer = 0,
                                         .num_tokens = num_tokens,
                                         .hidden_size = hidden,
                                         .top_k = 2,
                                         .x = rows,
                                         .expert_ids = std::span(ids).first(2 * num_tokens),
                                         .expert_weights = std::span(weights).first(2 * num_tokens),
                                         .y = y})
                                ->wait();
        EXPECT_TRUE(answer.ok());
        return y;
    };
    const std::vector<float> both = run(x), alone = run(ordinary);
    EXPECT_EQ(std::memcmp(both.data() + hidden, alone.data(), hidden * sizeof(float)), 0);

    std::vector<float> row(x.begin(), x.begin() + hidden), sum(hidden, 0.0f), one(hidden);
    round_rows(Dtype::bf16, row, hidden);
    for (const std::uint32_t i : {0u, 1u}) {
        ASSERT_TRUE(experts.compute(0, ids[i], row, std::span(weights).subspan(i, 1), one).ok());
        std::vector<float> as_bf16 = one;
        round_rows(Dtype::bf16, as_bf16, hidden);
        EXPECT_EQ(one, as_bf16);
        for (std::uint32_t j = 0; j < hidden; ++j) sum[j] += one[j];
    }
    EXPECT_EQ(std::memcmp(both.data(), sum.data(), hidden * sizeof(float)), 0);
    for (const float value : both) EXPECT_TRUE(std::isfinite(value));
}

// Tests int8 arithmetic: rounds of INT4 experts are computed in integers, but compute() always
// computes a single expert exactly.
TEST_P(LocalExpertsTest, Int8RoundsAreNearExactOnesAndComputeStaysExact) {
    const std::uint32_t hidden = package_->config().hidden_size, num_tokens = 21;
    const auto x = test::random_floats(std::size_t{num_tokens} * hidden, 8);
    std::vector<std::uint16_t> ids;
    for (std::uint32_t token = 0; token < num_tokens; ++token)
        for (const std::uint32_t i : {5u, 2u}) ids.push_back((token * 3 + i) % 8);
    const std::vector<float> weights(ids.size(), 0.5f);

    LocalExperts exact(package_, test::compute_threads(), {}),
        coded(package_, test::compute_threads(), {}, Arithmetic::int8);
    const auto round = [&](LocalExperts& experts, std::uint32_t first, std::uint32_t count) {
        std::vector<float> y(std::size_t{count} * hidden);
        const auto answer = experts
                                .submit({.layer = 2,
                                         .num_tokens = count,
                                         .hidden_size = hidden,
                                         .top_k = 2,
                                         .x = std::span(x).subspan(first * hidden, count * hidden),
                                         .expert_ids = std::span(ids).subspan(2 * first, 2 * count),
                                         .expert_weights = std::span(weights).first(2 * count),
                                         .y = y})
                                ->wait();
        EXPECT_TRUE(answer.ok());
        return y;
    };

    const auto mine = round(coded, 0, num_tokens), wanted = round(exact, 0, num_tokens);
    const double error = normalized_rms_error(mine,
                                              std::vector<double>(wanted.begin(), wanted.end()));
    if (has_codes(GetParam()))
        EXPECT_TRUE(error > 1e-4 && error < 2e-2) << error;
    else
        EXPECT_EQ(error, 0.0);

    for (std::uint32_t token = 0; token < num_tokens; ++token)
        EXPECT_EQ(std::memcmp(round(coded, token, 1).data(), mine.data() + token * hidden,
                              hidden * sizeof(float)),
                  0)
            << "token " << token << " alone";

    std::vector<float> a(hidden), b(hidden);
    const std::span<const float> row = std::span(x).first(hidden),
                                 gate = std::span(weights).first(1);
    ASSERT_TRUE(coded.compute(2, 5, row, gate, a).ok());
    ASSERT_TRUE(exact.compute(2, 5, row, gate, b).ok());
    EXPECT_EQ(a, b);
}

// Returns the resident memory of mapped blobs in kB. Regression: packed experts once used memory
// twice, as pages of the blob files and as panels.
double resident_blob_kb(const std::filesystem::path& folder) {
    std::ifstream maps("/proc/self/smaps");
    double sum = 0;
    bool is_ours = false;
    for (std::string line; std::getline(maps, line);) {
        const std::string first_word = line.substr(0, line.find(' '));
        if (!first_word.ends_with(':'))
            is_ours = line.find((folder / "weights").string()) != std::string::npos;
        else if (is_ours && first_word == "Rss:")
            sum += std::stod(line.substr(4));
    }
    return sum;
}

TEST_P(LocalExpertsTest, ExpertsPackedAheadGiveSameBitsAndReleasePages) {
    const std::uint32_t hidden = package_->config().hidden_size, num_tokens = 4;
    const auto x = test::random_floats(std::size_t{num_tokens} * hidden, 8);
    const std::vector<std::uint16_t> ids{0, 1, 2, 3, 4, 5, 6, 7};
    const std::vector<float> weights(ids.size(), 0.5f);
    const auto round = [&](LocalExperts& experts, std::uint32_t layer) {
        std::vector<float> y(x.size());
        const auto answer = experts
                                .submit({.layer = layer,
                                         .num_tokens = num_tokens,
                                         .hidden_size = hidden,
                                         .top_k = 2,
                                         .x = x,
                                         .expert_ids = ids,
                                         .expert_weights = weights,
                                         .y = y})
                                ->wait();
        EXPECT_TRUE(answer.ok());
        return y;
    };
    LocalExperts asked(package_, test::compute_threads(), {}, Arithmetic::int8);
    const std::vector<std::vector<float>> wanted{round(asked, 0), round(asked, 2), round(asked, 3)};

    LocalExperts ahead(package_, test::compute_threads(), {}, Arithmetic::int8);
    std::promise<void> packed;
    ahead.pack_in_background([&] { packed.set_value(); });
    // Run rounds while experts are packed in the background, beginning with the last layer.
    EXPECT_EQ(round(ahead, 3), wanted[2]);
    EXPECT_EQ(round(ahead, 0), wanted[0]);
    if (!has_codes(GetParam())) return;

    packed.get_future().wait();
    EXPECT_EQ(resident_blob_kb(package_->directory()), 0);
    EXPECT_EQ(round(ahead, 2), wanted[1]);
    EXPECT_EQ(resident_blob_kb(package_->directory()), 0);

    // Exact arithmetic still reads the weights from the file.
    std::vector<float> y(hidden);
    ASSERT_TRUE(ahead.compute(2, 5, std::span(x).first(hidden), {weights.data(), 1}, y).ok());
    EXPECT_GT(resident_blob_kb(package_->directory()), 0);

    // A LocalExperts object that is destroyed early does not wait until all experts are packed.
    LocalExperts brief(package_, test::compute_threads(), {}, Arithmetic::int8);
    brief.pack_in_background();
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, LocalExpertsTest,
                         testing::Values(ExpertDtype::int4, ExpertDtype::mxfp4, ExpertDtype::bf16,
                                         ExpertDtype::f32),
                         [](const auto& info) { return expert_dtype_name(info.param); });

// Experts as those of gpt-oss: biases of both products and a clamp, which about half of the values
// reach here. Integers round the rows to 8 bits.
TEST(ClampedExpertsTest, ClampedExpertsWithBiasesEqualTheReference) {
    ModelConfig config = test::tiny_config();
    for (LayerPlan& plan : config.layers) {
        if (!plan.is_routed) continue;
        plan.activation = Activation::clamped_swiglu;
        plan.activation_limit = 0.1;
        plan.has_expert_bias = true;
    }
    for (const ExpertDtype dtype :
         {ExpertDtype::int4, ExpertDtype::mxfp4, ExpertDtype::bf16, ExpertDtype::f32}) {
        SCOPED_TRACE(expert_dtype_name(dtype));
        const test::TemporaryFolder folder("clamped-experts");
        PackOptions options;
        options.expert_dtype = dtype;
        const auto report = synth_package(config, "clamped", 5, folder.path() / "package", options,
                                          test::compute_threads(), {});
        ASSERT_TRUE(report.ok()) << report.error().message;
        const auto package = *ModelPackage::open(folder.path() / "package");
        EXPECT_FALSE(package->expert_shape().is_plain());

        const LocalExperts exact(package, test::compute_threads(), {}),
            integers(package, test::compute_threads(), {}, Arithmetic::int8);
        const std::uint32_t hidden = config.hidden_size, num_rows = 5;
        const auto x = test::random_floats(num_rows * hidden, 1),
                   gates = test::random_floats(num_rows, 2);
        std::vector<float> y(x.size()), rounded(x.size());
        ASSERT_TRUE(exact.compute(2, 5, x, gates, y).ok());
        const auto view = view_expert_blob(*package->blob(2, 5), package->expert_shape(), dtype);
        std::vector<double> wanted(x.size());
        expert_reference(wanted, dequantize_expert(*view), std::vector<double>(x.begin(), x.end()));
        for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] *= gates[i / hidden];
        EXPECT_LE(normalized_rms_error(y, wanted), 1e-6);
        if (!has_codes(dtype)) continue;
        ASSERT_TRUE(integers.compute_int8(2, 5, x, gates, rounded).ok());
        EXPECT_LE(normalized_rms_error(rounded, wanted), 2e-2);
        EXPECT_GT(normalized_rms_error(rounded, wanted), 1e-6);
    }
}

}  // namespace
}  // namespace moex
