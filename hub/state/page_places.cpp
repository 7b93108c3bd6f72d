#include "hub/state/page_places.h"

#include <bit>

#include "hub/state/page_files.h"

namespace moex {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as in memory");

std::string PagePlace::file() const { return page_file(folder, name, parent); }

PagePlaces::PagePlaces(const PageCipher& cipher, const KvSource& source,
                       std::function<std::string(std::string_view client)> key_id_of)
    : cipher_(cipher),
      source_(kv_source_bytes(source)),
      page_tokens_(source.page_tokens),
      key_id_of_(std::move(key_id_of)) {}

std::string PagePlaces::folder_of(std::string_view client) const {
    const std::string key_id = key_id_of_ ? key_id_of_(client) : "";
    return hex_of(cipher_.name("client", as_byte_view(client))) + "." +
           (key_id.empty() ? no_key_id : key_id);
}

PageName PagePlaces::name_of(const std::string& folder, const Sha256& text_hash) const {
    Bytes named = source_;
    for (const ByteView part : {as_byte_view(folder), ByteView(text_hash)})
        named.insert(named.end(), part.begin(), part.end());
    return cipher_.name("page", named);
}

PageWalk::PageWalk(const PagePlaces& places, std::string_view client,
                   std::span<const TokenId> tokens, std::uint32_t first_page,
                   std::unique_ptr<TextMemory>* memory)
    : places_(places),
      tokens_(tokens),
      folder_(places.folder_of(client)),
      memory_(memory) {
    const std::size_t begin = std::size_t{first_page} * places_.page_tokens();
    const auto* known = memory_ ? dynamic_cast<const HashedText*>(memory_->get()) : nullptr;
    if (known && known->num_tokens <= begin) at_ = *known;
    if (known && known->end_page <= first_page) at_.end_page = 0;
    at_.hash.add(std::as_bytes(tokens_.subspan(at_.num_tokens, begin - at_.num_tokens)));
    at_.num_tokens = begin;
    before_ = at_.hash.value();
    if (begin > 0) parent_ = places_.name_of(folder_, before_);
}

bool PageWalk::has_next() const { return at_.num_tokens + places_.page_tokens() <= tokens_.size(); }

PagePlace PageWalk::next() {
    const auto ids = tokens_.subspan(at_.num_tokens, places_.page_tokens());
    at_.hash.add(std::as_bytes(ids));
    const Sha256 after = at_.hash.value();
    PagePlace place{.name = places_.name_of(folder_, after),
                    .parent = parent_,
                    .folder = folder_,
                    .first_position = static_cast<std::uint32_t>(at_.num_tokens),
                    .before = before_,
                    .tokens = {ids.begin(), ids.end()}};
    at_.num_tokens += places_.page_tokens();
    parent_ = place.name;
    before_ = after;
    return place;
}

void PageWalk::remember() const {
    if (memory_) *memory_ = std::make_unique<HashedText>(at_);
}

}  // namespace moex
