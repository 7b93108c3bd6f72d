// The two products of attention over a stretch of cached rows; included by kernels.cpp once per
// instruction set. The loops compute a tile of queries and keys (or columns of v) at once, so that
// these share loads and several sums are in flight. Each (query, key) and each (query, column) has
// one accumulator, summed in the same order for every size of tile, so tiles never change a result.
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

// Number of keys (or vectors of columns) in a tile of four queries: the sums then take half of the
// machine's 16 or 32 registers.
constexpr int beside_four = hn::MaxLanes(D()) >= 16 ? 4 : 2;

// Reduces a vector to four lanes by adding its upper half to its lower half: lane i is the sum of
// lanes i, i + 4, i + 8, ... These are the first steps of Highway's SumOfLanes.
template <class Tag>
HWY_INLINE hn::Vec<D4> fold(Tag, hn::Vec<Tag> v) {
    if constexpr (hn::MaxLanes(Tag()) == 4) {
        return v;
    } else {
        const hn::Half<Tag> half;
        return fold(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
    }
}

// Computes SumOfLanes of four vectors at once; each vector's lanes are added in the order of
// SumOfLanes.
HWY_INLINE hn::Vec<D4> four_sums(hn::Vec<D> v0, hn::Vec<D> v1, hn::Vec<D> v2, hn::Vec<D> v3) {
    const D4 d4;
    const auto a = fold(D(), v0), b = fold(D(), v1), c = fold(D(), v2), e = fold(D(), v3);
    const auto ab = hn::Add(hn::ConcatLowerLower(d4, b, a), hn::ConcatUpperUpper(d4, b, a)),
               ce = hn::Add(hn::ConcatLowerLower(d4, e, c), hn::ConcatUpperUpper(d4, e, c));
    return hn::Add(hn::ConcatEven(d4, ce, ab), hn::ConcatOdd(d4, ce, ab));
}

// These types read a cached row of one dtype as f32: at(i) returns a vector of the row's values
// from index i on; some(i, n) reads only n values.
struct FloatRow {
    const float* values;

    FloatRow(const std::byte* row, std::size_t) : values(reinterpret_cast<const float*>(row)) {}
    HWY_INLINE hn::Vec<D> at(std::size_t i) const { return hn::LoadU(D(), values + i); }
    HWY_INLINE hn::Vec<D> some(std::size_t i, std::size_t n) const {
        return load_some(values + i, n);
    }
};

struct HalfRow {
    const std::uint16_t* halves;

    HalfRow(const std::byte* row, std::size_t)
        : halves(reinterpret_cast<const std::uint16_t*>(row)) {}
    HWY_INLINE hn::Vec<D> at(std::size_t i) const {
        const hn::Rebind<hwy::float16_t, D> d16;
        return hn::PromoteTo(D(),
                             hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(halves + i)));
    }
    HWY_INLINE hn::Vec<D> some(std::size_t i, std::size_t n) const {
        HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
        for (std::size_t k = 0; k < n; ++k) values[k] = half_to_float(halves[i + k]);
        return load_some(values, n);
    }
};

struct CodeRow {
    const float* scales;
    const std::int8_t* codes;

    CodeRow(const std::byte* row, std::size_t head_dim)
        : scales(reinterpret_cast<const float*>(row)),
          codes(reinterpret_cast<const std::int8_t*>(scales +
                                                     (head_dim + kv_group - 1) / kv_group)) {}
    HWY_INLINE hn::Vec<D> at(std::size_t i) const {
        static_assert(kv_group % hn::MaxLanes(D()) == 0, "a vector has one scale");
        const D d;
        const hn::Rebind<std::int32_t, D> d32;
        const hn::Rebind<std::int8_t, D> d8;
        const auto code = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i)));
        return hn::Mul(code, hn::Set(d, scales[i / kv_group]));
    }
    HWY_INLINE hn::Vec<D> some(std::size_t i, std::size_t n) const {
        HWY_ALIGN float values[HWY_MAX_BYTES / sizeof(float)];
        for (std::size_t k = 0; k < n; ++k)
            values[k] = static_cast<float>(codes[i + k]) * scales[(i + k) / kv_group];
        return load_some(values, n);
    }
};

// Writes the products of QUERIES rows of q with KEYS keys to `scores`. QUERIES or KEYS is 4, so
// that four sums are finished at a time.
template <int QUERIES, int KEYS, class Row>
HWY_INLINE void score_tile(RowsOut scores, const float* q, std::size_t q_stride, const std::byte* k,
                           std::size_t k_stride, std::size_t head_dim, float scale) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    // one vector of partial sums per (query, key) pair: sums[query · KEYS + key]
    hn::Vec<D> sums[QUERIES * KEYS];
