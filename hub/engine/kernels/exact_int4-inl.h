// Matrix products with INT4 weights; included by exact.cpp once per instruction set.
// One vector of words holds 8 codes per lane. Code k is masked without a shift and so converted to
// q · 16^k; the matching input was scaled by 16^-k beforehand, which is exact. So a code costs an
// AND, a conversion and a multiply-add. The last code would touch the sign bit and is shifted
// instead. Per group: sum = −zero · (sums of x); sum += q · x; total += scale · sum. MXFP4 has the
// same order and no zero; its inputs have the same factors.
#if defined(MOEX_KERNELS_EXACT_INT4_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOEX_KERNELS_EXACT_INT4_INL_H
#undef MOEX_KERNELS_EXACT_INT4_INL_H
#else
#define MOEX_KERNELS_EXACT_INT4_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace int4_detail {
namespace hn = hwy::HWY_NAMESPACE;

// Highway's tag of a vector that has one lane for each word of a group (4, 8 or 16 lanes), or fewer
// lanes if the machine's vectors are shorter.
template <int GROUP>
using GroupTag = hn::CappedTag<float, GROUP / 8>;

template <int GROUP>
void prepare(RowsOut prepared, RowsIn x, std::uint32_t num_in) {
    const std::size_t lanes = hn::Lanes(GroupTag<GROUP>());
    const std::size_t blocks = GROUP / 8 / lanes;
    static constexpr float factor[8] = {1.0f,     0x1p-4f,  0x1p-8f,  0x1p-12f,
                                        0x1p-16f, 0x1p-20f, 0x1p-24f, 1.0f};
    for (std::uint32_t r = 0; r < x.num_rows; ++r) {
        const float* from = x.data + r * x.stride;
        float* to = prepared.data + r * prepared.stride;
        float* group_sums = to + num_in;
        for (std::uint32_t g = 0; g < num_in / GROUP; ++g, group_sums += lanes) {
            std::fill_n(group_sums, lanes, 0.0f);
            for (std::size_t b = 0; b < blocks; ++b, from += 8 * lanes, to += 8 * lanes)
                for (std::size_t lane = 0; lane < lanes; ++lane)
                    for (std::size_t k = 0; k < 8; ++k) {
                        to[k * lanes + lane] = from[lane * 8 + k] * factor[k];
                        group_sums[lane] += from[lane * 8 + k];
                    }
        }
    }
}

// Converts f16 to f32 without a branch; exact for every finite value, subnormals included. Scales
// and zeros are finite: the packer ensures this.
HWY_INLINE float finite_half(std::uint32_t bits) {
    const std::uint32_t shifted = (bits & 0x8000u) << 16 | (bits & 0x7fffu) << 13;
    return __builtin_bit_cast(float, shifted) * 0x1p112f;
}

// Returns a quarter of the value of code K of each word, times 16^K (K < 7), for MXFP4. The three
// bits of a value become the low bits of an exponent and the first bit of a mantissa: with g =
// 2^(e-3) · (1 + m/2), a quarter of the value is min(g, 2g - 1/4). This corrects the values 0 and
// 0.5, which have no exponent.
template <int K, class D, class Words>
HWY_INLINE hn::Vec<D> mxfp4_value(D d, Words words) {
    const hn::RebindToUnsigned<D> du;
    constexpr std::uint32_t power = K == 7 ? 0 : 4u * K;
    constexpr int left = K <= 5 ? 22 - 4 * K : 0, right = K <= 5 ? 0 : 4 * K - 22;
    const auto moved = hn::ShiftRight<right>(hn::ShiftLeft<left>(words));
    const auto bits = hn::Or(hn::And(moved, hn::Set(du, 7u << 22)),
                             hn::Set(du, (124u + power) << 23));
    const auto g = hn::BitCast(d, bits);
    const auto quarter = hn::Set(d, __builtin_bit_cast(float, (125u + power) << 23));
    const auto size = hn::Min(g, hn::Sub(hn::Add(g, g), quarter));
    const auto sign = hn::And(hn::ShiftLeft<28 - 4 * K>(words), hn::Set(du, 0x80000000u));
    return hn::BitCast(d, hn::Xor(hn::BitCast(du, size), sign));
}

