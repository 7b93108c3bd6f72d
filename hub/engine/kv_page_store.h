// The interface of a store that keeps full pages of keys and values outside of the cache, so that
// they survive an eviction or the process (hub/state keeps them on disk). The engine copies pages
// out when they are full, and takes them back before a prompt is computed.
//   text of 40 tokens, pages of 16, a store that has pages 0 and 1: fetch() brings both, and the
//   engine computes the tokens from 32 on
// A page belongs to a text from its first token on, and to the client that sent the text.
// Where layers look at a window only, a page has two parts, as in the cache: rows of layers without
// a window, and those of layers with one. A store may let the second part of a page go once a text
// is longer than what a window sees. It brings a text back up to a page before which it has the
// second parts that a window sees.
//   window of 2 pages; 8 pages, second parts of pages 3, 4 and 7:  fetch() brings pages 0 to 4
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hub/model/tokenizer/token_id.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// What a store remembers of one text between its calls, e.g. the state of a hash, so that a call
// for a later page does not begin at the first token. The caller owns it and passes it with each
// call for the same text, to which tokens are only added.
class TextMemory {
  public:
    virtual ~TextMemory() = default;
};

// A full page of a sequence. `tokens` are all tokens of the text up to the end of the page, a
// multiple of the page's size.
struct FullPage {
    std::string_view client;
    std::span<const TokenId> tokens;
    std::span<const std::uint64_t> workers;         // workers that computed experts for this page
    std::unique_ptr<TextMemory>* memory = nullptr;  // null: the store begins at the first token
    // The cache has the page's second part; true as well if no layer has a window.
    bool has_window_rows = true;
    // Copies the rows out of the cache, in the layout of protocol/kv_page.h. An empty `window_rows`
    // gets none.
    std::function<Status(std::span<std::byte> rows, std::span<std::byte> window_rows)> read;
};

struct StoredPage {
    Bytes memory;   // owns the bytes of `rows`
    ByteView rows;  // keys and values in the layout of protocol/kv_page.h
    Bytes window_memory;
    ByteView window_rows;  // the page's second part; empty: there is none, or no window sees it
    // Workers of this process that took part. Workers of an earlier process are not named.
    std::vector<std::uint64_t> workers;
};

struct FetchedPages {
    std::uint64_t id = 0;           // the number that fetch() returned
    std::vector<StoredPage> pages;  // consecutive; empty: the first page was unreadable
};

// A request for the pages of a text from page `first_page` on, as many as `bytes_max` allows, but
// at least one. `done` runs on the store's thread and must not block.
struct PageWish {
    std::string_view client;
    std::span<const TokenId> tokens;
    std::uint32_t first_page = 0;
    std::uint64_t bytes_max = 0;
    std::function<void(FetchedPages)> done;
    std::unique_ptr<TextMemory>* memory = nullptr;  // used before fetch() returns
};

// `pages` and `bytes` are gauges, the others are totals since the start. `is_listed` is false until
// the store knows which pages of an earlier run are there: `pages` and `bytes` are zero until then.
struct PageStoreCounters {
    bool is_on = false, is_listed = false;
    std::uint64_t pages = 0, bytes = 0, bytes_max = 0, keep_s = 0;
    std::uint64_t pages_written = 0, pages_read = 0, pages_evicted = 0;
    // pages that were damaged or refused, and writes that failed
    std::uint64_t pages_refused = 0, writes_failed = 0;
};

class KvPageStore {
  public:
    virtual ~KvPageStore() = default;
    // Copies the rows of a page into the queue of the writer, unless the store has the page. Calls
    // `page.read` before it returns. Returns false if the queue is full, and the caller tries again
    // later. Must not wait for a disk.
    virtual bool keep(const FullPage& page) = 0;
    // Begins to read pages, and returns the number of this fetch; 0: the store has no such page,
    // and `done` is not called. Pages of several fetches may be needed before all windows are
    // whole, and a page may leave meanwhile: the caller checks this after the last fetch.
    virtual std::uint64_t fetch(PageWish wish) = 0;
    // Forgets all fetches. When this returns, no `done` runs and none will run.
    virtual void drop_fetches() = 0;
    // Deletes the pages for which `worker` computed experts. Any thread.
    virtual void forget_worker(std::uint64_t worker) = 0;
    virtual PageStoreCounters counters() const = 0;  // any thread
};

}  // namespace moex
