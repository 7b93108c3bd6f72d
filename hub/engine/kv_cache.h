// Keys and values of all sequences in pages of fixed size. A sequence
// owns a list of pages; rolling back returns what it no longer needs.
// Layout of a page: for each layer, k then v, each [page_tokens, num_kv_heads, head_dim] f32.
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hub/model/config.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

struct KvCacheOptions {
    std::uint32_t page_tokens = 16;
    std::uint32_t num_pages = 0;  // the budget
};

class KvCache {
  public:
    KvCache(const ModelConfig& config, KvCacheOptions options);

    std::uint32_t pages_free() const;
    std::uint32_t pages_for(std::uint32_t num_tokens) const;
    std::uint64_t page_bytes() const;

    // The cached tokens of one sequence; returns its pages when destroyed.
    class Sequence {
      public:
        explicit Sequence(KvCache& cache) : cache_(&cache) {}
        Sequence(Sequence&& other) noexcept;
        Sequence& operator=(Sequence&& other) noexcept;
        ~Sequence();
        std::uint32_t num_tokens() const { return num_tokens_; }
        // Positions of one page lie one after the other: k(layer, p
        // + i) = k(layer, p) + i rows while p + i stays in p's page.
        std::uint32_t page_tokens() const { return cache_->options_.page_tokens; }
        // Room for `num_tokens` in all; false when the budget is spent (nothing changes).
        bool reserve(std::uint32_t num_tokens);
        // grows num_tokens() after the rows were written
        void commit(std::uint32_t num_tokens);
        void roll_back(std::uint32_t num_tokens);  // forgets all tokens from `num_tokens` on
        // Row of one position, [num_kv_heads, head_dim]. The position is within what was reserved.
        std::span<float> k(std::uint32_t layer, std::uint32_t position);
        std::span<float> v(std::uint32_t layer, std::uint32_t position);
        std::span<const float> k(std::uint32_t layer, std::uint32_t position) const;
        std::span<const float> v(std::uint32_t layer, std::uint32_t position) const;
        // Whole state as bytes (version, shape, tokens, rows), and back; a foreign
        // shape or a damaged length is bad_file, a spent budget overloaded.
        Bytes serialize() const;
        static Result<Sequence> deserialize(KvCache& cache, ByteView bytes);

      private:
        friend class KvCache;
        KvCache* cache_;
        std::vector<std::uint32_t> pages_;
        std::uint32_t num_tokens_ = 0;
    };

  private:
    std::span<float> row(std::uint32_t page, std::uint32_t layer, bool is_v, std::uint32_t slot);
    std::size_t row_floats() const { return std::size_t{config_.num_kv_heads} * config_.head_dim; }
    ModelConfig config_;
    KvCacheOptions options_;
    std::vector<std::unique_ptr<float[]>> pages_;  // allocated at first use
    std::vector<std::uint32_t> free_;
};

}  // namespace moex
