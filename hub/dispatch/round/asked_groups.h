// The requests that one worker has not answered, listed for the thread that reads the worker's
// frames. That thread looks up an answer's id here before it decodes the answer. The strand writes
// the list, and any thread may read it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/messages.h"

namespace moex {

class AskedGroups {
  public:
    void add(std::uint32_t sequence_id, const GroupShape& shape) {
        const std::lock_guard lock(mutex_);
        groups_.emplace_back(sequence_id, shape);
    }
    void remove(std::uint32_t sequence_id) {
        const std::lock_guard lock(mutex_);
        std::erase_if(groups_, [&](const auto& one) { return one.first == sequence_id; });
    }

    // Returns the shape of the request with this id; nullopt if the id was never issued, is
    // answered, or was cancelled. For a DISPATCH the shape has only layer, dtype and number of
    // rows.
    std::optional<GroupShape> find(std::uint32_t sequence_id) const {
        const std::lock_guard lock(mutex_);
        const auto found = std::ranges::find(groups_, sequence_id,
                                             &std::pair<std::uint32_t, GroupShape>::first);
        return found == groups_.end() ? std::nullopt : std::optional(found->second);
    }
    std::size_t size() const {
        const std::lock_guard lock(mutex_);
        return groups_.size();
    }

  private:
    mutable std::mutex mutex_;
    // a short list: at most as many as the worker's queue depth
    std::vector<std::pair<std::uint32_t, GroupShape>> groups_;
};

}  // namespace moex
