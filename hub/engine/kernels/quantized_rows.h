// Activations that are quantised in groups to codes of 8 bits, the input of the products in
// integer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moex {

// The result of converting group_size values of x to codes: the scale and the sum of the codes.
struct QuantizedGroup {
    float scale = 0;
    std::int32_t sum = 0;
};
QuantizedGroup quantize_group(std::int8_t* codes, const float* x, std::uint32_t group_size);
// Converts one group with plain loops: the slow reference version of quantize_group().
QuantizedGroup quantize_group_plain(std::int8_t* codes, const float* x, std::uint32_t group_size);

// Quantised activations. Row r of the product is stored as row number `row` = row_index[r], or r if
// there is no index; its codes begin at codes + row · num_groups · group_size.
struct QuantizedRows {
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr;  // [rows, num_groups]
    const float* sums = nullptr;    // [rows, num_groups]: the sum of each group's codes
    std::uint32_t num_rows = 0, num_groups = 0, group_size = 0;
    const std::uint32_t* row_index = nullptr;  // [num_rows]

    std::size_t row(std::uint32_t r) const { return row_index ? row_index[r] : r; }
    const std::int8_t* row_codes(std::uint32_t r) const {
        return codes + row(r) * num_groups * group_size;
    }
    const float* row_scales(std::uint32_t r) const { return scales + row(r) * num_groups; }
    const float* row_sums(std::uint32_t r) const { return sums + row(r) * num_groups; }
    // Returns a view of the rows [first, first + count).
    QuantizedRows rows(std::uint32_t first, std::uint32_t count) const;
};

// A buffer for quantised rows, which only grows. quantize_row() may write its rows in any order.
class QuantizedBuffer {
  public:
    void resize(std::uint32_t num_rows, std::uint32_t num_in, std::uint32_t group_size);
    QuantizedRows rows() const;
    // Quantises one row. Per group, scale = max|x| / 127 (or 0 if max|x| is tiny) and code =
    // round(x · (127 / max|x|)), ties to even. A value that is not finite makes the group's scale
    // not finite. `x` has num_in values.
    void quantize_row(std::uint32_t row, std::span<const float> x);

  private:
    std::vector<std::int8_t> codes_;
    std::vector<float> scales_, sums_;
    std::uint32_t num_rows_ = 0, num_groups_ = 0, group_size_ = 0;
};

}  // namespace moex
