#include "hub/net/front/prefix_routes.h"

#include <algorithm>
#include <functional>
#include <string>

#include "hub/model/strict_json.h"

namespace moex::net {

PrefixRoutes::Keys PrefixRoutes::keys_of(std::string_view prompt) {
    Keys keys;
    std::uint64_t key = 0;
    while (prompt.size() >= block_bytes && keys.size() < blocks_max) {
        const std::uint64_t block = std::hash<std::string_view>()(prompt.substr(0, block_bytes));
        // Mix the key of the blocks before this one (the constants of splitmix64).
        key = (key ^ block) + 0x9e3779b97f4a7c15u;
        key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
        key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
        keys.push_back(key);
        prompt.remove_prefix(block_bytes);
    }
    return keys;
}

PrefixRoutes::Keys PrefixRoutes::keys_of_body(std::string_view body) {
    if (body.size() < block_bytes) return {};
    // The depth is bounded, since dump() calls itself for each level. A hub refuses what is deeper.
    const auto parsed = parse_strict_json(body, "body", {.depth_max = 64});
    if (!parsed.ok() || !parsed->is_object()) return {};
    // The order in which templates write them. A conversation that goes on has the same beginning.
    std::string prompt;
    for (const char* name :
         {"system", "instructions", "tools", "messages", "input", "prompt", "input_prefix"})
        if (const auto found = parsed->find(name); found != parsed->end())
            prompt += found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return keys_of(prompt);
}

const PrefixRoutes::Hubs* PrefixRoutes::find(std::uint64_t key) const {
    for (const Table* table : {&young_, &old_})
        if (const auto found = table->find(key); found != table->end()) return &found->second;
    return nullptr;
}

void PrefixRoutes::record(std::span<const std::uint64_t> keys, std::uint64_t hub) {
    for (const std::uint64_t key : keys) {
        Hubs hubs;
        if (const Hubs* const known = find(key)) hubs = *known;
        std::erase(hubs, hub);
        hubs.insert(hubs.begin(), hub);
        if (hubs.size() > hubs_max) hubs.pop_back();
        young_[key] = std::move(hubs);
        if (young_.size() < keys_max_ / 2) continue;
        old_ = std::exchange(young_, {});
    }
}

std::size_t PrefixRoutes::matched(std::span<const std::uint64_t> keys, std::uint64_t hub) const {
    std::size_t count = 0;
    for (const std::uint64_t key : keys) {
        const Hubs* const hubs = find(key);
        if (!hubs || std::ranges::find(*hubs, hub) == hubs->end()) break;
        ++count;
    }
    return count;
}

}  // namespace moex::net
