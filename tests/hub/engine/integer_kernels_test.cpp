// Tests integer products: the path of every instruction set gives the same bits as the portable
// path, and these bits follow the formula of integer.h. To run this on a machine that has more
// instruction sets:
//   engine_test --gtest_filter='IntegerKernels*'
#include "hub/engine/kernels/integer.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "hub/engine/kernels/expert_round.h"
#include "hub/engine/kernels/expert_round_plain.h"
#include "hub/engine/kernels/integer_paths.h"
#include "hub/engine/kernels/integer_row_trial.h"
#include "hub/engine/kernels_plain.h"
#include "protocol/expert_reference.h"
#include "protocol/half.h"
#include "protocol/tensor_format.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/engine/integer_amx_emulated.h"

namespace moex {
namespace {

using test::random_floats;

// A random matrix in panels, and its weights as the codes represent them, in f32: [num_out,
// num_in].
struct Weights {
    AlignedBuffer memory;
    PackedMatrix packed;
    std::vector<float> dequantized;
};

Weights int4_weights(std::uint32_t num_out, std::uint32_t num_in, std::uint32_t group_size) {
    std::mt19937 random(num_out * 7 + num_in);
    std::vector<std::uint32_t> codes(std::size_t{num_out} * num_in / 8),
        scale_zero(std::size_t{num_out} * num_in / group_size);
    for (auto& word : codes) word = random();
    for (auto& word : scale_zero)
        word = pack_scale_zero(float_to_half(0.01f + 0.0001f * (random() % 100)),
                               float_to_half(7.0f + 0.01f * (random() % 100)));

    Weights out{{}, {nullptr, PackedDtype::int4, num_out, num_in, group_size}, {}};
    out.memory = AlignedBuffer(out.packed.size_bytes());
    out.packed.data = out.memory.data();
    pack_int4(out.memory.data(), out.packed,
              {codes.data(), scale_zero.data(), num_out, num_in, group_size}, 0,
              out.packed.num_panels());

    out.dequantized.resize(std::size_t{num_out} * num_in);
    for (std::size_t n = 0; n < num_out; ++n)
        dequantize_int4_row(codes.data() + n * num_in / 8,
                            scale_zero.data() + n * num_in / group_size, num_in, group_size,
                            out.dequantized.data() + n * num_in);
    return out;
}

// Makes a matrix with every code of MXFP4, the largest ones side by side, and scales that include
// the smallest.
Weights mxfp4_weights(std::uint32_t num_out, std::uint32_t num_in) {
    std::mt19937 random(num_out * 7 + num_in);
    std::vector<std::uint32_t> codes(std::size_t{num_out} * num_in / 8);
    std::vector<std::uint8_t> scales(std::size_t{num_out} * num_in / mxfp4_block);
    for (auto& word : codes) word = random();
    std::fill_n(codes.begin(), 4, 0x77777777u);
    for (auto& scale : scales) scale = static_cast<std::uint8_t>(118 + random() % 4);
    if (scales.size() > 8) scales[7] = 0, scales[8] = 1;

    Weights out{{}, {nullptr, PackedDtype::mxfp4, num_out, num_in, mxfp4_block}, {}};
    out.memory = AlignedBuffer(out.packed.size_bytes());
    out.packed.data = out.memory.data();
    const Int4Matrix from{.codes = codes.data(),
                          .num_out = num_out,
                          .num_in = num_in,
                          .group_size = mxfp4_block,
                          .mxfp4_scales = scales.data()};
    pack_int4(out.memory.data(), out.packed, from, 0, out.packed.num_panels());
    out.dequantized.resize(std::size_t{num_out} * num_in);
    for (std::size_t n = 0; n < num_out; ++n)
        dequantize_mxfp4_row(codes.data() + n * num_in / 8,
                             scales.data() + n * num_in / mxfp4_block, num_in,
                             out.dequantized.data() + n * num_in);
    return out;
}

// Makes a matrix of 8-bit codes, or of 6-bit codes if a group size is given.
Weights rounded_weights(std::uint32_t num_out, std::uint32_t num_in, std::uint32_t group_size = 0) {
    const bool is_int6 = group_size != 0;
    Weights out{{},
                {nullptr, is_int6 ? PackedDtype::int6 : PackedDtype::int8, num_out, num_in,
                 is_int6 ? group_size : packed_group_size(num_in)},
                {}};
    out.memory = AlignedBuffer(out.packed.size_bytes());
    out.packed.data = out.memory.data();
    out.dequantized = random_floats(std::size_t{num_out} * num_in, num_out + num_in);
    // Place the largest codes of both signs side by side, where sums in 16 bits would overflow
    // first.
    for (std::uint32_t k = 0; k < std::min(num_in, 32u); ++k) out.dequantized[k] = k % 3 ? 4 : -4;
    const auto pack = [&](const WeightMatrix& from) {
        if (is_int6)
            pack_int6(out.memory.data(), out.packed, from, 0, out.packed.num_panels());
        else
            pack_int8(out.memory.data(), out.packed, from, 0, out.packed.num_panels());
    };
    pack({out.dequantized.data(), WeightDtype::f32, num_out, num_in});
    return out;
}

QuantizedRows quantized(QuantizedBuffer& buffer, std::span<const float> x, std::uint32_t num_in,
                        std::uint32_t group_size) {
    const auto num_rows = static_cast<std::uint32_t>(x.size() / num_in);
    buffer.resize(num_rows, num_in, group_size);
    for (std::uint32_t r = 0; r < num_rows; ++r)
        buffer.quantize_row(r, x.subspan(std::size_t{r} * num_in, num_in));
    return buffer.rows();
}

std::vector<float> product(const IntegerPath& path, const PackedMatrix& weights,
                           const QuantizedRows& x, bool gemv = false) {
    std::vector<float> out(std::size_t{x.num_rows} * weights.num_out, -1.0f);
    const IntegerProducts& products = gemv ? path.gemv : path.gemm;
    products.of(weights.dtype)({out.data(), weights.num_out}, weights, x, 0, weights.num_panels());
    return out;
}

// Compares `path` with the portable path: all rows together, each row alone, and rows picked by an
// index.
void expect_same_bits(const IntegerPath& path, const Weights& weights, std::uint32_t num_rows) {
    const PackedMatrix& packed = weights.packed;
    auto x = random_floats(std::size_t{num_rows} * packed.num_in, num_rows + 5);
    std::fill_n(x.begin(), packed.num_in, 3.0f);  // in the first row, every code is the largest one
    QuantizedBuffer buffer;
    QuantizedRows rows = quantized(buffer, x, packed.num_in, packed.group_size);

    const auto same = [&](const QuantizedRows& of, bool gemv) {
        const auto mine = product(path, packed, of, gemv),
                   twin = product(integer_portable(), packed, of, gemv);
        return std::memcmp(mine.data(), twin.data(), mine.size() * sizeof(float)) == 0;
    };
    const auto where = [&] {
        return text(path.name, " of ", packed.panel_bytes(), " bytes a panel, ", num_rows,
                    " rows, ", packed.num_out, " x ", packed.num_in, ", groups of ",
                    packed.group_size);
    };
    EXPECT_TRUE(same(rows, false)) << where();
    EXPECT_TRUE(same(rows.rows(num_rows - 1, 1), true)) << where() << ", the last alone";

    std::vector<std::uint32_t> index;
    for (std::uint32_t r = 0; r < num_rows; ++r) index.push_back(r * 7 % num_rows);
    rows.row_index = index.data();
    EXPECT_TRUE(same(rows, false)) << where() << ", by index";
}

// Compares a path for every dtype and group size, with whole and partial panels.
void expect_same_bits(const IntegerPath& path, std::uint32_t rows_max) {
    std::vector<Weights> shapes;
    for (const std::uint32_t group_size : {32u, 64u, 128u})
        shapes.push_back(int4_weights(group_size == 64 ? 17 : 40, 3 * group_size, group_size));
    for (const std::uint32_t num_in : {32u, 96u, 256u})
        shapes.push_back(mxfp4_weights(num_in == 96 ? 17 : 40, num_in));
    for (const std::uint32_t num_in : {8u, 32u, 50u, 96u, 192u, 256u})
        shapes.push_back(rounded_weights(num_in == 192 ? 1 : 33, num_in));
    for (const std::uint32_t group_size : {32u, 64u, 128u})
        for (const std::uint32_t num_in : {8u, 96u, 3 * group_size})
            shapes.push_back(rounded_weights(num_in == 96 ? 1 : 33, num_in, group_size));
    // Numbers of outputs that give panels in threes, in twos and one panel left over, where the
    // last panel is whole or partial.
    for (const std::uint32_t num_out : {72u, 96u, 109u}) {
        shapes.push_back(int4_weights(num_out, 128, 64));
        shapes.push_back(rounded_weights(num_out, 128));
        shapes.push_back(rounded_weights(num_out, 128, 32));
        shapes.push_back(mxfp4_weights(num_out, 128));
    }

    for (const Weights& weights : shapes)
        for (std::uint32_t num_rows = 1; num_rows <= rows_max; ++num_rows)
            expect_same_bits(path, weights, num_rows);
}

// Each path has a test of its own, so that a path that the machine does not support is reported as
// skipped.
class IntegerKernelsTest : public testing::TestWithParam<std::size_t> {};

TEST_P(IntegerKernelsTest, EveryPathGivesTheBitsOfThePortablePath) {
    const IntegerPathChoice& choice = integer_paths()[GetParam()];
    if (!choice.supported) GTEST_SKIP() << "SKIPPED: this machine has no " << choice.path->name;

    expect_same_bits(*choice.path, 70);
}

#if defined(__x86_64__)
// Tests the code of the AMX path on machines without tiles: its tile loads, sums and stores.
TEST(IntegerAmxTest, EmulatedTilesGiveTheBitsOfThePortablePath) {
    if (!integer_avx512_vnni_supported())
        GTEST_SKIP() << "SKIPPED: beside its tiles the path takes AVX512-VNNI";
    expect_same_bits(test::amx_emulated(), 34);
}
#endif

INSTANTIATE_TEST_SUITE_P(EveryPath, IntegerKernelsTest,
                         testing::Range(std::size_t{0}, integer_paths().size()),
                         [](const auto& info) {
                             std::string name = integer_paths()[info.param].path->name;
                             std::erase_if(name, [](char c) { return !std::isalnum(c); });
                             return name;
                         });

TEST(IntegerKernelsTest, PortablePathEqualsTheProductOfDequantizedCodes) {
    std::cout << "integer kernels: " << integer_path().name << "\n";
    constexpr std::uint32_t num_rows = 3;
    for (const Weights& weights : {int4_weights(40, 384, 128), rounded_weights(40, 320),
                                   rounded_weights(40, 320, 64), mxfp4_weights(40, 320)}) {
        const PackedMatrix& packed = weights.packed;
        const auto x = random_floats(std::size_t{num_rows} * packed.num_in, 3);
        QuantizedBuffer buffer;
        const QuantizedRows rows = quantized(buffer, x, packed.num_in, packed.group_size);
        const auto mine = product(integer_portable(), packed, rows);

        std::vector<double> of_codes, of_floats;
        for (std::uint32_t r = 0; r < num_rows; ++r)
            for (std::uint32_t n = 0; n < packed.num_out; ++n) {
                double coded = 0, plain = 0;
                for (std::uint32_t k = 0; k < packed.num_in; ++k) {
                    const double weight = weights.dequantized[n * packed.num_in + k];
                    coded += weight * rows.row_codes(r)[k] *
                             rows.row_scales(r)[k / packed.group_size];
                    plain += weight * x[r * packed.num_in + k];
                }
                of_codes.push_back(coded);
                of_floats.push_back(plain);
            }
        // Packing keeps the values of 4-bit weights; weights of 8 and 6 bits are rounded once more.
        const bool is_int6 = packed.dtype == PackedDtype::int6;
        const bool is_exact = packed.dtype == PackedDtype::int4 ||
                              packed.dtype == PackedDtype::mxfp4;
        EXPECT_LE(normalized_rms_error(mine, of_codes), is_exact ? 1e-6 : is_int6 ? 3e-2 : 1e-2);
        EXPECT_LE(normalized_rms_error(mine, of_floats), is_int6 ? 3e-2 : 1.5e-2);
    }
}

TEST(IntegerKernelsTest, ExpertStepsGiveTheBitsOfTheirTwins) {
    std::vector<float> gate = random_floats(3000, 41), up = random_floats(3000, 42);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= i % 3 == 0 ? 40.0f : 4.0f;
    const float edges[] = {0.0f, -0.0f, 88.0f, -88.0f, 87.0f, -87.0f, 1e30f, -1e30f, 1e-40f};
    std::copy(std::begin(edges), std::end(edges), gate.begin());

    for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{2999}}) {
        std::vector<float> fast(size), twin(size);
        integer_silu_mul(fast, std::span(gate).first(size), std::span(up).first(size));
        plain::integer_silu_mul(twin, std::span(gate).first(size), std::span(up).first(size));
        EXPECT_EQ(std::memcmp(fast.data(), twin.data(), size * sizeof(float)), 0) << size;

        std::vector<double> exact;
        for (std::size_t i = std::size(edges); i < size; ++i)
            exact.push_back(double{gate[i]} / (1 + std::exp(-double{gate[i]})) * double{up[i]});
        EXPECT_LE(normalized_rms_error(std::span(fast).last(exact.size()), exact), 3e-7) << size;

        integer_add_scaled(fast, std::span(up).first(size), 0.3f);
        plain::integer_add_scaled(twin, std::span(up).first(size), 0.3f);
        EXPECT_EQ(std::memcmp(fast.data(), twin.data(), size * sizeof(float)), 0) << size;
    }
}

