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

KvCache::KvCache(const ModelConfig& config, KvCacheOptions options)
    : config_(config),
      options_(options),
      index_(options.num_pages),
      holders_(options.num_pages),
      released_(options.num_pages),
      blocks_(RecurrentShape::of(config)),
      snapshots_(blocks_.shape(), options.snapshot_bytes_max) {
    for (const LayerPlan& plan : config.layers) {
        key_layer_.push_back(num_key_layers_);
        if (plan.mixer == Mixer::attention) ++num_key_layers_;
    }
    MOEX_CHECK(options.page_tokens > 0, "a page holds at least one token");
    free_.reserve(options.num_pages);
    for (std::uint32_t page = options.num_pages; page-- > 0;) free_.push_back(page);
    if (options.num_pages == 0 || options_.mover.copy) return;

    const auto system_page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    stride_bytes_ = (page_bytes() + system_page - 1) / system_page * system_page;
    const std::size_t size = stride_bytes_ * options.num_pages;
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        throw std::runtime_error(text("the system refuses ", size >> 20,
                                      " MB of addresses for keys and values: ",
                                      std::strerror(errno), "; try a smaller --kv-mb"));
    memory_ = {static_cast<std::byte*>(memory), UnmapMemory{size}};
}

void UnmapMemory::operator()(std::byte* memory) const { ::munmap(memory, size_bytes); }

std::uint32_t KvCache::pages_free() const {
    return static_cast<std::uint32_t>(free_.size() + idle_.size());
}
std::uint32_t KvCache::pages_cached() const { return static_cast<std::uint32_t>(idle_.size()); }
std::uint32_t KvCache::pages_for(std::uint32_t num_tokens) const {
    return static_cast<std::uint32_t>((std::uint64_t{num_tokens} + options_.page_tokens - 1) /
                                      options_.page_tokens);
}
std::uint64_t KvCache::page_bytes() const {
    return std::uint64_t{2} * num_key_layers_ * options_.page_tokens * row_bytes();
}

std::byte* KvCache::page_data(std::uint32_t page) const {
    MOEX_DCHECK(memory_ != nullptr, "a device stores the rows");
    return memory_.get() + page * stride_bytes_;
}

// Returns an unused page, held by one sequence. If no page is free, it evicts the published page
// that its last holder released longest ago.
std::uint32_t KvCache::take_page() {
    std::uint32_t page = 0;
    if (!free_.empty()) {
        page = free_.back();
        free_.pop_back();
    } else {
        page = idle_.begin()->second;
        idle_.erase(idle_.begin());
        unpublish(page);
    }
    holders_[page] = 1;
    return page;
}

void KvCache::hold(std::uint32_t page) {
    if (holders_[page]++ == 0) idle_.erase(released_[page]);
}

void KvCache::release(std::uint32_t page) {
    if (--holders_[page] > 0) return;
    if (!index_.holds(page)) return free_page(page);
    released_[page] = ++releases_;
    idle_.emplace(released_[page], page);
}

void KvCache::copy_page(std::uint32_t from, std::uint32_t to) {
    if (options_.mover.copy)
        options_.mover.copy(from, to);
    else
        std::memcpy(page_data(to), page_data(from), page_bytes());
}

// Frees a page and returns its memory to the system. The page's next holder gets new memory when it
// writes.
void KvCache::free_page(std::uint32_t page) {
    if (memory_) ::madvise(page_data(page), stride_bytes_, MADV_DONTNEED);
    free_.push_back(page);
}

void KvCache::unpublish(std::uint32_t page) {
    index_.erase(page);
    snapshots_.drop(page);
}

void KvCache::forget_worker(std::uint64_t worker) {
    for (std::uint32_t page = 0; page < options_.num_pages; ++page) {
        if (!index_.holds(page)) continue;
        const std::vector<std::uint64_t>& workers = index_.node_of(page).workers;
        if (!std::binary_search(workers.begin(), workers.end(), worker)) continue;

        unpublish(page);
        if (holders_[page] > 0) continue;
        idle_.erase(released_[page]);
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
    roll_back(0);
    const std::uint64_t id = std::exchange(id_, 0);
    if (id != 0 && cache_->options_.ended) cache_->options_.ended(id);
}

KvCache::Sequence::Sequence(Sequence&& other) noexcept
    : cache_(other.cache_),
      scope_(std::move(other.scope_)),
      pages_(std::exchange(other.pages_, {})),
      num_published_(std::exchange(other.num_published_, 0)),
      num_tokens_(std::exchange(other.num_tokens_, 0)),
      recurrent_(std::move(other.recurrent_)),
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
        recurrent_ = std::move(other.recurrent_);
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

    if (copies) {
        const std::uint32_t page = cache_->take_page();
        cache_->copy_page(pages_[next], page);
        cache_->release(std::exchange(pages_[next], page));
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
}

void KvCache::Sequence::begin_step(std::uint32_t num_rows) {
    if (!has_state()) return;
    if (!recurrent_) recurrent_ = std::make_unique<RecurrentState>(cache_->blocks_);
    recurrent_->begin_step(num_tokens_, num_rows);
}

void KvCache::Sequence::roll_back(std::uint32_t num_tokens) {
    MOEX_CHECK(num_tokens <= num_tokens_,
               text("rolled back to ", num_tokens, " of ", num_tokens_, " tokens"));

    if (recurrent_ && num_tokens < num_tokens_ && num_tokens < recurrent_->kept_from())
        num_tokens = 0;
    num_tokens_ = num_tokens;
    num_published_ = std::min(num_published_, num_tokens / page_tokens());
    for (const std::uint32_t kept = cache_->pages_for(num_tokens); pages_.size() > kept;
         pages_.pop_back())
        cache_->release(
            // release the last page first, so that LRU eviction removes a prefix after its
            // continuations
            pages_.back());
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
            cache_->hold(page);
            cache_->release(std::exchange(pages_[i], page));
        } else {
            parent = index.insert(*parent, scope_, ids, pages_[i], page_workers[i]);
        }
    }
}

