#include "web-worker/finite_rows.h"

#include <cstring>

namespace moex {

bool wire_rows_finite(Dtype dtype, ByteView bytes, std::uint64_t num_rows, std::uint32_t row_size) {
    const std::uint64_t count = num_rows * row_size;
    std::uint32_t bad = 0;

    const auto scan16 = [&](std::uint16_t exponent) {
        const std::byte* at = bytes.data();
        for (std::uint64_t i = 0; i < count; ++i) {
            std::uint16_t value;
            std::memcpy(&value, at + 2 * i, 2);
            bad |= (value & exponent) == exponent ? 1u : 0u;
        }
    };

    const auto scan32 = [&](std::uint64_t first_byte, std::uint64_t values) {
        for (std::uint64_t i = 0; i < values; ++i) {
            std::uint32_t value;
            std::memcpy(&value, bytes.data() + first_byte + 4 * i, 4);
            bad |= (value & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
        }
    };

    switch (dtype) {
        case Dtype::f16: scan16(0x7c00); break;
        case Dtype::bf16: scan16(0x7f80); break;
        case Dtype::f32: scan32(0, count); break;
        case Dtype::int8: scan32(count, num_rows); break;
        case Dtype::int4: return false;
    }
    return bad == 0;
}

}  // namespace moex
