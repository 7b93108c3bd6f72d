#include "protocol/tensor_format.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace moex {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr ExpertShape demo_shape{384, 256, 128};
constexpr ExpertShape qwen_shape{2048, 768, 128};

std::vector<float> wave(std::size_t count, float size) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = size * std::sin(static_cast<float>(i) * 0.7f + 0.1f);
    return values;
}

TEST(DtypeTest, NamesComeBack) {
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::int4, Dtype::f32}) {
        const Result<Dtype> parsed = parse_dtype(dtype_name(dtype));
        ASSERT_TRUE(parsed.ok());
        EXPECT_EQ(*parsed, dtype);
    }
    for (const ExpertDtype dtype : {ExpertDtype::int4, ExpertDtype::bf16, ExpertDtype::f32}) {
        const Result<ExpertDtype> parsed = parse_expert_dtype(expert_dtype_name(dtype));
        ASSERT_TRUE(parsed.ok());
        EXPECT_EQ(*parsed, dtype);
    }
    EXPECT_EQ(parse_dtype("F16").error().code, ErrorCode::unknown_dtype);
    EXPECT_EQ(parse_dtype("").error().code, ErrorCode::unknown_dtype);
    EXPECT_EQ(parse_expert_dtype("f16").error().code, ErrorCode::unknown_dtype);
}

// Tests the conversion for every f16 value, and for every float that equals an f16 value, is next
// to one, or is in the middle between two, at every position of a vector register.
TEST(RowsTest, HalvesEqualThoseOfThePlainVersion) {
    std::vector<float> values;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float value = half_to_float(static_cast<half>(bits));
        if (std::isnan(value)) continue;
        for (const float towards :
             {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()})
            values.push_back(std::nextafter(value, towards));
        values.push_back(value);
        const float next = half_to_float(static_cast<half>(bits + 1));
        if (std::isfinite(value) && std::isfinite(next)) values.push_back(value / 2 + next / 2);
    }
    values.insert(values.end(), {65519.99f, 65520.0f, 1e30f, -1e30f, 1e-30f, 3e-8f, -0.0f});

    for (std::size_t skip = 0; skip < 9; ++skip) {
        const std::span<const float> some = std::span<const float>(values).subspan(skip);
        Bytes wire(2 * some.size());
        encode_rows(Dtype::f16, some, 1, wire);
        std::vector<float> back(some.size()), rounded(some.begin(), some.end());
        decode_rows(Dtype::f16, wire, 1, back);
        round_rows(Dtype::f16, rounded, 1);
        for (std::size_t i = 0; i < some.size(); ++i) {
            const half want = float_to_half(some[i]);
            half got;
            std::memcpy(&got, wire.data() + 2 * i, 2);
            ASSERT_EQ(got, want) << some[i];
            ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]),
                      std::bit_cast<std::uint32_t>(half_to_float(want)))
                << some[i];
            ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded[i]),
                      std::bit_cast<std::uint32_t>(back[i]))
                << some[i];
        }
    }
    const std::vector<float> broken(9, std::numeric_limits<float>::quiet_NaN());

    for (std::size_t at = 0; at < broken.size(); ++at) {
        std::vector<float> row(broken.size(), 1.0f), back(row.size());
        row[at] = broken[at];
        Bytes wire(2 * row.size());
        encode_rows(Dtype::f16, row, 9, wire);
        EXPECT_FALSE(decode_rows(Dtype::f16, wire, 9, back));
        EXPECT_TRUE(std::isnan(back[at]));
    }
}

TEST(RowsTest, SizesCountTheScales) {
    EXPECT_EQ(wire_rows_bytes(Dtype::f16, 3, 384), 3u * 384 * 2);
    EXPECT_EQ(wire_rows_bytes(Dtype::bf16, 3, 384), 3u * 384 * 2);
    EXPECT_EQ(wire_rows_bytes(Dtype::int8, 3, 384), 3u * 384 + 12);
    EXPECT_EQ(wire_rows_bytes(Dtype::f32, 3, 384), 3u * 384 * 4);
    EXPECT_EQ(wire_rows_bytes(Dtype::f32, 0xffff, 0xffff), std::uint64_t{0xffff} * 0xffff * 4);
}

TEST(RowsTest, EachDtypeKeepsItsPrecision) {
    const std::vector<float> rows = wave(5 * 96, 3.0f);
    const auto worst = [&](Dtype dtype) {
        Bytes wire(wire_rows_bytes(dtype, 5, 96));
        encode_rows(dtype, rows, 96, wire);
        std::vector<float> back(rows.size());
        EXPECT_TRUE(decode_rows(dtype, wire, 96, back));
        std::vector<float> rounded = rows;
        round_rows(dtype, rounded, 96);
        EXPECT_EQ(rounded, back);
        float error = 0;
        for (std::size_t i = 0; i < rows.size(); ++i)
            error = std::max(error, std::fabs(rows[i] - back[i]));
        return error;
    };
    EXPECT_EQ(worst(Dtype::f32), 0.0f);
    EXPECT_LE(worst(Dtype::f16), 3.0f / 2048);
    EXPECT_LE(worst(Dtype::bf16), 3.0f / 256);
    EXPECT_LE(worst(Dtype::int8), 3.0f / 254 * 1.001f);
}

