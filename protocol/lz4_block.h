// Coding of LZ4 blocks, without frames or dictionaries. Native builds use liblz4. The build for
// tabs has only this project's own decoder. Native builds contain this decoder as well, so that
// tests and a fuzzer can compare it with liblz4. Source: LZ4 Block Format Description, lz4 project,
// with its end-of-block rules as liblz4 enforces them.
#pragma once

#include <cstdint>
#include <span>

#include "protocol/bytes.h"

namespace moex {

#ifdef __EMSCRIPTEN__
inline constexpr bool lz4_can_encode = false;
#else
inline constexpr bool lz4_can_encode = true;
#endif

// Returns the largest size in bytes of a block that encodes `raw_bytes` bytes.
constexpr std::uint64_t lz4_block_bytes_max(std::uint64_t raw_bytes) {
    return raw_bytes + raw_bytes / 255 + 16;
}

// Compresses `raw` to one block. The result is empty when the block would not be smaller than
// `raw`, and always in the tab, which has no encoder.
Bytes lz4_encode(ByteView raw);

// Returns true when `block` decodes to exactly raw.size() bytes. Writes only inside `raw` for any
// contents of `block`. Requires that `raw` is not empty.
bool lz4_decode(ByteView block, std::span<std::byte> raw);
// Decodes like lz4_decode(), with this project's own decoder, which every build contains.
bool lz4_decode_portable(ByteView block, std::span<std::byte> raw);

}  // namespace moex
