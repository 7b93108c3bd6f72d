// Attention's two products over a stretch of cached rows; included by kernels.cpp once per
// instruction set. Tiles of queries by keys, or by columns, share loads and keep several sums in
// flight; each (query, key) and each (query, column) has one accumulator walked in one order
// whatever the tile, so tiles never change a result.
#if defined(MOEX_KERNELS_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOEX_KERNELS_ATTENTION_INL_H
#undef MOEX_KERNELS_ATTENTION_INL_H
#else
#define MOEX_KERNELS_ATTENTION_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace attention_detail {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using D4 = hn::FixedTag<float, 4>;

// Lanes i, i + 4, i + 8, ... added by halving: the first steps of SumOfLanes.
template <class Tag>
HWY_INLINE hn::Vec<D4> fold(Tag, hn::Vec<Tag> v) {
    if constexpr (hn::MaxLanes(Tag()) == 4) {
        return v;
    } else {
        const hn::Half<Tag> half;
        return fold(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
    }
}

// SumOfLanes of four vectors, each in the same order, side by side.
HWY_INLINE hn::Vec<D4> four_sums(const hn::Vec<D> (&v)[4]) {
    const D4 d4;
    const auto a = fold(D(), v[0]), b = fold(D(), v[1]), c = fold(D(), v[2]), e = fold(D(), v[3]);
    const auto ab = hn::Add(hn::ConcatLowerLower(d4, b, a), hn::ConcatUpperUpper(d4, b, a)),
               ce = hn::Add(hn::ConcatLowerLower(d4, e, c), hn::ConcatUpperUpper(d4, e, c));
    return hn::Add(hn::ConcatEven(d4, ce, ab), hn::ConcatOdd(d4, ce, ab));
}

// QUERIES rows of q by four keys, at `scores`.
template <int QUERIES>
HWY_INLINE void score_tile(RowsOut scores, const float* q, std::size_t q_stride, const float* k,
                           std::size_t k_stride, std::size_t head_dim, float scale) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    hn::Vec<D> sums[QUERIES][4];
#pragma GCC unroll 4
    for (int r = 0; r < QUERIES; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) sums[r][t] = hn::Zero(d);

    const auto add = [&](auto load, std::size_t i) {
        hn::Vec<D> query[QUERIES];
#pragma GCC unroll 4
        for (int r = 0; r < QUERIES; ++r) query[r] = load(q + r * q_stride + i);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
            const auto key = load(k + t * k_stride + i);
#pragma GCC unroll 4
            for (int r = 0; r < QUERIES; ++r) sums[r][t] = hn::MulAdd(query[r], key, sums[r][t]);
        }
    };
    std::size_t i = 0;
    for (; i + lanes <= head_dim; i += lanes)
        add([&](const float* from) { return hn::LoadU(d, from); }, i);
    if (i < head_dim) add([&](const float* from) { return load_some(from, head_dim - i); }, i);

#pragma GCC unroll 4
    for (int r = 0; r < QUERIES; ++r)
        hn::StoreU(hn::Mul(hn::Set(D4(), scale), four_sums(sums[r])), D4(),
                   scores.data + r * scores.stride);
}

// QUERIES rows of weights by COLUMNS vectors of v's row.
template <int QUERIES, int COLUMNS>
HWY_INLINE void mix_tile(RowsOut out, const float* weights, std::size_t weights_stride,
                         const float* v, std::size_t v_stride, std::uint32_t num_tokens) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    hn::Vec<D> sums[QUERIES][COLUMNS];
#pragma GCC unroll 4
    for (int r = 0; r < QUERIES; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; ++c)
            sums[r][c] = hn::LoadU(d, out.data + r * out.stride + c * lanes);

    for (std::uint32_t token = 0; token < num_tokens; ++token, v += v_stride) {
        hn::Vec<D> weight[QUERIES];
#pragma GCC unroll 4
        for (int r = 0; r < QUERIES; ++r)
            weight[r] = hn::Set(d, weights[r * weights_stride + token]);
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; ++c) {
            const auto value = hn::LoadU(d, v + c * lanes);
#pragma GCC unroll 4
            for (int r = 0; r < QUERIES; ++r) sums[r][c] = hn::MulAdd(weight[r], value, sums[r][c]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < QUERIES; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; ++c)
            hn::StoreU(sums[r][c], d, out.data + r * out.stride + c * lanes);
}

