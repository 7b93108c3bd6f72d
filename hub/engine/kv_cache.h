// Keys and values of all sequences in pages of fixed size. A sequence
// owns a list of pages; rolling back returns what it no longer needs.
// Full pages may be published: a later sequence of the same scope that begins with the same tokens
// takes them over instead of computing them. Published pages that nobody holds stay until room is
// needed, and go in the order of their last use.
// Layout of a page: for each layer, k then v, each [num_kv_heads, page_tokens] heads of
// kv_head_bytes(): what attention walks for one kv head lies in one piece.
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/engine/kv_dtype.h"
#include "hub/engine/kv_head.h"
#include "hub/engine/prefix_index.h"
#include "hub/model/config.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// Copies all rows of page `from` to page `to`, where these lie elsewhere.
using KvPageCopier = std::function<void(std::uint32_t from, std::uint32_t to)>;

struct KvCacheOptions {
    std::uint32_t page_tokens = 16;
    std::uint32_t num_pages = 0;  // the budget
    KvDtype dtype = KvDtype::f32;
    // Set: rows lie with a device (hub/engine/step_device.h), and the cache only says whose each
    // page is. Nothing is stored in it or read from it then.
    KvPageCopier copy_page = {};
};

struct UnmapMemory {
    std::size_t size_bytes = 0;
    void operator()(std::byte* memory) const;
};

class KvCache {
  public:
    // Takes addresses for the whole budget and memory page by page, as it is used.
    // Throws std::runtime_error when the system refuses the addresses.
    KvCache(const ModelConfig& config, KvCacheOptions options);

    std::uint32_t pages_free() const;    // that no sequence holds, published ones included
    std::uint32_t pages_cached() const;  // published ones that no sequence holds
    std::uint32_t pages_for(std::uint32_t num_tokens) const;
    std::uint64_t page_bytes() const;
    // Unpublishes every page of whose rows `worker` computed experts, and what lies behind it:
    // a sequence that holds such a page publishes none after it.
    void forget_worker(std::uint64_t worker);

    // The cached tokens of one sequence; returns its pages when destroyed.
    class Sequence {
      public:
        // `scope`: whose published pages it may take over, and who may take over its own.
        explicit Sequence(KvCache& cache, std::string scope = {})
            : cache_(&cache),
              scope_(std::move(scope)) {}
        Sequence(Sequence&& other) noexcept;
        Sequence& operator=(Sequence&& other) noexcept;
        ~Sequence();
        std::uint32_t num_tokens() const { return num_tokens_; }
        // Of the positions [0, page_tokens), then the next ones; at least those of num_tokens().
        std::span<const std::uint32_t> pages() const { return pages_; }
        std::uint32_t page_tokens() const { return cache_->options_.page_tokens; }
        // Room for `num_tokens` in all; false when the budget is spent (nothing changes).
        // From here on the rows behind num_tokens() may be written: a page that others read is
        // copied first.
        bool reserve(std::uint32_t num_tokens);
        // grows num_tokens() after the rows were written
        void commit(std::uint32_t num_tokens);
        void roll_back(std::uint32_t num_tokens);  // forgets all tokens from `num_tokens` on

        // Offers the full pages to later sequences. `tokens` are those of all positions,
        // `page_workers[i]` who computed experts of page i's rows. A page that was offered before
        // by another sequence is taken instead of this one's.
        void publish(std::span<const TokenId> tokens,
                     std::span<const std::vector<std::uint64_t>> page_workers);
        // Takes over published pages that go on with `tokens` (those of all positions) behind what
        // this sequence has, all of which was published; num_tokens() grows by whole pages.
        // `heard` is told who computed each page.
        void adopt(
            std::span<const TokenId> tokens,
            const std::function<void(const std::vector<std::uint64_t>& workers)>& heard = {});

        // Keys and values of one position, each [num_kv_heads, head_dim], rounded to the cache's
        // dtype. The position is within what was reserved, here and below.
        void store(std::uint32_t layer, std::uint32_t position, std::span<const float> k,
                   std::span<const float> v);
        // Of one head, each [head_dim].
        void store_head(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t position,
                        std::span<const float> k, std::span<const float> v);
        // The positions [first, end) as another cache of the same shape, page and dtype has them.
        // Both have room for them; the other's owner waits meanwhile.
        void copy_rows(const Sequence& from, std::uint32_t first, std::uint32_t end);
        // For benches: the positions [0, num_tokens) as a text of that length would fill them, the
        // same noise in every page. False when the budget is spent. Requires an empty sequence.
        bool fill_with_noise(std::uint32_t num_tokens);
        // One head of the positions from `first` on, to the end of its page.
        KvRows k_rows(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t first) const;
        KvRows v_rows(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t first) const;
        // A copy of one position, [num_kv_heads, head_dim].
        std::vector<float> k(std::uint32_t layer, std::uint32_t position) const;
        std::vector<float> v(std::uint32_t layer, std::uint32_t position) const;
        // Whole state as bytes (version, shape, tokens, rows), and back; a foreign
        // shape or a damaged length is bad_file, a spent budget overloaded.
        Bytes serialize() const;
        static Result<Sequence> deserialize(KvCache& cache, ByteView bytes);

      private:
        friend class KvCache;
        std::byte* head(std::uint32_t layer, bool is_v, std::uint32_t kv_head,
                        std::uint32_t position) const;
        std::vector<float> copy(std::uint32_t layer, bool is_v, std::uint32_t position) const;
        std::optional<PrefixIndex::NodeId> published_end() const;
        KvCache* cache_;
        std::string scope_;
        std::vector<std::uint32_t> pages_;
        std::uint32_t num_published_ = 0;  // of the pages, from the first on
        std::uint32_t num_tokens_ = 0;
    };

  private:
    std::uint32_t take_page();
    void hold(std::uint32_t page);
    void release(std::uint32_t page);
    void free_page(std::uint32_t page);
    void copy_page(std::uint32_t from, std::uint32_t to);

    std::byte* page_data(std::uint32_t page) const;
    std::size_t head_bytes() const { return kv_head_bytes(options_.dtype, config_.head_dim); }
    std::size_t row_bytes() const { return config_.num_kv_heads * head_bytes(); }

    ModelConfig config_;
    KvCacheOptions options_;
    std::size_t stride_bytes_ = 0;  // of pages in memory: whole pages of the system's
    std::unique_ptr<std::byte, UnmapMemory> memory_;

    PrefixIndex index_;
    std::vector<std::uint32_t> holders_;           // sequences that hold each page
    std::vector<std::uint64_t> released_;          // when its last holder let go of each page
    std::map<std::uint64_t, std::uint32_t> idle_;  // published, held by nobody; by that time
    std::uint64_t releases_ = 0;
    std::vector<std::uint32_t> free_;
};

}  // namespace moex
