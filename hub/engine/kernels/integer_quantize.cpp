// Converts activations to codes of 8 bits, with Highway's vectors. The slow reference version is
// quantize_group_plain().
#include "hub/engine/kernels/quantized_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hub/engine/kernels/integer_quantize.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

QuantizedGroup quantize_group(std::int8_t* codes, const float* x, std::uint32_t group_size) {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::int8_t, decltype(d)> d8;
    const std::size_t lanes = hn::Lanes(d);

    // Compare the magnitudes' bits as whole numbers: the order is the same as that of the floats,
    // with infinity and NaN above all other values.
    auto largest_bits = hn::Zero(di);
    for (std::size_t k = 0; k < group_size; k += lanes)
        largest_bits = hn::Max(largest_bits, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + k))));
    const float largest = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, largest_bits)));

    // below this largest value, the factor 127 / largest would overflow f32
    constexpr float smallest = 1e-30f;
    constexpr float most = 3.4028235e38f;
    const auto factor = hn::Set(d, largest > smallest ? 127.0f / largest : 0.0f);
    const auto finite = hn::Set(di, largest <= most ? -1 : 0);

    auto sums = hn::Zero(di);
    for (std::size_t k = 0; k < group_size; k += lanes) {
        const auto code = hn::And(hn::NearestInt(hn::Mul(hn::LoadU(d, x + k), factor)), finite);
        sums = hn::Add(sums, code);
        hn::StoreU(hn::DemoteTo(d8, code), d8, codes + k);
    }
    return {largest / 127.0f, hn::GetLane(hn::SumOfLanes(di, sums))};
}

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moex {

HWY_EXPORT(quantize_group);
QuantizedGroup quantize_group(std::int8_t* codes, const float* x, std::uint32_t group_size) {
    return HWY_DYNAMIC_DISPATCH(quantize_group)(codes, x, group_size);
}

}  // namespace moex
#endif
