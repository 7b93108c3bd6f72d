// Keys and values that a served shadow reads: the model's, copied every so many positions, and the
// shadow's own behind them. A text is known by the address of the model's sequence.
// Owner: whoever has the shadow (hub/foresight/shadow/served_shadow.h); the model's sequences are
// the engine's thread's, which alone copies from them.
#pragma once

#include <cstdint>
#include <map>

#include "hub/engine/kv_cache.h"

namespace moex {

class ShadowKeys {
  public:
    struct Text {
        const KvCache::Sequence* kv = nullptr;  // the model's
        std::uint32_t position = 0;             // rows before it are there
        std::uint32_t first_page = 0;  // another: a text that came to the address of one that ended
    };

    // `period`: so many positions of a text become the model's together, until then they are the
    // shadow's own; 0: never. `texts_max` are kept, those that were asked for last.
    ShadowKeys(const ModelConfig& config, KvCacheOptions kv, std::uint32_t period,
               std::size_t texts_max);

    // Rows of the text from `position` on are another's by now.
    void lose(const KvCache::Sequence* text, std::uint32_t position);
    // The shadow's sequence of `text`, with room for `num_rows` behind its first `num_before` rows;
    // `turn` ascends, and texts of the same are kept together. `may_copy` positions may be copied
    // and are taken off; null: none, as the model's cannot be read now. Null: keys are missing or
    // due, or there is no room; what was copied stays.
    KvCache::Sequence* prepare(const Text& text, std::uint32_t num_before, std::uint32_t num_rows,
                               std::uint64_t turn, std::uint32_t* may_copy);
    std::uint64_t copied() const { return copied_; }  // positions, all in all

  private:
    struct Follower {
        KvCache::Sequence kv;
        std::uint32_t aligned = 0;     // so many positions are the model's
        std::uint32_t first_page = 0;  // of the model's text
        std::uint64_t turn = 0;        // when it was asked for
    };
    bool align(Follower& follower, const Text& text, std::uint32_t room, std::uint64_t turn,
               std::uint32_t& may_copy);
    bool reserve(Follower& follower, std::uint32_t num_tokens, std::uint64_t turn);
    void drop_oldest(std::uint64_t turn);

    const std::uint32_t period_;
    const std::size_t texts_max_;
    KvCache cache_;
    std::map<const KvCache::Sequence*, Follower> followers_;
    std::uint64_t copied_ = 0;
};

}  // namespace moex
