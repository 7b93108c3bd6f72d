#include "hub/state/page_parts.h"

#include "hub/state/page_files.h"
#include "protocol/text.h"

namespace moex {
namespace {

// Returns the bytes of the rows of `num_layers` layers of a page.
std::uint64_t layers_bytes(const KvSource& source, std::uint64_t num_layers) {
    return kv_rows_bytes(source, source.page_tokens) / (source.end_layer - source.first_layer) *
           num_layers;
}

}  // namespace

PageParts::PageParts(Options options, PageCipher& cipher)
    : options_(std::move(options)),
      rows_bytes_(layers_bytes(
          options_.source,
          options_.source.end_layer - options_.source.first_layer - options_.num_window_layers)),
      window_rows_bytes_(layers_bytes(options_.source, options_.num_window_layers)),
      cipher_(cipher) {}

Bytes PageParts::seal(const PagePlace& place, KvPart part, const std::vector<std::string>& workers,
                      ByteView rows) {
    const std::string file = place.file();
    const Bytes plain = encode_kv_page({.source = options_.source,
                                        .part = part,
                                        .before = place.before,
                                        .first_position = place.first_position,
                                        .tokens = place.tokens,
                                        .workers = workers,
                                        .rows = rows});
    return cipher_.seal(plain, part == KvPart::with_window ? window_file(file) : file);
}

Status PageParts::write(const PagePlace& place, const std::vector<std::string>& workers,
                        ByteView rows, ByteView window_rows, PageFileBytes& written) {
    const std::string file = place.file();
    if (!window_rows.empty()) {
        const Bytes sealed = seal(place, KvPart::with_window, workers, window_rows);
        MOEX_TRY(write_page_file(options_.folder, window_file(file), sealed));
        written.window_bytes = sealed.size();
    }
    const Bytes sealed = seal(place, first_part(), workers, rows);
    written.bytes = sealed.size() + written.window_bytes;
    return write_page_file(options_.folder, file, sealed);
}

// Reads one file of a page. `page` borrows from the result.
Result<Bytes> PageParts::read_part(const PagePlace& place, KvPart part, KvPage& page) {
    const bool is_window = part == KvPart::with_window;
    const std::string file = is_window ? window_file(place.file()) : place.file();
    const std::uint64_t rows_bytes = is_window ? window_rows_bytes_ : rows_bytes_;
    MOEX_ASSIGN(sealed, read_page_file(options_.folder, file, rows_bytes + (64u << 20)));
    auto plain = cipher_.open(sealed, file);
    if (!plain.ok()) return Error{plain.error().code, text(file, ": ", plain.error().message)};
    MOEX_ASSIGN(found, decode_kv_page(*plain, part));
    MOEX_TRY(require_source(found.source, options_.source));
    if (found.tokens != place.tokens || found.before != place.before ||
        found.first_position != place.first_position)
        return Error{ErrorCode::bad_file, text(file, ": the page of another text")};
    if (found.rows.size() != rows_bytes)
        return Error{ErrorCode::bad_file,
                     text(file, ": ", found.rows.size(), " bytes of rows, wanted ", rows_bytes)};
    page = std::move(found);
    return plain;
}

Result<ReadPage> PageParts::read(const PagePlace& place) {
    KvPage first, second;
    MOEX_ASSIGN(plain, read_part(place, first_part(), first));
    ReadPage page;
    if (place.wants_window) {
        MOEX_ASSIGN(window, read_part(place, KvPart::with_window, second));
        page.window_memory = std::move(window);
    }
    page.memory = std::move(plain);
    page.rows = first.rows;  // within the memory that was moved
    page.window_rows = second.rows;
    page.workers = std::move(first.workers);
    return page;
}

}  // namespace moex
