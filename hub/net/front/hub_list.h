// The hubs that a front knows, and the choice of one for a request: the hub that has computed the
// longest beginning of the prompt, otherwise each hub in turn. A hub that has more than 1.5 times
// the requests of the least busy one is never chosen. Thread-safe.
#pragma once

#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/net/front/prefix_routes.h"
#include "hub/net/http/client_line.h"

namespace moex::net {

class HubList {
  public:
    struct Known {
        HubAddress address;
        bool lives = true;
    };
    // Replaces the hubs. A hub that stays keeps its count of requests.
    void set(const std::vector<Known>& hubs);
    // Chooses a hub whose URL is not in `avoided`, and counts a request there until done(). Returns
    // nullopt if there is none. A hub that failed a moment ago is chosen only if all have. `prompt`
    // has the keys of the request's prompt; empty: each hub in turn.
    std::optional<HubAddress> pick(const std::set<std::string>& avoided, TimePoint now,
                                   std::span<const std::uint64_t> prompt = {});
    void done(const std::string& url);
    // No connection to that hub could be made, or it broke.
    void failed(const std::string& url, TimePoint now);
    std::size_t size() const;
    bool lives(const std::string& url) const;  // as set() has it; false: the hub is not known

  private:
    struct Hub {
        HubAddress address;
        std::string url;
        std::uint64_t key = 0;  // in `routes_`
        bool lives = true;
        unsigned requests = 0;
        TimePoint avoid_until{};
    };
    mutable std::mutex mutex_;
    std::vector<Hub> hubs_;
    std::size_t next_ = 0;
    PrefixRoutes routes_;
};

}  // namespace moex::net