TEST(IntegerKernelsTest, OtherWeightsRoundedToFourBitsAreNear) {
    constexpr std::uint32_t num_out = 21, num_in = 90, group_size = 32;
    for (const auto& [scale, shift] :
         {std::pair{0.02f, 0.0f}, std::pair{1.0f, 5.0f}, std::pair{0.0f, 0.0f}}) {
        auto weights = random_floats(std::size_t{num_out} * num_in, 4, scale);
        for (float& one : weights) one += shift;
        PackedMatrix packed{.dtype = PackedDtype::int4,
                            .num_out = num_out,
                            .num_in = num_in,
                            .group_size = group_size};
        const AlignedBuffer memory(packed.size_bytes());
        packed.data = memory.data();
        const WeightMatrix from{weights.data(), WeightDtype::f32, num_out, num_in};
        pack_int4(memory.data(), packed, from, 0, 1);
        pack_int4(memory.data(), packed, from, 1, packed.num_panels());

        const auto x = random_floats(num_in, 3);
        QuantizedBuffer buffer;
        const auto mine = product(integer_portable(), packed,
                                  quantized(buffer, x, num_in, group_size));
        std::vector<float> wanted(num_out);
        plain::matmul({wanted.data(), num_out}, from, {x.data(), num_in, 1});
        double difference = 0, size = 0;
        for (std::uint32_t n = 0; n < num_out; ++n) {
            difference += std::pow(mine[n] - wanted[n], 2);
            // expected square of a product of random values of this scale
            size += std::pow(scale, 2) * num_in;
        }
        EXPECT_LE(std::sqrt(difference), 0.12 * std::sqrt(size)) << scale << " " << shift;
    }
}

