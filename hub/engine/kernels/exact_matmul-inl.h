// Matrix products with bf16 and f32 weights; included by exact.cpp once per instruction set. The
// loops compute a tile of several rows and outputs at once, so that these share loads. Each (row,
// output) has one accumulator vector, whatever the size of the tile, so tiles never change a
// result.
#if defined(MOEX_KERNELS_EXACT_MATMUL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOEX_KERNELS_EXACT_MATMUL_INL_H
#undef MOEX_KERNELS_EXACT_MATMUL_INL_H
#else
#define MOEX_KERNELS_EXACT_MATMUL_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace moex {
namespace HWY_NAMESPACE {
namespace matmul_detail {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

HWY_INLINE hn::Vec<D> load_weights(const float* from) { return hn::LoadU(D(), from); }
HWY_INLINE hn::Vec<D> load_weights(const std::uint16_t* from) {
    const hn::RebindToUnsigned<D> du32;
    const hn::Rebind<std::uint16_t, D> du16;
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, from))));
}

// Computes a tile: the products of ROWS rows with OUTS outputs, summed over all inputs.
template <int ROWS, int OUTS, class Weight>
HWY_INLINE void tile(RowsOut out, const Weight* weights, std::size_t num_in, const float* x,
                     std::size_t x_stride, std::uint32_t n) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    const Weight* row = weights + std::size_t{n} * num_in;
    hn::Vec<D> sums[ROWS][OUTS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
        for (int o = 0; o < OUTS; ++o) sums[r][o] = hn::Zero(d);

    std::size_t k = 0;
    for (; k + lanes <= num_in; k += lanes) {
        hn::Vec<D> w[OUTS];
#pragma GCC unroll 8
        for (int o = 0; o < OUTS; ++o) {
            // Prefetch the same position in the next tile: rows of weights are too short for the
            // hardware prefetcher.
            if constexpr (ROWS == 1) hwy::Prefetch(row + (o + OUTS) * num_in + k);
            w[o] = load_weights(row + o * num_in + k);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            const auto v = hn::LoadU(d, x + r * x_stride + k);
#pragma GCC unroll 8
            for (int o = 0; o < OUTS; ++o) sums[r][o] = hn::MulAdd(w[o], v, sums[r][o]);
        }
    }
    // The last, incomplete vector of weights is read through a padded copy, so that nothing is read
    // past a mapped file.
    if (k < num_in) {
        const std::size_t count = num_in - k;
        HWY_ALIGN Weight w_padded[HWY_MAX_BYTES / sizeof(float)] = {};
        HWY_ALIGN float x_padded[HWY_MAX_BYTES / sizeof(float)] = {};
        for (int r = 0; r < ROWS; ++r)
            for (int o = 0; o < OUTS; ++o) {
                std::copy_n(row + o * num_in + k, count, w_padded);
                std::copy_n(x + r * x_stride + k, count, x_padded);
                sums[r][o] = hn::MulAdd(load_weights(w_padded), hn::Load(d, x_padded), sums[r][o]);
            }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
        for (int o = 0; o < OUTS; ++o)
            out.data[r * out.stride + n + o] = hn::GetLane(hn::SumOfLanes(d, sums[r][o]));
}

// Computes the outputs [out_begin, out_end) of ROWS rows, tile by tile.
template <int ROWS, int OUTS, class Weight>
HWY_INLINE void strip(RowsOut out, const Weight* weights, std::size_t num_in, const float* x,
                      std::size_t x_stride, std::uint32_t out_begin, std::uint32_t out_end) {
    std::uint32_t n = out_begin;
    for (; n + OUTS <= out_end; n += OUTS) tile<ROWS, OUTS>(out, weights, num_in, x, x_stride, n);
    for (; n < out_end; ++n) tile<ROWS, 1>(out, weights, num_in, x, x_stride, n);
}

// A machine with 16 vector registers can keep the sums of 4 rows x 3 outputs and their inputs in
// registers; with 32 registers there is room for 4 x 4 sums.
constexpr int tile_outs = HWY_MAX_BYTES >= 64 ? 4 : 3;

template <class Weight>
void matmul_typed(RowsOut out, const Weight* weights, std::size_t num_in, RowsIn x,
                  std::uint32_t out_begin, std::uint32_t out_end) {
    if (x.num_rows == 1) {
        // The product of a single row is limited by memory throughput. Computing four outputs at
        // once hides the latency of the additions.
        strip<1, 4>(out, weights, num_in, x.data, x.stride, out_begin, out_end);
        return;
    }
    // Outputs are processed in short stretches, so that the weights of a stretch stay in the L1
    // cache while all rows are multiplied.
    const std::uint32_t stretch = std::max<std::uint32_t>(
        tile_outs,
        static_cast<std::uint32_t>(16384 / (num_in * sizeof(Weight) + 1)) / tile_outs * tile_outs);
    for (std::uint32_t n = out_begin; n < out_end; n += std::min(stretch, out_end - n)) {
        const std::uint32_t end = n + std::min(stretch, out_end - n);
        std::uint32_t r = 0;
        const auto at = [&](auto run) {
            run(RowsOut{out.data + r * out.stride, out.stride}, x.data + r * x.stride);
        };
        for (; r + 4 <= x.num_rows; r += 4)
            at([&](RowsOut to, const float* from) {
                strip<4, tile_outs>(to, weights, num_in, from, x.stride, n, end);
            });
        switch (x.num_rows - r) {
            case 3:
                at([&](RowsOut to, const float* from) {
                    strip<3, tile_outs>(to, weights, num_in, from, x.stride, n, end);
                });
                break;
            case 2:
                at([&](RowsOut to, const float* from) {
                    strip<2, tile_outs>(to, weights, num_in, from, x.stride, n, end);
                });
                break;
            case 1:
                at([&](RowsOut to, const float* from) {
                    strip<1, tile_outs>(to, weights, num_in, from, x.stride, n, end);
                });
                break;
            default: break;
        }
    }
}

}  // namespace matmul_detail

void matmul_any(RowsOut out, const WeightMatrix& weights, RowsIn x, std::uint32_t out_begin,
                std::uint32_t out_end) {
    if (weights.dtype == WeightDtype::bf16)
        matmul_detail::matmul_typed(out, static_cast<const std::uint16_t*>(weights.data),
                                    weights.num_in, x, out_begin, out_end);
    else
        matmul_detail::matmul_typed(out, static_cast<const float*>(weights.data), weights.num_in, x,
                                    out_begin, out_end);
}

}  // namespace HWY_NAMESPACE
}  // namespace moex
HWY_AFTER_NAMESPACE();
#endif
