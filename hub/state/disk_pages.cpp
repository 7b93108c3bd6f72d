#include "hub/state/disk_pages.h"

#include <algorithm>
#include <ctime>

#include "hub/base/log.h"
#include "hub/state/page_files.h"
#include "protocol/thread_name.h"

namespace moex {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t known_workers_max = 1u << 16;
constexpr const char* const write_problem = "pages are not written";
constexpr const char* const read_problem = "a page was refused and deleted";

// Returns the names of a page's files.
template <class Page>
std::vector<std::string> files_of(const PageName& name, const Page& page) {
    std::vector<std::string> files{page_file(page.folder, name, page.parent)};
    if (page.window_bytes > 0) files.push_back(window_file(files.front()));
    return files;
}

}  // namespace

DiskPages::DiskPages(DiskPagesOptions options)
    : options_(std::move(options)),
      windows_{options_.window, options_.source.page_tokens},
      cipher_(options_.key),
      places_(cipher_, options_.source, options_.key_id_of),
      parts_({.folder = options_.folder,
              .source = options_.source,
              .num_window_layers = options_.num_window_layers,
              .has_windows = options_.window > 0},
             cipher_) {}

Result<std::unique_ptr<DiskPages>> DiskPages::open(DiskPagesOptions options) {
    std::unique_ptr<DiskPages> pages(new DiskPages(std::move(options)));
    MOEX_TRY(pages->prepare_folder());
    pages->thread_ = std::thread([self = pages.get()] { self->run(); });
    return pages;
}

DiskPages::~DiskPages() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

std::int64_t DiskPages::now_s() const {
    return options_.unix_time_s ? options_.unix_time_s() : std::time(nullptr);
}

// Makes the folder, and deletes all pages in it if they were written with another key: nobody could
// read them.
Status DiskPages::prepare_folder() {
    MOEX_TRY(make_private_folder(options_.folder));
    const std::string check = hex_of(cipher_.name("check", {}));
    const auto found = read_key_check(options_.folder);
    if (found == check) return {};
    if (!found.empty()) {
        const auto count = forget_pages(options_.folder);
        log_warn("state: the pages on disk are of another key, and were deleted",
                 kv("folder", options_.folder.string()), kv("pages", count.ok() ? *count : 0));
    }
    return write_page_file(options_.folder, key_check_name, as_byte_view(check));
}

void DiskPages::read_names() {
    std::vector<FoundPage> found = find_pages(options_.folder);
    std::map<PageName, std::vector<const FoundPage*>> children;
    for (const FoundPage& page : found) children[page.parent].push_back(&page);

    // Add each page after its parent. What remains has lost its beginning and cannot be found.
    PageIndex index;
    std::vector<const FoundPage*> left = children[PageName{}];
    std::set<PageName> added;
    while (!left.empty()) {
        const FoundPage& page = *left.back();
        left.pop_back();
        if (!added.insert(page.name).second) continue;
        index.add(page.name, {.folder = page.folder,
                              .parent = page.parent,
                              .bytes = page.bytes,
                              .window_bytes = page.window_bytes,
                              .written_s = page.written_s,
                              .is_written = true});
        const auto below = children.find(page.name);
        if (below != children.end())
            left.insert(left.end(), below->second.begin(), below->second.end());
    }
    std::sort(found.begin(), found.end(),
              [](const FoundPage& a, const FoundPage& b) { return a.used_ns < b.used_ns; });
    Files lost;
    for (const FoundPage& page : found) {
        if (added.contains(page.name))
            index.use(page.name);
        else
            for (std::string& file : files_of(page.name, page)) lost.push_back(std::move(file));
    }
    delete_files(lost);
    Files evicted;
    {
        const std::lock_guard lock(mutex_);
        index_ = std::move(index);
        evicted = evict();
    }
    delete_files(evicted);
}

