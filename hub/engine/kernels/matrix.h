// The types of rows and weight matrices that the kernels take as arguments. They borrow their
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moex {

enum class WeightDtype : std::uint8_t { f32, bf16 };

// A weight matrix [num_out, num_in], row-major. The memory is borrowed, usually from a mapped file.
struct WeightMatrix {
    const void* data = nullptr;
    WeightDtype dtype = WeightDtype::f32;
    std::uint32_t num_out = 0, num_in = 0;
    std::uint64_t size_bytes() const {
        return std::uint64_t{num_out} * num_in * (dtype == WeightDtype::f32 ? 4 : 2);
    }
};

// Weights of 4 bits by groups in the layout of tensor_format.h. INT4: codes u32 [num_out,
// num_in/8], scale_zero u32 [num_out, num_in/group_size].
struct Int4Matrix {
    const std::uint32_t* codes = nullptr;
    const std::uint32_t* scale_zero = nullptr;
    std::uint32_t num_out = 0, num_in = 0, group_size = 0;
    // If it is set, the codes are MXFP4: these are their scales, [num_out, num_in/32], scale_zero
    // is null, and group_size is 32.
    const std::uint8_t* mxfp4_scales = nullptr;
};

// INT8 weights by groups in the layout of hub_codes.h: codes s8 [num_out, num_in], scales f32
// [num_out, num_in/group_size].
struct Int8Matrix {
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr;
    std::uint32_t num_out = 0, num_in = 0, group_size = 0;
};

// Rows of floats in memory: row r starts at data + r · stride.
struct RowsIn {
    const float* data = nullptr;
    std::size_t stride = 0;
    std::uint32_t num_rows = 0;
};
struct RowsOut {
    float* data = nullptr;
    std::size_t stride = 0;
};

}  // namespace moex
