#include "protocol/tensor_format.h"

#include <bit>
#include <cstring>

#include "protocol/half_rows.h"
#include "protocol/wide_loops.h"

namespace moex {
namespace {

static_assert(std::endian::native == std::endian::little,
              "rows are copied to and from the wire as they are stored in memory");

constexpr std::uint64_t section_alignment_bytes = 256;

template <class T>
T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
template <class T>
void store(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

// Returns 1 if the exponent bits of a float are all ones, which means infinity or NaN.
inline std::uint32_t non_finite_bit(float value) {
    return (detail::bits_of_float(value) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
}

void encode_int8_row(const float* row, std::uint32_t row_size, std::byte* codes,
                     std::byte* scale_out) {
    // Floats without their sign bit have the same order as their bit patterns, with infinity and
    // NaN at the top.
    std::int32_t largest_bits = 0;
    for (std::uint32_t i = 0; i < row_size; ++i) {
        const auto magnitude = static_cast<std::int32_t>(detail::bits_of_float(row[i]) &
                                                         0x7fffffffu);
        largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
    }
    const bool non_finite = largest_bits >= 0x7f800000;
    const float largest = detail::float_of_bits(static_cast<std::uint32_t>(largest_bits));
    // A row with a value that is not finite gets a NaN scale, so that the receiver refuses the row.
    // If the scale of a row would be subnormal, it would be too coarse for the division, so the row
    // becomes zero.
    const float scale = non_finite                      ? detail::float_of_bits(0x7fc00000u)
                        : largest / 127.0f >= 0x1p-126f ? largest / 127.0f
                                                        : 0.0f;
    store(scale_out, scale);
    if (!(scale > 0)) {
        std::memset(codes, 0, row_size);
        return;
    }

    // Adding 1.5 * 2^23 rounds a float to an integer (nearest even) and leaves the integer in the
    // low bits.
    constexpr float rounder = 12582912.0f;
    for (std::uint32_t i = 0; i < row_size; ++i)
        codes[i] = static_cast<std::byte>(
            static_cast<std::uint8_t>(detail::bits_of_float(row[i] / scale + rounder)));
}

std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + section_alignment_bytes - 1) / section_alignment_bytes *
           section_alignment_bytes;
}

}  // namespace

const char* dtype_name(Dtype dtype) {
    switch (dtype) {
        case Dtype::f16: return "f16";
        case Dtype::bf16: return "bf16";
        case Dtype::int8: return "int8";
        case Dtype::int4: return "int4";
        case Dtype::f32: return "f32";
    }
    return "unknown";
}

Result<Dtype> parse_dtype(std::string_view name) {
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::int4, Dtype::f32})
        if (name == dtype_name(dtype)) return dtype;
    return Error{ErrorCode::unknown_dtype,
                 text("dtype \"", name.substr(0, 32), "\", want f16, bf16, int8, int4 or f32")};
}

std::uint32_t dtype_bits(Dtype dtype) {
    switch (dtype) {
        case Dtype::f16:
        case Dtype::bf16: return 16;
        case Dtype::int8: return 8;
        case Dtype::int4: return 4;
        case Dtype::f32: return 32;
    }
    return 0;
}

std::uint64_t wire_rows_bytes(Dtype dtype, std::uint64_t num_rows, std::uint64_t row_size) {
    const std::uint64_t value_bytes = num_rows * row_size * dtype_bits(dtype) / 8;
    return dtype == Dtype::int8 ? value_bytes + num_rows * sizeof(float) : value_bytes;
}

MOEX_WIDE_LOOPS void encode_rows(Dtype dtype, std::span<const float> rows, std::uint32_t row_size,
                                 std::span<std::byte> out) {
    const std::size_t num_rows = row_size == 0 ? 0 : rows.size() / row_size;
    MOEX_CHECK(out.size() == wire_rows_bytes(dtype, num_rows, row_size) &&
                   num_rows * row_size == rows.size(),
               text(rows.size(), " values in rows of ", row_size, " into ", out.size(),
                    " bytes of ", dtype_name(dtype)));

    const float* in = rows.data();
    std::byte* to = out.data();

    switch (dtype) {
        case Dtype::f16: halves_of_floats(in, rows.size(), to); return;
        case Dtype::bf16:
            for (std::size_t i = 0; i < rows.size(); ++i)
                store(to + 2 * i, float_to_bfloat16(in[i]));
            return;
        case Dtype::int8:
            for (std::size_t row = 0; row < num_rows; ++row)
                encode_int8_row(in + row * row_size, row_size, to + row * row_size,
                                to + rows.size() + row * sizeof(float));
            return;
        case Dtype::f32:
            if (!rows.empty()) std::memcpy(to, in, rows.size_bytes());
            return;
        case Dtype::int4: break;
    }
    MOEX_CHECK(false, "rows have no int4 form");
}

