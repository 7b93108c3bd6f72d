// ByteReader and ByteWriter: little-endian access to byte buffers with bounds checks.
// A read past the end returns zeros and sets overrun(), so that a decoder can read a whole header
// and check once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace moex {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

inline ByteView as_byte_view(std::string_view text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text_view(ByteView bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class ByteReader {
  public:
    explicit ByteReader(ByteView bytes) : bytes_(bytes) {}

    std::uint8_t u8() { return static_cast<std::uint8_t>(integer<1>()); }
    std::uint16_t u16() { return static_cast<std::uint16_t>(integer<2>()); }
    std::uint32_t u32() { return static_cast<std::uint32_t>(integer<4>()); }
    std::uint64_t u64() { return integer<8>(); }
    // Returns a view of the next `num_bytes` bytes of the buffer. If fewer bytes remain, the result
    // is empty and overrun() is set.
    ByteView take(std::size_t num_bytes) {
        if (num_bytes > remaining_bytes()) {
            overrun_ = true;
            offset_ = bytes_.size();
            return {};
        }
        const ByteView taken = bytes_.subspan(offset_, num_bytes);
        offset_ += num_bytes;
        return taken;
    }
    std::size_t remaining_bytes() const { return bytes_.size() - offset_; }
    std::size_t offset_bytes() const { return offset_; }
    bool overrun() const { return overrun_; }

  private:
    template <int N>
    std::uint64_t integer() {
        const ByteView raw = take(N);
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < raw.size(); ++i)
            value |= std::uint64_t{std::to_integer<std::uint8_t>(raw[i])} << (8 * i);
        return value;
    }
    ByteView bytes_;
    std::size_t offset_ = 0;
    bool overrun_ = false;
};

class ByteWriter {
  public:
    explicit ByteWriter(std::size_t reserve_bytes = 0) { bytes_.reserve(reserve_bytes); }
    // Clears the buffer `reuse` and writes to it. Once its capacity has grown enough, no allocation
    // is needed.
    explicit ByteWriter(Bytes&& reuse) : bytes_(std::move(reuse)) { bytes_.clear(); }

    void u8(std::uint8_t value) { integer<1>(value); }
    void u16(std::uint16_t value) { integer<2>(value); }
    void u32(std::uint32_t value) { integer<4>(value); }
    void u64(std::uint64_t value) { integer<8>(value); }
    void raw(ByteView bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
    // Appends `num_bytes` zero bytes and returns a view that the caller fills. The view is valid
    // until the next write.
    std::span<std::byte> grow(std::size_t num_bytes) {
        bytes_.resize(bytes_.size() + num_bytes);
        return std::span(bytes_).last(num_bytes);
    }
    void pad_to(std::size_t multiple) {
        bytes_.resize((bytes_.size() + multiple - 1) / multiple * multiple);
    }
    std::size_t size_bytes() const { return bytes_.size(); }
    void patch_u32(std::size_t offset_bytes, std::uint32_t value) {
        for (std::size_t i = 0; i < 4; ++i)
            bytes_[offset_bytes + i] = static_cast<std::byte>(value >> (8 * i));
    }
    Bytes take() && { return std::move(bytes_); }

  private:
    template <int N>
    void integer(std::uint64_t value) {
        for (int i = 0; i < N; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
    }
    Bytes bytes_;
};

}  // namespace moex