// All columns for QUERIES rows.
template <int QUERIES>
HWY_INLINE void mix_rows(RowsOut out, const float* weights, std::size_t weights_stride,
                         const float* v, std::size_t v_stride, std::uint32_t num_tokens,
                         std::size_t head_dim) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + 4 * lanes <= head_dim; i += 4 * lanes)
        mix_tile<QUERIES, 4>({out.data + i, out.stride}, weights, weights_stride, v + i, v_stride,
                             num_tokens);
    for (; i + lanes <= head_dim; i += lanes)
        mix_tile<QUERIES, 1>({out.data + i, out.stride}, weights, weights_stride, v + i, v_stride,
                             num_tokens);

    for (int r = 0; r < QUERIES && i < head_dim; ++r) {
        float* to = out.data + r * out.stride + i;
        auto sum = load_some(to, head_dim - i);
        for (std::uint32_t token = 0; token < num_tokens; ++token)
            sum = hn::MulAdd(hn::Set(d, weights[r * weights_stride + token]),
                             load_some(v + token * v_stride + i, head_dim - i), sum);
        store_some(sum, to, head_dim - i);
    }
}

}  // namespace attention_detail

void attention_scores(RowsOut scores, RowsIn q, const float* k, std::size_t k_stride,
                      std::uint32_t num_tokens, std::uint32_t head_dim, float scale) {
    using attention_detail::score_tile;
    std::uint32_t token = 0;
    for (; token + 4 <= num_tokens; token += 4) {
        const float* keys = k + token * k_stride;
        std::uint32_t r = 0;
        const auto to = [&] {
            return RowsOut{scores.data + r * scores.stride + token, scores.stride};
        };
        for (; r + 2 <= q.num_rows; r += 2)
            score_tile<2>(to(), q.data + r * q.stride, q.stride, keys, k_stride, head_dim, scale);
        if (r < q.num_rows)
            score_tile<1>(to(), q.data + r * q.stride, q.stride, keys, k_stride, head_dim, scale);
    }

    // The last keys, fewer than four: the first of them stands in for those that are not there.
    for (; token < num_tokens; ++token)
        for (std::uint32_t r = 0; r < q.num_rows; ++r) {
            float four[4];
            score_tile<1>({four, 4}, q.data + r * q.stride, q.stride, k + token * k_stride, 0,
                          head_dim, scale);
            scores.data[r * scores.stride + token] = four[0];
        }
}

void attention_mix(RowsOut out, RowsIn weights, const float* v, std::size_t v_stride,
                   std::uint32_t num_tokens, std::uint32_t head_dim) {
    std::uint32_t r = 0;
    for (; r + 2 <= weights.num_rows; r += 2)
        attention_detail::mix_rows<2>({out.data + r * out.stride, out.stride},
                                      weights.data + r * weights.stride, weights.stride, v,
                                      v_stride, num_tokens, head_dim);
    if (r < weights.num_rows)
        attention_detail::mix_rows<1>({out.data + r * out.stride, out.stride},
                                      weights.data + r * weights.stride, weights.stride, v,
                                      v_stride, num_tokens, head_dim);
}

// One rounding or none for each value, whatever the lanes.
void widen_halves(std::span<float> out, const std::uint16_t* halves) {
    const attention_detail::D d;
    const hn::Rebind<hwy::float16_t, attention_detail::D> d16;
    const auto* from = reinterpret_cast<const hwy::float16_t*>(halves);
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + lanes <= out.size(); i += lanes)
        hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, from + i)), d, &out[i]);
    for (; i < out.size(); ++i) out[i] = half_to_float(halves[i]);
}

void widen_codes(std::span<float> out, const std::int8_t* codes, const float* scales) {
    const attention_detail::D d;
    const hn::Rebind<std::int32_t, attention_detail::D> d32;
    const hn::Rebind<std::int8_t, attention_detail::D> d8;
    const std::size_t lanes = hn::Lanes(d);
    static_assert(widened_group % hn::MaxLanes(attention_detail::D()) == 0,
                  "a vector has one scale");
    std::size_t i = 0;
    for (; i + lanes <= out.size(); i += lanes) {
        const auto code = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i)));
        hn::StoreU(hn::Mul(code, hn::Set(d, scales[i / widened_group])), d, &out[i]);
    }
    for (; i < out.size(); ++i) out[i] = static_cast<float>(codes[i]) * scales[i / widened_group];
}

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();
#endif
