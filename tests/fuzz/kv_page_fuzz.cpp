// Fuzzes the reader of pages of keys and values. The checksum is corrected first, so that the
// fuzzer reaches the checks of the fields. Accepted bytes must be the encoding of what was read.
#include <cstdint>
#include <cstdlib>

#include "protocol/checksum.h"
#include "protocol/kv_page.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    Bytes bytes(reinterpret_cast<const std::byte*>(data),
                reinterpret_cast<const std::byte*>(data) + size);
    (void)decode_kv_page(bytes);
    if (size < 28) return 0;

    const std::uint64_t checksum = checksum64(ByteView(bytes).subspan(28));
    for (std::size_t i = 0; i < 8; ++i) bytes[20 + i] = static_cast<std::byte>(checksum >> (8 * i));
    const auto page = decode_kv_page(bytes);
    if (!page.ok()) return 0;
    if (encode_kv_page(*page) != bytes) std::abort();
    if (!require_source(page->source, page->source).ok()) std::abort();
    return 0;
}
