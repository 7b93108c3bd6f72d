#include "hub/foresight/shadow/shadow_keys.h"

#include <algorithm>
#include <utility>

namespace moex {

ShadowKeys::ShadowKeys(const ModelConfig& config, KvCacheOptions kv, std::uint32_t period,
                       std::size_t texts_max)
    : period_(period),
      texts_max_(texts_max),
      cache_(config, std::move(kv)) {}

void ShadowKeys::lose(const KvCache::Sequence* text, std::uint32_t position) {
    const auto found = followers_.find(text);
    if (found == followers_.end()) return;

    Follower& follower = found->second;
    follower.aligned = std::min(follower.aligned, position);
    follower.kv.roll_back(std::min(follower.kv.num_tokens(), position));
}

KvCache::Sequence* ShadowKeys::prepare(const Text& text, std::uint32_t num_before,
                                       std::uint32_t num_rows, std::uint64_t turn,
                                       std::uint32_t* may_copy) {
    const auto [at, is_new] = followers_.try_emplace(text.kv,
                                                     Follower{.kv = KvCache::Sequence(cache_)});
    Follower& follower = at->second;
    follower.turn = turn;
    if (followers_.size() > texts_max_) drop_oldest(turn);
    if (std::exchange(follower.first_page, text.first_page) != text.first_page) lose(text.kv, 0);
    follower.aligned = std::min(follower.aligned, text.position);

    const bool is_missing = follower.kv.num_tokens() < num_before;
    const bool is_due = period_ > 0 && text.position - follower.aligned >= period_;
    if (is_missing || is_due) {
        if (may_copy == nullptr) return nullptr;
        if (!align(follower, text, num_before + num_rows, turn, *may_copy)) return nullptr;
    }
    if (follower.kv.num_tokens() < num_before) return nullptr;

    follower.kv.roll_back(num_before);
    return reserve(follower, num_before + num_rows, turn) ? &follower.kv : nullptr;
}

// The model's rows take the place of the shadow's own; those behind them, which the shadow has read
// ahead, stay. False: another time, or never.
bool ShadowKeys::align(Follower& follower, const Text& text, std::uint32_t room, std::uint64_t turn,
                       std::uint32_t& may_copy) {
    const bool has_rows = follower.kv.num_tokens() >= text.position;
    if (!has_rows) {
        follower.kv.roll_back(follower.aligned);
        if (!reserve(follower, room, turn)) return false;
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

bool ShadowKeys::reserve(Follower& follower, std::uint32_t num_tokens, std::uint64_t turn) {
    if (follower.kv.reserve(num_tokens)) return true;
    drop_oldest(turn);
    return follower.kv.reserve(num_tokens);
}

// Of those that this turn has no rows of.
void ShadowKeys::drop_oldest(std::uint64_t turn) {
    const auto oldest = std::ranges::min_element(followers_, {},
                                                 [](const auto& one) { return one.second.turn; });
    if (oldest != followers_.end() && oldest->second.turn != turn) followers_.erase(oldest);
}

}  // namespace moex