MOEX_WIDE_LOOPS bool decode_rows(Dtype dtype, ByteView in, std::uint32_t row_size,
                                 std::span<float> rows) {
    const std::size_t num_rows = row_size == 0 ? 0 : rows.size() / row_size;
    MOEX_CHECK(in.size() == wire_rows_bytes(dtype, num_rows, row_size) &&
                   num_rows * row_size == rows.size(),
               text(in.size(), " bytes of ", dtype_name(dtype), " into ", rows.size(),
                    " values in rows of ", row_size));

    const std::byte* from = in.data();
    float* out = rows.data();
    std::uint32_t non_finite = 0;

    switch (dtype) {
        case Dtype::f16: return floats_of_halves(from, rows.size(), out);
        case Dtype::bf16:
            for (std::size_t i = 0; i < rows.size(); ++i) {
                out[i] = bfloat16_to_float(load<bfloat16>(from + 2 * i));
                non_finite |= non_finite_bit(out[i]);
            }
            return non_finite == 0;
        case Dtype::int8:
            for (std::size_t row = 0; row < num_rows; ++row) {
                const float scale = load<float>(from + rows.size() + row * sizeof(float));
                const std::byte* codes = from + row * row_size;
                float* values = out + row * row_size;
                non_finite |= non_finite_bit(scale);
                for (std::uint32_t i = 0; i < row_size; ++i) {
                    values[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale;
                    non_finite |= non_finite_bit(values[i]);
                }
            }
            return non_finite == 0;
        case Dtype::f32:
            if (!rows.empty()) std::memcpy(out, from, rows.size_bytes());
            for (std::size_t i = 0; i < rows.size(); ++i) non_finite |= non_finite_bit(out[i]);
            return non_finite == 0;
        case Dtype::int4: break;
    }
    MOEX_CHECK(false, "rows have no int4 form");
    return false;
}

MOEX_WIDE_LOOPS void round_rows(Dtype dtype, std::span<float> rows, std::uint32_t row_size) {
    switch (dtype) {
        case Dtype::f16: round_to_half(rows.data(), rows.size()); return;
        case Dtype::bf16:
            for (float& value : rows) value = bfloat16_to_float(float_to_bfloat16(value));
            return;
        case Dtype::f32: return;
        default: break;
    }

    Bytes wire(wire_rows_bytes(dtype, row_size == 0 ? 0 : rows.size() / row_size, row_size));
    encode_rows(dtype, rows, row_size, wire);
    (void)decode_rows(dtype, wire, row_size, rows);
}

const char* expert_dtype_name(ExpertDtype dtype) {
    switch (dtype) {
        case ExpertDtype::int4: return "int4";
        case ExpertDtype::bf16: return "bf16";
        case ExpertDtype::f32: return "f32";
        case ExpertDtype::mxfp4: return "mxfp4";
    }
    return "unknown";
}

Result<ExpertDtype> parse_expert_dtype(std::string_view name) {
    for (const ExpertDtype dtype :
         {ExpertDtype::int4, ExpertDtype::mxfp4, ExpertDtype::bf16, ExpertDtype::f32})
        if (name == expert_dtype_name(dtype)) return dtype;
    return Error{ErrorCode::unknown_dtype,
                 text("expert dtype \"", name.substr(0, 32), "\", want int4, mxfp4, bf16 or f32")};
}

Result<std::uint32_t> choose_group_size(std::uint32_t hidden_size,
                                        std::uint32_t moe_intermediate_size,
                                        std::uint32_t group_size_max) {
    if (hidden_size != 0 && moe_intermediate_size != 0)
        for (const std::uint32_t group_size : {128u, 64u, 32u})
            if (group_size <= group_size_max && hidden_size % group_size == 0 &&
                moe_intermediate_size % group_size == 0)
                return group_size;
    return Error{
        ErrorCode::unsupported,
        text("no group size of 128, 64 or 32 up to ", group_size_max, " divides hidden_size ",
             hidden_size, " and moe_intermediate_size ", moe_intermediate_size)};
}

ExpertBlobLayout expert_blob_layout(const ExpertShape& shape, ExpertDtype dtype) {
    const std::uint64_t hidden = shape.hidden_size, intermediate = shape.moe_intermediate_size,
                        group = shape.group_size;
    const bool codes = has_codes(dtype), is_mxfp4 = dtype == ExpertDtype::mxfp4;
    MOEX_CHECK(!codes || (group != 0 && hidden % group == 0 && intermediate % group == 0 &&
                          group % 8 == 0 && (!is_mxfp4 || group == mxfp4_block)),
               text("group_size ", group, " does not divide ", hidden, " x ", intermediate));

    const std::uint64_t bits = codes                        ? 4
                               : dtype == ExpertDtype::bf16 ? 16
                                                            : 32,
                        scale_bytes = is_mxfp4 ? 1
                                      : codes  ? 4
                                               : 0;
    ExpertBlobLayout layout;
    const auto append = [&layout](BlobSection& section, std::uint64_t size_bytes) {
        section = {layout.size_bytes, size_bytes};
        layout.size_bytes = aligned(layout.size_bytes + size_bytes);
    };

    append(layout.gate_up_codes, 2 * intermediate * hidden * bits / 8);
    append(layout.gate_up_scale_zero,
           codes ? 2 * intermediate * (hidden / group) * scale_bytes : 0);
    append(layout.down_codes, hidden * intermediate * bits / 8);
    append(layout.down_scale_zero, codes ? hidden * (intermediate / group) * scale_bytes : 0);
    if (shape.has_bias) {
        append(layout.gate_up_bias, 2 * intermediate * 4);
        append(layout.down_bias, hidden * 4);
    }
    return layout;
}

ExpertBlobLayout expert_blob_layout(const ExpertShape& shape) {
    return expert_blob_layout(shape, shape.codes);
}

Result<ExpertBlobView> view_expert_blob(ByteView blob, const ExpertShape& shape,
                                        ExpertDtype dtype) {
    const ExpertBlobLayout layout = expert_blob_layout(shape, dtype);
    if (blob.size() != layout.size_bytes)
        return Error{ErrorCode::bad_file,
                     text("expert blob of ", blob.size(), " bytes, hidden_size ", shape.hidden_size,
                          ", moe_intermediate_size ", shape.moe_intermediate_size,
                          " and group_size ", shape.group_size, " want ", layout.size_bytes)};

    if (reinterpret_cast<std::uintptr_t>(blob.data()) % 4 != 0)
        return Error{ErrorCode::invalid_argument,
                     "expert blob is not aligned to 4 bytes in memory"};

    ExpertBlobView view;
    view.shape = shape;
    view.dtype = dtype;
    view.gate_up_codes = blob.data() + layout.gate_up_codes.offset_bytes;
    view.gate_up_scale_zero = blob.data() + layout.gate_up_scale_zero.offset_bytes;
    view.down_codes = blob.data() + layout.down_codes.offset_bytes;
    view.down_scale_zero = blob.data() + layout.down_scale_zero.offset_bytes;
    if (shape.has_bias) {
        const auto floats_at = [&](const BlobSection& section) {
            return reinterpret_cast<const float*>(blob.data() + section.offset_bytes);
        };
        view.gate_up_bias = floats_at(layout.gate_up_bias);
        view.down_bias = floats_at(layout.down_bias);
    }
    return view;
}

void dequantize_int4_row(const std::uint32_t* codes, const std::uint32_t* scale_zero,
                         std::uint32_t row_size, std::uint32_t group_size, float* out) {
    const std::uint32_t words_per_group = group_size / 8;
    for (std::uint32_t group = 0; group < row_size / group_size; ++group) {
        const float scale = half_to_float(static_cast<half>(scale_zero[group]));
        const float zero = half_to_float(static_cast<half>(scale_zero[group] >> 16));

        for (std::uint32_t word = 0; word < words_per_group; ++word) {
            const std::uint32_t packed = *codes++;
            for (std::uint32_t k = 0; k < 8; ++k)
                *out++ = scale * (static_cast<float>((packed >> (4 * k)) & 15u) - zero);
        }
    }
}

float mxfp4_half_scale(std::uint8_t scale) {
    // 2^-128 and 2^-127 are subnormal.
    return scale < 2 ? detail::float_of_bits(0x200000u << scale)
                     : detail::float_of_bits((scale - 1u) << 23);
}

void dequantize_mxfp4_row(const std::uint32_t* codes, const std::uint8_t* scales,
                          std::uint32_t row_size, float* out) {
    for (std::uint32_t block = 0; block < row_size / mxfp4_block; ++block) {
        const float scale = mxfp4_half_scale(scales[block]);
        for (std::uint32_t word = 0; word < mxfp4_block / 8; ++word, ++codes)
            for (std::uint32_t k = 0; k < 8; ++k)
                *out++ = static_cast<float>(mxfp4_twice(*codes >> (4 * k) & 15u)) * scale;
    }
}

}  // namespace moex
