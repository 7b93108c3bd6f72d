#include "web-worker/native/hub_list.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace moex::native {
namespace {

bool is_same(const HubUrl& a, const HubUrl& b) {
    return a.tls == b.tls && a.host == b.host && a.port == b.port && a.path == b.path &&
           a.hub_id == b.hub_id;
}

// The networks that an address belongs to. `open`: a public address, or a host name.
enum class HostKind { open, loopback, in_private, link_local };

HostKind kind_of_ipv4(std::uint32_t address) {
    const auto is_in = [&](std::uint32_t network, int bits) {
        return (address ^ network) >> (32 - bits) == 0;
    };
    if (is_in(0x7f000000, 8) || is_in(0, 8)) return HostKind::loopback;  // 0.0.0.0 is this machine
    if (is_in(0xa9fe0000, 16)) return HostKind::link_local;
    const bool is_private = is_in(0x0a000000, 8) || is_in(0xac100000, 12) ||
                            is_in(0xc0a80000, 16) || is_in(0x64400000, 10);
    return is_private ? HostKind::in_private : HostKind::open;
}

HostKind kind_of_ipv6(const in6_addr& address) {
    const std::uint8_t* const bytes = address.s6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
        std::uint32_t mapped = 0;
        std::memcpy(&mapped, bytes + 12, sizeof mapped);
        return kind_of_ipv4(ntohl(mapped));
    }
    if (IN6_IS_ADDR_LOOPBACK(&address) || IN6_IS_ADDR_UNSPECIFIED(&address))
        return HostKind::loopback;
    if (IN6_IS_ADDR_LINKLOCAL(&address)) return HostKind::link_local;
    return (bytes[0] & 0xfe) == 0xfc ? HostKind::in_private : HostKind::open;
}

// The resolver itself parses the address, since it also takes forms such as 127.1 and 0x7f000001.
HostKind host_kind(const std::string& host) {
    if (host == "localhost") return HostKind::loopback;
    addrinfo wanted{}, *found = nullptr;
    wanted.ai_flags = AI_NUMERICHOST;  // no look-up of names
    if (getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return HostKind::open;
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> parsed(found, freeaddrinfo);
    if (parsed->ai_family == AF_INET) {
        sockaddr_in address{};
        std::memcpy(&address, parsed->ai_addr, sizeof address);
        return kind_of_ipv4(ntohl(address.sin_addr.s_addr));
    }
    sockaddr_in6 address{};
    std::memcpy(&address, parsed->ai_addr, sizeof address);
    return kind_of_ipv6(address.sin6_addr);
}

// The name under which the key of a hub is known (known_hub.h).
std::string key_name(const HubUrl& hub) { return hub.authority() + hub.path; }

void add(std::vector<HubUrl>& hubs, const HubUrl& hub) {
    const auto same = [&](const HubUrl& known) { return is_same(known, hub); };
    if (std::ranges::none_of(hubs, same)) hubs.push_back(hub);
}

}  // namespace

HubList::HubList(std::vector<HubUrl> given, std::function<double()> random)
    : given_(std::move(given)),
      random_(std::move(random)) {
    for (const HubUrl& hub : given_) add(tries_, hub);
}

std::optional<HubUrl> HubList::url_of(const HubPlace& hub) const {
    auto url = parse_hub_url(hub.address);
    if (!url.ok() || (current().tls && !url->tls)) return std::nullopt;
    const HostKind kind = host_kind(url->host);
    if (kind != HostKind::open && kind != host_kind(current().host)) return std::nullopt;
    url->hub_id = hub.id;
    return *std::move(url);
}

HubOption HubList::option(const HubNeed& need, const HubUrl& hub) const {
    const auto known = round_trips_.find(hub.authority());
    return {.need = need,
            .rtt_ms = known == round_trips_.end() ? std::nullopt : known->second.rtt_ms};
}

void HubList::rank() {
    std::vector<HubOption> options;
    for (const Other& other : others_) options.push_back(option(other.place.need, other.url));
    std::vector<Other> ranked;
    for (const std::size_t i : rank_hubs(options, random_)) ranked.push_back(others_[i]);
    others_ = std::move(ranked);
}

// Lists the current hub first, then the others.
void HubList::list_tries() {
    const HubUrl here = current();
    std::vector<HubUrl> tries{here};
    for (const Other& other : others_) add(tries, other.url);
    // The address of this hub without its id comes last: a balancer there knows any other hub.
    for (const bool is_here : {false, true})
        for (HubUrl hub : given_) {
            const HubUrl as_given = hub;
            hub.hub_id = here_.id;
            if (is_same(hub, here) == is_here) add(tries, as_given);
        }
    tries_ = std::move(tries);
}

void HubList::welcomed(const HubPlace& here, const std::vector<HubPlace>& others) {
    refused_.clear();
    here_ = here;
    // Name the hub from now on, so that a balancer sends this worker back to the same one.
    tries_.front().hub_id = here.id;
    others_.clear();
    for (const HubPlace& other : others)
        if (auto url = url_of(other)) others_.push_back({other, *std::move(url)});
    rank();
    list_tries();
}

std::vector<HubUrl> HubList::to_measure(double now_ms) {
    const double minute_ago_ms = now_ms - 60'000;
    while (!begun_ms_.empty() && begun_ms_.front() <= minute_ago_ms) begun_ms_.pop_front();
    const std::size_t count_max = std::min(measured_at_once,
                                           measured_per_minute - begun_ms_.size());

    std::vector<HubUrl> hubs{current()};
    for (const Other& other : others_) hubs.push_back(other.url);
    std::set<std::string> listed;
    for (const HubUrl& hub : hubs) listed.insert(hub.authority());
    // A hub that did not answer in time may do so after a minute. Nor is an address remembered for
    // longer that no hub lists.
    std::erase_if(round_trips_, [&](const auto& known) {
        const auto& [authority, trip] = known;
        return trip.begun_ms <= minute_ago_ms && !(trip.rtt_ms && listed.contains(authority));
    });

    std::vector<HubUrl> chosen;
    for (const HubUrl& hub : hubs) {
        if (chosen.size() == count_max) break;
        if (!round_trips_.try_emplace(hub.authority(), RoundTrip{now_ms, {}}).second) continue;
        begun_ms_.push_back(now_ms);
        chosen.push_back(hub);
    }
    return chosen;
}

void HubList::measured(const HubUrl& hub, std::optional<double> rtt_ms) {
    round_trips_[hub.authority()].rtt_ms = rtt_ms;
    // While the worker tries one hub after the other, their order stays.
    if (here_.id.empty() || current().hub_id != here_.id) return;
    rank();
    list_tries();
}

std::optional<HubPlace> HubList::better() const {
    if (others_.empty() || current().hub_id != here_.id) return std::nullopt;
    const Other& best = others_.front();
    const bool is_better = is_clearly_better(option(best.place.need, best.url),
                                             option(here_.need, current()));
    return is_better ? std::optional(best.place) : std::nullopt;
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
