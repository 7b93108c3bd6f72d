// The portable path: plain loops over the panels. The tests compare all other paths with it, bit
// for bit.
#include <cmath>
#include <cstring>

#include "hub/engine/kernels/integer_paths.h"
#include "protocol/half.h"
#include "protocol/tensor_format.h"

namespace moex {
namespace {

struct GroupScale {
    float scale = 0, zero = 0;
};

template <PackedDtype DTYPE>
GroupScale scale_of(const std::byte* scales, std::uint32_t lane) {
    GroupScale found;
    if constexpr (DTYPE == PackedDtype::int8) {
        std::memcpy(&found.scale, scales + lane * 4, 4);
    } else if constexpr (DTYPE == PackedDtype::mxfp4) {
        found.scale = mxfp4_half_scale(std::to_integer<std::uint8_t>(scales[lane]));
    } else {
        half scale = 0, zero = 0;
        std::memcpy(&scale, scales + lane * 2, 2);
        if constexpr (DTYPE == PackedDtype::int4) std::memcpy(&zero, scales + 32 + lane * 2, 2);
        found = {half_to_float(scale), half_to_float(zero)};
    }
    return found;
}

// Returns the code that a group has for input k of output `lane`.
template <PackedDtype DTYPE>
std::int32_t code_at(const std::byte* codes, std::uint32_t lane, std::uint32_t k) {
    const auto byte_at = [&](std::uint32_t line) {
        return static_cast<std::uint32_t>(codes[(line * panel_outs + lane) * 4 + k % 4]);
    };
    if constexpr (DTYPE == PackedDtype::int8) {
        return static_cast<std::int8_t>(byte_at(k / 4));
    } else if constexpr (DTYPE == PackedDtype::int6) {
        const std::uint32_t line = k / 16 * 3, part = k % 16 / 4;
        const std::uint32_t code = part < 3 ? byte_at(line + part) & 63
                                            : byte_at(line) >> 6 | byte_at(line + 1) >> 6 << 2 |
                                                  byte_at(line + 2) >> 6 << 4;
        return static_cast<std::int32_t>(code) - 32;
    } else {
        const std::uint32_t both = byte_at(k / 8), code = k % 8 < 4 ? both & 15 : both >> 4;
        return DTYPE == PackedDtype::mxfp4 ? mxfp4_twice(code) : static_cast<std::int32_t>(code);
    }
}

template <PackedDtype DTYPE>
void product(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
             std::uint32_t panel_begin, std::uint32_t panel_end) {
    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel)
        for (std::uint32_t r = 0; r < x.num_rows; ++r)
            for (std::uint32_t lane = 0; lane < panel_width(weights, panel); ++lane) {
                const std::int8_t* codes = x.row_codes(r);
                const PanelGroups<DTYPE> groups(weights, panel);
                float total = 0;

                for (std::uint32_t group = 0; group < x.num_groups; ++group) {
                    const GroupPlace at = groups[group];
                    std::int32_t sum = 0;
                    for (std::uint32_t k = 0; k < x.group_size; ++k)
                        sum += code_at<DTYPE>(at.codes, lane, k) * codes[k];

                    const GroupScale by = scale_of<DTYPE>(at.scales, lane);
                    const float whole = static_cast<float>(sum) - by.zero * x.row_sums(r)[group];
                    total = total + by.scale * x.row_scales(r)[group] * whole;
                    codes += x.group_size;
                }
                out.data[r * out.stride + std::size_t{panel} * panel_outs + lane] = total;
            }
}

}  // namespace

const IntegerPath& integer_portable() {
    constexpr IntegerProducts products{product<PackedDtype::int8>, product<PackedDtype::int6>,
                                       product<PackedDtype::int4>, product<PackedDtype::mxfp4>};
    static constexpr IntegerPath path{"portable", products, products};
    return path;
}

QuantizedGroup quantize_group_plain(std::int8_t* codes, const float* x, std::uint32_t group_size) {
    float largest = 0;
    for (std::uint32_t k = 0; k < group_size; ++k) {
        const float size = std::fabs(x[k]);
        // the comparison is negated so that NaN counts as the largest
        if (!(size <= largest)) largest = size;
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