TEST(RowsTest, ScalesFollowAllCodes) {
    const std::vector<float> rows{1.27f, -0.01f, 0, 0.5f, -254, 2, 127, 1};
    Bytes wire(wire_rows_bytes(Dtype::int8, 2, 4));
    encode_rows(Dtype::int8, rows, 4, wire);
    // 63.5 rounds to 64 and 0.5 to 0 (ties to even)
    const int codes[8] = {127, -1, 0, 50, -127, 1, 64, 0};
    for (int i = 0; i < 8; ++i) EXPECT_EQ(static_cast<std::int8_t>(wire[i]), codes[i]) << i;
    ByteReader in(ByteView(wire).subspan(8));
    EXPECT_FLOAT_EQ(detail::float_of_bits(in.u32()), 0.01f);
    EXPECT_EQ(detail::float_of_bits(in.u32()), 2.0f);
}

TEST(RowsTest, ZeroRowsAndTinyRowsAreFinite) {
    std::vector<float> rows(64, 0.0f);
    rows[40] = 0x1p-149f;  // the smallest subnormal float, which gives a scale of 0
    round_rows(Dtype::int8, rows, 32);
    for (const float value : rows) EXPECT_EQ(value, 0.0f);
    for (const float size : {0x1p-140f, 0x1p-130f, 1e-30f, 1e30f, 3e38f}) {
        std::vector<float> values = wave(32, size);
        Bytes wire(wire_rows_bytes(Dtype::int8, 1, 32));
        encode_rows(Dtype::int8, values, 32, wire);
        EXPECT_TRUE(decode_rows(Dtype::int8, wire, 32, values)) << size;
    }
}

TEST(RowsTest, NonFiniteIsReportedInEveryDtypeAndPlace) {
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::f32})
        for (const float bad : {infinity, -infinity, not_a_number})
            for (const std::size_t at : {0u, 31u, 32u, 95u}) {
                std::vector<float> rows = wave(96, 1.0f);
                rows[at] = bad;
                Bytes wire(wire_rows_bytes(dtype, 3, 32));
                encode_rows(dtype, rows, 32, wire);
                EXPECT_FALSE(decode_rows(dtype, wire, 32, rows))
                    << dtype_name(dtype) << ' ' << bad << " at " << at;
            }
    std::vector<float> rows(32, 70000.0f);  // 70000 is too large for f16 and becomes infinity
    Bytes wire(wire_rows_bytes(Dtype::f16, 1, 32));
    encode_rows(Dtype::f16, rows, 32, wire);
    EXPECT_FALSE(decode_rows(Dtype::f16, wire, 32, rows));
}

TEST(RowsTest, HugeScaleTimesCodeIsNotFinite) {
    Bytes wire(wire_rows_bytes(Dtype::int8, 1, 32), std::byte{0x80});
    const float scale = 3e38f;
    std::memcpy(wire.data() + 32, &scale, sizeof scale);
    std::vector<float> rows(32);
    EXPECT_FALSE(decode_rows(Dtype::int8, wire, 32, rows));
}

