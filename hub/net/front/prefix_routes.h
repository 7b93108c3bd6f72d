// Which hub has the beginning of a prompt in its cache, as far as a front can know: it remembers
// where it sent earlier prompts.
//
// A prompt is cut into blocks of 256 bytes. The key of a block covers all bytes before it, too, so
// two prompts have the first n keys in common exactly if their first n blocks are equal (but for
// collisions, which cost a miss in a cache). Example: after "AB" went to hub 1 and "AC" to hub 2,
// a prompt "ABD" matches two blocks of hub 1 and one of hub 2.
//
// The text is hashed and not the tokens, since a front has no tokenizer. What the hub has evicted
// since then is not known here. Owner: the mutex of HubList.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moex::net {

class PrefixRoutes {
  public:
    static constexpr std::size_t block_bytes = 256, blocks_max = 1024;
    using Keys = std::vector<std::uint64_t>;  // of the whole blocks of a prompt, in their order
    // Returns the keys of the prompt in the JSON body of a request; empty: it has none, or the body
    // is not one that a hub takes.
    static Keys keys_of_body(std::string_view body);
    static Keys keys_of(std::string_view prompt);

    explicit PrefixRoutes(std::size_t keys_max = 1 << 16) : keys_max_(keys_max) {}
    // Notes that the prompt with these keys went to `hub`.
    void record(std::span<const std::uint64_t> keys, std::uint64_t hub);
    // Returns how many leading blocks went to `hub` before.
    std::size_t matched(std::span<const std::uint64_t> keys, std::uint64_t hub) const;

  private:
    static constexpr std::size_t hubs_max = 4;  // that one block remembers: the latest
    using Hubs = std::vector<std::uint64_t>;
    using Table = std::unordered_map<std::uint64_t, Hubs>;
    const Hubs* find(std::uint64_t key) const;

    const std::size_t keys_max_;
    // `young_` has the keys that were used lately. When it is full, it replaces `old_`, and begins
    // anew.
    Table young_, old_;
};

}  // namespace moex::net
