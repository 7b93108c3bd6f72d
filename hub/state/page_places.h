// The places of pages: in a text, and on disk. The name of a page follows from the store's key, the
// source of the rows, the client, and all tokens up to the page's end. Two texts that begin alike
// share the pages of that beginning. Without the key, a name shows nothing of a text.
//   pages of 4 tokens, text 5 9 2 7 7 1 3 3: page A = name(5 9 2 7), parent zeros;
//   page B = name(5 9 2 7 7 1 3 3), parent A, first_position 4
// The hash of the tokens goes on where the text's memory ends, so that a whole text costs one pass
// over its tokens, however many calls store or fetch its pages.
// Threads: a PagePlaces is immutable, and any thread may use it; a PageWalk belongs to one call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/base/sha256.h"
#include "hub/engine/kv_page_store.h"
#include "hub/state/page_cipher.h"
#include "protocol/kv_page.h"

namespace moex {

// The position of a page in its text, and its file.
struct PagePlace {
    PageName name{}, parent{};  // parent: the page before it in the text; zeros: none
    std::string folder;         // name of the client's folder
    std::uint32_t first_position = 0;
    Sha256 before{};  // hash of all tokens before first_position
    std::vector<TokenId> tokens;
    bool wants_window = false;  // to be read: the second part, too
    std::string file() const;   // folder/name.parent
};

// Names the folders of clients and the pages of texts.
class PagePlaces {
  public:
    // `cipher` outlives this object. `key_id_of` returns the id of the API key of a client; it may
    // be empty.
    PagePlaces(const PageCipher& cipher, const KvSource& source,
               std::function<std::string(std::string_view client)> key_id_of);

    std::string folder_of(std::string_view client) const;
    // Returns the name of the page at whose end a text ends. `text_hash`: hash of all its tokens.
    PageName name_of(const std::string& folder, const Sha256& text_hash) const;
    std::uint32_t page_tokens() const { return page_tokens_; }

  private:
    const PageCipher& cipher_;
    const Bytes source_;
    const std::uint32_t page_tokens_;
    const std::function<std::string(std::string_view client)> key_id_of_;
};

// Goes through the places of the full pages of a text, from page `first_page` on. A copy goes on by
// itself.
class PageWalk {
  public:
    // `places`, `tokens` and `memory` outlive the walk and its copies. `memory` may be null; it has
    // what an earlier walk of this text remembered.
    PageWalk(const PagePlaces& places, std::string_view client, std::span<const TokenId> tokens,
             std::uint32_t first_page, std::unique_ptr<TextMemory>* memory);

    bool has_next() const;
    PagePlace next();  // requires has_next()
    // The page up to which a fetch brings this text; 0: not known. remember() keeps it, too.
    std::uint32_t end_page() const { return at_.end_page; }
    void set_end_page(std::uint32_t page) { at_.end_page = page; }
    // Makes later walks of this text begin behind the last page at most.
    void remember() const;

  private:
    struct HashedText : TextMemory {
        GrowingSha256 hash;
        std::size_t num_tokens = 0;  // number of tokens that `hash` has
        std::uint32_t end_page = 0;
    };

    const PagePlaces& places_;
    const std::span<const TokenId> tokens_;
    const std::string folder_;
    std::unique_ptr<TextMemory>* const memory_;
    HashedText at_;
    Sha256 before_{};
    PageName parent_{};
};

}  // namespace moex
