// Compares the fast kernels with their slow reference versions, at odd sizes and every group size,
// and tests that a row's result does not depend on other rows.
#include "hub/engine/kernels.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "hub/engine/attention.h"
#include "hub/engine/kernels/matmul.h"
#include "hub/engine/kernels_plain.h"
#include "protocol/expert_reference.h"
#include "protocol/half.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

using test::random_floats;

double rms_error(std::span<const float> mine, std::span<const float> wanted) {
    const std::vector<double> exact(wanted.begin(), wanted.end());
    return normalized_rms_error(mine, exact);
}

// In a few outputs the terms of a sum may cancel, so that the relative error is large. Over many
// outputs the error is that of f32.
double tolerance(std::size_t num_values) { return num_values >= 64 ? 1e-6 : 1e-5; }

std::vector<bfloat16> to_bf16(std::span<const float> values) {
    std::vector<bfloat16> out;
    for (const float value : values) out.push_back(float_to_bfloat16(value));
    return out;
}

struct Int4Data {
    std::vector<std::uint32_t> codes, scale_zero;
    Int4Matrix matrix;
    Int4Data(std::uint32_t num_out, std::uint32_t num_in, std::uint32_t group_size,
             std::uint32_t seed) {
        std::mt19937 random(seed);
        codes.resize(std::size_t{num_out} * num_in / 8);
        scale_zero.resize(std::size_t{num_out} * num_in / group_size);
        for (auto& word : codes) word = random();
        for (auto& word : scale_zero)
            word = pack_scale_zero(float_to_half(0.01f + 0.0001f * (random() % 100)),
                                   float_to_half(7.0f + 0.01f * (random() % 100)));
        matrix = {codes.data(), scale_zero.data(), num_out, num_in, group_size};
    }
};

// MXFP4 weights with every code, and with the smallest and the largest scales.
struct Mxfp4Data {
    std::vector<std::uint32_t> codes;
    std::vector<std::uint8_t> scales;
    Int4Matrix matrix;
    Mxfp4Data(std::uint32_t num_out, std::uint32_t num_in, std::uint32_t seed) {
        std::mt19937 random(seed);
        codes.resize(std::size_t{num_out} * num_in / 8);
        scales.resize(std::size_t{num_out} * num_in / mxfp4_block);
        for (auto& word : codes) word = random();
        for (auto& scale : scales) scale = static_cast<std::uint8_t>(118 + random() % 4);
        matrix = {.codes = codes.data(),
                  .num_out = num_out,
                  .num_in = num_in,
                  .group_size = mxfp4_block,
                  .mxfp4_scales = scales.data()};
    }
};

TEST(KernelsTest, MatmulEqualsItsTwinAtOddSizes) {
    std::cout << "kernels: " << kernel_target() << "\n";
    for (const std::uint32_t num_in : {1u, 7u, 8u, 31u, 64u, 129u, 384u})
        for (const std::uint32_t num_out : {1u, 2u, 5u, 13u, 48u, 97u})
            for (const std::uint32_t num_rows : {1u, 2u, 3u, 4u, 5u, 17u}) {
                const auto weights = random_floats(std::size_t{num_out} * num_in, 1);
                const auto narrow = to_bf16(weights);
                const auto x = random_floats(std::size_t{num_rows} * num_in, 2);
                std::vector<float> mine(std::size_t{num_rows} * num_out), twin(mine.size());
                for (const WeightMatrix matrix :
                     {WeightMatrix{weights.data(), WeightDtype::f32, num_out, num_in},
                      WeightMatrix{narrow.data(), WeightDtype::bf16, num_out, num_in}}) {
                    const MatmulJob job{
                        {mine.data(), num_out}, matrix, {x.data(), num_in, num_rows}};
                    matmul({&job, 1}, test::compute_threads());
                    plain::matmul({twin.data(), num_out}, matrix, {x.data(), num_in, num_rows});
                    ASSERT_LE(rms_error(mine, twin), tolerance(mine.size()))
                        << num_rows << " x " << num_in << " x " << num_out;
                }
            }
}

