#include "hub/engine/kv_cache.h"

#include <bit>
#include <cstring>
#include <utility>

#include "protocol/check.h"

namespace moex {
namespace {
constexpr std::uint32_t serial_magic = 0x764b'784d;  // "MxKv"
constexpr std::uint32_t serial_version = 1;
static_assert(std::endian::native == std::endian::little,
              "rows are serialised as they lie in memory");
}  // namespace

KvCache::KvCache(const ModelConfig& config, KvCacheOptions options)
    : config_(config),
      options_(options),
      pages_(options.num_pages) {
    MOEX_CHECK(options.page_tokens > 0, "a page holds at least one token");
    free_.reserve(options.num_pages);
    for (std::uint32_t page = options.num_pages; page-- > 0;) free_.push_back(page);
}

std::uint32_t KvCache::pages_free() const { return static_cast<std::uint32_t>(free_.size()); }
std::uint32_t KvCache::pages_for(std::uint32_t num_tokens) const {
    return static_cast<std::uint32_t>((std::uint64_t{num_tokens} + options_.page_tokens - 1) /
                                      options_.page_tokens);
}
std::uint64_t KvCache::page_bytes() const {
    return std::uint64_t{2} * config_.num_layers * options_.page_tokens * row_floats() *
           sizeof(float);
}

std::span<float> KvCache::row(std::uint32_t page, std::uint32_t layer, bool is_v,
                              std::uint32_t slot) {
    const std::size_t first =
        ((std::size_t{layer} * 2 + (is_v ? 1 : 0)) * options_.page_tokens + slot) * row_floats();
    return {pages_[page].get() + first, row_floats()};
}

KvCache::Sequence::Sequence(Sequence&& other) noexcept
    : cache_(other.cache_),
      pages_(std::exchange(other.pages_, {})),
      num_tokens_(std::exchange(other.num_tokens_, 0)) {}

KvCache::Sequence& KvCache::Sequence::operator=(Sequence&& other) noexcept {
    if (this != &other) {
        roll_back(0);
        cache_ = other.cache_;
        pages_ = std::exchange(other.pages_, {});
        num_tokens_ = std::exchange(other.num_tokens_, 0);
    }
    return *this;
}

KvCache::Sequence::~Sequence() { roll_back(0); }

bool KvCache::Sequence::reserve(std::uint32_t num_tokens) {
    const std::uint32_t wanted = cache_->pages_for(num_tokens);
    if (wanted <= pages_.size()) return true;
    if (wanted - pages_.size() > cache_->free_.size()) return false;

    while (pages_.size() < wanted) {
        const std::uint32_t page = cache_->free_.back();
        cache_->free_.pop_back();

        // Not cleared: a row is written before it is read, and untouched memory costs nothing.
        if (!cache_->pages_[page])
            cache_->pages_[page].reset(new float[cache_->page_bytes() / sizeof(float)]);
        pages_.push_back(page);
    }

    return true;
}

void KvCache::Sequence::commit(std::uint32_t num_tokens) {
    num_tokens_ += num_tokens;
    MOEX_CHECK(cache_->pages_for(num_tokens_) <= pages_.size(),
               "committed beyond what was reserved");
}

void KvCache::Sequence::roll_back(std::uint32_t num_tokens) {
    MOEX_CHECK(num_tokens <= num_tokens_,
               text("rolled back to ", num_tokens, " of ", num_tokens_, " tokens"));

    num_tokens_ = num_tokens;
    for (const std::uint32_t kept = cache_->pages_for(num_tokens); pages_.size() > kept;
         pages_.pop_back())
        cache_->free_.push_back(pages_.back());
}

std::span<float> KvCache::Sequence::k(std::uint32_t layer, std::uint32_t position) {
    return cache_->row(pages_[position / page_tokens()], layer, false, position % page_tokens());
}
std::span<float> KvCache::Sequence::v(std::uint32_t layer, std::uint32_t position) {
    return cache_->row(pages_[position / page_tokens()], layer, true, position % page_tokens());
}
std::span<const float> KvCache::Sequence::k(std::uint32_t layer, std::uint32_t position) const {
    return cache_->row(pages_[position / page_tokens()], layer, false, position % page_tokens());
}
std::span<const float> KvCache::Sequence::v(std::uint32_t layer, std::uint32_t position) const {
    return cache_->row(pages_[position / page_tokens()], layer, true, position % page_tokens());
}

// magic, version, num_layers, num_kv_heads, head_dim, num_tokens;
// then per layer and position k and v. Independent of page_tokens.
Bytes KvCache::Sequence::serialize() const {
    const ModelConfig& config = cache_->config_;
    const std::size_t row_bytes = cache_->row_floats() * sizeof(float);
    ByteWriter out(24 + std::size_t{2} * config.num_layers * num_tokens_ * row_bytes);

    for (const std::uint32_t value : {serial_magic, serial_version, config.num_layers,
                                      config.num_kv_heads, config.head_dim, num_tokens_})
        out.u32(value);

    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        for (std::uint32_t position = 0; position < num_tokens_; ++position) {
            out.raw(std::as_bytes(k(layer, position)));
            out.raw(std::as_bytes(v(layer, position)));
        }

    return std::move(out).take();
}

Result<KvCache::Sequence> KvCache::Sequence::deserialize(KvCache& cache, ByteView bytes) {
    const ModelConfig& config = cache.config_;
    ByteReader in(bytes);

    const std::uint32_t magic = in.u32(), version = in.u32(), layers = in.u32(), heads = in.u32(),
                        head_dim = in.u32(), tokens = in.u32();

    if (in.overrun() || magic != serial_magic)
        return Error{ErrorCode::bad_file, "not a saved key/value state"};

    if (version != serial_version)
        return Error{ErrorCode::bad_file, text("saved state has version ", version,
                                               ", this build reads ", serial_version)};

    if (layers != config.num_layers || heads != config.num_kv_heads || head_dim != config.head_dim)
        return Error{ErrorCode::bad_file,
                     text("saved state is of ", layers, " layers x ", heads, " heads x ", head_dim,
                          ", the model has ", config.num_layers, " x ", config.num_kv_heads, " x ",
                          config.head_dim)};

    const std::size_t row_bytes = cache.row_floats() * sizeof(float);
    const std::uint64_t wanted = std::uint64_t{2} * layers * tokens * row_bytes;

    if (in.remaining_bytes() != wanted)
        return Error{ErrorCode::bad_file,
                     text("saved state of ", tokens, " tokens has ", in.remaining_bytes(),
                          " bytes of rows, wanted ", wanted)};

    Sequence sequence(cache);
    if (!sequence.reserve(tokens))
        return Error{ErrorCode::overloaded, text("saved state needs ", cache.pages_for(tokens),
                                                 " pages, ", cache.pages_free(), " are free")};

    for (std::uint32_t layer = 0; layer < layers; ++layer)
        for (std::uint32_t position = 0; position < tokens; ++position) {
            std::memcpy(sequence.k(layer, position).data(), in.take(row_bytes).data(), row_bytes);
            std::memcpy(sequence.v(layer, position).data(), in.take(row_bytes).data(), row_bytes);
        }

    sequence.commit(tokens);
    return sequence;
}

}  // namespace moex
