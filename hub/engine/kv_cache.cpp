#include "hub/engine/kv_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "protocol/check.h"

namespace moex {

static_assert(std::endian::native == std::endian::little,
              "rows leave the cache as they are stored in memory");

namespace {

// Page numbers for each whole page of the budget, where all layers have a window and a page of
// which nothing is left in memory still has a number.
constexpr std::uint32_t numbers_per_page = 16;

std::uint32_t largest_window(const ModelConfig& config) {
    std::uint32_t largest = 0;
    for (const LayerPlan& plan : config.layers)
        if (plan.mixer == Mixer::attention) largest = std::max(largest, plan.window);
    return largest;
}

std::size_t round_up(std::uint64_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, KvCacheOptions options)
    : config_(config),
      options_(options),
      window_(options.mover.copy && options.mover.num_window_slots == 0 ? 0
                                                                        : largest_window(config)),
      index_(lay_out()),
      blocks_(RecurrentShape::of(config)),
      slots_(options.slots.sequences_max == 0
                 ? nullptr
                 : std::make_unique<StateSlots>(options.slots,
                                                [this] { return snapshots_.drop_oldest_slot(); })),
      snapshots_(blocks_.shape(), options.snapshot_bytes_max, options.companion_bytes) {
    MOEX_CHECK(options.page_tokens > 0, "a page holds at least one token");
    for (auto* const counts : {&holders_, &window_holders_}) counts->resize(num_numbers_);
    for (auto* const times : {&released_, &window_released_}) times->resize(num_numbers_);
    has_window_.resize(num_numbers_);
    if (options_.ended && options_.kept && options_.resumed && window_ == 0)
        ended_texts_ = EndedTexts(num_numbers_);
    free_.reserve(num_numbers_);
    for (std::uint32_t page = num_numbers_; page-- > 0;) free_.push_back(page);
    MOEX_CHECK(!has_slots() || window_ > 0, "slots are those of layers with a window");
    if (has_slots()) window_slot_.resize(num_numbers_);
    for (std::uint32_t slot = options.mover.num_window_slots; slot-- > 0;)
        free_slots_.push_back(slot);
    if (options.num_pages == 0 || options_.mover.copy) return;

    const std::size_t size = stride_bytes_ * num_numbers_;
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        throw std::runtime_error(text("the system refuses ", size >> 20,
                                      " MB of addresses for keys and values: ",
                                      std::strerror(errno), "; try a smaller --kv-mb"));
    memory_ = {static_cast<std::byte*>(memory), UnmapMemory{size}};
}

// Finds the place of each layer's rows in a page. Returns the number of page numbers.
std::uint32_t KvCache::lay_out() {
    const auto is_windowed = [&](const LayerPlan& plan) { return window_ > 0 && plan.window > 0; };
    for (const LayerPlan& plan : config_.layers)
        if (plan.mixer == Mixer::attention)
            (is_windowed(plan) ? window_bytes_ : main_bytes_) += layer_bytes();

    const auto system_page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    window_at_ = round_up(main_bytes_, system_page);
    stride_bytes_ = window_at_ + round_up(window_bytes_, system_page);
    std::size_t main_at = 0, window_at = window_at_;
    for (const LayerPlan& plan : config_.layers) {
        std::size_t& at = is_windowed(plan) ? window_at : main_at;
        layer_at_.push_back(at);
        if (plan.mixer == Mixer::attention) at += layer_bytes();
    }

    num_numbers_ = options_.num_pages;
    if (window_ > 0 && !has_slots())
        num_numbers_ = static_cast<std::uint32_t>(
            main_bytes_ > 0 ? options_.num_pages * page_bytes() / main_bytes_
                            : std::uint64_t{options_.num_pages} * numbers_per_page);
    return num_numbers_;
}

void UnmapMemory::operator()(std::byte* memory) const { ::munmap(memory, size_bytes); }

std::uint32_t KvCache::pages_free() const {
    if (has_slots()) return static_cast<std::uint32_t>(free_.size()) + pages_idle_;
    const std::uint64_t budget = options_.num_pages * page_bytes(),
                        in_use = used_bytes_ - idle_bytes_;
    const std::size_t numbers = free_.size() + pages_idle_;
    if (page_bytes() == 0) return static_cast<std::uint32_t>(numbers);
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(numbers, (budget - std::min(budget, in_use)) / page_bytes()));
}
std::uint32_t KvCache::pages_cached() const { return pages_idle_; }
std::uint32_t KvCache::pages_for(std::uint32_t num_tokens) const {
    return static_cast<std::uint32_t>((std::uint64_t{num_tokens} + options_.page_tokens - 1) /
                                      options_.page_tokens);
}

std::uint32_t KvCache::room_for(std::uint32_t num_tokens, std::uint32_t rows_max) const {
    const std::uint32_t pages = pages_for(num_tokens);
    if (window_ == 0 || has_slots()) return pages;
    const std::uint64_t bytes = pages * main_bytes_ +
                                pages_seen(num_tokens, rows_max) * window_bytes_;
    return static_cast<std::uint32_t>((bytes + page_bytes() - 1) / page_bytes());
}

bool KvCache::has_room(std::uint32_t num_tokens, std::uint32_t shared, std::uint32_t rows_max,
                       KvRoom kept) const {
    const std::uint64_t missing = room_for(num_tokens, rows_max) - room_for(shared, rows_max);
    if (missing + kept.pages > pages_free()) return false;
    if (!has_slots()) return true;
    // The shared tokens have the slots of the pages that their windows see.
    const std::uint32_t seen = pages_seen(num_tokens, rows_max),
                        unseen = shared < window_ ? 0
                                                  : (shared + 1 - window_) / options_.page_tokens,
                        held = std::min(seen, pages_for(shared) - unseen);
    return std::uint64_t{seen} - held + kept.slots <= window_slots_free();
}

KvRoom KvCache::Sequence::missing_for(std::uint32_t num_tokens, std::uint32_t coming,
                                      std::uint32_t rows_max) const {
    const KvCache& cache = *cache_;
    const auto left = [](std::uint64_t wanted, std::uint64_t held) {
        return static_cast<std::uint32_t>(wanted - std::min(wanted, held));
    };
    const std::uint64_t held = std::max<std::uint64_t>(pages_.size(), cache.pages_for(coming)),
                        held_seen = held - std::min<std::uint64_t>(held, first_window_);
    if (cache.has_slots())
        return {left(cache.pages_for(num_tokens), held),
                left(cache.pages_seen(num_tokens, rows_max), held_seen)};
    const std::uint64_t bytes = held * cache.main_bytes_ + held_seen * cache.window_bytes_;
    return {left(cache.room_for(num_tokens, rows_max), bytes / cache.page_bytes()), 0};
}

std::uint64_t KvCache::bytes_max() const {
    if (!has_slots()) return options_.num_pages * page_bytes();
    return options_.num_pages * main_bytes_ + options_.mover.num_window_slots * window_bytes_;
}

std::uint64_t KvCache::tokens_max(std::uint32_t rows_max) const {
    const std::uint64_t whole = std::uint64_t{options_.num_pages} * options_.page_tokens;
    const std::uint64_t seen = std::uint64_t{pages_for(window_ + rows_max)} + 1;
    if (has_slots())
        return options_.mover.num_window_slots >= std::min<std::uint64_t>(seen, options_.num_pages)
                   ? whole
                   : std::uint64_t{options_.mover.num_window_slots} * options_.page_tokens;
    if (window_ == 0 || options_.num_pages <= seen) return whole;
    const std::uint64_t pages = main_bytes_ == 0
                                    ? num_numbers_
                                    : (options_.num_pages * page_bytes() - seen * window_bytes_) /
                                          main_bytes_;
    return std::min<std::uint64_t>(pages, num_numbers_) * options_.page_tokens;
}

std::byte* KvCache::page_data(std::uint32_t page) const {
    MOEX_DCHECK(memory_ != nullptr, "a device stores the rows");
    return memory_.get() + page * stride_bytes_;
}

void KvCache::set_idle(std::uint64_t& since, IdlePart part) {
    since = ++releases_;
    idle_.emplace(since, part);
    idle_bytes_ += part_bytes(part.is_window);
    ++(part.is_window ? windows_idle_ : pages_idle_);
}

void KvCache::end_idle(std::uint64_t since) {
    const auto found = idle_.find(since);
    idle_bytes_ -= part_bytes(found->second.is_window);
    --(found->second.is_window ? windows_idle_ : pages_idle_);
    idle_.erase(found);
}

// Makes room by the part that its last holder released longest ago.
void KvCache::evict_oldest() {
    MOEX_CHECK(!idle_.empty(), "a page was taken for which there was no room");
    const IdlePart part = idle_.begin()->second;
    end_idle(idle_.begin()->first);
    if (part.is_window) return drop_window(part.page);
    unpublish(part.page);
    free_page(part.page);
}

// Makes a slot free: the one of the second part that its last holder released longest ago.
void KvCache::evict_oldest_window() {
    const auto oldest = std::find_if(idle_.begin(), idle_.end(),
                                     [](const auto& one) { return one.second.is_window; });
    MOEX_CHECK(oldest != idle_.end(), "a page was taken for which there was no slot");
    const std::uint32_t page = oldest->second.page;
    end_idle(oldest->first);
    drop_window(page);
}

// Returns an unused page, held by one sequence, with both of its parts.
std::uint32_t KvCache::take_page() {
    const std::uint64_t budget = bytes_max();
    while (free_.empty() || (!has_slots() && used_bytes_ + page_bytes() > budget)) evict_oldest();
    const std::uint32_t page = free_.back();
    free_.pop_back();
    if (has_slots()) {
        if (free_slots_.empty()) evict_oldest_window();
        window_slot_[page] = free_slots_.back();
        free_slots_.pop_back();
    }
    holders_[page] = window_holders_[page] = 1;
    has_window_[page] = 1;
    used_bytes_ += page_bytes();
    return page;
}

void KvCache::hold(std::uint32_t page) {
    if (holders_[page]++ == 0) end_idle(released_[page]);
}

void KvCache::release(std::uint32_t page) {
    if (--holders_[page] > 0) return;
    if (!index_.holds(page)) return free_page(page);
    set_idle(released_[page], {page, false});
}

void KvCache::hold_window(std::uint32_t page) {
    if (window_bytes_ > 0 && window_holders_[page]++ == 0) end_idle(window_released_[page]);
}

void KvCache::release_window(std::uint32_t page) {
    if (window_bytes_ == 0 || --window_holders_[page] > 0 || !has_window_[page]) return;
    if (index_.holds(page))
        set_idle(window_released_[page], {page, true});
    else
        drop_window(page);
}

// Returns the memory of a page's windows' part, which is not idle, to the system, or its slot.
void KvCache::drop_window(std::uint32_t page) {
    if (has_slots()) free_slots_.push_back(window_slot_[page]);
    if (memory_) ::madvise(page_data(page) + window_at_, stride_bytes_ - window_at_, MADV_DONTNEED);
    has_window_[page] = 0;
    used_bytes_ -= window_bytes_;
}

// Gives `to`, which has no windows' part, a copy of that of `from`, held by one sequence. A slot
// changes its page instead.
void KvCache::give_window(std::uint32_t from, std::uint32_t to) {
    if (has_slots()) {
        MOEX_CHECK(window_holders_[from] == 1 && !index_.holds(from), "a page that is published");
        window_slot_[to] = window_slot_[from];
        has_window_[from] = 0;
        has_window_[to] = 1;
        window_holders_[to] = 1;
        return;
    }
    std::memcpy(page_data(to) + window_at_, page_data(from) + window_at_, window_bytes_);
    has_window_[to] = 1;
    window_holders_[to] = 1;
    used_bytes_ += window_bytes_;
}

void KvCache::copy_page(std::uint32_t from, std::uint32_t to) {
    if (options_.mover.copy) {
        options_.mover.copy({from}, {to});
        if (has_slots() && has_window_[from])
            options_.mover.copy({window_slot_[from], true}, {window_slot_[to], true});
        return;
    }
    std::memcpy(page_data(to), page_data(from), main_bytes_);
    std::memcpy(page_data(to) + window_at_, page_data(from) + window_at_, window_bytes_);
}

// Frees a page that is neither held nor published, and returns its memory to the system. The page's
// next holder gets new memory when it writes.
void KvCache::free_page(std::uint32_t page) {
    if (window_bytes_ > 0 && has_window_[page]) drop_window(page);
    if (memory_) ::madvise(page_data(page), window_at_, MADV_DONTNEED);
    used_bytes_ -= main_bytes_;
    free_.push_back(page);
}

// Takes a page out of the index. Its windows' part leaves, unless a sequence needs it.
void KvCache::unpublish(std::uint32_t page) {
    index_.erase(page);
    snapshots_.drop(page);
    ended_texts_.forget_page(page);
    if (window_bytes_ == 0 || !has_window_[page] || window_holders_[page] > 0) return;
    end_idle(window_released_[page]);
    drop_window(page);
}

KvMemory KvCache::memory() const {
    return {.pages = used_bytes_,
            .states = slots_ ? slots_->state_bytes() : blocks_.used_bytes(),
            .spare_states = blocks_.spare_bytes(),
            .state_copies = snapshots_.used_bytes() + (slots_ ? slots_->copy_bytes() : 0)};
}

void KvCache::forget_worker(std::uint64_t worker) {
    for (std::uint32_t page = 0; page < num_numbers_; ++page) {
        if (!index_.holds(page)) continue;
        const std::vector<std::uint64_t>& workers = index_.node_of(page).workers;
        if (!std::binary_search(workers.begin(), workers.end(), worker)) continue;

        unpublish(page);
        if (holders_[page] > 0) continue;
        end_idle(released_[page]);
        free_page(page);
    }
}

KvCache::Sequence::Sequence(KvCache& cache, std::string scope)
    : cache_(&cache),
      scope_(std::move(scope)) {
    static std::atomic<std::uint64_t> last_id = 0;
    id_ = ++last_id;
}

// Returns all pages, and reports the end of the sequence.
void KvCache::Sequence::end() {
    const std::uint64_t id = std::exchange(id_, 0);
    const bool is_kept = id != 0 && num_published_ > 0 && cache_->ended_texts_.is_on();
    if (is_kept) {
        std::vector<std::uint32_t> published(pages_.begin(), pages_.begin() + num_published_);
        std::erase_if(published, [&](std::uint32_t page) { return !cache_->index_.holds(page); });
        cache_->ended_texts_.keep(id, num_published_, published);
    }
    roll_back(0);
    const auto& tell = is_kept ? cache_->options_.kept : cache_->options_.ended;
    if (id != 0 && tell) tell(id);
}

// Takes over the id of the sequence that had this one's pages last, if it has ended.
void KvCache::Sequence::resume_text() {
    const auto id = cache_->ended_texts_.take(std::span(pages_).first(num_published_));
    if (!id) return;
    cache_->options_.ended(std::exchange(id_, *id));
    cache_->options_.resumed(id_, num_tokens_);
}

KvCache::Sequence::Sequence(Sequence&& other) noexcept
    : cache_(other.cache_),
      scope_(std::move(other.scope_)),
      pages_(std::exchange(other.pages_, {})),
      num_published_(std::exchange(other.num_published_, 0)),
      num_tokens_(std::exchange(other.num_tokens_, 0)),
      first_window_(std::exchange(other.first_window_, 0)),
      recurrent_(std::move(other.recurrent_)),
      slot_state_(std::move(other.slot_state_)),
      id_(std::exchange(other.id_, 0)) {}

KvCache::Sequence& KvCache::Sequence::operator=(Sequence&& other) noexcept {
    if (this != &other) {
        end();
        cache_ = other.cache_;
        id_ = std::exchange(other.id_, 0);
        scope_ = std::move(other.scope_);
        pages_ = std::exchange(other.pages_, {});
        num_published_ = std::exchange(other.num_published_, 0);
        num_tokens_ = std::exchange(other.num_tokens_, 0);
        first_window_ = std::exchange(other.first_window_, 0);
        recurrent_ = std::move(other.recurrent_);
        slot_state_ = std::move(other.slot_state_);
    }
    return *this;
}

KvCache::Sequence::~Sequence() { end(); }

bool KvCache::Sequence::reserve(std::uint32_t num_tokens) {
    // If `is_begun`, the page of the next row already has rows of this sequence. If another
    // sequence reads this page, too, the page must be copied.
    const std::uint32_t next = num_tokens_ / page_tokens();
    const bool is_begun = num_tokens_ % page_tokens() != 0 && num_tokens > num_tokens_;
    const bool copies = is_begun && cache_->holders_[pages_[next]] > 1;

    const std::uint32_t wanted = cache_->pages_for(num_tokens);
    const auto held = static_cast<std::uint32_t>(pages_.size());
    const std::uint32_t missing = (wanted > held ? wanted - held : 0) + (copies ? 1 : 0);
    if (missing > cache_->pages_free()) return false;
    if (cache_->has_slots() && missing > cache_->window_slots_free()) return false;

    if (copies) {
        const std::uint32_t page = cache_->take_page();
        cache_->copy_page(pages_[next], page);
        let_go(next);
        pages_[next] = page;
    } else if (is_begun && cache_->index_.holds(pages_[next])) {
        cache_->unpublish(pages_[next]);
    }

    if (is_begun) num_published_ = std::min(num_published_, next);

    while (pages_.size() < wanted) pages_.push_back(cache_->take_page());
    return true;
}

void KvCache::Sequence::commit(std::uint32_t num_tokens) {
    num_tokens_ += num_tokens;
    MOEX_CHECK(cache_->pages_for(num_tokens_) <= pages_.size(),
               "committed beyond what was reserved");
    if (recurrent_) recurrent_->commit();
    if (slot_state_) slot_state_->commit();
}

void KvCache::Sequence::make_state() {
    if (cache_->slots_ && !slot_state_)
        slot_state_ = std::make_unique<SlotState>(*cache_->slots_, page_tokens());
    if (!cache_->slots_ && !recurrent_)
        recurrent_ = std::make_unique<RecurrentState>(cache_->blocks_);
}

void KvCache::Sequence::begin_step(std::uint32_t num_rows) {
    if (!has_state()) return;
    make_state();
    if (slot_state_)
        slot_state_->begin_step(num_rows);
    else
        recurrent_->begin_step(num_tokens_, num_rows);
}

void KvCache::Sequence::abandon_step() {
    if (recurrent_) recurrent_->abandon_step();
    if (slot_state_) slot_state_->abandon_step();
}

// Returns the index of the first page with a position that a window sees from a row at position
// `num_tokens` on.
std::uint32_t KvCache::Sequence::first_seen_page(std::uint32_t num_tokens) const {
    const std::uint32_t window = cache_->window_;
    return num_tokens < window ? 0 : (num_tokens + 1 - window) / page_tokens();
}

// Gives back this sequence's hold on its page with number `index`.
void KvCache::Sequence::let_go(std::uint32_t index) {
    if (index >= first_window_) cache_->release_window(pages_[index]);
    cache_->release(pages_[index]);
}

void KvCache::Sequence::forget_unseen(std::uint32_t pages_max) {
    if (cache_->window_bytes_ == 0) return;
    const std::uint32_t end = std::min(first_seen_page(num_tokens_), pages_max);
    for (; first_window_ < end; ++first_window_) cache_->release_window(pages_[first_window_]);
}

// Returns true if the recurrent state cannot go back to `num_tokens` tokens.
bool KvCache::Sequence::is_behind_state(std::uint32_t num_tokens) const {
    if (num_tokens == num_tokens_) return false;
    return (recurrent_ && num_tokens < recurrent_->kept_from()) ||
           (slot_state_ && num_tokens < slot_state_->kept_from());
}

void KvCache::Sequence::roll_back(std::uint32_t num_tokens) {
    MOEX_CHECK(num_tokens <= num_tokens_,
               text("rolled back to ", num_tokens, " of ", num_tokens_, " tokens"));

    if (is_behind_state(num_tokens)) num_tokens = 0;
    // The windows before the new end must still be there.
    const std::uint32_t seen = first_seen_page(num_tokens);
    if (num_tokens > 0)
        for (std::uint32_t i = seen; i < first_window_ && num_tokens > 0; ++i)
            if (!cache_->has_window_[pages_[i]]) num_tokens = 0;
    const std::uint32_t kept = cache_->pages_for(num_tokens);
    for (; num_tokens > 0 && first_window_ > seen; --first_window_)
        cache_->hold_window(pages_[first_window_ - 1]);

    num_tokens_ = num_tokens;
    if (slot_state_) slot_state_->roll_back(num_tokens);
    num_published_ = std::min(num_published_, num_tokens / page_tokens());
    // Release the last page first, so that LRU eviction removes a prefix after its continuations.
    for (; pages_.size() > kept; pages_.pop_back())
        let_go(static_cast<std::uint32_t>(pages_.size() - 1));
    first_window_ = std::min(first_window_, kept);
}

// Returns the node of the prefix index under which this sequence's next published page is to be
// inserted; nullopt if that node has been unpublished.
std::optional<PrefixIndex::NodeId> KvCache::Sequence::published_end() const {
    if (num_published_ == 0) return PrefixIndex::root;
    const std::uint32_t last = pages_[num_published_ - 1];
    if (!cache_->index_.holds(last)) return std::nullopt;
    return cache_->index_.node_of(last).id;
}

void KvCache::Sequence::publish(std::span<const TokenId> tokens,
                                std::span<const std::vector<std::uint64_t>> page_workers) {
    PrefixIndex& index = cache_->index_;
    auto parent = published_end();
    for (; parent && num_published_ < num_tokens_ / page_tokens(); ++num_published_) {
        const std::uint32_t i = num_published_;
        const auto ids = tokens.subspan(std::size_t{i} * page_tokens(), page_tokens());
        if (const PrefixIndex::Node* same = index.find(*parent, scope_, ids)) {
            const std::uint32_t page = same->page;
            parent = same->id;
            take_over(i, page);
        } else {
            parent = index.insert(*parent, scope_, ids, pages_[i], page_workers[i]);
        }
    }
}

// Replaces a page of this sequence by a published one with the same rows.
void KvCache::Sequence::take_over(std::uint32_t index, std::uint32_t page) {
    cache_->hold(page);
    if (cache_->window_bytes_ > 0 && index >= first_window_) {
        if (cache_->has_window_[page])
            cache_->hold_window(page);
        else
            cache_->give_window(pages_[index], page);
    }
    let_go(index);
    pages_[index] = page;
}

// Returns true if this sequence can go on behind the published pages `nodes`, which continue it:
// the windows before their end, and a copy of the recurrent state at it, are still there.
bool KvCache::Sequence::can_end_at(std::span<const PrefixIndex::Node* const> nodes) const {
    if (has_state() && !cache_->snapshots_.has(nodes.back()->page)) return false;
    if (cache_->window_bytes_ == 0) return true;
    const auto end = num_published_ + static_cast<std::uint32_t>(nodes.size());
    for (std::uint32_t i = first_seen_page(end * page_tokens()); i < end; ++i) {
        const bool is_there = i < num_published_
                                  ? i >= first_window_
                                  : cache_->has_window_[nodes[i - num_published_]->page] != 0;
        if (!is_there) return false;
    }
    return true;
}

CompanionPtr KvCache::Sequence::adopt(
    std::span<const TokenId> tokens,
    const std::function<void(const std::vector<std::uint64_t>& workers)>& heard) {
    if (num_tokens_ != num_published_ * page_tokens()) return nullptr;

    std::vector<const PrefixIndex::Node*> nodes;
    auto parent = published_end();
    for (std::uint64_t end = num_tokens_ + page_tokens(); parent && end <= tokens.size();
         end += page_tokens()) {
        const PrefixIndex::Node* node = cache_->index_.find(
            *parent, scope_, tokens.subspan(end - page_tokens(), page_tokens()));
        if (!node) break;
        nodes.push_back(node);
        parent = node->id;
    }
    while (!nodes.empty() && !can_end_at(nodes)) nodes.pop_back();
    if (nodes.empty()) return nullptr;

    // Pages that were reserved and have no rows yet are replaced.
    for (; pages_.size() > num_published_; pages_.pop_back())
        let_go(static_cast<std::uint32_t>(pages_.size() - 1));
    const auto end = num_published_ + static_cast<std::uint32_t>(nodes.size());
    const std::uint32_t seen = std::max(first_window_, first_seen_page(end * page_tokens()));
    for (const PrefixIndex::Node* node : nodes) {
        cache_->hold(node->page);
        if (num_published_ >= seen) cache_->hold_window(node->page);
        pages_.push_back(node->page);
        ++num_published_;
        num_tokens_ += page_tokens();
        if (heard) heard(node->workers);
    }
    // The pages from before are behind the windows now, as far as they are before `seen`.
    const auto had = end - static_cast<std::uint32_t>(nodes.size());
    if (had == 0) resume_text();
    for (; first_window_ < std::min(seen, had); ++first_window_)
        cache_->release_window(pages_[first_window_]);
    first_window_ = seen;
    if (!has_state()) return nullptr;
    make_state();
    if (slot_state_)
        slot_state_->restore(cache_->snapshots_.find_slot(nodes.back()->page));
    else
        recurrent_->restore(cache_->snapshots_.find(nodes.back()->page), num_tokens_);
    return cache_->snapshots_.companion(nodes.back()->page);
}

void KvCache::Sequence::keep_state(const MakeCompanion& make) {
    const StateSlotPtr slot = slot_state_ ? slot_state_->border() : nullptr;
    if (!slot && (!recurrent_ || recurrent_->border() % page_tokens() != 0)) return;
    const std::uint32_t end = (slot ? slot->num_tokens : recurrent_->border()) / page_tokens();
    if (end == 0 || end > num_published_ || !cache_->index_.holds(pages_[end - 1])) return;
    if (slot)
        cache_->snapshots_.keep(pages_[end - 1], slot, make);
    else
        cache_->snapshots_.keep(pages_[end - 1], *recurrent_, make);
}

void KvCache::Sequence::list_window_slots(std::vector<std::uint32_t>& slots) const {
    for (const std::uint32_t page : pages_)
        slots.push_back(cache_->has_window_[page] ? cache_->window_slot_[page] : 0);
}

std::byte* KvCache::Sequence::head(std::uint32_t layer, bool is_v, std::uint32_t kv_head,
                                   std::uint32_t position) const {
    const std::size_t run = (is_v ? cache_->config_.num_kv_heads : 0) + kv_head,
                      slot = run * page_tokens() + position % page_tokens();
    return cache_->page_data(pages_[position / page_tokens()]) + cache_->layer_at_[layer] +
           slot * cache_->head_bytes();
}

void KvCache::Sequence::store(std::uint32_t layer, std::uint32_t position, std::span<const float> k,
                              std::span<const float> v) {
    const std::size_t head_dim = cache_->config_.head_dim;
    for (std::uint32_t kv_head = 0; kv_head < cache_->config_.num_kv_heads; ++kv_head)
        store_head(layer, kv_head, position, k.subspan(kv_head * head_dim, head_dim),
                   v.subspan(kv_head * head_dim, head_dim));
}

void KvCache::Sequence::store_head(std::uint32_t layer, std::uint32_t kv_head,
                                   std::uint32_t position, std::span<const float> k,
                                   std::span<const float> v) {
    const KvDtype dtype = cache_->options_.dtype;
    store_kv_head(head(layer, false, kv_head, position), dtype, k);
    store_kv_head(head(layer, true, kv_head, position), dtype, v);
}

void KvCache::Sequence::copy_rows(const Sequence& from, std::uint32_t first, std::uint32_t end) {
    MOEX_CHECK(from.page_tokens() == page_tokens() &&
                   from.cache_->page_bytes() == cache_->page_bytes() &&
                   from.cache_->options_.dtype == cache_->options_.dtype,
               "rows of a cache of another shape");
    MOEX_CHECK(cache_->blocks_.shape().num_layers == 0, "a recurrent state has no rows");
    const ModelConfig& config = cache_->config_;
    for (std::uint32_t next = 0; first < end; first = next) {
        next = std::min(end, (first / page_tokens() + 1) * page_tokens());
        const std::size_t bytes = (next - first) * cache_->head_bytes();
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            for (const bool is_v : {false, true})
                for (std::uint32_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head)
                    std::memcpy(head(layer, is_v, kv_head, first),
                                from.head(layer, is_v, kv_head, first), bytes);
    }
}

bool KvCache::Sequence::fill_with_noise(std::uint32_t num_tokens) {
    MOEX_CHECK(num_tokens_ == 0, "noise requires an empty sequence");
    if (!reserve(num_tokens)) return false;
    const ModelConfig& config = cache_->config_;
    std::vector<float> k(std::size_t{config.num_kv_heads} * config.head_dim), v(k.size());
    std::uint32_t state = 1;
    const auto next = [&] {
        // linear congruential generator of "Numerical Recipes"
        state = state * 1664525u + 1013904223u;
        return static_cast<float>(state >> 8) * 0x1p-23f - 1;
    };
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        for (std::uint32_t position = 0;
             config.has_keys(layer) && position < std::min(num_tokens, page_tokens()); ++position) {
            std::generate(k.begin(), k.end(), next);
            std::generate(v.begin(), v.end(), next);
            store(layer, position, k, v);
        }
    for (std::size_t page = 1; page < pages_.size(); ++page)
        cache_->copy_page(pages_.front(), pages_[page]);
    begin_step(num_tokens);
    if (recurrent_) recurrent_->fill(next);
    commit(num_tokens);
    return true;
}

KvRows KvCache::Sequence::k_rows(std::uint32_t layer, std::uint32_t kv_head,
                                 std::uint32_t first) const {
    return {cache_->options_.dtype, head(layer, false, kv_head, first), cache_->head_bytes()};
}
KvRows KvCache::Sequence::v_rows(std::uint32_t layer, std::uint32_t kv_head,
                                 std::uint32_t first) const {
    return {cache_->options_.dtype, head(layer, true, kv_head, first), cache_->head_bytes()};
}

std::vector<float> KvCache::Sequence::copy(std::uint32_t layer, bool is_v,
                                           std::uint32_t position) const {
    const std::size_t head_dim = cache_->config_.head_dim;
    std::vector<float> out(cache_->config_.num_kv_heads * head_dim);
    for (std::uint32_t kv_head = 0; kv_head < cache_->config_.num_kv_heads; ++kv_head)
        load_kv_head(std::span(out).subspan(kv_head * head_dim, head_dim), cache_->options_.dtype,
                     head(layer, is_v, kv_head, position));
    return out;
}
std::vector<float> KvCache::Sequence::k(std::uint32_t layer, std::uint32_t position) const {
    return copy(layer, false, position);
}
std::vector<float> KvCache::Sequence::v(std::uint32_t layer, std::uint32_t position) const {
    return copy(layer, true, position);
}

// Checks the sizes of a page's two parts. An empty second part is one that is not wanted.
Status KvCache::check_parts(std::size_t bytes, std::size_t window_bytes) const {
    if (bytes == main_bytes_ && (window_bytes == 0 || window_bytes == window_bytes_)) return {};
    return Error{ErrorCode::payload_size,
                 text("a page has ", main_bytes_, " and ", window_bytes_, " bytes of rows, not ",
                      bytes, " and ", window_bytes)};
}

Status KvCache::Sequence::read_page(std::uint32_t index, std::span<std::byte> rows,
                                    std::span<std::byte> window_rows) const {
    MOEX_CHECK((index + 1) * page_tokens() <= num_tokens_, text("page ", index, " is not full"));
    const KvPageMover& mover = cache_->options_.mover;
    if (mover.read && !rows.empty()) MOEX_TRY(mover.read({pages_[index]}, rows));
    if (!mover.read) MOEX_TRY(cache_->check_parts(rows.size(), window_rows.size()));
    const std::byte* const data = mover.read ? nullptr : cache_->page_data(pages_[index]);
    if (!mover.read && !rows.empty()) std::memcpy(rows.data(), data, rows.size());
    if (window_rows.empty()) return {};
    if (!has_window_rows(index))
        return Error{ErrorCode::not_found,
                     text("page ", index, " of a sequence is behind the window of its layers")};
    if (mover.read) return mover.read({cache_->window_slot_[pages_[index]], true}, window_rows);
    std::memcpy(window_rows.data(), data + cache_->window_at_, window_rows.size());
    return {};
}

Status KvCache::Sequence::append_page(ByteView rows, ByteView window_rows) {
    MOEX_CHECK(num_tokens_ % page_tokens() == 0, "the last page is not full");
    const std::uint32_t index = num_tokens_ / page_tokens();
    const bool is_here = !cache_->options_.mover.write;
    if (is_here) MOEX_TRY(cache_->check_parts(rows.size(), window_rows.size()));
    if (!reserve(num_tokens_ + page_tokens()))
        return Error{ErrorCode::overloaded,
                     text("page ", index, " of a sequence: no page is free")};
    const KvPageMover& mover = cache_->options_.mover;
    if (!is_here && !rows.empty()) MOEX_TRY(mover.write({pages_[index]}, rows));
    if (!is_here && !window_rows.empty())
        MOEX_TRY(mover.write({cache_->window_slot_[pages_[index]], true}, window_rows));
    std::byte* const data = is_here ? cache_->page_data(pages_[index]) : nullptr;
    if (is_here && !rows.empty()) std::memcpy(data, rows.data(), rows.size());
    if (is_here && !window_rows.empty())
        std::memcpy(data + cache_->window_at_, window_rows.data(), window_rows.size());
    commit(page_tokens());
    if (cache_->window_bytes_ == 0 || !window_rows.empty()) return {};
    for (; first_window_ <= index; ++first_window_) cache_->release_window(pages_[first_window_]);
    return {};
}

Status KvCache::Sequence::write_ahead(std::uint32_t index, ByteView rows) {
    MOEX_CHECK(!cache_->options_.mover.write && cache_->window_bytes_ == 0,
               "rows of this cache are not written ahead");
    MOEX_TRY(cache_->check_parts(rows.size(), 0));
    if (!reserve((index + 1) * page_tokens()))
        return Error{ErrorCode::overloaded,
                     text("page ", index, " of a sequence: no page is free")};
    std::memcpy(cache_->page_data(pages_[index]), rows.data(), rows.size());
    return {};
}

}  // namespace moex
