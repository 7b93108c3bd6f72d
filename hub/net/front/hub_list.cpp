#include "hub/net/front/hub_list.h"

#include <algorithm>

namespace moex::net {
namespace {

constexpr Duration avoided_for = std::chrono::milliseconds(500);
// A hub with less than this part of a prompt takes its turn like the others: the rest of the prompt
// is most of the work.
constexpr std::size_t parts_of_prompt = 8;

}  // namespace

void HubList::set(const std::vector<Known>& hubs) {
    const std::lock_guard lock(mutex_);
    std::vector<Hub> next;
    for (const Known& known : hubs) {
        Hub hub{.address = known.address, .url = known.address.url(), .lives = known.lives};
        hub.key = std::hash<std::string>()(hub.url);
        for (const Hub& old : hubs_)
            if (old.url == hub.url) {
                hub.requests = old.requests;
                hub.avoid_until = old.avoid_until;
            }
        next.push_back(std::move(hub));
    }
    hubs_ = std::move(next);
}

std::optional<HubAddress> HubList::pick(const std::set<std::string>& avoided, TimePoint now,
                                        std::span<const std::uint64_t> prompt) {
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
        // Look at each hub once, beginning with the next in turn. The least busy hub
        // always has room.
        Hub* best = nullptr;
        std::size_t best_matched = 0;
        for (std::size_t i = 0; i < hubs_.size(); ++i) {
            Hub& hub = hubs_[(next_ + i) % hubs_.size()];
            if (!fits(hub) || 2 * hub.requests > 3 * least + 1) continue;
            std::size_t matched = routes_.matched(prompt, hub.key);
            if (matched * parts_of_prompt < prompt.size()) matched = 0;
            const bool is_better = !best || matched > best_matched ||
                                   (matched > 0 && matched == best_matched &&
                                    hub.requests < best->requests);
            if (!is_better) continue;
            best = &hub;
            best_matched = matched;
        }
        // A hub that was chosen for its prompt has not taken its turn.
        if (best_matched == 0) next_ = static_cast<std::size_t>(best - hubs_.data()) + 1;
        routes_.record(prompt, best->key);
        ++best->requests;
        return best->address;
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
