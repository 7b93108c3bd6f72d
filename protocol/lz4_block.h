// LZ4 block format, without frames or dictionaries. Natively liblz4; the tab has only the decoder
// of ours, which is built natively as well, so that tests and a fuzzer hold it to liblz4.
// Source: LZ4 Block Format Description, lz4 project,
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

// No block of `raw_bytes` is longer.
constexpr std::uint64_t lz4_block_bytes_max(std::uint64_t raw_bytes) {
    return raw_bytes + raw_bytes / 255 + 16;
}

// One block of `raw`; empty when it would not be smaller than `raw`, and always in the tab.
Bytes lz4_encode(ByteView raw);

// true when `block` decodes to exactly raw.size() bytes; writes only
// inside `raw`, whatever `block` holds. Requires raw not empty.
bool lz4_decode(ByteView block, std::span<std::byte> raw);
// The same by our own code.
bool lz4_decode_portable(ByteView block, std::span<std::byte> raw);

}  // namespace moex