#pragma GCC unroll 16
    for (int i = 0; i < QUERIES * KEYS; ++i) sums[i] = hn::Zero(d);

    const auto add = [&](auto query_at, auto key_at) {
        hn::Vec<D> query[QUERIES];
#pragma GCC unroll 4
        for (int r = 0; r < QUERIES; ++r) query[r] = query_at(q + r * q_stride);
#pragma GCC unroll 4
        for (int t = 0; t < KEYS; ++t) {
            const auto key = key_at(Row(k + t * k_stride, head_dim));
#pragma GCC unroll 4
            for (int r = 0; r < QUERIES; ++r)
                sums[r * KEYS + t] = hn::MulAdd(query[r], key, sums[r * KEYS + t]);
        }
    };
    std::size_t i = 0;
    for (; i + lanes <= head_dim; i += lanes)
        add([&](const float* from) { return hn::LoadU(d, from + i); },
            [&](const Row& row) { return row.at(i); });
    if (i < head_dim)
        add([&](const float* from) { return load_some(from + i, head_dim - i); },
            [&](const Row& row) { return row.some(i, head_dim - i); });

    const auto scales = hn::Set(D4(), scale);
#pragma GCC unroll 4
    for (int four = 0; four < QUERIES * KEYS; four += 4) {
        const auto score = hn::Mul(
            scales, four_sums(sums[four], sums[four + 1], sums[four + 2], sums[four + 3]));
        float* const to = scores.data + four / KEYS * scores.stride;
        if constexpr (KEYS == 4) {
            hn::StoreU(score, D4(), to);
        } else {
            const hn::Half<D4> half;
            hn::StoreU(hn::LowerHalf(half, score), half, to);
            hn::StoreU(hn::UpperHalf(half, score), half, to + scores.stride);
        }
    }
}

// Adds the rows of v, weighted by QUERIES rows of weights, to `out`, for COLUMNS vectors of columns
// from column `first` on.
template <int QUERIES, int COLUMNS, class Row>
HWY_INLINE void mix_tile(RowsOut out, const float* weights, std::size_t weights_stride,
                         const KvRows& v, std::size_t first, std::uint32_t num_tokens,
                         std::size_t head_dim) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    hn::Vec<D> sums[QUERIES][COLUMNS];
#pragma GCC unroll 4
    for (int r = 0; r < QUERIES; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; ++c)
            sums[r][c] = hn::LoadU(d, out.data + r * out.stride + first + c * lanes);

    const std::byte* at = v.data;
    for (std::uint32_t token = 0; token < num_tokens; ++token, at += v.stride_bytes) {
        const Row row(at, head_dim);
        hn::Vec<D> weight[QUERIES];
#pragma GCC unroll 4
        for (int r = 0; r < QUERIES; ++r)
            weight[r] = hn::Set(d, weights[r * weights_stride + token]);
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; ++c) {
            const auto value = row.at(first + c * lanes);
#pragma GCC unroll 4
            for (int r = 0; r < QUERIES; ++r) sums[r][c] = hn::MulAdd(weight[r], value, sums[r][c]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < QUERIES; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; ++c)
            hn::StoreU(sums[r][c], d, out.data + r * out.stride + first + c * lanes);
}

// Calls mix_tile() for all columns of QUERIES rows, COLUMNS vectors at a time.
template <int QUERIES, int COLUMNS, class Row>
HWY_INLINE void mix_rows(RowsOut out, const float* weights, std::size_t weights_stride,
                         const KvRows& v, std::uint32_t num_tokens, std::size_t head_dim) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + COLUMNS * lanes <= head_dim; i += COLUMNS * lanes)
        mix_tile<QUERIES, COLUMNS, Row>(out, weights, weights_stride, v, i, num_tokens, head_dim);
    for (; i + lanes <= head_dim; i += lanes)
        mix_tile<QUERIES, 1, Row>(out, weights, weights_stride, v, i, num_tokens, head_dim);

    for (int r = 0; r < QUERIES && i < head_dim; ++r) {
        float* to = out.data + r * out.stride + i;
        auto sum = load_some(to, head_dim - i);
        for (std::uint32_t token = 0; token < num_tokens; ++token)
            sum = hn::MulAdd(hn::Set(d, weights[r * weights_stride + token]),
                             Row(v.data + token * v.stride_bytes, head_dim).some(i, head_dim - i),
                             sum);
        store_some(sum, to, head_dim - i);
    }
}

