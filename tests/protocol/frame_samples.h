// Messages and bytes that several tests of the protocol share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "protocol/messages.h"

namespace moex {

inline WireLimits small_limits() {
    WireLimits limits;
    limits.hidden_size = 32;
    limits.num_layers = 4;
    limits.num_experts = 8;
    limits.num_tokens_max = 6;
    limits.num_pairs_max = 20;
    return limits;
}

// Returns `count` values that every row dtype except int8 represents exactly: small multiples of
// 1/8.
inline std::vector<float> exact_rows(std::size_t count, unsigned seed = 0) {
    std::vector<float> rows(count);
    for (std::size_t i = 0; i < count; ++i)
        rows[i] = static_cast<float>(static_cast<int>((i * 37 + seed * 11) % 255) - 127) / 8;
    return rows;
}

inline Bytes with_byte(Bytes frame, std::size_t offset_bytes, unsigned value) {
    frame.at(offset_bytes) = static_cast<std::byte>(value);
    return frame;
}
inline Bytes with_u16(Bytes frame, std::size_t offset_bytes, unsigned value) {
    return with_byte(with_byte(std::move(frame), offset_bytes, value & 0xff), offset_bytes + 1,
                     value >> 8);
}
inline Bytes with_u32(Bytes frame, std::size_t offset_bytes, std::uint32_t value) {
    return with_u16(with_u16(std::move(frame), offset_bytes, value & 0xffff), offset_bytes + 2,
                    value >> 16);
}
// Returns a copy of `frame` with `change_bytes` bytes added at the end, or removed if the number is
// negative. payload_bytes in the header is adjusted.
inline Bytes resized(Bytes frame, std::ptrdiff_t change_bytes) {
    ByteReader in(frame);
    in.take(8);
    const std::uint32_t payload_bytes = in.u32();
    frame.resize(
        static_cast<std::size_t>(static_cast<std::ptrdiff_t>(frame.size()) + change_bytes));
    return with_u32(std::move(frame), 8, static_cast<std::uint32_t>(payload_bytes + change_bytes));
}
inline Bytes frame_of(FrameType type, std::string_view payload, std::uint32_t sequence_id = 0) {
    ByteWriter out;
    begin_frame(out, type, sequence_id);
    out.raw(as_byte_view(payload));
    return finish_frame(std::move(out));
}

// Returns the name of the error in `result`, or "ok" if it is no error.
template <class T>
std::string verdict(const Result<T>& result) {
    return result.ok() ? "ok" : error_code_name(result.error().code);
}

// Expects that the decoder refuses every proper prefix of `frame` as truncated.
template <class Decode>
void expect_truncations_refused(const Bytes& frame, Decode decode) {
    for (std::size_t size = 0; size < frame.size(); ++size) {
        // Copy the prefix to a buffer of its exact size, so that sanitizers report a read past the
        // end.
        const Bytes prefix(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size));
        EXPECT_EQ(verdict(decode(prefix)), "truncated_frame") << size << " of " << frame.size();
    }
    Bytes longer = frame;
    longer.push_back(std::byte{0});
    EXPECT_EQ(verdict(decode(longer)), "payload_size");
}

}  // namespace moex