template <int K, bool MXFP4, class D, class Words>
HWY_INLINE hn::Vec<D> code(D d, Words words) {
    if constexpr (MXFP4) return mxfp4_value<K>(d, words);
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    if constexpr (K == 7)
        return hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<28>(words)));
    else
        return hn::ConvertTo(d, hn::BitCast(di, hn::And(words, hn::Set(du, 15u << (4 * K)))));
}

// Multiplies code K of each word by its inputs and adds the products to the sums. This function
// must be inlined: a lambda was not, and then the sums were kept in memory instead of registers.
template <int K, bool MXFP4, int ROWS, int OUTS, class D, class Words>
HWY_INLINE void multiply_code(D d, const Words (&words)[OUTS], const float* x, std::size_t x_stride,
                              hn::Vec<D> (&sums)[ROWS][OUTS]) {
    hn::Vec<D> q[OUTS];
#pragma GCC unroll 8
    for (int o = 0; o < OUTS; ++o) q[o] = code<K, MXFP4>(d, words[o]);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        const auto v = hn::LoadU(d, x + r * x_stride);
#pragma GCC unroll 8
        for (int o = 0; o < OUTS; ++o) sums[r][o] = hn::MulAdd(q[o], v, sums[r][o]);
    }
}

template <int GROUP, bool MXFP4, int ROWS, int OUTS>
HWY_INLINE void tile(RowsOut out, const Int4Matrix& weights, const float* x, std::size_t x_stride,
                     std::uint32_t n) {
    using D = GroupTag<GROUP>;
    const D d;
    const hn::RebindToUnsigned<D> du;
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t words_per_row = weights.num_in / 8, num_groups = weights.num_in / GROUP;
    const std::uint32_t* codes = weights.codes + n * words_per_row;
    const std::uint32_t* scale_zero = MXFP4 ? nullptr : weights.scale_zero + n * num_groups;
    const std::uint8_t* exponents = MXFP4 ? weights.mxfp4_scales + n * num_groups : nullptr;
    const float* group_sums = x + weights.num_in;

    hn::Vec<D> totals[ROWS][OUTS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
        for (int o = 0; o < OUTS; ++o) totals[r][o] = hn::Zero(d);

    for (std::size_t g = 0; g < num_groups; ++g, group_sums += lanes) {
        hn::Vec<D> sums[ROWS][OUTS], scales[OUTS];
#pragma GCC unroll 8
        for (int o = 0; o < OUTS; ++o) {
            // Prefetch the same position in the next tile: rows of weights are too short for the
            // hardware prefetcher. A cache line holds 128 codes.
            if constexpr (ROWS == 1) hwy::Prefetch(codes + (o + OUTS) * words_per_row);
            if constexpr (MXFP4) {
                // Four times the scale, a normal number for every byte.
                const std::uint32_t bits = (exponents[o * num_groups + g] + 2u) << 23;
                scales[o] = hn::Set(d, __builtin_bit_cast(float, bits));
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) sums[r][o] = hn::Zero(d);
            } else {
                const std::uint32_t packed = scale_zero[o * num_groups + g];
                scales[o] = hn::Set(d, finite_half(packed));
                const auto minus_zeros = hn::Set(d, -finite_half(packed >> 16));
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r)
                    sums[r][o] = hn::Mul(minus_zeros, hn::LoadU(d, group_sums + r * x_stride));
            }
        }
        for (std::size_t b = 0; b < GROUP / 8 / lanes; ++b, x += 8 * lanes, codes += lanes) {
            hn::Vec<decltype(du)> words[OUTS];
#pragma GCC unroll 8
            for (int o = 0; o < OUTS; ++o) words[o] = hn::LoadU(du, codes + o * words_per_row);
            multiply_code<0, MXFP4, ROWS, OUTS>(d, words, x, x_stride, sums);
            multiply_code<1, MXFP4, ROWS, OUTS>(d, words, x + lanes, x_stride, sums);
            multiply_code<2, MXFP4, ROWS, OUTS>(d, words, x + 2 * lanes, x_stride, sums);
            multiply_code<3, MXFP4, ROWS, OUTS>(d, words, x + 3 * lanes, x_stride, sums);
            multiply_code<4, MXFP4, ROWS, OUTS>(d, words, x + 4 * lanes, x_stride, sums);
            multiply_code<5, MXFP4, ROWS, OUTS>(d, words, x + 5 * lanes, x_stride, sums);
            multiply_code<6, MXFP4, ROWS, OUTS>(d, words, x + 6 * lanes, x_stride, sums);
            multiply_code<7, MXFP4, ROWS, OUTS>(d, words, x + 7 * lanes, x_stride, sums);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
            for (int o = 0; o < OUTS; ++o)
                totals[r][o] = hn::MulAdd(scales[o], sums[r][o], totals[r][o]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
        for (int o = 0; o < OUTS; ++o)
            out.data[r * out.stride + n + o] = hn::GetLane(hn::SumOfLanes(d, totals[r][o]));
}

template <int GROUP, bool MXFP4, int ROWS, int OUTS>
HWY_INLINE void strip(RowsOut out, const Int4Matrix& weights, const float* x, std::size_t x_stride,
                      std::uint32_t out_begin, std::uint32_t out_end) {
    std::uint32_t n = out_begin;
    for (; n + OUTS <= out_end; n += OUTS)
        tile<GROUP, MXFP4, ROWS, OUTS>(out, weights, x, x_stride, n);
    for (; n < out_end; ++n) tile<GROUP, MXFP4, ROWS, 1>(out, weights, x, x_stride, n);
}

template <int GROUP, bool MXFP4>
void matmul_group(RowsOut out, const Int4Matrix& weights, RowsIn x, std::uint32_t out_begin,
                  std::uint32_t out_end) {
    constexpr int outs = HWY_MAX_BYTES >= 64 ? 4 : 2;
    if (x.num_rows == 1) {
        strip<GROUP, MXFP4, 1, 4>(out, weights, x.data, x.stride, out_begin, out_end);
        return;
    }
    const std::uint32_t stretch = std::max<std::uint32_t>(4,
                                                          16384 / (weights.num_in / 2 + 1) / 4 * 4);
    for (std::uint32_t n = out_begin; n < out_end; n += std::min(stretch, out_end - n)) {
        const std::uint32_t end = n + std::min(stretch, out_end - n);
        std::uint32_t r = 0;
        const auto to = [&] { return RowsOut{out.data + r * out.stride, out.stride}; };
        for (; r + 4 <= x.num_rows; r += 4)
            strip<GROUP, MXFP4, 4, outs>(to(), weights, x.data + r * x.stride, x.stride, n, end);
        switch (x.num_rows - r) {
            case 3:
                strip<GROUP, MXFP4, 3, outs>(to(), weights, x.data + r * x.stride, x.stride, n,
                                             end);
                break;
            case 2:
                strip<GROUP, MXFP4, 2, outs>(to(), weights, x.data + r * x.stride, x.stride, n,
                                             end);
                break;
            case 1:
                strip<GROUP, MXFP4, 1, outs>(to(), weights, x.data + r * x.stride, x.stride, n,
                                             end);
                break;
            default: break;
        }
    }
}

}  // namespace int4_detail

void int4_prepare_any(RowsOut prepared, RowsIn x, std::uint32_t num_in, std::uint32_t group_size) {
    if (group_size == 128)
        int4_detail::prepare<128>(prepared, x, num_in);
    else if (group_size == 64)
        int4_detail::prepare<64>(prepared, x, num_in);
    else
        int4_detail::prepare<32>(prepared, x, num_in);
}
void matmul_int4_any(RowsOut out, const Int4Matrix& weights, RowsIn prepared,
                     std::uint32_t out_begin, std::uint32_t out_end) {
    if (weights.mxfp4_scales != nullptr)
        int4_detail::matmul_group<32, true>(out, weights, prepared, out_begin, out_end);
    else if (weights.group_size == 128)
        int4_detail::matmul_group<128, false>(out, weights, prepared, out_begin, out_end);
    else if (weights.group_size == 64)
        int4_detail::matmul_group<64, false>(out, weights, prepared, out_begin, out_end);
    else
        int4_detail::matmul_group<32, false>(out, weights, prepared, out_begin, out_end);
}

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();
#endif