TEST(KernelsTest, Int4MatmulEqualsItsTwinForEveryGroupSize) {
    for (const std::uint32_t group_size : {32u, 64u, 128u})
        for (const std::uint32_t groups : {1u, 3u, 6u})
            for (const std::uint32_t num_out : {1u, 3u, 32u, 65u})
                for (const std::uint32_t num_rows : {1u, 2u, 3u, 4u, 9u}) {
                    const std::uint32_t num_in = groups * group_size;
                    const Int4Data weights(num_out, num_in, group_size, 3);
                    const auto x = random_floats(std::size_t{num_rows} * num_in, 4);
                    const std::size_t stride = int4_prepared_floats(num_in, group_size);
                    std::vector<float> prepared(num_rows * stride),
                        mine(std::size_t{num_rows} * num_out), twin(mine.size());
                    int4_prepare({prepared.data(), stride}, {x.data(), num_in, num_rows}, num_in,
                                 group_size);
                    const Int4MatmulJob job{{mine.data(), num_out},
                                            weights.matrix,
                                            {prepared.data(), stride, num_rows}};
                    matmul_int4({&job, 1}, test::compute_threads());
                    plain::matmul_int4({twin.data(), num_out}, weights.matrix,
                                       {x.data(), num_in, num_rows});
                    ASSERT_LE(rms_error(mine, twin), tolerance(mine.size()))
                        << "group " << group_size << ", " << num_rows << " x " << num_in << " x "
                        << num_out;
                }
}

TEST(KernelsTest, Mxfp4MatmulEqualsItsTwin) {
    for (const std::uint32_t blocks : {1u, 3u, 6u})
        for (const std::uint32_t num_out : {1u, 3u, 32u, 65u})
            for (const std::uint32_t num_rows : {1u, 2u, 3u, 4u, 9u}) {
                const std::uint32_t num_in = blocks * mxfp4_block;
                const Mxfp4Data weights(num_out, num_in, 3);
                const auto x = random_floats(std::size_t{num_rows} * num_in, 4);
                const std::size_t stride = int4_prepared_floats(num_in, mxfp4_block);
                std::vector<float> prepared(num_rows * stride),
                    mine(std::size_t{num_rows} * num_out), twin(mine.size());
                int4_prepare({prepared.data(), stride}, {x.data(), num_in, num_rows}, num_in,
                             mxfp4_block);
                const Int4MatmulJob job{
                    {mine.data(), num_out}, weights.matrix, {prepared.data(), stride, num_rows}};
                matmul_int4({&job, 1}, test::compute_threads());
                plain::matmul_int4({twin.data(), num_out}, weights.matrix,
                                   {x.data(), num_in, num_rows});
                ASSERT_LE(rms_error(mine, twin), tolerance(mine.size()))
                    << num_rows << " x " << num_in << " x " << num_out;
            }
}

// A weight that a row of zeros and one 1 selects comes back exactly, for every code and every scale
// that a blob may have.
TEST(KernelsTest, EachMxfp4WeightIsExact) {
    std::vector<std::uint32_t> codes(4);
    for (std::uint32_t i = 0; i < 32; ++i) codes[i / 8] |= i % 16 << 4 * (i % 8);
    std::vector<float> row(32), prepared(int4_prepared_floats(32, 32)), x(32);
    for (std::uint32_t byte = 0; byte <= mxfp4_scale_max; ++byte) {
        const auto scale = static_cast<std::uint8_t>(byte);
        const Int4Matrix matrix{.codes = codes.data(),
                                .num_out = 1,
                                .num_in = 32,
                                .group_size = 32,
                                .mxfp4_scales = &scale};
        dequantize_mxfp4_row(codes.data(), &scale, 32, row.data());
        EXPECT_EQ(row[3], std::ldexp(1.5f, static_cast<int>(byte) - 127));
        for (std::uint32_t i = 0; i < 32; ++i) {
            std::fill(x.begin(), x.end(), 0.0f);
            x[i] = 1;
            int4_prepare({prepared.data(), 0}, {x.data(), 32, 1}, 32, 32);
            float found = -1;
            matmul_int4({&found, 1}, matrix, {prepared.data(), 0, 1}, 0, 1);
            ASSERT_EQ(found, row[i]) << "code " << i % 16 << ", scale " << byte;
        }
    }
}

