// Compares our own LZ4 block decoder with liblz4. liblz4 must accept every block that our decoder
// accepts, and must decode it to the same bytes. liblz4 also accepts a match at offset 0 with
// unspecified output; our decoder refuses it. In all other cases the verdicts must be equal. The
// first two bytes are the raw size.
#include <cstdlib>

#include "protocol/lz4_block.h"

namespace {

// Returns true if a sequence of the block has a match at offset 0.
bool has_zero_offset(moex::ByteView block) {
    std::size_t at = 0;
    const auto length = [&](std::size_t start) {
        std::size_t total = start;
        if (start == 15)
            for (unsigned byte = 255; byte == 255 && at < block.size();)
                total += byte = std::to_integer<unsigned>(block[at++]);
        return total;
    };
    while (at < block.size()) {
        const unsigned token = std::to_integer<unsigned>(block[at++]);
        at += length(token >> 4);
        if (at + 2 > block.size()) return false;
        if (block[at] == std::byte{0} && block[at + 1] == std::byte{0}) return true;
        at += 2;
        (void)length(token & 15);
    }
    return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 3) return 0;
    const std::size_t raw_bytes = 1 + (data[0] | data[1] << 8);
    // Use buffers of exact size, so that the sanitizer reports a read or write beyond their end.
    const moex::Bytes block(reinterpret_cast<const std::byte*>(data + 2),
                            reinterpret_cast<const std::byte*>(data + size));
    moex::Bytes ours(raw_bytes), theirs(raw_bytes);
    const bool ours_ok = moex::lz4_decode_portable(block, ours);
    const bool theirs_ok = moex::lz4_decode(block, theirs);
    if (ours_ok && (!theirs_ok || ours != theirs)) std::abort();
    if (theirs_ok && !ours_ok && !has_zero_offset(block)) std::abort();

    // Compress the fuzzer's bytes as well, and decode the result.
    const moex::Bytes packed = moex::lz4_encode(block);
    if (!packed.empty()) {
        moex::Bytes back(block.size());
        if (!moex::lz4_decode_portable(packed, back) || back != block) std::abort();
    }
    return 0;
}
