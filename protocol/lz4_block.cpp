#include "protocol/lz4_block.h"

#include <cstring>

#ifndef __EMSCRIPTEN__
#include <lz4.h>
#endif

namespace moex {
namespace {

constexpr std::size_t match_bytes_min = 4;
constexpr std::size_t last_literals = 5;  // the final bytes of the output are always literals
// a match starts at least this number of bytes before the end of the output
constexpr std::size_t last_match_distance = 12;
constexpr std::size_t after_literals_min =
    2 + 1 + last_literals;  // behind a match: its offset, a token and the final literals

// Reads the bytes that extend a length of 15. A byte of 255 means that another byte follows.
// Returns false at the end of the block, or if the length exceeds `length_max`.
bool extend_length(ByteView block, std::size_t& at, std::size_t& length, std::size_t length_max) {
    unsigned byte = 255;
    while (byte == 255) {
        if (at == block.size() || length > length_max) return false;
        byte = std::to_integer<unsigned>(block[at++]);
        length += byte;
    }
    return true;
}

}  // namespace

bool lz4_decode_portable(ByteView block, std::span<std::byte> raw) {
    std::size_t in = 0, out = 0;
    while (in < block.size()) {
        const unsigned token = std::to_integer<unsigned>(block[in++]);
        std::size_t num_literals = token >> 4;
        if (num_literals == 15 && !extend_length(block, in, num_literals, raw.size())) return false;
        if (num_literals > block.size() - in || num_literals > raw.size() - out) return false;
        if (num_literals != 0) std::memcpy(raw.data() + out, block.data() + in, num_literals);
        in += num_literals;
        out += num_literals;
        if (in == block.size()) return out == raw.size();
        if (block.size() - in < after_literals_min || raw.size() - out < last_match_distance)
            return false;

        const std::size_t offset = std::to_integer<std::size_t>(block[in]) |
                                   std::to_integer<std::size_t>(block[in + 1]) << 8;
        in += 2;
        if (offset == 0 || offset > out) return false;
        std::size_t match_bytes = token & 15;
        if (match_bytes == 15 && !extend_length(block, in, match_bytes, raw.size())) return false;
        match_bytes += match_bytes_min;
        if (match_bytes + last_literals > raw.size() - out) return false;
        std::byte* to = raw.data() + out;
        const std::byte* from = to - offset;
        if (offset >= match_bytes)
            std::memcpy(to, from, match_bytes);
        else
            for (std::size_t i = 0; i < match_bytes; ++i)
                to[i] = from[i];  // an overlapping match repeats the previous `offset` bytes
        out += match_bytes;
    }
    return false;
}

#ifdef __EMSCRIPTEN__

Bytes lz4_encode(ByteView) { return {}; }
bool lz4_decode(ByteView block, std::span<std::byte> raw) {
    return lz4_decode_portable(block, raw);
}

#else

Bytes lz4_encode(ByteView raw) {
    if (raw.size() < 2 || raw.size() > LZ4_MAX_INPUT_SIZE) return {};
    Bytes block(raw.size() - 1);
    const int size = LZ4_compress_default(
        reinterpret_cast<const char*>(raw.data()), reinterpret_cast<char*>(block.data()),
        static_cast<int>(raw.size()), static_cast<int>(block.size()));
    block.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return block;
}

bool lz4_decode(ByteView block, std::span<std::byte> raw) {
    if (block.size() > LZ4_MAX_INPUT_SIZE || raw.size() > LZ4_MAX_INPUT_SIZE) return false;
    const int size = LZ4_decompress_safe(
        reinterpret_cast<const char*>(block.data()), reinterpret_cast<char*>(raw.data()),
        static_cast<int>(block.size()), static_cast<int>(raw.size()));
    return size >= 0 && static_cast<std::size_t>(size) == raw.size();
}

#endif

}  // namespace moex