// Computes several experts of a round at once, with rows in any order.
TEST(IntegerKernelsTest, ExpertGivesTheBitsOfItsPlainTwin) {
    constexpr std::uint32_t hidden = 128, inner = 64, group_size = 32, num_rows = 6;
    for (const bool is_mxfp4 : {false, true}) {
        std::vector<Weights> up, down;
        std::vector<PackedExpert> experts;
        std::vector<std::uint32_t> row_of_slot;
        for (const std::uint32_t count : {1u, 3u, 6u}) {
            up.push_back(is_mxfp4 ? mxfp4_weights(2 * inner, hidden)
                                  : int4_weights(2 * inner, hidden, group_size));
            down.push_back(is_mxfp4 ? mxfp4_weights(hidden, inner)
                                    : int4_weights(hidden, inner, group_size));
            experts.push_back({static_cast<std::uint32_t>(row_of_slot.size()), count,
                               up.back().packed, down.back().packed});
            for (std::uint32_t i = 0; i < count; ++i) row_of_slot.push_back(i * 5 % num_rows);
        }

        const auto x = random_floats(num_rows * hidden, 8, 0.1f);
        std::vector<float> y(row_of_slot.size() * hidden), twin(hidden);
        compute_experts(experts, {x.data(), hidden, num_rows}, row_of_slot, y.data(),
                        test::compute_threads());
        for (const PackedExpert& expert : experts)
            for (std::uint32_t slot = expert.first; slot < expert.first + expert.count; ++slot) {
                plain::compute_expert(twin, expert.gate_up, expert.down,
                                      std::span(x).subspan(row_of_slot[slot] * hidden, hidden));
                EXPECT_EQ(
                    std::memcmp(twin.data(), y.data() + slot * hidden, hidden * sizeof(float)), 0)
                    << "slot " << slot;
            }
    }
}

