// The byte formats of activations and expert weights: dtypes on the wire, the expert blob and its
// INT4 groups.
// Source: PROTOCOL.md, sections "Headers" (dtypes) and "Expert blob".
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/bytes.h"
#include "protocol/half.h"
#include "protocol/result.h"

namespace moex {

// Element types of a tensor on the wire. f32 is allowed in GROUP_DISPATCH and GROUP_RESULT only,
// and int4 in WEIGHT_SYNC only.
enum class Dtype : std::uint8_t { f16 = 1, bf16 = 2, int8 = 3, int4 = 4, f32 = 5 };

const char* dtype_name(Dtype dtype);  // "f16", ...
Result<Dtype> parse_dtype(std::string_view name);
std::uint32_t dtype_bits(Dtype dtype);  // 16 for f16 and bf16, 8 for int8, 4 for int4, 32 for f32

// Returns the size in bytes of rows [num_rows, row_size] in wire form. For int8 the size includes
// the f32 scale[num_rows], which follows all codes.
std::uint64_t wire_rows_bytes(Dtype dtype, std::uint64_t num_rows, std::uint64_t row_size);

// Writes f32 rows [num_rows, row_size] in wire form. `out` has wire_rows_bytes() bytes. A value too
// large for f16 becomes infinity: the caller checks the rows first. int8: per row scale = max|x| /
// 127 (0 for a row that is zero, or so small that its scale would be subnormal), code = round(x /
// scale), ties to even.
void encode_rows(Dtype dtype, std::span<const float> rows, std::uint32_t row_size,
                 std::span<std::byte> out);
// Reads rows in wire form from `in`, which has wire_rows_bytes() bytes. Returns false when a value
// or a scale is not finite (the rows are still written).
bool decode_rows(Dtype dtype, ByteView in, std::uint32_t row_size, std::span<float> rows);
// Replaces each row, in place, by the values that the receiver will decode: decode(encode(rows)).
void round_rows(Dtype dtype, std::span<float> rows, std::uint32_t row_size);

// Storage type of an expert's weights. Workers compute with codes of 4 bits: int4, or mxfp4 as some
// checkpoints have it. bf16 and f32 exist for golden tests on the local backend.
enum class ExpertDtype : std::uint8_t { int4, bf16, f32, mxfp4 };
constexpr bool has_codes(ExpertDtype dtype) {
    return dtype == ExpertDtype::int4 || dtype == ExpertDtype::mxfp4;
}
const char* expert_dtype_name(ExpertDtype dtype);
Result<ExpertDtype> parse_expert_dtype(std::string_view name);

// The forms of experts that workers compute (see ExpertShape): INT4 unless the name says MXFP4.
enum class ExpertForm : std::uint8_t { plain, clamped, mxfp4, mxfp4_clamped };

// The size and form of one expert's feed-forward network. A plain expert is
//   y = down · (silu(gate · x) * (up · x))
// A clamped expert has biases and a clamp:
//   g = min(gate · x + gate_bias, clamp), u = clamp(up · x + up_bias, -clamp, clamp)
//   y = down · (g * sigmoid(1.702 g) * (u + 1)) + down_bias
// No model has experts with only one of the two parts.
struct ExpertShape {
    std::uint32_t hidden_size = 0;            // H: size of x and y, a multiple of 32
    std::uint32_t moe_intermediate_size = 0;  // I: rows of gate and up, a multiple of 32
    // G: number of inputs that share a scale (and a zero): 32, 64 or 128; divides H and I (codes
    // only). mxfp4 has 32.
    std::uint32_t group_size = 0;
    bool has_bias = false;
    float clamp = 0;                        // 0: silu(gate · x) * (up · x)
    ExpertDtype codes = ExpertDtype::int4;  // int4 or mxfp4: the type of weights that have codes

