// Keys and values that clients have sent (POST /v1/pages), so that a conversation moves from a
// device to the hub without being computed again.
//   a device sends the pages of 300 tokens; the hub keeps 18 pages of 16 tokens under a random
//   name; a chat with this name in moex.pages and 320 tokens computes 32 of them
// The problem: rows that somebody else computed may be wrong, by another arithmetic or on purpose,
// and nothing short of computing them again shows it. So they are their client's own risk. A text
// is found only by its random name, and only by the client that made it. The engine gets the name
// as a scope of its own (GenerationRequest::scope): what is computed behind such rows is shared
// within this text only. No row is written to a disk.
// What is refused: rows of another model, tokenizer or shape, of another text, and values beyond
// f16, which could make the rows of other layers infinite, so that an honest contributor's answer
// would look false.
// Rows are kept in the engine's own form. Equal forms are copied; the errors of the other ones are
// in protocol/kv_translate.h. A text leaves some minutes after its last use, or when there is no
// room: then the client with the most bytes loses the text that it used least recently.
// Threads: all public functions are thread-safe; one thread gives pages to the engine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hub/base/clock.h"
#include "hub/engine/kv_page_store.h"
#include "protocol/kv_page.h"

namespace moex {

struct TakenPagesOptions {
    KvSource source;              // of the engine's pages
    std::uint64_t bytes_max = 0;  // of the rows of all texts
    Duration keep = std::chrono::minutes(10);
    std::function<TimePoint()> clock = now_steady;
    KvPageStore* other = nullptr;  // the store of all other scopes; may be null; outlives this one
};

class TakenPages : public KvPageStore {
  public:
    explicit TakenPages(TakenPagesOptions options);
    ~TakenPages() override;

    // Returns true if rows of a client can be translated to the rows of this hub's engine.
    static bool can_take(const KvSource& engines);
    // Returns the source that the pages of a client must have, apart from the row type.
    const KvSource& wanted() const { return wanted_; }
    const KvSource& source() const { return options_.source; }

    // Begins a text of `owner`, and returns its name. If `name` is a text of this owner, the text
    // is changed to `tokens` and keeps its name and the pages that are common.
    std::string open(const std::string& owner, const std::string& name,
                     std::vector<TokenId> tokens);
    // Returns the number of tokens that a text has rows of. Error not_found: this owner has no text
    // of this name, or no longer.
    Result<std::uint32_t> num_tokens(const std::string& owner, const std::string& name);
    // Returns the scope of a text for GenerationRequest::scope.
    static std::string scope_of(const std::string& name);

    // Takes a page of a client, in the form of protocol/kv_page.h, and returns num_tokens(). A page
    // that is there already changes nothing. Errors: not_found; bad_order (pages are missing before
    // it); no_space; and what decode_kv_page(), require_source() and convert_kv_rows() refuse.
    Result<std::uint32_t> take(const std::string& owner, const std::string& name, ByteView page);
    // Takes the page `index` of the engine itself, if it is the next one.
    Status take_own(const std::string& owner, const std::string& name, std::uint32_t index,
                    Bytes rows);
    void remove(const std::string& owner, const std::string& name);
    // Ends it all: the engine's rows have another form from now on.
    void turn_off();
    void sweep();  // drops texts that are too old
    std::uint64_t bytes() const;

    bool keep(const FullPage& page) override;
    std::uint64_t fetch(PageWish wish) override;
    void drop_fetches() override;
    void forget_worker(std::uint64_t worker) override;
    PageStoreCounters counters() const override;

  private:
    using Rows = std::shared_ptr<const Bytes>;
    struct Text {
        std::string owner;
        std::vector<TokenId> tokens;
        std::vector<Rows> pages;  // of the engine's size, from the first token on
        TimePoint used_at{};
    };
    struct Fetch {
        std::uint64_t id = 0;
        std::vector<Rows> pages;
        std::function<void(FetchedPages)> done;
    };
    // These require the lock.
    Text* find(const std::string& owner, const std::string& name);
    void drop(std::map<std::string, Text>::iterator text);
    void drop_old();
    bool make_room(std::uint64_t bytes, const std::string& for_name);
    void limit_texts(const std::string& owner);
    Status add(Text& text, const std::string& name, std::vector<Rows> pages);
    std::uint32_t tokens_of(const Text& text) const;

    Status check(const KvPage& page, const std::vector<TokenId>& tokens) const;
    Result<std::vector<Rows>> translated(const KvPage& page,
                                         const std::vector<TokenId>& tokens) const;
    void run();

    const TakenPagesOptions options_;
    const KvSource wanted_;
    const std::uint64_t page_bytes_;

    mutable std::mutex mutex_;
    std::condition_variable wake_, idle_;
    std::map<std::string, Text> texts_;  // by name
    std::uint64_t bytes_ = 0;
    std::deque<Fetch> fetches_;
    std::uint64_t last_fetch_ = 0;
    bool is_giving_ = false, is_off_ = false, is_stopping_ = false;
    std::thread thread_;  // the last member, because it uses the others
};

}  // namespace moex
