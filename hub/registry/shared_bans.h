// The bans of a shared store, as this hub knows them. The swarm's strand asks for bans and adds
// them, so neither waits for the store: queries are answered from memory, and a new ban holds here
// at once and is written by the registry's thread.
#pragma once

#include <deque>
#include <map>
#include <mutex>

#include "hub/registry/ban_table.h"
#include "hub/registry/store.h"

namespace moex {

class SharedBans : public BanBook {
  public:
    // `store` outlives this object. `wake` wakes the thread that calls write_waiting().
    SharedBans(Store& store, std::function<void()> wake) : store_(store), wake_(std::move(wake)) {}

    // Error overloaded: 1,024 bans wait for the store.
    Result<Ban> add(std::string_view worker_key, std::string_view nickname, std::string_view reason,
                    std::int64_t now_s, std::int64_t least_s) override;
    std::int64_t left_s(std::string_view worker_key, std::int64_t now_s) const override;
    std::vector<Ban> list() const override;
    Result<Ban> lift(std::string_view worker_key_begin) override;

    // Reads all bans again.
    Status read(Database& database);
    // Writes the bans that wait, in their order. A ban that another hub has just written, too,
    // counts once if it has the same second.
    Status write_waiting();

  private:
    Store& store_;
    const std::function<void()> wake_;
    std::mutex store_mutex_;  // a ban that is lifted must not come back with rows read before
    mutable std::mutex mutex_;
    std::map<std::string, Ban, std::less<>> bans_;
    std::deque<BanOrder> waiting_;
};

}  // namespace moex