TEST(KernelsTest, RowHasTheSameBitsInAnyBatch) {
    constexpr std::uint32_t num_in = 384, num_out = 101, num_rows = 11, group_size = 128;
    const auto weights = random_floats(std::size_t{num_out} * num_in, 5);
    const auto narrow = to_bf16(weights);
    const Int4Data codes(num_out, num_in, group_size, 6);
    const auto x = random_floats(std::size_t{num_rows} * num_in, 7);
    const std::size_t stride = int4_prepared_floats(num_in, group_size);
    std::vector<float> prepared(num_rows * stride), together(num_rows * num_out), alone(num_out);
    int4_prepare({prepared.data(), stride}, {x.data(), num_in, num_rows}, num_in, group_size);

    const Mxfp4Data blocks(num_out, num_in, 6);
    const std::size_t block_stride = int4_prepared_floats(num_in, mxfp4_block);
    std::vector<float> prepared_blocks(num_rows * block_stride);
    int4_prepare({prepared_blocks.data(), block_stride}, {x.data(), num_in, num_rows}, num_in,
                 mxfp4_block);

    const auto compare = [&](const char* what, std::uint32_t row) {
        ASSERT_EQ(
            std::memcmp(alone.data(), together.data() + row * num_out, num_out * sizeof(float)), 0)
            << what << ", row " << row;
    };
    const WeightMatrix wide{weights.data(), WeightDtype::f32, num_out, num_in},
        half_width{narrow.data(), WeightDtype::bf16, num_out, num_in};

    for (std::uint32_t count = 1; count <= num_rows; ++count)
        for (std::uint32_t row = 0; row < count; ++row) {
            for (const auto& matrix : {wide, half_width}) {
                matmul({together.data(), num_out}, matrix, {x.data(), num_in, count}, 0, num_out);
                matmul({alone.data(), num_out}, matrix, {x.data() + row * num_in, num_in, 1}, 0,
                       num_out);
                compare("matmul", row);
            }
            matmul_int4({together.data(), num_out}, codes.matrix, {prepared.data(), stride, count},
                        0, num_out);
            matmul_int4({alone.data(), num_out}, codes.matrix,
                        {prepared.data() + row * stride, stride, 1}, 0, num_out);
            compare("int4", row);
            matmul_int4({together.data(), num_out}, blocks.matrix,
                        {prepared_blocks.data(), block_stride, count}, 0, num_out);
            matmul_int4({alone.data(), num_out}, blocks.matrix,
                        {prepared_blocks.data() + row * block_stride, block_stride, 1}, 0, num_out);
            compare("mxfp4", row);
        }
}

TEST(KernelsTest, RowFunctionsEqualTheirTwins) {
    for (const std::size_t size : {1u, 3u, 8u, 33u, 128u, 1001u}) {
        const auto a = random_floats(size, 8, 4.0f), b = random_floats(size, 9);
        std::vector<float> mine(size), twin(size);
        rms_norm(mine, a, b, 1e-6f);
        plain::rms_norm(twin, a, b, 1e-6f);
        EXPECT_LE(rms_error(mine, twin), 1e-6);
        silu_mul(mine, a, b);
        plain::silu_mul(twin, a, b);
        EXPECT_LE(rms_error(mine, twin), 1e-6);
        mine = twin = a;
        softmax(mine);
        plain::softmax(twin);
        EXPECT_LE(rms_error(mine, twin), 1e-6);
        EXPECT_NEAR(log_sum_exp(a), plain::log_sum_exp(a), 1e-5);
        mine = a;
        add_scaled_to(mine, b, 0.25f);
        for (std::size_t i = 0; i < size; ++i) EXPECT_FLOAT_EQ(mine[i], a[i] + 0.25f * b[i]);
        mine = a;
        add_to(mine, b);
        for (std::size_t i = 0; i < size; ++i) EXPECT_FLOAT_EQ(mine[i], a[i] + b[i]);
    }
    std::vector<float> far{-1000.0f, 1000.0f, -89.0f}, ones{1, 1, 1};
    silu_mul(far, far, ones);
    EXPECT_EQ(far[1], 1000.0f);
    EXPECT_NEAR(far[0], 0.0f, 1e-30f);
    EXPECT_NEAR(far[2], 0.0f, 1e-30f);
}

// A sequence with random keys and values in layer 1, in a cache with pages of 4 tokens.
struct Attention {
    std::uint32_t num_tokens;
    ModelConfig config;
    KvCache cache;
    KvCache::Sequence sequence;
    std::vector<float> k, v, q;
    AttentionShape shape;
    std::size_t kv_floats, q_floats;  // per row
    std::uint32_t window = 0;
    float scale = 0;
    std::vector<float> sinks;  // [num_heads]

