#include "hub/engine/kernels/exact.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hub/engine/kernels/exact.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "hub/engine/kernels/exact_int4-inl.h"
#include "hub/engine/kernels/exact_matmul-inl.h"
#include "hub/engine/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

hn::Vec<Floats> silu(hn::Vec<Floats> v) {
    const Floats d;
    // Limit the exponent to 88, since exp() overflows f32 above it. silu(−88) is practically zero.
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

const char* kernel_target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moex {

HWY_EXPORT(matmul_any);
HWY_EXPORT(int4_prepare_any);
HWY_EXPORT(matmul_int4_any);
HWY_EXPORT(silu_mul);
HWY_EXPORT(add_to);
HWY_EXPORT(add_scaled_to);
HWY_EXPORT(scale_by);
HWY_EXPORT(kernel_target);

void matmul(RowsOut out, const WeightMatrix& weights, RowsIn x, std::uint32_t out_begin,
            std::uint32_t out_end) {
    HWY_DYNAMIC_DISPATCH(matmul_any)(out, weights, x, out_begin, out_end);
}
std::size_t int4_prepared_floats(std::uint32_t num_in, std::uint32_t group_size) {
    // Each group of weights keeps 16 partial sums, one for each lane of the widest vectors.
    return num_in + std::size_t{16} * (num_in / group_size);
}
void int4_prepare(RowsOut prepared, RowsIn x, std::uint32_t num_in, std::uint32_t group_size) {
    HWY_DYNAMIC_DISPATCH(int4_prepare_any)(prepared, x, num_in, group_size);
}
void matmul_int4(RowsOut out, const Int4Matrix& weights, RowsIn prepared, std::uint32_t out_begin,
                 std::uint32_t out_end) {
    HWY_DYNAMIC_DISPATCH(matmul_int4_any)(out, weights, prepared, out_begin, out_end);
}
void silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up) {
    HWY_DYNAMIC_DISPATCH(silu_mul)(out, gate, up);
}
void add_to(std::span<float> x, std::span<const float> y) { HWY_DYNAMIC_DISPATCH(add_to)(x, y); }
void add_scaled_to(std::span<float> x, std::span<const float> y, float factor) {
    HWY_DYNAMIC_DISPATCH(add_scaled_to)(x, y, factor);
}
void scale_by(std::span<float> x, float factor) { HWY_DYNAMIC_DISPATCH(scale_by)(x, factor); }
const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(kernel_target)(); }

}  // namespace moex
#endif
