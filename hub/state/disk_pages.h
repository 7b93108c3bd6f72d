// Full pages of keys and values on disk, so that a hub remembers prompts over evictions and
// restarts: the store that the engine sees as a KvPageStore.
//   FOLDER/<client>.<key id>/<page>.<page before>    the files of a page (page_parts.h)
//   FOLDER/key-check                                 shows whether the pages are of this key
// A file is written under a temporary name and renamed, so the folder itself is the index: a killed
// process leaves whole pages, and what is torn fails its tag. Names follow from the key, the model,
// the client and the tokens; no file says anything plain about a text.
// Where layers have a window, the second part of a page (kv_page_store.h) is deleted once its text
// is so much longer that no layer looks at it, if the text goes on in one way only. Every fourth
// window is kept, so that a text that begins alike is computed over four windows at most.
// One thread reads and writes; reads go first. It begins with the names of all pages; until it has
// them, pages are looked up on disk, and none is kept. If the disk fails, pages are not kept for a
// while, which is logged once, and the engine computes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "hub/engine/kv_page_store.h"
#include "hub/state/page_cipher.h"
#include "hub/state/page_index.h"
#include "hub/state/page_parts.h"
#include "hub/state/page_places.h"
#include "hub/state/page_windows.h"
#include "protocol/kv_page.h"

namespace moex {

struct DiskPagesOptions {
    std::filesystem::path folder;  // created with mode 0700; only this process writes to it
    PageKey key{};
    KvSource source;  // source of this process's pages; pages of other sources are not found
    // The number of layers with a window, and positions that the largest window sees; 0: pages have
    // one part.
    std::uint32_t num_window_layers = 0, window = 0;
    std::uint64_t bytes_max = 0;           // limit of the bytes of all pages together
    std::chrono::seconds keep{24 * 3600};  // a page is deleted this long after it was written
    std::uint64_t queue_bytes_max = 64ull << 20;    // limit of rows that wait for the writer
    std::chrono::milliseconds retry_after{10'000};  // pause after a failed write
    // Returns the id of the API key of a client; empty: none.
    std::function<std::string(std::string_view client)> key_id_of = {};
    // Returns false if pages of this key must not be kept any longer.
    std::function<bool(std::string_view key_id)> key_is_valid = {};
    // Returns true if pages for which this worker computed must not be used.
    std::function<bool(std::string_view worker_key)> worker_is_banned = {};
    std::function<std::int64_t()> unix_time_s = {};  // empty: the system's clock
};

class DiskPages : public KvPageStore {
  public:
    // Makes the folder, or begins to read the names of its pages; pages of another key are deleted,
    // which is logged. Error io_error: the folder cannot be made or written.
    static Result<std::unique_ptr<DiskPages>> open(DiskPagesOptions options);
    ~DiskPages() override;  // writes the queued pages; call it after the engine has ended

    bool keep(const FullPage& page) override;
    std::uint64_t fetch(PageWish wish) override;
    void drop_fetches() override;
    void forget_worker(std::uint64_t worker) override;
    PageStoreCounters counters() const override;

    // Says which key a worker of this process has, before it computes. Any thread.
    void know_worker(std::uint64_t worker, const std::string& worker_key);
    // Stops the store: keep() and fetch() do nothing from now on. Any thread.
    void turn_off(const std::string& why);
    // For tests: waits until the names are read and the writer's queue is empty.
    void wait_until_written();

  private:
    struct Write {
        PagePlace place;
        std::vector<std::string> worker_keys;
        Bytes rows, window_rows;
    };
    struct Read {
        std::uint64_t id = 0;
        std::vector<PagePlace> pages;
        std::function<void(FetchedPages)> done;
    };
    using Files = std::vector<std::string>;

    explicit DiskPages(DiskPagesOptions options);
    Status prepare_folder();
    void read_names();
    struct Stored {
        std::uint64_t bytes = 0;
        bool has_window = false;
    };
    std::optional<Stored> stored(const PagePlace& place);               // requires mutex_
    std::uint32_t resume_end(PageWalk walk, std::uint32_t first_page);  // requires mutex_
    std::int64_t now_s() const;
    void run();
    void write(Write job);
    void read(Read job);
    Result<StoredPage> read_page(const PagePlace& place);
    Files pass_window(const PagePlace& place);   // requires mutex_
    bool is_stored(const PageName& name) const;  // requires mutex_
    void sweep();
    Files take_out(const PageName& name);  // requires mutex_
    Files evict();                         // requires mutex_
    void delete_files(const Files& files) const;
    void tell(const char* problem, const std::string& why);
    void tell_recovered(const char* problem);

    const DiskPagesOptions options_;
    const PageWindows windows_;
    PageCipher cipher_;  // the store's thread calls seal() and open()
    const PagePlaces places_;
    PageParts parts_;  // the store's thread calls write() and read()

    mutable std::mutex mutex_;
    std::condition_variable wake_, idle_;
    PageIndex index_;
    std::deque<Write> writes_;
    std::deque<Read> reads_;
    std::uint64_t queued_bytes_ = 0, last_fetch_ = 0;
    bool has_names_ = false, is_writing_ = false, is_reading_ = false, stopping_ = false,
         is_off_ = false;
    std::chrono::steady_clock::time_point paused_until_{};
    std::map<std::uint64_t, std::string> worker_keys_;
    PageStoreCounters counters_;
    std::set<std::string> told_;  // names of problems that are logged once and still persist

    std::thread thread_;  // the last member, because the thread uses the members above
};

}  // namespace moex
