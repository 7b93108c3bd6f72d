// Compares the packed rows of a shadow with a golden file, and its experts with plain loops.
#include <cmath>
#include <fstream>

#include "hub/foresight/shadow/shadow_experts.h"
#include "hub/model/pack/shadow_writer.h"
#include "hub/model/strict_json.h"
#include "protocol/expert_reference.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

constexpr ShadowDtype all_dtypes[] = {ShadowDtype::int2, ShadowDtype::int3, ShadowDtype::nf4,
                                      ShadowDtype::int8};

// tests/golden/shadow/golden.json has rows that make_golden.py packed and read back in Python.
TEST(ShadowCodesTest, RowsAreTheGoldensToTheBit) {
    std::ifstream file(repository().string() + "/tests/golden/shadow/golden.json");
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

TEST(ShadowCodesTest, ValuesThatNoScaleCanHoldAreRefused) {
    const ShadowRow shape{ShadowDtype::int3, 32, 32};
    Bytes row(shape.size_bytes());
    for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
        std::vector<float> weights(32);
        weights[7] = wrong;
        EXPECT_FALSE(quantize_shadow_row(shape, weights, 0, row));
    }
    EXPECT_FALSE(parse_shadow_dtype("int5").ok());
}

// Narrowing maps the 16 levels of an INT4 group to 8 or 4 cells of equal size, so no error exceeds
// half a cell.
TEST(ShadowCodesTest, CellsHoldEqualNumbersOfSourceLevels) {
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
    ShadowTest() : folder_("shadow"), package_(test::tiny_package()) {}
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
    test::TemporaryFolder folder_;
    std::shared_ptr<const ModelPackage> package_;
};

// The expected result is down · (silu(gate · x) * (up · x)) in doubles, over the dequantised rows.
TEST_F(ShadowTest, ExpertsComputeTheirRowsAsPlainLoopsDo) {
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

TEST_F(ShadowTest, FewerBitsTakeFewerBytesAndForeignShadowsAreRefused) {
    // Bits per weight including scales and zeros, in groups of 32 of the 96 inner weights: 2 + 1, 3
    // + 1, 4 + 0.5 and 8 + 0.5.
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

}  // namespace
}  // namespace moex
