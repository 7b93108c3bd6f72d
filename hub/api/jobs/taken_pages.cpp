#include "hub/api/jobs/taken_pages.h"

#include <algorithm>
#include <utility>

#include "hub/api/jobs/prefill_job.h"
#include "hub/base/random_digits.h"
#include "hub/base/sha256.h"
#include "protocol/kv_translate.h"
#include "protocol/text.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

constexpr std::size_t texts_per_owner_max = 8;
// No address begins with these letters, so no client's name equals a scope.
constexpr std::string_view scope_prefix = "pages:";
// Fetches of the other store have numbers below this one.
constexpr std::uint64_t first_fetch = std::uint64_t{1} << 63;

// A device computes whole layers with the weights of the package and rounds no expert.
KvSource source_of_devices(KvSource source) {
    source.arithmetic = KvArithmetic::gpu;
    source.weights = KvWeights::package;
    source.rounding = KvRounding::any;
    source.page_tokens = handed_page_tokens;
    return source;
}

std::size_t common_tokens(const std::vector<TokenId>& a, std::span<const TokenId> b) {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                    a.begin());
}

Error no_such_text() { return {ErrorCode::not_found, "there are no pages of this name"}; }

}  // namespace

TakenPages::TakenPages(TakenPagesOptions options)
    : options_(std::move(options)),
      wanted_(source_of_devices(options_.source)),
      page_bytes_(kv_rows_bytes(options_.source, options_.source.page_tokens)),
      thread_([this] { run(); }) {}

TakenPages::~TakenPages() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

bool TakenPages::can_take(const KvSource& engines) {
    return engines.row_type != KvRowType::int8 && handed_page_tokens % engines.page_tokens == 0;
}

std::string TakenPages::scope_of(const std::string& name) {
    return std::string(scope_prefix) + name;
}

std::uint32_t TakenPages::tokens_of(const Text& text) const {
    return static_cast<std::uint32_t>(text.pages.size()) * options_.source.page_tokens;
}

TakenPages::Text* TakenPages::find(const std::string& owner, const std::string& name) {
    drop_old();
    const auto found = texts_.find(name);
    if (found == texts_.end() || found->second.owner != owner) return nullptr;
    found->second.used_at = options_.clock();
    return &found->second;
}

void TakenPages::drop(std::map<std::string, Text>::iterator text) {
    bytes_ -= text->second.pages.size() * page_bytes_;
    texts_.erase(text);
}

void TakenPages::drop_old() {
    const TimePoint now = options_.clock();
    for (auto text = texts_.begin(); text != texts_.end();) {
        const auto next = std::next(text);
        if (text->second.used_at + options_.keep <= now) drop(text);
        text = next;
    }
}

// Returns false if the room for `bytes` could only come from the text `for_name` itself.
bool TakenPages::make_room(std::uint64_t bytes, const std::string& for_name) {
    while (bytes_ + bytes > options_.bytes_max) {
        std::map<std::string, std::size_t> pages_of;
        for (const auto& [name, text] : texts_) pages_of[text.owner] += text.pages.size();
        const auto most = std::max_element(pages_of.begin(), pages_of.end(),
                                           [](auto& a, auto& b) { return a.second < b.second; });
        auto oldest = texts_.end();
        for (auto text = texts_.begin(); text != texts_.end(); ++text) {
            const bool may_leave = text->second.owner == most->first && text->first != for_name &&
                                   !text->second.pages.empty();
            if (may_leave &&
                (oldest == texts_.end() || text->second.used_at < oldest->second.used_at))
                oldest = text;
        }
        if (oldest == texts_.end()) return false;
        drop(oldest);
    }
    return true;
}

void TakenPages::limit_texts(const std::string& owner) {
    std::size_t count = 0;
    auto oldest = texts_.end();
    for (auto text = texts_.begin(); text != texts_.end(); ++text) {
        if (text->second.owner != owner) continue;
        ++count;
        if (oldest == texts_.end() || text->second.used_at < oldest->second.used_at) oldest = text;
    }
    if (count >= texts_per_owner_max) drop(oldest);
}

