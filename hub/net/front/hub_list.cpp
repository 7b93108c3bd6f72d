#include "hub/net/front/hub_list.h"

#include <algorithm>

namespace moex::net {
namespace {

constexpr Duration avoided_for = std::chrono::milliseconds(500);

}  // namespace

void HubList::set(const std::vector<Known>& hubs) {
    const std::lock_guard lock(mutex_);
    std::vector<Hub> next;
    for (const Known& known : hubs) {
        Hub hub{.address = known.address, .url = known.address.url(), .lives = known.lives};
        for (const Hub& old : hubs_)
            if (old.url == hub.url) {
                hub.requests = old.requests;
                hub.avoid_until = old.avoid_until;
            }
        next.push_back(std::move(hub));
    }
    hubs_ = std::move(next);
}

std::optional<HubAddress> HubList::pick(const std::set<std::string>& avoided, TimePoint now) {
    const std::lock_guard lock(mutex_);
    for (const bool takes_failed : {false, true}) {
        const auto fits = [&](const Hub& hub) {
            return hub.lives && !avoided.contains(hub.url) &&
                   (takes_failed || now >= hub.avoid_until);
        };
        unsigned least = 0;
        bool has_any = false;
        for (const Hub& hub : hubs_)
            if (fits(hub)) {
                least = has_any ? std::min(least, hub.requests) : hub.requests;
                has_any = true;
            }
        if (!has_any) continue;
        for (;; ++next_) {
            Hub& hub = hubs_[next_ % hubs_.size()];
            // The least busy hub always passes, so that the walk ends.
            if (!fits(hub) || 2 * hub.requests > 3 * least + 1) continue;
            ++next_;
            ++hub.requests;
            return hub.address;
        }
    }
    return std::nullopt;
}

void HubList::done(const std::string& url) {
    const std::lock_guard lock(mutex_);
    for (Hub& hub : hubs_)
        if (hub.url == url && hub.requests > 0) --hub.requests;
}

void HubList::failed(const std::string& url, TimePoint now) {
    const std::lock_guard lock(mutex_);
    for (Hub& hub : hubs_)
        if (hub.url == url) hub.avoid_until = now + avoided_for;
}

bool HubList::lives(const std::string& url) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(hubs_, [&](const Hub& hub) { return hub.url == url && hub.lives; });
}

std::size_t HubList::size() const {
    const std::lock_guard lock(mutex_);
    return hubs_.size();
}

}  // namespace moex::net