TEST(IntegerKernelsTest, CodesEqualTheirTwinAndMarkNonFiniteGroups) {
    for (const std::uint32_t group_size : {32u, 64u, 128u})
        for (const float scale : {0.0f, 1e-38f, 1e-31f, 1.0f, 1e30f})
            for (std::uint32_t seed = 0; seed < 20; ++seed) {
                const auto x = random_floats(group_size, seed, scale);
                std::int8_t mine[128], twin[128];
                const QuantizedGroup a = quantize_group(mine, x.data(), group_size),
                                     b = quantize_group_plain(twin, x.data(), group_size);
                ASSERT_EQ(std::memcmp(mine, twin, group_size), 0);
                ASSERT_EQ(a.sum, b.sum);
                ASSERT_EQ(a.scale, b.scale);
            }

    for (const float wrong :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
        auto x = random_floats(64, 1);
        x[40] = wrong;
        std::int8_t codes[64];
        EXPECT_FALSE(std::isfinite(quantize_group(codes, x.data(), 64).scale));
        EXPECT_FALSE(std::isfinite(quantize_group_plain(codes, x.data(), 64).scale));
    }
}

TEST(IntegerRowTrialTest, ManyRowsPathBeginsWhereItIsNeverSlower) {
    using Trials = std::vector<RowTrial>;
    EXPECT_EQ(rows_where_faster(Trials{{5, 2, 1}, {8, 3, 3}, {16, 6, 4}}), 5u);
    EXPECT_EQ(rows_where_faster(Trials{{5, 2, 1}, {8, 3, 4}, {16, 6, 4}}), 16u);
    EXPECT_EQ(rows_where_faster(Trials{{5, 2, 3}, {8, 3, 2}, {16, 6, 9}}), rows_never);
}

// The product is compared with itself, so neither is faster except by chance. The test checks that
// the trial ends and returns an allowed number of rows.
TEST(IntegerRowTrialTest, EveryDtypeAndGroupIsTried) {
    for (const PackedDtype dtype :
         {PackedDtype::int8, PackedDtype::int6, PackedDtype::int4, PackedDtype::mxfp4})
        for (const std::uint32_t group_size : {32u, 64u, 128u}) {
            const IntegerProduct product = integer_path().gemm.of(dtype);
            const std::uint32_t rows = rows_where_faster(product, product, 8, dtype, group_size);
            EXPECT_GE(rows, 8u);
            EXPECT_TRUE(rows <= 32 || rows == rows_never) << rows;
        }
}

}  // namespace
}  // namespace moex
