// Fuzzes the reader of pages of keys and values. The checksum is corrected first, so that the
// fuzzer reaches the checks of the fields. Accepted bytes must be the encoding of what was read. A
// page that was divided and joined again must be the same page.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "protocol/checksum.h"
#include "protocol/kv_page.h"
#include "protocol/kv_translate.h"

namespace {

void translate(const moex::KvPage& page) {
    using namespace moex;
    for (const KvRowType type : {KvRowType::f32, KvRowType::f16, KvRowType::u8})
        (void)convert_kv_rows(page, type);

    // Two hashes represent those of all texts: the page's own, and one for pages inside it.
    const auto hash_of = [&](std::uint32_t num_tokens) {
        return num_tokens == page.first_position ? page.before : Sha256{};
    };
    for (const std::uint32_t page_tokens : {16u, 128u}) {
        const auto parts = resize_kv_pages(std::span(&page, 1), page_tokens, hash_of);
        if (!parts.ok()) continue;
        std::vector<KvPage> views;
        for (const OwnedKvPage& part : *parts) views.push_back(part.page);
        const auto whole = resize_kv_pages(views, page.source.page_tokens, hash_of);
        if (!whole.ok() || whole->size() != 1) std::abort();
        const KvPage& joined = whole->front().page;
        if (!std::ranges::equal(joined.rows, page.rows) || joined.tokens != page.tokens ||
            !std::ranges::equal(joined.state, page.state) || joined.before != page.before)
            std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    Bytes bytes(reinterpret_cast<const std::byte*>(data),
                reinterpret_cast<const std::byte*>(data) + size);
    (void)decode_kv_page(bytes);
    if (size < 28) return 0;

    const std::uint64_t checksum = checksum64(ByteView(bytes).subspan(28));
    for (std::size_t i = 0; i < 8; ++i) bytes[20 + i] = static_cast<std::byte>(checksum >> (8 * i));
    const auto part = static_cast<KvPart>(std::to_integer<unsigned>(bytes[6]) % 4);
    const auto page = decode_kv_page(bytes, part);
    if (!page.ok()) return 0;
    if (encode_kv_page(*page) != bytes) std::abort();
    if (!require_source(page->source, page->source).ok()) std::abort();
    if (part == KvPart::whole) translate(*page);
    return 0;
}
