// The keys and values that a served shadow reads: rows copied from the model every `period`
// positions, and the shadow's own rows after them. A text is identified by the address of the
// model's sequence. Example, period 4, the model at position 10: rows 0 ... 7 are the model's, rows
// 8 and 9 are the shadow's own; at position 12 rows 8 ... 11 are copied together. Owner: the thread
// that has the shadow (hub/foresight/shadow/served_shadow.h). The engine's thread owns the model's
// sequences, and it alone copies from them.
#pragma once

#include <cstdint>
#include <map>

#include "hub/engine/kv_cache.h"

namespace moex {

// Holds the keys and values of several texts for one shadow.
class ShadowKeys {
  public:
    struct Text {
        const KvCache::Sequence* kv = nullptr;  // the model's sequence
        std::uint32_t position = 0;             // the model has the rows before it
        // The first page of the model's sequence. Another page at the same address means another
        // text: the earlier one ended.
        std::uint32_t first_page = 0;
    };

    // `period`: this many positions of a text are copied together, and are the shadow's own before;
    // 0: never copied once the shadow has read them. At most `texts_max` texts are kept; the least
    // recently prepared one is evicted.
    ShadowKeys(const ModelConfig& config, KvCacheOptions kv, std::uint32_t period,
               std::size_t texts_max);

    // Invalidates the rows of the text from `position` on; the model has other rows there now.
    void invalidate(const KvCache::Sequence* text, std::uint32_t position);
    // Returns the shadow's sequence of `text`, with its first `num_before` rows filled and room for
    // `num_rows` more. `step` ascends; texts that were prepared in the same step are not evicted
    // for each other. `may_copy` is the number of positions that may be copied, and is reduced by
    // the copied ones; null: no copy is allowed, as the model's sequence cannot be read now.
    // Returns null if keys are missing or due, or if pages are missing; rows that were copied stay.
    KvCache::Sequence* prepare(const Text& text, std::uint32_t num_before, std::uint32_t num_rows,
                               std::uint64_t step, std::uint32_t* may_copy);
    std::uint64_t copied() const { return copied_; }  // positions, since the start

  private:
    struct Follower {
        KvCache::Sequence kv;
        std::uint32_t aligned = 0;     // the first `aligned` positions are the model's
        std::uint32_t first_page = 0;  // of the model's sequence
        std::uint64_t step = 0;        // the step of its last prepare()
    };
    bool align(Follower& follower, const Text& text, std::uint32_t room, std::uint64_t step,
               std::uint32_t& may_copy);
    bool reserve(Follower& follower, std::uint32_t num_tokens, std::uint64_t step);
    void evict_oldest(std::uint64_t step);

    const std::uint32_t period_;
    const std::size_t texts_max_;
    KvCache cache_;
    std::map<const KvCache::Sequence*, Follower> followers_;
    std::uint64_t copied_ = 0;
};

}  // namespace moex
