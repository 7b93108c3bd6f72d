#include "hub/engine/kernels/quantized_rows.h"

#include <algorithm>

namespace moex {

QuantizedRows QuantizedRows::rows(std::uint32_t first, std::uint32_t count) const {
    QuantizedRows part = *this;
    part.num_rows = count;
    if (row_index) {
        part.row_index += first;
    } else {
        part.codes = row_codes(first);
        part.scales = row_scales(first);
        part.sums = row_sums(first);
    }
    return part;
}

void QuantizedBuffer::resize(std::uint32_t num_rows, std::uint32_t num_in,
                             std::uint32_t group_size) {
    num_rows_ = num_rows;
    num_groups_ = (num_in + group_size - 1) / group_size;
    group_size_ = group_size;

    const std::size_t groups = std::size_t{num_rows} * num_groups_;
    if (codes_.size() < groups * group_size) codes_.resize(groups * group_size);
    if (scales_.size() < groups) {
        scales_.resize(groups);
        sums_.resize(groups);
    }
}

QuantizedRows QuantizedBuffer::rows() const {
    return {codes_.data(), scales_.data(), sums_.data(), num_rows_,
            num_groups_,   group_size_,    nullptr};
}

void QuantizedBuffer::quantize_row(std::uint32_t row, std::span<const float> x) {
    const std::size_t first = std::size_t{row} * num_groups_;
    for (std::uint32_t group = 0; group < num_groups_; ++group) {
        const std::size_t begin = std::size_t{group} * group_size_;
        const std::size_t count = std::min<std::size_t>(group_size_, x.size() - begin);

        const float* from = x.data() + begin;
        float padded[128] = {};
        if (count < group_size_) {
            std::copy_n(from, count, padded);
            from = padded;
        }
        const QuantizedGroup done = quantize_group(codes_.data() + (first + group) * group_size_,
                                                   from, group_size_);
        scales_[first + group] = done.scale;
        sums_[first + group] = static_cast<float>(done.sum);
    }
}

}  // namespace moex
