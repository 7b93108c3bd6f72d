// The path of a browser tab: WebAssembly's SIMD128, which every current browser has.
// i32x4.dot_i16x8_s adds two products of 16 bits to 32, so codes are used as 16-bit lanes without
// being moved to other lanes. A pair of bytes has inputs i and i + 1 in the low halves, i + 4 and i
// + 5 in the high halves. Shift and mask extract these four codes, and one vector holds the same
// two inputs of four outputs.
#include "hub/engine/kernels/integer_paths.h"

#if defined(__wasm_simd128__)
#include <wasm_simd128.h>

#include <cstring>

namespace moex {
namespace {

constexpr std::uint32_t lanes = 4, parts = panel_outs / lanes;

// Converts the codes of each row of x to 16 bits, in the order in which the inner loop reads them:
// for each 8 inputs the pairs (0, 2), (4, 6), (1, 3), (5, 7). Writes [num_groups · group_size] per
// row.
const std::int16_t* spread(std::vector<std::int16_t>& to, const QuantizedRows& x) {
    const std::size_t row_codes = std::size_t{x.num_groups} * x.group_size;
    if (to.size() < x.num_rows * row_codes) to.resize(x.num_rows * row_codes);
    constexpr int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    for (std::uint32_t r = 0; r < x.num_rows; ++r) {
        const std::int8_t* from = x.row_codes(r);
        std::int16_t* out = to.data() + r * row_codes;
        for (std::size_t k = 0; k < row_codes; k += 8)
            for (int i = 0; i < 8; ++i) out[k + i] = from[k + order[i]];
    }
    return to.data();
}

// Converts f16 to f32, exact for every finite value. Scales and zeros are finite: the packer
// ensures this.
v128_t load_halves(const std::byte* from) {
    const v128_t bits = wasm_u32x4_load16x4(from);
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(bits, wasm_i32x4_splat(0x8000)), 16),
                 rest = wasm_i32x4_shl(wasm_v128_and(bits, wasm_i32x4_splat(0x7fff)), 13);
    return wasm_f32x4_mul(wasm_v128_or(sign, rest), wasm_f32x4_splat(0x1p112f));
}

// Returns 2^(scale - 128) for four scales of mxfp4: four times the scale, which is a normal number,
// divided by eight.
v128_t load_exponents(const std::byte* from) {
    const v128_t bytes = wasm_u32x4_extend_low_u16x8(
        wasm_u16x8_extend_low_u8x16(wasm_v128_load32_zero(from)));
    const v128_t bits = wasm_i32x4_shl(wasm_i32x4_add(bytes, wasm_i32x4_splat(2)), 23);
    return wasm_f32x4_mul(bits, wasm_f32x4_splat(0.125f));
}

// Returns codes in 16-bit lanes as the numbers that they count as.
template <PackedDtype DTYPE>
inline v128_t numbers(v128_t codes) {
    if constexpr (DTYPE == PackedDtype::int4) return codes;
    // Twice the values plus 12, so that the high bytes of the lanes can be cleared.
    const v128_t table = wasm_i8x16_make(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0),
                 found = wasm_v128_and(wasm_i8x16_swizzle(table, codes), wasm_i16x8_splat(255));
    return wasm_i16x8_sub(found, wasm_i16x8_splat(12));
}

// Computes the integer sums of one group for ROWS rows and a quarter of a panel's outputs.
template <PackedDtype DTYPE, int ROWS>
inline void sum_group(v128_t (&sums)[ROWS], const std::byte* codes, const std::int16_t* x,
                      std::size_t row_stride, std::uint32_t group_size) {
    const v128_t mask = wasm_i16x8_splat(15);
    for (std::uint32_t k = 0; k < group_size; k += 8, codes += 64) {
        const v128_t both = wasm_v128_load(codes);
        const v128_t w02 = numbers<DTYPE>(wasm_v128_and(both, mask)),
                     w46 = numbers<DTYPE>(wasm_v128_and(wasm_u16x8_shr(both, 4), mask)),
                     w13 = numbers<DTYPE>(wasm_v128_and(wasm_u16x8_shr(both, 8), mask)),
                     w57 = numbers<DTYPE>(wasm_u16x8_shr(both, 12));
        for (int r = 0; r < ROWS; ++r) {
            const std::int16_t* at = x + r * row_stride + k;
            const v128_t even = wasm_i32x4_add(
                wasm_i32x4_dot_i16x8(w02, wasm_v128_load32_splat(at)),
                wasm_i32x4_dot_i16x8(w46, wasm_v128_load32_splat(at + 2)));
            const v128_t odd = wasm_i32x4_add(
                wasm_i32x4_dot_i16x8(w13, wasm_v128_load32_splat(at + 4)),
                wasm_i32x4_dot_i16x8(w57, wasm_v128_load32_splat(at + 6)));
            sums[r] = wasm_i32x4_add(sums[r], wasm_i32x4_add(even, odd));
        }
    }
}

// Computes the products of ROWS rows with the outputs of one panel, group by group, with the
// formula of integer.h.
template <PackedDtype DTYPE, int ROWS>
void tile(float* out, std::size_t out_stride, const PackedMatrix& weights,
          const QuantizedRows& rows, const std::int16_t* x, std::uint32_t panel) {
    const std::size_t row_stride = std::size_t{rows.num_groups} * rows.group_size;
    v128_t totals[ROWS][parts];
    for (int r = 0; r < ROWS; ++r)
        for (std::uint32_t i = 0; i < parts; ++i) totals[r][i] = wasm_f32x4_splat(0);

    const std::byte* block = weights.panel(panel);
    for (std::uint32_t group = 0; group < rows.num_groups; ++group) {
        for (std::uint32_t i = 0; i < parts; ++i) {
            v128_t sums[ROWS];
            for (int r = 0; r < ROWS; ++r) sums[r] = wasm_i32x4_splat(0);
            constexpr bool is_int4 = DTYPE == PackedDtype::int4;
            sum_group<DTYPE, ROWS>(sums, block + (is_int4 ? 64 : 16) + 16 * i,
                                   x + std::size_t{group} * rows.group_size, row_stride,
                                   rows.group_size);

            const v128_t scale = is_int4 ? load_halves(block + i * lanes * 2)
                                         : load_exponents(block + i * lanes);
            const v128_t zero = is_int4 ? load_halves(block + 32 + i * lanes * 2)
                                        : wasm_f32x4_splat(0);
            for (int r = 0; r < ROWS; ++r) {
                const auto row = static_cast<std::uint32_t>(r);
                const v128_t x_scale = wasm_f32x4_splat(rows.row_scales(row)[group]),
                             x_sum = wasm_f32x4_splat(rows.row_sums(row)[group]);
                const v128_t centred = wasm_f32x4_sub(wasm_f32x4_convert_i32x4(sums[r]),
                                                      wasm_f32x4_mul(zero, x_sum));
                totals[r][i] = wasm_f32x4_add(
                    totals[r][i], wasm_f32x4_mul(wasm_f32x4_mul(scale, x_scale), centred));
            }
        }
        block += weights.block_bytes();
    }

    const std::uint32_t width = panel_width(weights, panel);
    for (int r = 0; r < ROWS; ++r) {
        alignas(16) float line[panel_outs];
        for (std::uint32_t i = 0; i < parts; ++i) wasm_v128_store(line + i * lanes, totals[r][i]);
        std::memcpy(out + static_cast<std::size_t>(r) * out_stride, line, width * sizeof(float));
    }
}

template <PackedDtype DTYPE>
void product(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
             std::uint32_t panel_begin, std::uint32_t panel_end) {
    thread_local std::vector<std::int16_t> buffer;
    const std::int16_t* codes = spread(buffer, x);
    const std::size_t row_stride = std::size_t{x.num_groups} * x.group_size;

    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel) {
        const auto at = [&](std::uint32_t r) {
            return out.data + r * out.stride + std::size_t{panel} * panel_outs;
        };
        std::uint32_t r = 0;
        for (; r + 4 <= x.num_rows; r += 4)
            tile<DTYPE, 4>(at(r), out.stride, weights, x.rows(r, 4), codes + r * row_stride, panel);
        for (; r < x.num_rows; ++r)
            tile<DTYPE, 1>(at(r), out.stride, weights, x.rows(r, 1), codes + r * row_stride, panel);
    }
}

}  // namespace

// Only the hub uses weights of 8 and 6 bits, so for them this path uses the portable loops.
const IntegerPath& integer_wasm() {
    static const IntegerProducts products{integer_portable().gemm.int8,
                                          integer_portable().gemm.int6, product<PackedDtype::int4>,
                                          product<PackedDtype::mxfp4>};
    static const IntegerPath path{"SIMD128", products, products};
    return path;
}

}  // namespace moex
#endif
