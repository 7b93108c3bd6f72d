// The files of one page: encodes, encrypts and writes its parts, and reads, decrypts and checks
// them. A page has one part, or two where layers have a window (kv_page_store.h).
//   FOLDER/<client>.<key id>/<page>.<page before>           all rows, or those without a window
//   FOLDER/<client>.<key id>/<page>.<page before>.window    the rows of layers with a window
// Owner: the store's thread, since a cipher seals and opens on one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hub/state/page_cipher.h"
#include "hub/state/page_places.h"
#include "protocol/kv_page.h"

namespace moex {

// Bytes of the files of a page: of both parts together, and of the second one.
struct PageFileBytes {
    std::uint64_t bytes = 0, window_bytes = 0;
};

struct ReadPage {
    Bytes memory, window_memory;  // own the rows
    ByteView rows, window_rows;   // window_rows is empty if the place wants no second part
    std::vector<std::string> workers;
};

class PageParts {
  public:
    struct Options {
        std::filesystem::path folder;
        KvSource source;
        std::uint32_t num_window_layers = 0;  // 0: pages have one part
        bool has_windows = false;
    };
    // `cipher` outlives this object.
    PageParts(Options options, PageCipher& cipher);

    // Bytes of the rows of a page's first part, and of its second part.
    std::uint64_t rows_bytes() const { return rows_bytes_; }
    std::uint64_t window_rows_bytes() const { return window_rows_bytes_; }

    // Writes the files of a page, the second part first: a page that is found has its parts. Empty
    // `window_rows` are not written. `written` has the bytes of the files, also after an error.
    Status write(const PagePlace& place, const std::vector<std::string>& workers, ByteView rows,
                 ByteView window_rows, PageFileBytes& written);
    // Error bad_file or bad_field: a file is damaged, or has the rows of another text or source.
    Result<ReadPage> read(const PagePlace& place);

  private:
    KvPart first_part() const {
        return options_.has_windows ? KvPart::without_window : KvPart::whole;
    }
    Bytes seal(const PagePlace& place, KvPart part, const std::vector<std::string>& workers,
               ByteView rows);
    Result<Bytes> read_part(const PagePlace& place, KvPart part, KvPage& page);

    const Options options_;
    const std::uint64_t rows_bytes_, window_rows_bytes_;
    PageCipher& cipher_;
};

}  // namespace moex