    bool is_mxfp4() const { return codes == ExpertDtype::mxfp4; }
    // Returns the form of an expert with codes; no expert has only one of bias and clamp.
    ExpertForm form() const {
        if (is_mxfp4()) return is_plain() ? ExpertForm::mxfp4 : ExpertForm::mxfp4_clamped;
        return is_plain() ? ExpertForm::plain : ExpertForm::clamped;
    }
    bool is_plain() const { return !has_bias && clamp == 0; }
    bool is_clamped() const { return has_bias && clamp > 0; }
    bool operator==(const ExpertShape&) const = default;
};

// Returns the largest group size of 128, 64, 32 that is <= `group_size_max` and divides both sizes
// of an expert. If there is none, returns an error that names the sizes.
Result<std::uint32_t> choose_group_size(std::uint32_t hidden_size,
                                        std::uint32_t moe_intermediate_size,
                                        std::uint32_t group_size_max);

// One section of an expert blob: its position and size in bytes, from the start of the blob.
struct BlobSection {
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
};

// The layout of an INT4 blob. It is little-endian. Every section begins at a multiple of 256 bytes,
// with zero padding (the end of the blob is padded as well):
//   gate_up_codes       u32 [2·I, H/8]   gate rows, then up rows; column 8j+k is bits 4k..4k+3 of
//                                        word j
//   gate_up_scale_zero  u32 [2·I, H/G]   f16 scale in the low half, f16 zero in the high half
//   down_codes          u32 [H, I/8]
//   down_scale_zero     u32 [H, I/G]
//   gate_up_bias        f32 [2·I]        these two only if the shape has biases
//   down_bias           f32 [H]
// w = scale · (code − zero) in f32. An MXFP4 blob has the same codes sections with E2M1 codes, and
// scale_zero sections of E8M0 bytes, u8 [2·I, H/32] and u8 [H, I/32]: w = value(code) · 2^(byte −
// 127). bf16 and f32 blobs store gate_up [2·I, H] and down [H, I] in the codes sections and leave
// the scale_zero sections empty.
struct ExpertBlobLayout {
    BlobSection gate_up_codes, gate_up_scale_zero, down_codes, down_scale_zero;
    BlobSection gate_up_bias, down_bias;  // empty without biases
    // e.g. 156,672 (demo) or 2,506,752 (qwen3-30b), for int4 with G = 128
    std::uint64_t size_bytes = 0;
};
ExpertBlobLayout expert_blob_layout(const ExpertShape& shape, ExpertDtype dtype);
// Returns the layout of a blob with codes.
ExpertBlobLayout expert_blob_layout(const ExpertShape& shape);

// Typed views of the sections of one borrowed expert blob. The blob must be 4-byte aligned and have
// the size of the layout.
struct ExpertBlobView {
    ExpertShape shape;
    ExpertDtype dtype = ExpertDtype::int4;
    const std::byte* gate_up_codes = nullptr;
    const std::byte* gate_up_scale_zero = nullptr;
    const std::byte* down_codes = nullptr;
    const std::byte* down_scale_zero = nullptr;
    const float *gate_up_bias = nullptr, *down_bias = nullptr;  // null without biases
};
Result<ExpertBlobView> view_expert_blob(ByteView blob, const ExpertShape& shape, ExpertDtype dtype);

// Dequantises one matrix row of `row_size` weights from codes [row_size/8] words and scale_zero
// [row_size/group_size] words.
void dequantize_int4_row(const std::uint32_t* codes, const std::uint32_t* scale_zero,
                         std::uint32_t row_size, std::uint32_t group_size, float* out);

// MXFP4. Source: OCP Microscaling Formats Specification, 2023: E2M1 codes, and a power of two for
// each 32 of them.
inline constexpr std::uint32_t mxfp4_block = 32;
// The largest scale byte that a blob may have. Kernels compute with a quarter of each value and
// with four times the scale, which is then a normal f32 for every byte.
inline constexpr std::uint8_t mxfp4_scale_max = 252;
// Twice the values of the codes 0 to 7. Bit 3 of a code is the sign.
inline constexpr std::int8_t mxfp4_doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
constexpr std::int32_t mxfp4_twice(std::uint32_t code) {
    return (code & 8) != 0 ? -mxfp4_doubled[code & 7] : mxfp4_doubled[code & 7];
}
// Returns 2^(scale − 128), the factor of mxfp4_twice().
float mxfp4_half_scale(std::uint8_t scale);
// Dequantises one matrix row of `row_size` weights from codes [row_size/8] words and scales
// [row_size/32] bytes.
void dequantize_mxfp4_row(const std::uint32_t* codes, const std::uint8_t* scales,
                          std::uint32_t row_size, float* out);

inline std::uint32_t pack_scale_zero(half scale, half zero) {
    return std::uint32_t{scale} | std::uint32_t{zero} << 16;
}

}  // namespace moex