std::string TakenPages::open(const std::string& owner, const std::string& name,
                             std::vector<TokenId> tokens) {
    const std::lock_guard lock(mutex_);
    if (Text* const text = find(owner, name)) {
        const std::size_t pages = std::min(
            text->pages.size(), common_tokens(text->tokens, tokens) / options_.source.page_tokens);
        bytes_ -= (text->pages.size() - pages) * page_bytes_;
        text->pages.resize(pages);
        text->tokens = std::move(tokens);
        return name;
    }
    limit_texts(owner);
    std::string made = random_digits(32);
    texts_[made] = {.owner = owner, .tokens = std::move(tokens), .used_at = options_.clock()};
    return made;
}

Result<std::uint32_t> TakenPages::num_tokens(const std::string& owner, const std::string& name) {
    const std::lock_guard lock(mutex_);
    const Text* const text = find(owner, name);
    if (!text) return no_such_text();
    return tokens_of(*text);
}

Status TakenPages::check(const KvPage& page, const std::vector<TokenId>& tokens) const {
    KvSource wanted = wanted_;
    if (page.source.row_type != KvRowType::int8) wanted.row_type = page.source.row_type;
    MOEX_TRY(require_source(page.source, wanted));
    const auto bad = [](std::string why) {
        return Error{ErrorCode::bad_field, text("KV page: ", why)};
    };
    if (!page.state.empty()) return bad("state: a page of a client has none");
    if (!page.workers.empty()) return bad("workers: a page of a client names none");
    const std::size_t first = page.first_position;
    if (first % handed_page_tokens != 0)
        return bad(
            text("first_position is ", first, ", wanted a multiple of ", handed_page_tokens));
    if (first + page.tokens.size() > tokens.size())
        return bad(
            text("tokens end at ", first + page.tokens.size(), ", the text has ", tokens.size()));
    if (!std::equal(page.tokens.begin(), page.tokens.end(),
                    tokens.begin() + static_cast<std::ptrdiff_t>(first)))
        return bad("tokens are of another text");
    const Sha256 before = sha256(std::as_bytes(std::span(tokens).first(first)));
    if (page.before != before)
        return bad(text("before is ", to_hex(page.before), ", wanted ", to_hex(before)));
    return {};
}

// Returns the full pages of the engine that `page` has. What is behind the last one is left out.
Result<std::vector<TakenPages::Rows>> TakenPages::translated(
    const KvPage& page, const std::vector<TokenId>& tokens) const {
    // f16 holds every value that a device sends, whatever the form in which it sends it.
    MOEX_TRY(convert_kv_rows(page, KvRowType::f16));
    const KvRowType row_type = options_.source.row_type;
    OwnedKvPage converted;
    const KvPage* own = &page;
    if (page.source.row_type != row_type) {
        MOEX_ASSIGN(other, convert_kv_rows(page, row_type));
        converted = std::move(other);
        own = &converted.page;
    }
    const auto hash_of = [&](std::uint32_t count) {
        return sha256(std::as_bytes(std::span(tokens).first(count)));
    };
    MOEX_ASSIGN(resized, resize_kv_pages({own, 1}, options_.source.page_tokens, hash_of));
    std::vector<Rows> pages;
    for (OwnedKvPage& one : resized)
        if (one.page.tokens.size() == options_.source.page_tokens)
            pages.push_back(std::make_shared<const Bytes>(std::move(one.rows)));
    return pages;
}

Status TakenPages::add(Text& text, const std::string& name, std::vector<Rows> pages) {
    if (is_off_) return Error{ErrorCode::unavailable, "this hub takes no pages now"};
    if (!make_room(pages.size() * page_bytes_, name))
        return Error{ErrorCode::no_space, "this hub has no room for more pages of this client"};
    bytes_ += pages.size() * page_bytes_;
    std::move(pages.begin(), pages.end(), std::back_inserter(text.pages));
    return {};
}

