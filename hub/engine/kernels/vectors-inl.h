// Helpers for loops over whole SIMD vectors and the remainder after them; included once per
// instruction set.
#if defined(MOEX_KERNELS_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOEX_KERNELS_VECTORS_INL_H
#undef MOEX_KERNELS_VECTORS_INL_H
#else
#define MOEX_KERNELS_VECTORS_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace vectors_detail {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;

// Calls body(offset) for each full vector of `size` floats, then tail(offset, count) for the
// remaining floats.
template <class Body, class Tail>
void for_vectors(std::size_t size, const Body& body, const Tail& tail) {
    const std::size_t lanes = hn::Lanes(Floats());
    std::size_t i = 0;
    for (; i + lanes <= size; i += lanes) body(i);
    if (i < size) tail(i, size - i);
}

// Loads `count` values, fewer than a vector has lanes; the other lanes get `fill`. Never reads past
// these values.
inline hn::Vec<Floats> load_some(const float* from, std::size_t count, float fill = 0) {
    HWY_ALIGN float padded[HWY_MAX_BYTES / sizeof(float)];
    for (std::size_t i = 0; i < hn::Lanes(Floats()); ++i) padded[i] = i < count ? from[i] : fill;
    return hn::Load(Floats(), padded);
}
inline void store_some(hn::Vec<Floats> value, float* to, std::size_t count) {
    HWY_ALIGN float padded[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(value, Floats(), padded);
    std::copy_n(padded, count, to);
}

}  // namespace vectors_detail

using vectors_detail::Floats;
using vectors_detail::for_vectors;
using vectors_detail::load_some;
using vectors_detail::store_some;

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();
#endif