bool DiskPages::keep(const FullPage& page) {
    {
        const std::lock_guard lock(mutex_);
        if (!has_names_) return false;
    }
    const auto last = static_cast<std::uint32_t>(page.tokens.size() / options_.source.page_tokens -
                                                 1);
    PageWalk walk(places_, page.client, page.tokens, last, page.memory);
    walk.remember();  // the page before: this page may be offered again
    PagePlace place = walk.next();
    {
        const std::lock_guard lock(mutex_);
        if (is_off_ || std::chrono::steady_clock::now() < paused_until_) return true;
        if (index_.holds(place.name)) {
            index_.use(place.name);
            return true;
        }
        // A page whose beginning has left could not be found.
        if (place.parent != PageName{} && !index_.holds(place.parent)) return true;
        const std::uint64_t bytes = parts_.rows_bytes() +
                                    (page.has_window_rows ? parts_.window_rows_bytes() : 0);
        if (!writes_.empty() && queued_bytes_ + bytes > options_.queue_bytes_max) return false;
    }
    Write job{.place = std::move(place),
              .rows = Bytes(parts_.rows_bytes()),
              .window_rows = Bytes(page.has_window_rows ? parts_.window_rows_bytes() : 0)};
    const std::uint64_t bytes = job.rows.size() + job.window_rows.size();
    if (!page.read(job.rows, job.window_rows).ok()) return true;
    {
        const std::lock_guard lock(mutex_);
        if (job.place.parent != PageName{} && !index_.holds(job.place.parent)) return true;
        for (const std::uint64_t worker : page.workers)
            if (const auto key = worker_keys_.find(worker); key != worker_keys_.end())
                job.worker_keys.push_back(key->second);
        index_.add(job.place.name, {.folder = job.place.folder,
                                    .parent = job.place.parent,
                                    .bytes = bytes,
                                    .written_s = now_s(),
                                    .workers = {page.workers.begin(), page.workers.end()}});
        queued_bytes_ += bytes;
        writes_.push_back(std::move(job));
    }
    wake_.notify_all();
    return true;
}

std::uint64_t DiskPages::fetch(PageWish wish) {
    PageWalk walk(places_, wish.client, wish.tokens, wish.first_page, wish.memory);
    walk.remember();
    Read job{.done = std::move(wish.done)};
    std::uint64_t id = 0, bytes = 0;
    {
        const std::lock_guard lock(mutex_);
        std::uint32_t end = options_.window > 0 ? walk.end_page() : ~0u;
        if (end == 0) walk.set_end_page(end = resume_end(walk, wish.first_page));
        const std::uint32_t seen = windows_.first_seen(end);
        for (std::uint32_t i = wish.first_page; i < end && walk.has_next(); ++i) {
            PagePlace place = walk.next();
            place.wants_window = options_.window > 0 && i >= seen;
            const auto found = stored(place);
            if (!found || (place.wants_window && !found->has_window)) break;
            bytes += found->bytes;
            if (!job.pages.empty() && bytes > wish.bytes_max) break;
            if (has_names_) index_.use(place.name);
            job.pages.push_back(std::move(place));
            walk.remember();
        }
        if (job.pages.empty() || stopping_ || is_off_) return 0;
        id = job.id = ++last_fetch_;
        reads_.push_back(std::move(job));
    }
    wake_.notify_all();
    return id;
}

// Returns the page up to which the stored pages of a text bring it, from `first_page` on: of the
// last one and those before it, the windows are whole. The caller has the windows before
// `first_page`.
std::uint32_t DiskPages::resume_end(PageWalk walk, std::uint32_t first_page) {
    std::uint32_t end = first_page, windows_from = first_page;
    for (std::uint32_t page = first_page; walk.has_next(); ++page) {
        const auto found = stored(walk.next());
        if (!found) break;
        if (!found->has_window) windows_from = page + 1;
        if (windows_from <= std::max(first_page, windows_.first_seen(page + 1))) end = page + 1;
    }
    return end;
}

// Returns what is on disk of a page.
std::optional<DiskPages::Stored> DiskPages::stored(const PagePlace& place) {
    if (!has_names_) {
        std::error_code failure;
        const fs::path path = options_.folder / place.file();
        const auto size = fs::file_size(path, failure);
        if (failure) return std::nullopt;
        return Stored{size, options_.window > 0 && fs::exists(window_file(path), failure)};
    }
    const PageEntry* const entry = index_.find(place.name);
    if (!entry || !entry->is_written) return std::nullopt;
    return Stored{entry->bytes, entry->window_bytes > 0};
}

void DiskPages::drop_fetches() {
    std::unique_lock lock(mutex_);
    reads_.clear();
    idle_.wait(lock, [&] { return !is_reading_; });
}

void DiskPages::forget_worker(std::uint64_t worker) {
    Files files;
    {
        const std::lock_guard lock(mutex_);
        const auto took_part = [&](const PageEntry& entry) {
            return std::find(entry.workers.begin(), entry.workers.end(), worker) !=
                   entry.workers.end();
        };
        for (const PageName& name : index_.pages_if(took_part))
            for (std::string& file : take_out(name)) files.push_back(std::move(file));
    }
    delete_files(files);
}

