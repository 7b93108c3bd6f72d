// The portable path: plain loops over the panels. What the other paths are held to, bit for bit.
#include <cmath>
#include <cstring>

#include "hub/engine/kernels/integer_paths.h"
#include "protocol/half.h"

namespace moex {
namespace {

struct GroupScale {
    float scale = 0, zero = 0;
};

template <PackedDtype DTYPE>
GroupScale scale_of(const std::byte* block, std::uint32_t lane) {
    GroupScale found;
    if constexpr (DTYPE == PackedDtype::int8) {
        std::memcpy(&found.scale, block + lane * 4, 4);
    } else {
        half scale = 0, zero = 0;
        std::memcpy(&scale, block + lane * 2, 2);
        std::memcpy(&zero, block + 32 + lane * 2, 2);
        found = {half_to_float(scale), half_to_float(zero)};
    }
    return found;
}

// The code of input k of a group.
template <PackedDtype DTYPE>
std::int32_t code_at(const std::byte* block, std::uint32_t lane, std::uint32_t k) {
    if constexpr (DTYPE == PackedDtype::int8) {
        return static_cast<std::int8_t>(block[64 + (k / 4 * panel_outs + lane) * 4 + k % 4]);
    } else {
        const auto both = static_cast<std::uint32_t>(
            block[64 + (k / 8 * panel_outs + lane) * 4 + k % 4]);
        return static_cast<std::int32_t>(k % 8 < 4 ? both & 15 : both >> 4);
    }
}

template <PackedDtype DTYPE>
void product(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
             std::uint32_t panel_begin, std::uint32_t panel_end) {
    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel)
        for (std::uint32_t r = 0; r < x.num_rows; ++r)
            for (std::uint32_t lane = 0; lane < panel_width(weights, panel); ++lane) {
                const std::byte* block = weights.panel(panel);
                const std::int8_t* codes = x.row_codes(r);
                float total = 0;

                for (std::uint32_t group = 0; group < x.num_groups; ++group) {
                    std::int32_t sum = 0;
                    for (std::uint32_t k = 0; k < x.group_size; ++k)
                        sum += code_at<DTYPE>(block, lane, k) * codes[k];

                    const GroupScale by = scale_of<DTYPE>(block, lane);
                    const float whole = static_cast<float>(sum) - by.zero * x.row_sums(r)[group];
                    total = total + by.scale * x.row_scales(r)[group] * whole;
                    codes += x.group_size;
                    block += weights.block_bytes();
                }
                out.data[r * out.stride + std::size_t{panel} * panel_outs + lane] = total;
            }
}

}  // namespace

const IntegerPath& integer_portable() {
    constexpr auto int8 = product<PackedDtype::int8>, int4 = product<PackedDtype::int4>;
    static constexpr IntegerPath path{"portable", int8, int4, int8, int4};
    return path;
}

QuantizedGroup quantize_group_plain(std::int8_t* codes, const float* x, std::uint32_t group_size) {
    float largest = 0;
    for (std::uint32_t k = 0; k < group_size; ++k) {
        const float size = std::fabs(x[k]);
        if (!(size <= largest)) largest = size;  // NaN counts as the largest
        if (std::isnan(largest)) break;
    }

    constexpr float smallest = 1e-30f;
    const float factor = largest > smallest ? 127.0f / largest : 0.0f;
    QuantizedGroup done{largest / 127.0f, 0};
    for (std::uint32_t k = 0; k < group_size; ++k) {
        codes[k] = std::isfinite(largest) ? static_cast<std::int8_t>(std::nearbyint(x[k] * factor))
                                          : std::int8_t{0};
        done.sum += codes[k];
    }
    return done;
}

}  // namespace moex