template <class Row>
void scores_of(RowsOut scores, RowsIn q, const KvRows& k, std::uint32_t num_tokens,
               std::size_t head_dim, float scale) {
    const auto tile = [&]<int QUERIES, int KEYS>(std::uint32_t r, std::uint32_t token) {
        score_tile<QUERIES, KEYS, Row>(
            {scores.data + r * scores.stride + token, scores.stride}, q.data + r * q.stride,
            q.stride, k.data + token * k.stride_bytes, k.stride_bytes, head_dim, scale);
    };
    std::uint32_t token = 0;
    for (; token + 4 <= num_tokens; token += 4) {
        std::uint32_t r = 0;
        for (; r + 4 <= q.num_rows; r += 4)
            for (std::uint32_t t = token; t < token + 4; t += beside_four)
                tile.template operator()<4, beside_four>(r, t);
        for (; r + 2 <= q.num_rows; r += 2) tile.template operator()<2, 4>(r, token);
        if (r < q.num_rows) tile.template operator()<1, 4>(r, token);
    }

    // Fewer than four keys remain. Each is multiplied by a tile of four keys that reads this key
    // four times (stride 0).
    for (; token < num_tokens; ++token)
        for (std::uint32_t r = 0; r < q.num_rows; ++r) {
            float four[4];
            score_tile<1, 4, Row>({four, 4}, q.data + r * q.stride, q.stride,
                                  k.data + token * k.stride_bytes, 0, head_dim, scale);
            scores.data[r * scores.stride + token] = four[0];
        }
}

template <class Row>
void mix_of(RowsOut out, RowsIn weights, const KvRows& v, std::uint32_t num_tokens,
            std::size_t head_dim) {
    const auto rows = [&]<int QUERIES, int COLUMNS>(std::uint32_t r) {
        mix_rows<QUERIES, COLUMNS, Row>({out.data + r * out.stride, out.stride},
                                        weights.data + r * weights.stride, weights.stride, v,
                                        num_tokens, head_dim);
    };
    std::uint32_t r = 0;
    for (; r + 4 <= weights.num_rows; r += 4) rows.template operator()<4, beside_four>(r);
    for (; r + 2 <= weights.num_rows; r += 2) rows.template operator()<2, 4>(r);
    if (r < weights.num_rows) rows.template operator()<1, 4>(r);
}

}  // namespace attention_detail

void attention_scores(RowsOut scores, RowsIn q, const KvRows& k, std::uint32_t num_tokens,
                      std::uint32_t head_dim, float scale) {
    using namespace attention_detail;
    switch (k.dtype) {
        case KvDtype::f32: return scores_of<FloatRow>(scores, q, k, num_tokens, head_dim, scale);
        case KvDtype::f16: return scores_of<HalfRow>(scores, q, k, num_tokens, head_dim, scale);
        case KvDtype::int8: return scores_of<CodeRow>(scores, q, k, num_tokens, head_dim, scale);
    }
}

void attention_mix(RowsOut out, RowsIn weights, const KvRows& v, std::uint32_t num_tokens,
                   std::uint32_t head_dim) {
    using namespace attention_detail;
    switch (v.dtype) {
        case KvDtype::f32: return mix_of<FloatRow>(out, weights, v, num_tokens, head_dim);
        case KvDtype::f16: return mix_of<HalfRow>(out, weights, v, num_tokens, head_dim);
        case KvDtype::int8: return mix_of<CodeRow>(out, weights, v, num_tokens, head_dim);
    }
}

// Widening to f32 rounds each value once or not at all, with the same result for every vector
// length.
namespace attention_detail {
template <class Row>
void widen(std::span<float> out, const Row& row) {
    for_vectors(
        out.size(), [&](std::size_t i) { hn::StoreU(row.at(i), D(), &out[i]); },
        [&](std::size_t i, std::size_t n) { store_some(row.some(i, n), &out[i], n); });
}
}  // namespace attention_detail

void widen_halves(std::span<float> out, const std::byte* row) {
    attention_detail::widen(out, attention_detail::HalfRow(row, out.size()));
}
void widen_codes(std::span<float> out, const std::byte* row) {
    attention_detail::widen(out, attention_detail::CodeRow(row, out.size()));
}

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();
#endif
