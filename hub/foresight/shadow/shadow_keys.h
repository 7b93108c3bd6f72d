// The keys and values that a served shadow reads: rows copied from the model every `period`
// positions, and the shadow's own rows after them. A text is identified by the address of the
// model's sequence. Example, period 4, the model at position 10: rows 0 ... 7 are the model's, rows
// 8 and 9 are the shadow's own; at position 12 rows 8 ... 11 are copied together. Owner: the thread
// that owns the shadow (see hub/foresight/shadow/served_shadow.h). Only the engine's thread, which
// owns the model's sequences, copies rows from them.
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
        std::uint32_t position = 0;  // the model's sequence has the rows before this position
        // The first page of the model's sequence. If a sequence at the same address has another
        // first page, it is another text, and the earlier text has ended.
        std::uint32_t first_page = 0;
    };

    // `period`: number of positions of a text that are copied together; until they are copied, the
    // shadow's own rows are used. With 0, a position that the shadow has computed is never
    // replaced. At most `texts_max` texts are kept; the least recently prepared one is evicted.
    ShadowKeys(const ModelConfig& config, KvCacheOptions kv, std::uint32_t period,
               std::size_t texts_max);

    // Invalidates the shadow's rows of `text` from `position` on, because the model now has other
    // rows at these positions.
    void invalidate(const KvCache::Sequence* text, std::uint32_t position);
    // Returns the shadow's sequence of `text`, with its first `num_before` rows filled and room for
    // `num_rows` more. `step` ascends; a text that was prepared in the same step is not evicted to
    // make room for another. `may_copy` is the number of positions that may be copied, and is
    // reduced by the number of copied positions. With null no position may be copied, since the
    // model's sequence cannot be read at this moment. Returns null if keys are missing or due to be
    // copied, or if the cache has too few pages; rows that were copied so far stay.
    KvCache::Sequence* prepare(const Text& text, std::uint32_t num_before, std::uint32_t num_rows,
                               std::uint64_t step, std::uint32_t* may_copy);
    std::uint64_t copied() const { return copied_; }  // positions, since the start

  private:
    struct Follower {
        KvCache::Sequence kv;
        // the rows of the first `aligned` positions are copies of the model's
        std::uint32_t aligned = 0;
        std::uint32_t first_page = 0;  // number of the first page of the model's sequence
        std::uint64_t step = 0;        // the step of this text's latest prepare()
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
