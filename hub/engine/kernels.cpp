#include "hub/engine/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "protocol/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hub/engine/kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "hub/engine/kernels_int4-inl.h"
#include "hub/engine/kernels_matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
constexpr float float_lowest = std::numeric_limits<float>::lowest();

// Calls body(offset) per full vector, then tail(offset, count) for what is left.
template <class Body, class Tail>
void for_vectors(std::size_t size, const Body& body, const Tail& tail) {
    const std::size_t lanes = hn::Lanes(Floats());
    std::size_t i = 0;
    for (; i + lanes <= size; i += lanes) body(i);
    if (i < size) tail(i, size - i);
}

// Loads `count` < Lanes values; the other lanes are `fill`. Never reads past them.
hn::Vec<Floats> load_some(const float* from, std::size_t count, float fill = 0) {
    HWY_ALIGN float padded[HWY_MAX_BYTES / sizeof(float)];
    for (std::size_t i = 0; i < hn::Lanes(Floats()); ++i) padded[i] = i < count ? from[i] : fill;
    return hn::Load(Floats(), padded);
}
void store_some(hn::Vec<Floats> value, float* to, std::size_t count) {
    HWY_ALIGN float padded[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(value, Floats(), padded);
    std::copy_n(padded, count, to);
}
float sum_of_lanes(hn::Vec<Floats> value) { return hn::GetLane(hn::SumOfLanes(Floats(), value)); }

void rms_norm(std::span<float> out, std::span<const float> x, std::span<const float> weight,
              float eps) {
    const Floats d;
    auto squares = hn::Zero(d);
    for_vectors(
        x.size(),
        [&](std::size_t i) {
            const auto v = hn::LoadU(d, &x[i]);
            squares = hn::MulAdd(v, v, squares);
        },
        [&](std::size_t i, std::size_t n) {
            const auto v = load_some(&x[i], n);
            squares = hn::MulAdd(v, v, squares);
        });
    const float factor = 1.0f /
                         std::sqrt(sum_of_lanes(squares) / static_cast<float>(x.size()) + eps);
    const auto factors = hn::Set(d, factor);
    for_vectors(
        x.size(),
        [&](std::size_t i) {
            hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, &x[i]), factors), hn::LoadU(d, &weight[i])), d,
                       &out[i]);
        },
        [&](std::size_t i, std::size_t n) {
            store_some(hn::Mul(hn::Mul(load_some(&x[i], n), factors), load_some(&weight[i], n)),
                       &out[i], n);
        });
}

hn::Vec<Floats> silu(hn::Vec<Floats> v) {
    const Floats d;
    // Beyond 88 exp() leaves f32; silu(−88) is zero to any tolerance.
    const auto e = hn::Exp(d, hn::Min(hn::Neg(v), hn::Set(d, 88.0f)));
    return hn::Div(v, hn::Add(hn::Set(d, 1.0f), e));
}
void silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up) {
    const Floats d;
    for_vectors(
        out.size(),
        [&](std::size_t i) {
            hn::StoreU(hn::Mul(silu(hn::LoadU(d, &gate[i])), hn::LoadU(d, &up[i])), d, &out[i]);
        },
        [&](std::size_t i, std::size_t n) {
            store_some(hn::Mul(silu(load_some(&gate[i], n)), load_some(&up[i], n)), &out[i], n);
        });
}

void add_scaled_to(std::span<float> x, std::span<const float> y, float factor) {
    const Floats d;
    const auto factors = hn::Set(d, factor);
    for_vectors(
        x.size(),
        [&](std::size_t i) {
            hn::StoreU(hn::MulAdd(hn::LoadU(d, &y[i]), factors, hn::LoadU(d, &x[i])), d, &x[i]);
        },
        [&](std::size_t i, std::size_t n) {
            store_some(hn::MulAdd(load_some(&y[i], n), factors, load_some(&x[i], n)), &x[i], n);
        });
}
void add_to(std::span<float> x, std::span<const float> y) {
    const Floats d;
    for_vectors(
        x.size(),
        [&](std::size_t i) {
            hn::StoreU(hn::Add(hn::LoadU(d, &y[i]), hn::LoadU(d, &x[i])), d, &x[i]);
        },
        [&](std::size_t i, std::size_t n) {
            for (std::size_t j = i; j < i + n; ++j) x[j] += y[j];
        });
}
void scale_by(std::span<float> x, float factor) {
    const Floats d;
    const auto factors = hn::Set(d, factor);
    for_vectors(
        x.size(),
        [&](std::size_t i) { hn::StoreU(hn::Mul(hn::LoadU(d, &x[i]), factors), d, &x[i]); },
        [&](std::size_t i, std::size_t n) {
            for (std::size_t j = i; j < i + n; ++j) x[j] *= factor;
        });
}