Result<std::uint32_t> TakenPages::take(const std::string& owner, const std::string& name,
                                       ByteView bytes) {
    std::vector<TokenId> tokens;
    std::uint32_t has_before = 0;
    {
        const std::lock_guard lock(mutex_);
        const Text* const text = find(owner, name);
        if (!text) return no_such_text();
        tokens = text->tokens;
        has_before = tokens_of(*text);
    }
    // Work without the lock: the page is checked against the text, and translated.
    MOEX_ASSIGN(page, decode_kv_page(bytes));
    MOEX_TRY(check(page, tokens));
    const std::uint32_t end = page.first_position + static_cast<std::uint32_t>(page.tokens.size());
    if (end / options_.source.page_tokens * options_.source.page_tokens <= has_before)
        return has_before;
    MOEX_ASSIGN(pages, translated(page, tokens));

    const std::lock_guard lock(mutex_);
    Text* const found = find(owner, name);
    if (!found || found->tokens != tokens) return no_such_text();
    const std::uint32_t has = tokens_of(*found);
    if (page.first_position > has)
        return Error{ErrorCode::bad_order, text("the page begins at ", page.first_position,
                                                ", and the tokens from ", has, " on are missing")};
    // A client that lost an answer sends a page again.
    const std::size_t known = std::min<std::size_t>(
        pages.size(), (has - page.first_position) / options_.source.page_tokens);
    pages.erase(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(known));
    MOEX_TRY(add(*found, name, std::move(pages)));
    return tokens_of(*found);
}

Status TakenPages::take_own(const std::string& owner, const std::string& name, std::uint32_t index,
                            Bytes rows) {
    const std::lock_guard lock(mutex_);
    Text* const text = find(owner, name);
    if (!text) return no_such_text();
    if (text->pages.size() != index || rows.size() != page_bytes_)
        return Error{ErrorCode::bad_order, "not the next page"};
    std::vector<Rows> pages;
    pages.push_back(std::make_shared<const Bytes>(std::move(rows)));
    return add(*text, name, std::move(pages));
}

void TakenPages::remove(const std::string& owner, const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (find(owner, name)) drop(texts_.find(name));
}

void TakenPages::turn_off() {
    const std::lock_guard lock(mutex_);
    is_off_ = true;
    texts_.clear();
    bytes_ = 0;
}

void TakenPages::sweep() {
    const std::lock_guard lock(mutex_);
    drop_old();
}

std::uint64_t TakenPages::bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
}

// ---- the store of the engine

bool TakenPages::keep(const FullPage& page) {
    if (page.client.starts_with(scope_prefix)) return true;  // they are never written
    return !options_.other || options_.other->keep(page);
}

std::uint64_t TakenPages::fetch(PageWish wish) {
    if (!wish.client.starts_with(scope_prefix))
        return options_.other ? options_.other->fetch(std::move(wish)) : 0;

    const std::lock_guard lock(mutex_);
    drop_old();
    const auto found = texts_.find(std::string(wish.client.substr(scope_prefix.size())));
    if (found == texts_.end()) return 0;
    Text& text = found->second;
    text.used_at = options_.clock();
    const std::size_t common = common_tokens(text.tokens, wish.tokens) /
                               options_.source.page_tokens,
                      end = std::min(common, text.pages.size());
    if (wish.first_page >= end) return 0;
    const std::size_t most = std::max<std::uint64_t>(1, wish.bytes_max / page_bytes_),
                      count = std::min(end - wish.first_page, most);
    const auto first = text.pages.begin() + wish.first_page;
    fetches_.push_back({.id = first_fetch + ++last_fetch_,
                        .pages = {first, first + static_cast<std::ptrdiff_t>(count)},
                        .done = std::move(wish.done)});
    wake_.notify_all();
    return fetches_.back().id;
}

void TakenPages::run() {
    name_thread("taken pages");
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return is_stopping_ || !fetches_.empty(); });
        if (is_stopping_) return;
        Fetch fetch = std::move(fetches_.front());
        fetches_.pop_front();
        is_giving_ = true;
        lock.unlock();

        FetchedPages given{.id = fetch.id};
        for (const Rows& rows : fetch.pages) {
            StoredPage& page = given.pages.emplace_back();
            page.memory = *rows;
            page.rows = page.memory;
        }
        fetch.done(std::move(given));

        lock.lock();
        is_giving_ = false;
        idle_.notify_all();
    }
}

void TakenPages::drop_fetches() {
    {
        std::unique_lock lock(mutex_);
        fetches_.clear();
        idle_.wait(lock, [&] { return !is_giving_; });
    }
    if (options_.other) options_.other->drop_fetches();
}

void TakenPages::forget_worker(std::uint64_t worker) {
    if (options_.other) options_.other->forget_worker(worker);
}

PageStoreCounters TakenPages::counters() const {
    return options_.other ? options_.other->counters() : PageStoreCounters{};
}

}  // namespace moex
