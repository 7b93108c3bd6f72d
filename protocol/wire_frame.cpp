#include "protocol/wire_frame.h"

#include <utility>

#include "protocol/check.h"

namespace moex {

WireFrame::WireFrame(Bytes head, std::shared_ptr<const WireRows> rows,
                     std::vector<std::uint32_t> numbers, Bytes tail)
    : head_(std::move(head)),
      tail_(std::move(tail)),
      rows_(std::move(rows)),
      numbers_(std::move(numbers)) {
    for (const std::uint32_t row : numbers_)
        MOEX_CHECK(row < rows_->num_rows(), text("row ", row, " of ", rows_->num_rows()));
}

std::uint64_t WireFrame::size_bytes() const {
    const std::uint64_t own = head_.size() + tail_.size();
    return is_whole() ? own : own + numbers_.size() * rows_->value_bytes();
}

void WireFrame::append_spans(std::vector<ByteView>& out) const {
    out.push_back(head_);
    for (std::size_t begin = 0, end = 0; begin < numbers_.size(); begin = end) {
        for (end = begin + 1; end < numbers_.size() && numbers_[end] == numbers_[end - 1] + 1;)
            ++end;
        const ByteView first = rows_->values_of(numbers_[begin]);
        out.emplace_back(first.data(), (end - begin) * first.size());
    }
    if (!tail_.empty()) out.push_back(tail_);
}

Bytes WireFrame::whole() && {
    if (is_whole()) return std::move(head_);

    std::vector<ByteView> spans;
    append_spans(spans);
    Bytes bytes;
    bytes.reserve(size_bytes());
    for (const ByteView span : spans) bytes.insert(bytes.end(), span.begin(), span.end());
    return bytes;
}

}  // namespace moex
