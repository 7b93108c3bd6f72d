// The files of pages that are on disk, as a tree for each client: a page's parent is the page of
// the text before it. A page whose parent is missing cannot be found, so a page leaves with all
// pages below it.
// Eviction: bytes over the limit are taken from the client with the most bytes, from the end of the
// text that this client used least recently.
//   client A 9 MB, client B 1 MB, limit 8 MB: A loses the last pages of its oldest text
// Not thread-safe: the caller locks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hub/state/page_cipher.h"

namespace moex {

struct PageEntry {
    std::string folder;                  // name of the client's folder
    PageName parent{};                   // page before this one in the text; zeros: none
    std::uint64_t bytes = 0;             // of both parts
    std::uint64_t window_bytes = 0;      // of the part of layers with a window; 0: there is none
    std::int64_t written_s = 0;          // Unix time
    bool is_written = false;             // false: the page is still in the writer's queue
    std::vector<std::uint64_t> workers;  // ids of this process's workers that computed the page
};

class PageIndex {
  public:
    bool holds(const PageName& name) const { return entries_.contains(name); }
    // Returns null if the index has no such page. Valid until the index changes.
    const PageEntry* find(const PageName& name) const;
    // Adds a page as the most recently used. Requires that the index contains the parent, and does
    // not contain the name.
    void add(const PageName& name, PageEntry entry);
    void set_written(const PageName& name, std::uint64_t bytes, std::uint64_t window_bytes = 0);
    // Removes the second part of the page that is `distance` pages before `name`, unless a page
    // between them, or this page, continues in more than one way. Returns its entry before that;
    // nullopt if there is no such part.
    std::optional<std::pair<PageName, PageEntry>> drop_window_before(const PageName& name,
                                                                     std::uint32_t distance);
    void use(const PageName& name);  // makes a page the most recently used one of its client
    // Removes a page and all pages below it, and calls `removed` for each.
    using Removed = std::function<void(const PageName&, const PageEntry&)>;
    void remove(const PageName& name, const Removed& removed);
    // Returns the page that is to leave first; nullopt if there is none.
    std::optional<PageName> next_to_evict() const;
    // Returns the pages for which `matches` is true.
    std::vector<PageName> pages_if(const std::function<bool(const PageEntry&)>& matches) const;

    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t size() const { return entries_.size(); }

  private:
    struct Node {
        PageEntry entry;
        std::uint64_t used = 0;
        std::vector<PageName> children;
    };
    struct Client {
        std::uint64_t bytes = 0;
        std::map<std::uint64_t, PageName> by_use;  // pages by time of use, the least recent first
    };
    std::map<PageName, Node> entries_;
    std::map<std::string, Client> clients_;
    std::uint64_t bytes_ = 0, uses_ = 0;
};

}  // namespace moex