void KvCache::Sequence::adopt(
    std::span<const TokenId> tokens,
    const std::function<void(const std::vector<std::uint64_t>& workers)>& heard) {
    if (num_tokens_ != num_published_ * page_tokens()) return;

    std::vector<const PrefixIndex::Node*> nodes;
    std::size_t num_usable = 0;  // with a recurrent state: up to the last page that has a copy
    auto parent = published_end();
    for (std::uint64_t end = num_tokens_ + page_tokens(); parent && end <= tokens.size();
         end += page_tokens()) {
        const PrefixIndex::Node* node = cache_->index_.find(
            *parent, scope_, tokens.subspan(end - page_tokens(), page_tokens()));
        if (!node) break;
        nodes.push_back(node);
        parent = node->id;
        if (!has_state() || cache_->snapshots_.has(node->page)) num_usable = nodes.size();
    }
    nodes.resize(num_usable);

    for (const PrefixIndex::Node* node : nodes) {
        cache_->hold(node->page);
        if (num_published_ < pages_.size())
            cache_->release(std::exchange(pages_[num_published_], node->page));
        else
            pages_.push_back(node->page);

        ++num_published_;
        num_tokens_ += page_tokens();
        if (heard) heard(node->workers);
    }
    if (nodes.empty() || !has_state()) return;
    if (!recurrent_) recurrent_ = std::make_unique<RecurrentState>(cache_->blocks_);
    recurrent_->restore(cache_->snapshots_.find(nodes.back()->page), num_tokens_);
}

void KvCache::Sequence::keep_state() {
    if (!recurrent_ || recurrent_->border() % page_tokens() != 0) return;
    const std::uint32_t end = recurrent_->border() / page_tokens();
    if (end > 0 && end <= num_published_ && cache_->index_.holds(pages_[end - 1]))
        cache_->snapshots_.keep(pages_[end - 1], *recurrent_);
}

std::byte* KvCache::Sequence::head(std::uint32_t layer, bool is_v, std::uint32_t kv_head,
                                   std::uint32_t position) const {
    const std::size_t run = (std::size_t{cache_->key_layer_[layer]} * 2 + (is_v ? 1 : 0)) *
                                cache_->config_.num_kv_heads +
                            kv_head;
    const std::size_t slot = run * page_tokens() + position % page_tokens();
    return cache_->page_data(pages_[position / page_tokens()]) + slot * cache_->head_bytes();
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

Status KvCache::Sequence::read_page(std::uint32_t index, std::span<std::byte> rows) const {
    MOEX_CHECK((index + 1) * page_tokens() <= num_tokens_, text("page ", index, " is not full"));
    if (cache_->options_.mover.read) return cache_->options_.mover.read(pages_[index], rows);
    if (rows.size() != cache_->page_bytes())
        return Error{ErrorCode::payload_size, text("a page has ", cache_->page_bytes(),
                                                   " bytes of rows, not ", rows.size())};
    std::memcpy(rows.data(), cache_->page_data(pages_[index]), rows.size());
    return {};
}

Status KvCache::Sequence::append_page(ByteView rows) {
    MOEX_CHECK(num_tokens_ % page_tokens() == 0, "the last page is not full");
    const std::uint32_t index = num_tokens_ / page_tokens();
    const bool is_here = !cache_->options_.mover.write;
    if (is_here && rows.size() != cache_->page_bytes())
        return Error{ErrorCode::payload_size, text("a page has ", cache_->page_bytes(),
                                                   " bytes of rows, not ", rows.size())};
    if (!reserve(num_tokens_ + page_tokens()))
        return Error{ErrorCode::overloaded,
                     text("page ", index, " of a sequence: no page is free")};
    if (is_here)
        std::memcpy(cache_->page_data(pages_[index]), rows.data(), rows.size());
    else
        MOEX_TRY(cache_->options_.mover.write(pages_[index], rows));
    commit(page_tokens());
    return {};
}

}  // namespace moex