    explicit Attention(std::uint32_t head_dim, std::uint32_t tokens = 39,
                       KvDtype dtype = KvDtype::f32)
        : num_tokens(tokens),
          config([&] {
              ModelConfig tiny = test::tiny_config();
              tiny.head_dim = head_dim;
              tiny.num_heads = 6;  // three query heads per kv head
              return tiny;
          }()),
          cache(config, {4, tokens / 4 + 1, dtype}),
          sequence(cache),
          shape{config.num_heads, config.num_kv_heads, head_dim},
          kv_floats(std::size_t{config.num_kv_heads} * head_dim),
          q_floats(std::size_t{shape.heads_per_kv()} * head_dim) {
        EXPECT_TRUE(sequence.reserve(num_tokens));
        k = random_floats(num_tokens * kv_floats, 10);
        v = random_floats(num_tokens * kv_floats, 11);
        q = random_floats(num_tokens * q_floats, 12);
        for (std::uint32_t t = 0; t < num_tokens; ++t) {
            sequence.store(1, t, std::span(k).subspan(t * kv_floats, kv_floats),
                           std::span(v).subspan(t * kv_floats, kv_floats));
            // replace k and v by the rounded values that the cache returns
            std::ranges::copy(sequence.k(1, t), k.begin() + t * kv_floats);
            std::ranges::copy(sequence.v(1, t), v.begin() + t * kv_floats);
        }
    }
    // Computes the attention of the rows at positions [first, first + count) in one task.
    std::vector<float> rows(std::uint32_t kv_head, std::uint32_t first, std::uint32_t count) const {
        std::vector<float> out(count * q_floats);
        attend({out.data(), q_floats}, task(kv_head, first, count), shape);
        return out;
    }
    AttendTask task(std::uint32_t kv_head, std::uint32_t first, std::uint32_t count) const {
        return {.q = {q.data() + first * q_floats, q_floats, count},
                .kv = &sequence,
                .layer = 1,
                .kv_head = kv_head,
                .first_position = first,
                .window = window,
                .scale = scale,
                .sinks = sinks_of(kv_head)};
    }
    std::span<const float> sinks_of(std::uint32_t kv_head) const {
        const std::uint32_t heads = shape.heads_per_kv();
        return sinks.empty() ? std::span<const float>()
                             : std::span(sinks).subspan(kv_head * heads, heads);
    }
    // Computes the attention of one row with the slow reference version.
    std::vector<float> twin(std::uint32_t kv_head, std::uint32_t position) const {
        const std::uint32_t head_dim = shape.head_dim,
                            first = window == 0 ? 0 : position + 1 - std::min(window, position + 1);
        const std::size_t at_first = first * kv_floats + kv_head * head_dim;
        std::vector<float> out(q_floats);
        for (std::size_t at = 0; at < out.size(); at += head_dim)
            plain::attention(std::span(out).subspan(at, head_dim),
                             std::span(q).subspan(position * q_floats + at, head_dim),
                             k.data() + at_first, v.data() + at_first, kv_floats,
                             position + 1 - first,
                             scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(head_dim)),
                             sinks.empty() ? nullptr : &sinks_of(kv_head)[at / head_dim]);
        return out;
    }
};

TEST(KernelsTest, PagedAttentionEqualsItsTwin) {
    Attention attention(20);
    for (const std::uint32_t window : {0u, 1u, 3u, 16u, 100u})
        for (const std::uint32_t position : {0u, 3u, 4u, 37u, 38u}) {
            attention.window = window;
            EXPECT_LE(rms_error(attention.rows(1, position, 1), attention.twin(1, position)), 1e-6)
                << "window " << window << ", position " << position;
        }
    attention.scale = 0.3f;
    attention.sinks = {-2, 0, 3, 9, -1, 1};
    for (const std::uint32_t position : {0u, 3u, 4u, 37u, 38u})
        for (std::uint32_t kv_head = 0; kv_head < attention.config.num_kv_heads; ++kv_head) {
            EXPECT_LE(
                rms_error(attention.rows(kv_head, position, 1), attention.twin(kv_head, position)),
                1e-6)
                << "position " << position;
        }
}