float max_of(std::span<const float> x) {
    const Floats d;
    auto most = hn::Set(d, float_lowest);
    for_vectors(
        x.size(), [&](std::size_t i) { most = hn::Max(most, hn::LoadU(d, &x[i])); },
        [&](std::size_t i, std::size_t n) {
            most = hn::Max(most, load_some(&x[i], n, float_lowest));
        });
    return hn::GetLane(hn::MaxOfLanes(d, most));
}
ExpSum exp_below_max(std::span<float> x) {
    const Floats d;
    const float max = max_of(x);
    const auto most = hn::Set(d, max);
    auto sums = hn::Zero(d);
    for_vectors(
        x.size(),
        [&](std::size_t i) {
            const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, &x[i]), most));
            sums = hn::Add(sums, e);
            hn::StoreU(e, d, &x[i]);
        },
        [&](std::size_t i, std::size_t n) {
            const auto e = hn::Exp(d, hn::Sub(load_some(&x[i], n, float_lowest), most));
            sums = hn::Add(sums, e);
            store_some(e, &x[i], n);
        });
    return {max, sum_of_lanes(sums)};
}
void softmax(std::span<float> x) { scale_by(x, 1.0f / exp_below_max(x).sum); }
float log_sum_exp(std::span<const float> x) {
    const Floats d;
    const float max = max_of(x);
    const auto most = hn::Set(d, max);
    auto sums = hn::Zero(d);
    for_vectors(
        x.size(),
        [&](std::size_t i) {
            sums = hn::Add(sums, hn::Exp(d, hn::Sub(hn::LoadU(d, &x[i]), most)));
        },
        [&](std::size_t i, std::size_t n) {
            sums = hn::Add(sums, hn::Exp(d, hn::Sub(load_some(&x[i], n, float_lowest), most)));
        });
    return max + std::log(sum_of_lanes(sums));
}

const char* kernel_target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();

#include "hub/engine/kernels_attention-inl.h"  // uses load_some() and store_some()

#if HWY_ONCE
namespace moex {

HWY_EXPORT(matmul_any);
HWY_EXPORT(int4_prepare_any);
HWY_EXPORT(matmul_int4_any);
HWY_EXPORT(rms_norm);
HWY_EXPORT(silu_mul);
HWY_EXPORT(add_to);
HWY_EXPORT(add_scaled_to);
HWY_EXPORT(scale_by);
HWY_EXPORT(softmax);
HWY_EXPORT(exp_below_max);
HWY_EXPORT(log_sum_exp);
HWY_EXPORT(attention_scores);
HWY_EXPORT(attention_mix);
HWY_EXPORT(widen_halves);
HWY_EXPORT(widen_codes);
HWY_EXPORT(kernel_target);

void matmul(RowsOut out, const WeightMatrix& weights, RowsIn x, std::uint32_t out_begin,
            std::uint32_t out_end) {
    HWY_DYNAMIC_DISPATCH(matmul_any)(out, weights, x, out_begin, out_end);
}
std::size_t int4_prepared_floats(std::uint32_t num_in, std::uint32_t group_size) {
    return num_in + std::size_t{16} * (num_in / group_size);  // 16: the lanes of a group, at most
}
void int4_prepare(RowsOut prepared, RowsIn x, std::uint32_t num_in, std::uint32_t group_size) {
    HWY_DYNAMIC_DISPATCH(int4_prepare_any)(prepared, x, num_in, group_size);
}
void matmul_int4(RowsOut out, const Int4Matrix& weights, RowsIn prepared, std::uint32_t out_begin,
                 std::uint32_t out_end) {
    HWY_DYNAMIC_DISPATCH(matmul_int4_any)(out, weights, prepared, out_begin, out_end);
}
void rms_norm(std::span<float> out, std::span<const float> x, std::span<const float> weight,
              float eps) {
    HWY_DYNAMIC_DISPATCH(rms_norm)(out, x, weight, eps);
}
void silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up) {
    HWY_DYNAMIC_DISPATCH(silu_mul)(out, gate, up);
}
void add_to(std::span<float> x, std::span<const float> y) { HWY_DYNAMIC_DISPATCH(add_to)(x, y); }
void add_scaled_to(std::span<float> x, std::span<const float> y, float factor) {
    HWY_DYNAMIC_DISPATCH(add_scaled_to)(x, y, factor);
}
void scale_by(std::span<float> x, float factor) { HWY_DYNAMIC_DISPATCH(scale_by)(x, factor); }
void softmax(std::span<float> x) { HWY_DYNAMIC_DISPATCH(softmax)(x); }
ExpSum exp_below_max(std::span<float> x) { return HWY_DYNAMIC_DISPATCH(exp_below_max)(x); }
float log_sum_exp(std::span<const float> x) { return HWY_DYNAMIC_DISPATCH(log_sum_exp)(x); }
void attention_scores(RowsOut scores, RowsIn q, const float* k, std::size_t k_stride,
                      std::uint32_t num_tokens, std::uint32_t head_dim, float scale) {
    HWY_DYNAMIC_DISPATCH(attention_scores)(scores, q, k, k_stride, num_tokens, head_dim, scale);
}
void attention_mix(RowsOut out, RowsIn weights, const float* v, std::size_t v_stride,
                   std::uint32_t num_tokens, std::uint32_t head_dim) {
    HWY_DYNAMIC_DISPATCH(attention_mix)(out, weights, v, v_stride, num_tokens, head_dim);
}
void widen_halves(std::span<float> out, const std::uint16_t* halves) {
    HWY_DYNAMIC_DISPATCH(widen_halves)(out, halves);
}
void widen_codes(std::span<float> out, const std::int8_t* codes, const float* scales) {
    HWY_DYNAMIC_DISPATCH(widen_codes)(out, codes, scales);
}
const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(kernel_target)(); }

}  // namespace moex
#endif