PageStoreCounters DiskPages::counters() const {
    const std::lock_guard lock(mutex_);
    PageStoreCounters counters = counters_;
    counters.is_on = !is_off_;
    counters.is_listed = has_names_;
    counters.pages = index_.size();
    counters.bytes = index_.bytes();
    counters.bytes_max = options_.bytes_max;
    counters.keep_s = static_cast<std::uint64_t>(options_.keep.count());
    return counters;
}

void DiskPages::know_worker(std::uint64_t worker, const std::string& worker_key) {
    if (worker_key.empty()) return;
    const std::lock_guard lock(mutex_);
    worker_keys_[worker] = worker_key;
    if (worker_keys_.size() > known_workers_max) worker_keys_.erase(worker_keys_.begin());
}

void DiskPages::turn_off(const std::string& why) {
    {
        const std::lock_guard lock(mutex_);
        is_off_ = true;
    }
    log_warn("state: no page is kept on disk from now on", kv("because", why));
}

void DiskPages::wait_until_written() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return has_names_ && writes_.empty() && !is_writing_; });
}

// The store's thread: reads before writes, and looks for old pages now and then.
void DiskPages::run() {
    name_thread("kv disk");
    const auto sweep_every = std::clamp<std::chrono::seconds>(
        options_.keep / 10, std::chrono::seconds(1), std::chrono::seconds(60));
    read_names();
    sweep();
    const PageStoreCounters kept = counters();
    log_info("state: keeps pages of prompts on disk", kv("folder", options_.folder.string()),
             kv("pages", kept.pages), kv("mb", kept.bytes >> 20),
             kv("mb_max", kept.bytes_max >> 20), kv("keep_s", kept.keep_s));
    auto next_sweep = std::chrono::steady_clock::now() + sweep_every;
    std::unique_lock lock(mutex_);
    has_names_ = true;
    idle_.notify_all();
    for (;;) {
        wake_.wait_until(lock, next_sweep,
                         [&] { return stopping_ || !reads_.empty() || !writes_.empty(); });
        if (!reads_.empty()) {
            Read job = std::move(reads_.front());
            reads_.pop_front();
            is_reading_ = true;
            lock.unlock();
            read(std::move(job));
            lock.lock();
            is_reading_ = false;
            idle_.notify_all();
        } else if (!writes_.empty()) {
            Write job = std::move(writes_.front());
            writes_.pop_front();
            queued_bytes_ -= job.rows.size() + job.window_rows.size();
            is_writing_ = true;
            lock.unlock();
            write(std::move(job));
            lock.lock();
            is_writing_ = false;
            idle_.notify_all();
        } else if (stopping_) {
            return;
        }
        if (std::chrono::steady_clock::now() < next_sweep) continue;
        lock.unlock();
        sweep();
        lock.lock();
        next_sweep = std::chrono::steady_clock::now() + sweep_every;
    }
}

// Takes the second part out of the index that no window of this text sees since this page's end.
DiskPages::Files DiskPages::pass_window(const PagePlace& place) {
    const std::uint32_t page = place.first_position / options_.source.page_tokens,
                        seen = windows_.first_seen(page + 1);
    if (options_.window == 0 || seen == 0 || windows_.is_stop(seen - 1)) return {};
    const auto passed = index_.drop_window_before(place.name, page - (seen - 1));
    if (!passed) return {};
    return {window_file(page_file(passed->second.folder, passed->first, passed->second.parent))};
}

void DiskPages::write(Write job) {
    {
        const std::lock_guard lock(mutex_);
        if (!index_.holds(job.place.name)) return;  // the page was removed
    }
    PageFileBytes files_bytes;
    const Status written = parts_.write(job.place, job.worker_keys, job.rows, job.window_rows,
                                        files_bytes);

    Files files;
    {
        const std::lock_guard lock(mutex_);
        const bool is_kept = written.ok() && index_.holds(job.place.name);
        if (!written.ok()) {
            ++counters_.writes_failed;
            paused_until_ = std::chrono::steady_clock::now() + options_.retry_after;
            files = take_out(job.place.name);
        } else if (is_kept) {
            ++counters_.pages_written;
            index_.set_written(job.place.name, files_bytes.bytes, files_bytes.window_bytes);
            files = pass_window(job.place);
            for (std::string& file : evict()) files.push_back(std::move(file));
        }
        if (!is_kept && files_bytes.window_bytes > 0)
            files.push_back(window_file(job.place.file()));
        if (!is_kept) files.push_back(job.place.file());
    }
    delete_files(files);
    if (!written.ok()) return tell(write_problem, written.error().message);
    tell_recovered(write_problem);
}

