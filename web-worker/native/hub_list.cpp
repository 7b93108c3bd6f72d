#include "web-worker/native/hub_list.h"

#include <algorithm>

namespace moex::native {
namespace {

bool is_same(const HubUrl& a, const HubUrl& b) {
    return a.tls == b.tls && a.host == b.host && a.port == b.port && a.path == b.path &&
           a.hub_id == b.hub_id;
}

// The name under which the key of a hub is known (known_hub.h).
std::string key_name(const HubUrl& hub) { return hub.authority() + hub.path; }

void add(std::vector<HubUrl>& hubs, const HubUrl& hub) {
    const auto same = [&](const HubUrl& known) { return is_same(known, hub); };
    if (std::ranges::none_of(hubs, same)) hubs.push_back(hub);
}

}  // namespace

HubList::HubList(std::vector<HubUrl> given) : given_(std::move(given)) {
    for (const HubUrl& hub : given_) add(tries_, hub);
}

std::optional<HubUrl> HubList::url_of(const HubPlace& hub) const {
    auto url = parse_hub_url(hub.address);
    if (!url.ok() || (current().tls && !url->tls)) return std::nullopt;
    url->hub_id = hub.id;
    return *std::move(url);
}

void HubList::welcomed(std::string_view id, const std::vector<HubPlace>& others) {
    refused_.clear();
    HubUrl here = current();
    // Name the hub from now on, so that a balancer sends this worker back to the same one.
    here.hub_id = id;
    std::vector<HubUrl> tries{here};
    for (const HubPlace& other : others)
        if (const auto url = url_of(other)) add(tries, *url);
    // The address of this hub without its id comes last: a balancer there knows any other hub.
    for (const bool is_here : {false, true})
        for (HubUrl hub : given_) {
            const HubUrl as_given = hub;
            hub.hub_id = id;
            if (is_same(hub, here) == is_here) add(tries, as_given);
        }
    tries_ = std::move(tries);
}

bool HubList::move_to(const HubPlace& hub) {
    const auto url = url_of(hub);
    if (!url) return false;
    std::erase_if(tries_, [&](const HubUrl& known) { return is_same(known, *url); });
    tries_.insert(tries_.begin(), *url);
    return true;
}

void HubList::ended(bool is_open, bool is_stopping) {
    refused_.clear();
    if (is_open && !is_stopping) return;
    std::ranges::rotate(tries_, tries_.begin() + 1);
}

bool HubList::refused() {
    refused_.insert(key_name(current()));
    std::ranges::rotate(tries_, tries_.begin() + 1);
    return std::ranges::all_of(tries_,
                               [&](const HubUrl& hub) { return refused_.contains(key_name(hub)); });
}

}  // namespace moex::native
