#include "hub/engine/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "protocol/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hub/engine/kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "hub/engine/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float float_lowest = std::numeric_limits<float>::lowest();

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

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();

#include "hub/engine/kernels_attention-inl.h"  // uses load_some() and store_some()

#if HWY_ONCE
namespace moex {

HWY_EXPORT(rms_norm);
HWY_EXPORT(softmax);
HWY_EXPORT(exp_below_max);
HWY_EXPORT(log_sum_exp);
HWY_EXPORT(attention_scores);
HWY_EXPORT(attention_mix);
HWY_EXPORT(widen_halves);
HWY_EXPORT(widen_codes);

void rms_norm(std::span<float> out, std::span<const float> x, std::span<const float> weight,
              float eps) {
    HWY_DYNAMIC_DISPATCH(rms_norm)(out, x, weight, eps);
}
void softmax(std::span<float> x) { HWY_DYNAMIC_DISPATCH(softmax)(x); }
ExpSum exp_below_max(std::span<float> x) { return HWY_DYNAMIC_DISPATCH(exp_below_max)(x); }
float log_sum_exp(std::span<const float> x) { return HWY_DYNAMIC_DISPATCH(log_sum_exp)(x); }
void attention_scores(RowsOut scores, RowsIn q, const KvRows& k, std::uint32_t num_tokens,
                      std::uint32_t head_dim, float scale) {
    HWY_DYNAMIC_DISPATCH(attention_scores)(scores, q, k, num_tokens, head_dim, scale);
}
void attention_mix(RowsOut out, RowsIn weights, const KvRows& v, std::uint32_t num_tokens,
                   std::uint32_t head_dim) {
    HWY_DYNAMIC_DISPATCH(attention_mix)(out, weights, v, num_tokens, head_dim);
}
void widen_halves(std::span<float> out, const std::byte* row) {
    HWY_DYNAMIC_DISPATCH(widen_halves)(out, row);
}
void widen_codes(std::span<float> out, const std::byte* row) {
    HWY_DYNAMIC_DISPATCH(widen_codes)(out, row);
}

}  // namespace moex
#endif
