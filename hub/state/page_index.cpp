#include "hub/state/page_index.h"

#include <algorithm>
#include <utility>

#include "protocol/check.h"

namespace moex {

const PageEntry* PageIndex::find(const PageName& name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : &found->second.entry;
}

void PageIndex::add(const PageName& name, PageEntry entry) {
    if (entry.parent != PageName{}) {
        const auto parent = entries_.find(entry.parent);
        MOEX_CHECK(parent != entries_.end(), "a page without its parent");
        parent->second.children.push_back(name);
    }
    Client& client = clients_[entry.folder];
    client.bytes += entry.bytes;
    client.by_use.emplace(++uses_, name);
    bytes_ += entry.bytes;
    const bool is_new = entries_.try_emplace(name, Node{std::move(entry), uses_, {}}).second;
    MOEX_CHECK(is_new, "a page is in the index already");
}

void PageIndex::set_written(const PageName& name, std::uint64_t bytes, std::uint64_t window_bytes) {
    PageEntry& entry = entries_.at(name).entry;
    entry.is_written = true;
    entry.window_bytes = window_bytes;
    clients_.at(entry.folder).bytes += bytes - entry.bytes;
    bytes_ += bytes - entry.bytes;
    entry.bytes = bytes;
}

std::optional<std::pair<PageName, PageEntry>> PageIndex::drop_window_before(
    const PageName& name, std::uint32_t distance) {
    auto at = entries_.find(name);
    for (; at != entries_.end() && distance > 0; --distance) {
        at = entries_.find(at->second.entry.parent);
        if (at != entries_.end() && at->second.children.size() > 1) return std::nullopt;
    }
    if (at == entries_.end() || at->second.entry.window_bytes == 0) return std::nullopt;
    const PageEntry before = at->second.entry;
    PageEntry& entry = at->second.entry;
    entry.bytes -= before.window_bytes;
    clients_.at(entry.folder).bytes -= before.window_bytes;
    bytes_ -= before.window_bytes;
    entry.window_bytes = 0;
    return std::pair(at->first, before);
}

void PageIndex::use(const PageName& name) {
    Node& node = entries_.at(name);
    auto& by_use = clients_.at(node.entry.folder).by_use;
    by_use.erase(node.used);
    node.used = ++uses_;
    by_use.emplace(node.used, name);
}

void PageIndex::remove(const PageName& name, const Removed& removed) {
    const auto top = entries_.find(name);
    if (top == entries_.end()) return;
    if (const auto parent = entries_.find(top->second.entry.parent); parent != entries_.end())
        std::erase(parent->second.children, name);

    std::vector<PageName> left{name};
    while (!left.empty()) {
        const auto found = entries_.find(left.back());
        left.pop_back();
        const Node& node = found->second;
        left.insert(left.end(), node.children.begin(), node.children.end());
        const auto client = clients_.find(node.entry.folder);
        client->second.bytes -= node.entry.bytes;
        bytes_ -= node.entry.bytes;
        client->second.by_use.erase(node.used);
        if (client->second.by_use.empty()) clients_.erase(client);
        if (removed) removed(found->first, node.entry);
        entries_.erase(found);
    }
}

std::optional<PageName> PageIndex::next_to_evict() const {
    const auto largest = std::max_element(
        clients_.begin(), clients_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    if (largest == clients_.end()) return std::nullopt;

    // The first page of a text is used before the last one. So the oldest page is at the beginning
    // of its text, and the end of that text leaves.
    PageName name = largest->second.by_use.begin()->second;
    for (;;) {
        const Node& node = entries_.at(name);
        if (node.children.empty()) return name;
        name = *std::min_element(node.children.begin(), node.children.end(),
                                 [&](const PageName& a, const PageName& b) {
                                     return entries_.at(a).used < entries_.at(b).used;
                                 });
    }
}

std::vector<PageName> PageIndex::pages_if(
    const std::function<bool(const PageEntry&)>& matches) const {
    std::vector<PageName> names;
    for (const auto& [name, node] : entries_)
        if (matches(node.entry)) names.push_back(name);
    return names;
}

}  // namespace moex
