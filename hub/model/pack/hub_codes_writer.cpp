#include "hub/model/pack/hub_codes_writer.h"

#include <algorithm>
#include <cstring>

#include "protocol/half.h"

namespace moex {

HubEntries hub_entries(std::span<const HubTensorSpec> specs, HubDtype hub_dtype,
                       const std::function<TensorDtype(std::size_t)>& plain) {
    HubEntries all;
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const auto dtype = codes_dtype(specs[i], hub_dtype);
        if (!dtype) {
            all.entries.push_back(
                {.name = specs[i].name, .dtype = plain(i), .shape = specs[i].shape});
            all.of.push_back({.spec_index = i});
            continue;
        }
        const CodesLayout layout = codes_layout(specs[i], *dtype);
        for (const FileTensor* part : {&layout.codes, &layout.scales}) {
            all.entries.push_back({.name = part->name, .dtype = part->dtype, .shape = part->shape});
            all.of.push_back(
                {.spec_index = i, .codes = dtype, .is_scales = part == &layout.scales});
        }
    }
    return all;
}

void RowCoder::begin(const CodesLayout& layout) {
    layout_ = layout;
    started_.clear();
    scales_.clear();
}

bool RowCoder::add(std::span<const float> weights, Bytes& codes) {
    const std::size_t row_size = layout_.row_size,
                      row_bytes = layout_.codes.dtype == TensorDtype::int8 ? row_size
                                                                           : row_size / 2,
                      num_rows = (started_.size() + weights.size()) / row_size;
    codes.resize(num_rows * row_bytes);

    bool is_finite = true;
    for (std::size_t row = 0; row < num_rows; ++row) {
        const std::size_t taken = row_size - started_.size();
        if (started_.empty()) {
            is_finite &= add_row(weights.first(row_size), codes.data() + row * row_bytes);
        } else {
            started_.insert(started_.end(), weights.begin(),
                            weights.begin() + static_cast<std::ptrdiff_t>(taken));
            is_finite &= add_row(started_, codes.data() + row * row_bytes);
            started_.clear();
        }
        weights = weights.subspan(taken);
    }
    started_.insert(started_.end(), weights.begin(), weights.end());
    return is_finite;
}

bool RowCoder::add_row(std::span<const float> row, std::byte* codes) {
    const std::uint32_t group_size = layout_.group_size;
    bool is_finite = true;
    for (std::size_t first = 0; first < row.size(); first += group_size) {
        const auto group = row.subspan(first, group_size);
        if (layout_.codes.dtype == TensorDtype::int8) {
            const float scale = quantize_int8_group(group,
                                                    reinterpret_cast<std::int8_t*>(codes + first));
            scales_.push_back(detail::bits_of_float(scale));
        } else {
            std::uint32_t words[hub_int4_group_size / 8];
            const std::uint32_t scale_zero = quantize_int4_group(group, words);
            std::memcpy(codes + first / 2, words, sizeof words);
            is_finite &= (scale_zero & 0x7c00) != 0x7c00;
            scales_.push_back(scale_zero);
        }
    }
    return is_finite;
}

}  // namespace moex