TEST(BlobTest, DemoAndQwenHaveTheirPublishedSizes) {
    EXPECT_EQ(expert_blob_layout(demo_shape).size_bytes, 156'672u);
    EXPECT_EQ(expert_blob_layout(qwen_shape).size_bytes, 2'506'752u);
    const ExpertBlobLayout demo = expert_blob_layout(demo_shape);
    EXPECT_EQ(demo.gate_up_codes.offset_bytes, 0u);
    EXPECT_EQ(demo.gate_up_codes.size_bytes, 2u * 256 * 384 / 2);
    EXPECT_EQ(demo.gate_up_scale_zero.size_bytes, 2u * 256 * 3 * 4);
    EXPECT_EQ(demo.down_codes.size_bytes, 384u * 256 / 2);
    EXPECT_EQ(demo.down_scale_zero.size_bytes, 384u * 2 * 4);
}

TEST(BlobTest, SectionsAreAlignedAndDoNotOverlap) {
    for (const ExpertDtype dtype :
         {ExpertDtype::int4, ExpertDtype::mxfp4, ExpertDtype::bf16, ExpertDtype::f32})
        for (ExpertShape shape : {ExpertShape{96, 160, 32}, ExpertShape{352, 224, 32},
                                  ExpertShape{32, 32, 32}, demo_shape}) {
            if (dtype == ExpertDtype::mxfp4) shape.group_size = mxfp4_block;
            const ExpertBlobLayout layout = expert_blob_layout(shape, dtype);
            std::uint64_t end = 0;
            for (const BlobSection& section : {layout.gate_up_codes, layout.gate_up_scale_zero,
                                               layout.down_codes, layout.down_scale_zero}) {
                EXPECT_EQ(section.offset_bytes % 256, 0u);
                EXPECT_GE(section.offset_bytes, end);
                EXPECT_LT(section.offset_bytes - end, 256u);
                end = section.offset_bytes + section.size_bytes;
            }
            EXPECT_EQ(layout.size_bytes % 256, 0u);
            EXPECT_LT(layout.size_bytes - end, 256u);
        }
    EXPECT_EQ(expert_blob_layout({64, 32, 0}, ExpertDtype::f32).size_bytes, 3u * 64 * 32 * 4);
    EXPECT_EQ(expert_blob_layout({64, 32, 0}, ExpertDtype::bf16).down_scale_zero.size_bytes, 0u);
}

// gpt-oss-20b's experts take the bytes that the checkpoint has for them.
TEST(BlobTest, Mxfp4TakesSeventeenBytesForThirtyTwoWeights) {
    ExpertShape shape{2880, 2880, mxfp4_block, true, 7};
    shape.codes = ExpertDtype::mxfp4;
    EXPECT_EQ(expert_blob_layout(shape).size_bytes,
              3u * 2880 * 2880 / 32 * 17 + 4 * 3 * 2880 + 128);
    EXPECT_EQ(shape.form(), ExpertForm::mxfp4_clamped);
}

TEST(BlobTest, Mxfp4RowHasTheValuesOfItsCodes) {
    // Codes 0 to 15, twice; the scale 2^-3.
    const std::uint32_t codes[] = {0x76543210, 0xfedcba98, 0x76543210, 0xfedcba98};
    const std::uint8_t scale = 124;
    float row[32];
    dequantize_mxfp4_row(codes, &scale, 32, row);
    const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int i = 0; i < 32; ++i) {
        EXPECT_EQ(std::abs(row[i]), values[i % 8] / 8) << i;
        EXPECT_EQ(row[i]<0, i % 16> 8) << i;
    }
    for (int byte = 0; byte <= mxfp4_scale_max; ++byte)
        EXPECT_EQ(mxfp4_half_scale(static_cast<std::uint8_t>(byte)), std::ldexp(1.0f, byte - 128));
}

TEST(BlobTest, WrongSizeOrAlignmentIsRefused) {
    Bytes blob(expert_blob_layout(demo_shape).size_bytes + 4);
    EXPECT_TRUE(
        view_expert_blob(ByteView(blob).first(156'672), demo_shape, ExpertDtype::int4).ok());
    EXPECT_EQ(
        view_expert_blob(ByteView(blob).first(156'671), demo_shape, ExpertDtype::int4).error().code,
        ErrorCode::bad_file);
    EXPECT_EQ(view_expert_blob(blob, demo_shape, ExpertDtype::int4).error().code,
              ErrorCode::bad_file);
    EXPECT_EQ(view_expert_blob({}, demo_shape, ExpertDtype::int4).error().code,
              ErrorCode::bad_file);
    EXPECT_EQ(view_expert_blob(ByteView(blob).subspan(1, 156'672), demo_shape, ExpertDtype::int4)
                  .error()
                  .code,
              ErrorCode::invalid_argument);
}

TEST(BlobTest, GroupSizeIsTheLargestThatDividesBoth) {
    EXPECT_EQ(*choose_group_size(384, 256, 128), 128u);
    EXPECT_EQ(*choose_group_size(2048, 768, 128), 128u);
    EXPECT_EQ(*choose_group_size(2048, 768, 64), 64u);
    EXPECT_EQ(*choose_group_size(2048, 768, 127), 64u);
    EXPECT_EQ(*choose_group_size(96, 160, 128), 32u);
    EXPECT_EQ(*choose_group_size(64, 128, 128), 64u);
    EXPECT_FALSE(choose_group_size(2048, 768, 31).ok());
    EXPECT_FALSE(choose_group_size(0, 0, 128).ok());

    const Result<std::uint32_t> refused = choose_group_size(100, 768, 128);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("100"), std::string::npos);
    EXPECT_NE(refused.error().message.find("768"), std::string::npos);
}

TEST(BlobTest, ColumnsAreNibblesFromTheLowEnd) {
    std::vector<std::uint32_t> codes(4);
    for (std::uint32_t column = 0; column < 32; ++column)
        codes[column / 8] |= (column * 5 % 16) << (4 * (column % 8));
    const std::uint32_t scale_zero = pack_scale_zero(float_to_half(0.25f), float_to_half(7.5f));
    std::vector<float> row(32);
    dequantize_int4_row(codes.data(), &scale_zero, 32, 32, row.data());
    for (std::uint32_t column = 0; column < 32; ++column)
        EXPECT_EQ(row[column], 0.25f * (static_cast<float>(column * 5 % 16) - 7.5f));
}

}  // namespace
}  // namespace moex