TEST(KernelsTest, AttentionOverSeveralBlocksEqualsItsTwin) {
    constexpr std::uint32_t num_tokens = 2 * attend_block_tokens + 77;
    for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::int8}) {
        Attention attention(36, num_tokens, dtype);
        if (dtype == KvDtype::f16) attention.window = 600;
        if (dtype == KvDtype::int8) attention.window = 3;
        if (dtype != KvDtype::f32) attention.sinks = {-2, 0, 3, 9, -1, 1};
        // The second range of rows begins before the end of a block of positions and ends after it.
        for (const auto& [first, count] :
             {std::pair{num_tokens - 9, 9u}, std::pair{attend_block_tokens - 2, 5u},
              std::pair{2 * attend_block_tokens - 1, 8u}}) {
            const auto together = attention.rows(1, first, count);
            for (std::uint32_t r = 0; r < count; ++r) {
                const auto row = std::span(together).subspan(r * attention.q_floats,
                                                             attention.q_floats);
                EXPECT_LE(rms_error(row, attention.twin(1, first + r)), 2e-6);
                const auto alone = attention.rows(1, first + r, 1);
                EXPECT_EQ(std::memcmp(alone.data(), row.data(), row.size_bytes()), 0)
                    << "row " << r << " from " << first;
            }

            const AttendTask task = attention.task(1, first, count);
            const std::size_t floats = attend_part_floats(count, attention.shape);
            std::vector<float> parts(attend_blocks(task) * floats), split(together.size());
            for (std::uint32_t block = attend_blocks(task); block-- > 0;)
                attend_block(std::span(parts).subspan(block * floats, floats), task, block,
                             attention.shape);
            merge_parts({split.data(), attention.q_floats}, parts, task, attention.shape);
            EXPECT_EQ(split, together);
        }
    }
}

TEST(KernelsTest, RoundedKeysAndValuesAreNearAndMarkNan) {
    for (const std::uint32_t head_dim : {1u, 20u, 32u, 64u, 75u, 128u}) {
        const auto values = random_floats(head_dim, head_dim, 3.0f);
        for (const auto& [dtype, error_max] :
             {std::pair{KvDtype::f32, 0.0}, std::pair{KvDtype::f16, 5e-4},
              std::pair{KvDtype::int8, 1e-2}}) {
            std::vector<std::uint32_t> room(kv_head_bytes(dtype, head_dim) / 4);
            auto* const bytes = reinterpret_cast<std::byte*>(room.data());
            const auto there_and_back = [&, dtype = dtype](std::span<const float> from) {
                std::vector<float> out(from.size());
                store_kv_head(bytes, dtype, from);
                load_kv_head(out, dtype, bytes);
                return out;
            };
            const auto read = there_and_back(values);
            EXPECT_LE(rms_error(read, values), error_max) << kv_dtype_name(dtype) << head_dim;
            // Compare the values that were read with values converted by plain code.
            for (std::size_t i = 0; i < head_dim; ++i) {
                if (dtype == KvDtype::f16)
                    EXPECT_EQ(read[i], half_to_float(float_to_half(values[i])));
                if (dtype != KvDtype::int8) continue;
                const std::size_t groups = (head_dim + 31) / 32;
                const auto code = static_cast<float>(
                    static_cast<std::int8_t>(bytes[4 * groups + i]));
                EXPECT_EQ(read[i], code * std::bit_cast<float>(room[i / 32]));
            }

            EXPECT_EQ(there_and_back(std::vector<float>(head_dim)), std::vector<float>(head_dim));
            auto bad = values;
            bad.back() = NAN;
            EXPECT_TRUE(std::isnan(there_and_back(bad).back()));
        }
        EXPECT_EQ(parse_kv_dtype("f16"), KvDtype::f16);
        EXPECT_EQ(parse_kv_dtype("f15"), std::nullopt);
    }
}

// A few queries read cached rows of fewer bits directly; for many queries the rows are first
// widened to f32.
TEST(KernelsTest, RowsAttendTogetherWithTheBitsOfRowsAlone) {
    for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::int8})
        for (const std::uint32_t head_dim : {20u, 64u}) {
            Attention attention(head_dim, 39, dtype);
            if (head_dim == 20) attention.window = 7;
            for (const std::uint32_t first : {0u, 2u, 11u})
                for (const std::uint32_t count : {2u, 5u, 6u, 28u}) {
                    const auto together = attention.rows(1, first, count);
                    for (std::uint32_t r = 0; r < count; ++r) {
                        const auto alone = attention.rows(1, first + r, 1);
                        EXPECT_EQ(std::memcmp(alone.data(), together.data() + r * alone.size(),
                                              alone.size() * sizeof(float)),
                                  0)
                            << kv_dtype_name(dtype) << " row " << r << " of " << count << " from "
                            << first;
                    }
                }
        }
}

}  // namespace
}  // namespace moex
