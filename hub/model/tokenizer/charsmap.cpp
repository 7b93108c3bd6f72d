#include "hub/model/tokenizer/charsmap.h"

#include "hub/model/tokenizer/base64.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

Error bad_map(std::string_view why) {
    return {ErrorCode::bad_file, text("the tokenizer's precompiled_charsmap ", why)};
}

// The parts of a unit of the double array, as darts-clone packs them.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FFu; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFFu; }
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

std::uint32_t u32_at(std::string_view bytes, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
        value |= std::uint32_t{static_cast<std::uint8_t>(bytes[at + i])} << (8 * i);
    return value;
}

}  // namespace

Result<std::shared_ptr<const CharsMap>> CharsMap::from_base64(std::string_view base64) {
    const auto bytes = base64_bytes(base64);
    if (!bytes) return bad_map("is not base64");
    return from_bytes(*bytes);
}

Result<std::shared_ptr<const CharsMap>> CharsMap::from_bytes(std::string_view bytes) {
    if (bytes.size() < 4) return bad_map(text("has ", bytes.size(), " bytes, wanted at least 4"));
    const std::uint32_t trie_bytes = u32_at(bytes, 0);
    if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4)
        return bad_map(text("has ", bytes.size() - 4, " bytes, wanted a trie of ", trie_bytes));

    auto map = std::make_shared<CharsMap>();
    map->units_.resize(trie_bytes / 4);
    for (std::size_t i = 0; i < map->units_.size(); ++i) map->units_[i] = u32_at(bytes, 4 + 4 * i);
    map->values_ = bytes.substr(4 + std::size_t{trie_bytes});
    if (!utf8_is_valid(map->values_)) return bad_map("has values that are not UTF-8");
    if (!map->values_.empty() && map->values_.back() != '\0')
        return bad_map("has a last value without an end");
    return std::shared_ptr<const CharsMap>(std::move(map));
}

std::size_t CharsMap::longest_key(std::string_view text, std::string_view& value) const {
    std::size_t longest = 0;
    std::uint32_t node = offset_of(units_[0]);
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<std::uint8_t>(text[i]);
        node ^= byte;
        // A zero byte would match a leaf, and a damaged map leads outside.
        if (byte == 0 || node >= units_.size() || label_of(units_[node]) != byte) break;
        const std::uint32_t unit = units_[node];
        node ^= offset_of(unit);
        if (!has_leaf(unit)) continue;
        if (node >= units_.size() || value_of(units_[node]) >= values_.size()) break;
        const std::size_t begin = value_of(units_[node]);
        value = std::string_view(values_).substr(begin, values_.find('\0', begin) - begin);
        longest = i + 1;
    }
    return longest;
}

std::string CharsMap::apply(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        std::string_view value;
        if (const std::size_t key = longest_key(text.substr(at), value); key > 0) {
            out += value;
            at += key;
            continue;
        }
        const std::size_t num_bytes = utf8_step(text, at).num_bytes;
        out.append(text, at, num_bytes);
        at += num_bytes;
    }
    // A key of a damaged map may end inside a character.
    return utf8_is_valid(out) ? out : utf8_repair(out);
}

}  // namespace moex