// Returns true if the page is on disk, and has not left since a fetch found it.
bool DiskPages::is_stored(const PageName& name) const {
    const PageEntry* const entry = index_.find(name);
    return entry && entry->is_written;
}

void DiskPages::read(Read job) {
    FetchedPages fetched{.id = job.id};
    for (const PagePlace& place : job.pages) {
        {
            const std::lock_guard lock(mutex_);
            const PageEntry* const entry = has_names_ ? index_.find(place.name) : nullptr;
            // The text became longer since fetch() found this part.
            if (place.wants_window && entry && entry->window_bytes == 0) break;
        }
        auto page = read_page(place);
        if (page.ok()) {
            fetched.pages.push_back(*std::move(page));
            continue;
        }
        Files files;
        {
            const std::lock_guard lock(mutex_);
            if (!is_stored(place.name)) break;
            ++counters_.pages_refused;
            files = take_out(place.name);
        }
        files.push_back(place.file());
        files.push_back(window_file(place.file()));
        delete_files(files);
        tell(read_problem, page.error().message);
        break;
    }
    {
        // A page may have left while it was read: its worker has lied, or its key has ended.
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < fetched.pages.size(); ++i)
            if (!is_stored(job.pages[i].name)) fetched.pages.resize(i);
        counters_.pages_read += fetched.pages.size();
    }
    job.done(std::move(fetched));
}

Result<StoredPage> DiskPages::read_page(const PagePlace& place) {
    MOEX_ASSIGN(page, parts_.read(place));
    for (const std::string& key : page.workers)
        if (options_.worker_is_banned && options_.worker_is_banned(key))
            return Error{ErrorCode::bad_file,
                         text(place.file(), ": a banned worker computed for it")};

    StoredPage stored;
    const std::set<std::string> keys(page.workers.begin(), page.workers.end());
    {
        const std::lock_guard lock(mutex_);
        std::set<std::uint64_t> workers;
        // A worker without a key is known by its number alone.
        if (const PageEntry* const entry = index_.find(place.name))
            workers.insert(entry->workers.begin(), entry->workers.end());
        for (const auto& [worker, key] : worker_keys_)
            if (keys.contains(key)) workers.insert(worker);
        stored.workers.assign(workers.begin(), workers.end());
    }
    stored.memory = std::move(page.memory);
    stored.rows = page.rows;  // within the memory that was moved
    stored.window_memory = std::move(page.window_memory);
    stored.window_rows = page.window_rows;
    return stored;
}

// Deletes pages that are too old, and those of keys that are no longer valid.
void DiskPages::sweep() {
    const std::int64_t oldest_s = now_s() - options_.keep.count();
    const auto must_leave = [&](const PageEntry& entry) {
        const std::string key_id = entry.folder.substr(entry.folder.find('.') + 1);
        return entry.written_s < oldest_s ||
               (key_id != no_key_id && options_.key_is_valid && !options_.key_is_valid(key_id));
    };
    Files files;
    {
        const std::lock_guard lock(mutex_);
        for (const PageName& name : index_.pages_if(must_leave))
            for (std::string& file : take_out(name)) files.push_back(std::move(file));
    }
    delete_files(files);
}

// Takes a page and all below it out of the index, and returns their files.
DiskPages::Files DiskPages::take_out(const PageName& name) {
    Files files;
    index_.remove(name, [&](const PageName& removed, const PageEntry& entry) {
        for (std::string& file : files_of(removed, entry)) files.push_back(std::move(file));
    });
    return files;
}

DiskPages::Files DiskPages::evict() {
    Files files;
    while (index_.bytes() > options_.bytes_max) {
        const auto name = index_.next_to_evict();
        if (!name) break;
        for (std::string& file : take_out(*name)) files.push_back(std::move(file));
        ++counters_.pages_evicted;
    }
    return files;
}

void DiskPages::delete_files(const Files& files) const {
    for (const std::string& file : files) delete_page_file(options_.folder, file);
}

// Logs a problem once, until it has ended.
void DiskPages::tell(const char* problem, const std::string& why) {
    {
        const std::lock_guard lock(mutex_);
        if (!told_.insert(problem).second) return;
    }
    log_warn(text("state: ", problem, ", and answers go on"),
             kv("folder", options_.folder.string()), kv("because", why));
}

void DiskPages::tell_recovered(const char* problem) {
    {
        const std::lock_guard lock(mutex_);
        if (told_.erase(problem) == 0) return;
    }
    log_info("state: pages are written again", kv("folder", options_.folder.string()));
}

}  // namespace moex
