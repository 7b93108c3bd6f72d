#include "hub/model/pack/readers/tensor_reader.h"

#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {

std::uint64_t TensorInfo::num_elements() const {
    std::uint64_t count = 1;
    for (const std::uint64_t size : shape) count *= size;
    return count;
}

std::string TensorInfo::where() const { return text(*file, ": tensor ", name.substr(0, 200)); }

Status TensorReader::read_rows(std::uint64_t first_row, std::span<float> out,
                               Bytes& scratch) const {
    const std::uint64_t row_size = info_.row_size();
    if (row_size == 0 && out.empty()) return {};
    MOEX_CHECK(
        out.size() % row_size == 0 && first_row * row_size + out.size() <= info_.num_elements(),
        text("rows ", first_row, "+", out.size() / row_size, " of ", info_.name));
    MOEX_TRY(decode_rows(first_row, out, scratch));

    const auto bad = find_non_finite(out);
    if (!bad) return {};
    // Convert the flat index of the bad element to one index per dimension.
    std::uint64_t flat = first_row * row_size + *bad;
    std::vector<std::uint64_t> index(info_.shape.size());
    for (std::size_t axis = index.size(); axis-- > 0; flat /= info_.shape[axis])
        index[axis] = flat % info_.shape[axis];
    return Error{ErrorCode::non_finite, text(info_.where(), " holds ", out[*bad], " at ",
                                             shape_text(index), ", wanted finite weights")};
}

Status TensorReader::read_int4(std::uint64_t, const Int4Rows&, Bytes&) const {
    MOEX_CHECK(false, text(info_.name, " has no INT4 groups"));
    return {};
}

Status TensorReader::read_mxfp4(std::uint64_t, const Mxfp4Rows&, Bytes&) const {
    MOEX_CHECK(false, text(info_.name, " has no MXFP4 blocks"));
    return {};
}

}  // namespace moex
