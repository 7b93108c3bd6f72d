#include "hub/foresight/shadow/shadow_keys.h"

#include <algorithm>
#include <utility>

namespace moex {

ShadowKeys::ShadowKeys(const ModelConfig& config, KvCacheOptions kv, std::uint32_t period,
                       std::size_t texts_max)
    : period_(period),
      texts_max_(texts_max),
      cache_(config, std::move(kv)) {}

void ShadowKeys::invalidate(const KvCache::Sequence* text, std::uint32_t position) {
    const auto found = followers_.find(text);
    if (found == followers_.end()) return;

    Follower& follower = found->second;
    follower.aligned = std::min(follower.aligned, position);
    follower.kv.roll_back(std::min(follower.kv.num_tokens(), position));
}

KvCache::Sequence* ShadowKeys::prepare(const Text& text, std::uint32_t num_before,
                                       std::uint32_t num_rows, std::uint64_t step,
                                       std::uint32_t* may_copy) {
    const auto [at, is_new] = followers_.try_emplace(text.kv,
                                                     Follower{.kv = KvCache::Sequence(cache_)});
    Follower& follower = at->second;
    follower.step = step;
    if (followers_.size() > texts_max_) evict_oldest(step);
    if (std::exchange(follower.first_page, text.first_page) != text.first_page)
        invalidate(text.kv, 0);
    follower.aligned = std::min(follower.aligned, text.position);

    const bool is_missing = follower.kv.num_tokens() < num_before;
    const bool is_due = period_ > 0 && text.position - follower.aligned >= period_;
    if (is_missing || is_due) {
        if (may_copy == nullptr) return nullptr;
        if (!align(follower, text, num_before + num_rows, step, *may_copy)) return nullptr;
    }
    if (follower.kv.num_tokens() < num_before) return nullptr;

    follower.kv.roll_back(num_before);
    return reserve(follower, num_before + num_rows, step) ? &follower.kv : nullptr;
}

// Replaces the shadow's own rows of keys and values by the model's. Rows beyond the model's
// position, which the shadow computed ahead, stay. Returns false if some rows could not be copied,
// because `may_copy` or the pages did not suffice.
bool ShadowKeys::align(Follower& follower, const Text& text, std::uint32_t room, std::uint64_t step,
                       std::uint32_t& may_copy) {
    const bool has_rows = follower.kv.num_tokens() >= text.position;
    if (!has_rows) {
        follower.kv.roll_back(follower.aligned);
        if (!reserve(follower, room, step)) return false;
    }

    const std::uint32_t end = std::min(text.position, follower.aligned + may_copy),
                        count = end - follower.aligned;
    follower.kv.copy_rows(*text.kv, follower.aligned, end);
    if (!has_rows) follower.kv.commit(count);
    follower.aligned = end;
    may_copy -= count;
    copied_ += count;
    return end == text.position;
}

bool ShadowKeys::reserve(Follower& follower, std::uint32_t num_tokens, std::uint64_t step) {
    if (follower.kv.reserve(num_tokens)) return true;
    evict_oldest(step);
    return follower.kv.reserve(num_tokens);
}

// Evicts the keys of the least recently prepared text, unless prepare() was called for it in this
// step.
void ShadowKeys::evict_oldest(std::uint64_t step) {
    const auto oldest = std::ranges::min_element(followers_, {},
                                                 [](const auto& one) { return one.second.step; });
    if (oldest != followers_.end() && oldest->second.step != step) followers_.erase(oldest);
}

}  // namespace moex
