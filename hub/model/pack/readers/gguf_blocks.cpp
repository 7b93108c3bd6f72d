#include "hub/model/pack/readers/gguf_blocks.h"

#include <algorithm>
#include <cstring>

#include "hub/model/pack/readers/number_codes.h"
#include "hub/model/package/tensor.h"
#include "protocol/check.h"
#include "protocol/half.h"
#include "protocol/tensor_format.h"
#include "protocol/text.h"

namespace moex {
namespace {

// ids of the types that have a decoder
struct GgufId {
    enum : std::uint32_t {
        f32 = 0,
        f16 = 1,
        q4_0 = 2,
        q8_0 = 8,
        q4_k = 12,
        q5_k = 13,
        q6_k = 14,
        bf16 = 30,
        mxfp4 = 39
    };
};

constexpr GgufType gguf_types[] = {
    {GgufId::f32, "F32", 1, 4},
    {GgufId::f16, "F16", 1, 2},
    {GgufId::q4_0, "Q4_0", 32, 18},
    {3, "Q4_1"},
    {6, "Q5_0"},
    {7, "Q5_1"},
    {GgufId::q8_0, "Q8_0", 32, 34},
    {9, "Q8_1"},
    {10, "Q2_K"},
    {11, "Q3_K"},
    {GgufId::q4_k, "Q4_K", 256, 144},
    {GgufId::q5_k, "Q5_K", 256, 176},
    {GgufId::q6_k, "Q6_K", 256, 210},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {20, "IQ4_NL"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {23, "IQ4_XS"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {GgufId::bf16, "BF16", 1, 2},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {GgufId::mxfp4, "MXFP4", 32, 17},
};

float gguf_half(const std::byte* bytes) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes, 2);
    return half_to_float(bits);
}
std::uint32_t gguf_byte(const std::byte* bytes, std::size_t index) {
    return std::to_integer<std::uint32_t>(bytes[index]);
}
float gguf_signed(const std::byte* bytes, std::size_t index) {
    return static_cast<float>(static_cast<std::int8_t>(gguf_byte(bytes, index)));
}

void decode_q8_0(const std::byte* block, float* out) {
    const float d = gguf_half(block);
    for (std::size_t i = 0; i < 32; ++i) out[i] = d * gguf_signed(block + 2, i);
}

// Byte j of a block has element j in its low half and element j + 16 in its high half.
void decode_q4_0(const std::byte* block, float* out) {
    const float d = gguf_half(block);
    for (std::size_t j = 0; j < 16; ++j) {
        const std::uint32_t byte = gguf_byte(block + 2, j);
        out[j] = d * (static_cast<float>(byte & 15) - 8);
        out[j + 16] = d * (static_cast<float>(byte >> 4) - 8);
    }
}

void decode_mxfp4(const std::byte* block, float* out) {
    const float scale = e8m0_to_float(static_cast<std::uint8_t>(gguf_byte(block, 0)));
    for (std::size_t j = 0; j < 16; ++j) {
        const std::uint32_t byte = gguf_byte(block + 1, j);
        out[j] = e2m1_to_float(byte & 15) * scale;
        out[j + 16] = e2m1_to_float(byte >> 4) * scale;
    }
}

// Scale and minimum of sub-block `j` of Q4_K and Q5_K, from 12 bytes of 6-bit numbers.
struct ScaleMin {
    float scale, min;
};
ScaleMin scale_min_of(const std::byte* packed, std::size_t j) {
    if (j < 4)
        return {static_cast<float>(gguf_byte(packed, j) & 63),
                static_cast<float>(gguf_byte(packed, j + 4) & 63)};
    const std::uint32_t low = gguf_byte(packed, j + 4);
    return {static_cast<float>((low & 15) | gguf_byte(packed, j - 4) >> 6 << 4),
            static_cast<float>(low >> 4 | gguf_byte(packed, j) >> 6 << 4)};
}

// Q4_K: d, dmin, 12 bytes of scales, 128 bytes of codes. Q5_K has 32 bytes of fifth bits before the
// codes: bit j of byte l belongs to element l of sub-block j.
void decode_q4_or_q5_k(const std::byte* block, bool is_q5, float* out) {
    const float d = gguf_half(block), dmin = gguf_half(block + 2);
    const std::byte *const scales = block + 4, *const high = block + 16,
                           *const codes = block + (is_q5 ? 48 : 16);
    for (std::size_t j = 0; j < 8; ++j) {
        const ScaleMin sub = scale_min_of(scales, j);
        const float scale = d * sub.scale, min = dmin * sub.min;
        for (std::size_t l = 0; l < 32; ++l) {
            const std::uint32_t byte = gguf_byte(codes, j / 2 * 32 + l);
            std::uint32_t code = j % 2 == 0 ? byte & 15 : byte >> 4;
            if (is_q5) code |= (gguf_byte(high, l) >> j & 1) << 4;
            out[j * 32 + l] = scale * static_cast<float>(code) - min;
        }
    }
}

// Q6_K: 128 bytes of low halves, 64 bytes of high pairs, 16 scales, d. A half of 128 elements has
// four rows of 32, one scale per 16 elements.
void decode_q6_k(const std::byte* block, float* out) {
    const float d = gguf_half(block + 208);
    for (std::size_t half = 0; half < 2; ++half) {
        const std::byte *const low = block + half * 64, *const high = block + 128 + half * 32,
                               *const scales = block + 192 + half * 8;
        for (std::size_t row = 0; row < 4; ++row)
            for (std::size_t l = 0; l < 32; ++l) {
                const std::uint32_t byte = gguf_byte(low, row % 2 * 32 + l);
                const std::uint32_t code = (row < 2 ? byte & 15 : byte >> 4) |
                                           (gguf_byte(high, l) >> (2 * row) & 3) << 4;
                const float scale = d * gguf_signed(scales, row * 2 + l / 16);
                out[half * 128 + row * 32 + l] = scale * (static_cast<float>(code) - 32);
            }
    }
}

}  // namespace

const GgufType* find_gguf_type(std::uint32_t id) {
    const auto found = std::find_if(std::begin(gguf_types), std::end(gguf_types),
                                    [&](const GgufType& type) { return type.id == id; });
    return found == std::end(gguf_types) ? nullptr : found;
}

std::string readable_gguf_types() {
    std::string names;
    for (const GgufType& type : gguf_types)
        if (type.block_elements > 0) names += text(names.empty() ? "" : ", ", type.name);
    return names;
}

void decode_gguf_blocks(const GgufType& type, const std::byte* blocks, std::span<float> out) {
    switch (type.id) {
        case GgufId::f32: return elements_to_float(TensorDtype::f32, blocks, out);
        case GgufId::f16: return elements_to_float(TensorDtype::f16, blocks, out);
        case GgufId::bf16: return elements_to_float(TensorDtype::bf16, blocks, out);
        default: break;
    }
    MOEX_CHECK(type.block_elements > 0 && out.size() % type.block_elements == 0,
               text(out.size(), " elements of ", type.name));
    for (std::size_t at = 0; at < out.size();
         at += type.block_elements, blocks += type.block_bytes) {
        float* const to = out.data() + at;
        switch (type.id) {
            case GgufId::q8_0: decode_q8_0(blocks, to); break;
            case GgufId::q4_0: decode_q4_0(blocks, to); break;
            case GgufId::mxfp4: decode_mxfp4(blocks, to); break;
            case GgufId::q4_k: decode_q4_or_q5_k(blocks, false, to); break;
            case GgufId::q5_k: decode_q4_or_q5_k(blocks, true, to); break;
            case GgufId::q6_k: decode_q6_k(blocks, to); break;
            default: MOEX_CHECK(false, text("no decoder of ", type.name));
        }
    }
}

void gguf_mxfp4_to_rows(const std::byte* blocks, std::size_t num_blocks, std::byte* codes,
                        std::byte* scales) {
    for (std::size_t block = 0; block < num_blocks; ++block, blocks += 17, codes += 16) {
        scales[block] = blocks[0];
        for (std::size_t b = 0; b < 16; ++b) {
            // Byte j of a GGUF block has the codes j and j + 16.
            const auto code = [&](std::size_t i) {
                const std::uint32_t byte = gguf_byte(blocks + 1, i % 16);
                return i < 16 ? byte & 15 : byte >> 4;
            };
            codes[b] = static_cast<std::byte>(code(2 * b) | code(2 * b + 1) << 4);
        }
    }
}

void gguf_q4_0_to_int4(const std::byte* blocks, std::size_t num_blocks, std::uint32_t* codes,
                       std::uint32_t* scale_zero) {
    const half zero = float_to_half(8);
    for (std::size_t block = 0; block < num_blocks; ++block, blocks += 18, codes += 4) {
        half scale;
        std::memcpy(&scale, blocks, 2);
        scale_zero[block] = pack_scale_zero(scale, zero);
        for (std::size_t word = 0; word < 4; ++word) {
            std::uint32_t packed = 0;
            for (std::size_t k = 0; k < 8; ++k) {
                const std::size_t i = word * 8 + k;
                const std::uint32_t byte = gguf_byte(blocks + 2, i % 16);
                packed |= (i < 16 ? byte & 15 : byte >> 4) << 4 * k;
            }
            codes[word] = packed;
        }
    }
}

}  // namespace moex
