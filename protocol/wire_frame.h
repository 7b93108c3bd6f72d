// WireFrame: an outgoing frame. It consists of bytes that it owns, or of such bytes around rows
// that several frames of a round share. A round sends the same rows to several workers. One buffer
// per frame would copy these rows for each worker. The rows are therefore encoded once (WireRows)
// and never copied: the connection that writes the frame gathers them.
#pragma once

#include <memory>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/tensor_format.h"

namespace moex {

// Activation rows in wire form, which several frames may share.
struct WireRows {
    Dtype dtype = Dtype::f16;
    std::uint32_t row_size = 0;
    Bytes bytes;  // the result of encode_rows(): values of all rows, then for int8 the scales

    std::size_t value_bytes() const { return std::size_t{row_size} * dtype_bits(dtype) / 8; }
    std::size_t scale_bytes() const { return dtype == Dtype::int8 ? sizeof(float) : 0; }
    std::size_t num_rows() const {
        return row_size == 0 ? 0 : bytes.size() / (value_bytes() + scale_bytes());
    }
    ByteView values_of(std::size_t row) const {
        return ByteView(bytes).subspan(row * value_bytes(), value_bytes());
    }
    ByteView scale_of(std::size_t row) const {
        return ByteView(bytes).subspan(num_rows() * value_bytes() + row * scale_bytes(),
                                       scale_bytes());
    }
};

class WireFrame {
  public:
    WireFrame(Bytes whole) : head_(std::move(whole)) {}
    // Makes a frame that consists of `head`, then the values of the rows `numbers` of `rows`, then
    // `tail`.
    WireFrame(Bytes head, std::shared_ptr<const WireRows> rows, std::vector<std::uint32_t> numbers,
              Bytes tail);

    bool is_whole() const { return rows_ == nullptr; }
    // Returns all bytes of a frame that is stored whole. For a frame that shares rows it returns at
    // least the headers.
    ByteView head() const { return head_; }
    std::uint64_t size_bytes() const;
    // Appends views of the bytes of the frame to a list, in order. The views are valid until the
    // frame is moved or destroyed. Adjacent rows share one view.
    void append_spans(std::vector<ByteView>& out) const;
    // Returns the frame as one buffer. If the frame shares rows, the function copies its parts
    // together.
    Bytes whole() &&;

  private:
    Bytes head_, tail_;
    std::shared_ptr<const WireRows> rows_;
    std::vector<std::uint32_t> numbers_;
};

}  // namespace moex
