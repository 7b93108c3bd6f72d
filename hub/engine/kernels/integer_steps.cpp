// The steps of an expert between and after its integer products, with Highway's vectors. The slow
// reference versions have the same names in namespace plain. The code uses only operations for
// which IEEE 754 defines one rounding, and fuses none, so that every instruction set gives the same
// bits.
#include "hub/engine/kernels/integer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hub/engine/kernels/integer_steps.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace steps_detail {

// Returns e^x for x in [-87, 88], with an error of about one unit in the last place.
// Source: Moshier, Cephes Math Library, expf: x = n · log 2 + r, and a polynomial in r.
template <class D, class V>
HWY_INLINE V exponential(D d, V x) {
    const hn::RebindToSigned<D> di;
    const auto n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
    auto r = hn::Sub(x, hn::Mul(n, hn::Set(d, 0.693359375f)));
    r = hn::Sub(r, hn::Mul(n, hn::Set(d, -2.12194440e-4f)));

    auto sum = hn::Set(d, 1.9875691500e-4f);
    for (const float next :
         {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        sum = hn::Add(hn::Mul(sum, r), hn::Set(d, next));
    sum = hn::Add(hn::Add(hn::Mul(hn::Mul(sum, r), r), r), hn::Set(d, 1.0f));

    const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
    return hn::Mul(sum, hn::BitCast(d, exponent));
}

template <class D>
HWY_INLINE void silu_mul(D d, float* out, const float* gate, const float* up) {
    const auto v = hn::LoadU(d, gate);
    const auto x = hn::Max(hn::Min(hn::Neg(v), hn::Set(d, 88.0f)), hn::Set(d, -87.0f));
    const auto silu = hn::Div(v, hn::Add(hn::Set(d, 1.0f), exponential(d, x)));
    hn::StoreU(hn::Mul(silu, hn::LoadU(d, up)), d, out);
}

template <class D>
HWY_INLINE void add_scaled(D d, float* sum, const float* y, float factor) {
    const auto product = hn::Mul(hn::LoadU(d, y), hn::Set(d, factor));
    hn::StoreU(hn::Add(hn::LoadU(d, sum), product), d, sum);
}

}  // namespace steps_detail

// Values beyond the last whole vector are computed one by one with the same operations, so they
// have the same bits.
void integer_silu_mul(float* out, const float* gate, const float* up, std::size_t size) {
    const hn::ScalableTag<float> d;
    std::size_t i = 0;
    for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d))
        steps_detail::silu_mul(d, out + i, gate + i, up + i);
    for (; i < size; ++i)
        steps_detail::silu_mul(hn::CappedTag<float, 1>(), out + i, gate + i, up + i);
}

void integer_add_scaled(float* sum, const float* y, float factor, std::size_t size) {
    const hn::ScalableTag<float> d;
    std::size_t i = 0;
    for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d))
        steps_detail::add_scaled(d, sum + i, y + i, factor);
    for (; i < size; ++i)
        steps_detail::add_scaled(hn::CappedTag<float, 1>(), sum + i, y + i, factor);
}

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace moex {

HWY_EXPORT(integer_silu_mul);
HWY_EXPORT(integer_add_scaled);
void integer_silu_mul(std::span<float> out, std::span<const float> gate,
                      std::span<const float> up) {
    HWY_DYNAMIC_DISPATCH(integer_silu_mul)(out.data(), gate.data(), up.data(), out.size());
}
void integer_add_scaled(std::span<float> sum, std::span<const float> y, float factor) {
    HWY_DYNAMIC_DISPATCH(integer_add_scaled)(sum.data(), y.data(), factor, sum.size());
}

namespace plain {

void integer_silu_mul(std::span<float> out, std::span<const float> gate,
                      std::span<const float> up) {
    for (std::size_t i = 0; i < out.size(); ++i) {
        const float v = gate[i], x = std::fmax(std::fmin(-v, 88.0f), -87.0f);
        const float n = std::nearbyint(x * 1.44269504f);
        const float r = x - n * 0.693359375f - n * -2.12194440e-4f;

        float sum = 1.9875691500e-4f;
        for (const float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                 1.6666665459e-1f, 5.0000001201e-1f})
            sum = sum * r + next;
        sum = sum * r * r + r + 1.0f;
        out[i] = v / (1.0f + std::ldexp(sum, static_cast<int>(n))) * up[i];
    }
}

void integer_add_scaled(std::span<float> sum, std::span<const float> y, float factor) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + y[i] * factor;
}

}  // namespace plain
}  // namespace moex
#endif
