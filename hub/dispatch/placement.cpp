#include "hub/dispatch/placement.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "protocol/check.h"

namespace moex {

std::uint64_t mix_hash(std::uint64_t a, std::uint64_t b) {
    std::uint64_t z = a + 0x9e3779b97f4a7c15ull * (b + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

std::uint64_t text_hash(std::string_view text) {
    std::uint64_t hash = text.size();
    for (const char c : text) hash = mix_hash(hash, static_cast<unsigned char>(c));
    return hash;
}

namespace {

// The first `ipv4_bytes` of an IPv4 address, or the first 8 of an IPv6 one.
std::uint64_t network_hash(std::string_view address, int ipv4_bytes) {
    const std::string text(address.substr(0, 64));
    unsigned char raw[16];
    std::uint64_t prefix = 0;
    if (inet_pton(AF_INET, text.c_str(), raw) == 1) {
        for (int i = 0; i < ipv4_bytes; ++i) prefix = prefix << 8 | raw[i];
        return mix_hash(prefix, 4);
    }
    if (inet_pton(AF_INET6, text.c_str(), raw) == 1) {
        const bool mapped_ipv4 = std::all_of(raw, raw + 10,
                                             [](unsigned char c) { return c == 0; }) &&
                                 raw[10] == 0xff && raw[11] == 0xff;
        for (int i = 0; i < (mapped_ipv4 ? ipv4_bytes : 8); ++i)
            prefix = prefix << 8 | raw[mapped_ipv4 ? 12 + i : i];
        return mix_hash(prefix, mapped_ipv4 ? 4 : 6);
    }
    return text_hash(text);
}

}  // namespace

std::uint64_t address_prefix(std::string_view address) { return network_hash(address, 3); }
std::uint64_t address_owner(std::string_view address) { return network_hash(address, 4); }

Placement::Placement(PlacementOptions options)
    : options_(options),
      owners_(options.num_units),
      owner_members_(options.num_units) {
    unit_points_.reserve(options.num_units);
    for (std::uint32_t unit = 0; unit < options.num_units; ++unit) {
        unit_points_.push_back(mix_hash(options.seed, 0x100000000ull + unit));
        missing_.push_back(unit);
    }
}

std::uint32_t Placement::load(WorkerId worker) const {
    const auto found = members_.find(worker);
    return found == members_.end() ? 0 : found->second.load;
}

double Placement::fair_share(WorkerId worker) const {
    const auto found = members_.find(worker);
    return found == members_.end() ? 0 : fair(found->second);
}

double Placement::fair(const Member& member) const {
    if (capacity_total_ == 0) return 0;

    const auto copies = std::min<std::uint64_t>(options_.replicas, members_.size());
    const auto wanted = std::min<std::uint64_t>(copies * options_.num_units, capacity_total_);
    return static_cast<double>(wanted) * member.capacity / static_cast<double>(capacity_total_);
}

std::uint32_t Placement::bound(const Member& member) const {
    return std::min(member.capacity,
                    static_cast<std::uint32_t>(std::ceil(options_.load_bound * fair(member))));
}

std::uint32_t Placement::collisions(std::uint32_t unit, WorkerId without,
                                    std::uint64_t prefix) const {
    std::uint32_t count = 0;
    for (const Member* owner : owner_members_[unit])
        if (owner->given.worker != without && owner->given.address_prefix == prefix) ++count;
    return count;
}

void Placement::own(Member& member, std::uint32_t unit, std::vector<PlacementChange>& changes) {
    owners_[unit].push_back(member.given.worker);
    owner_members_[unit].push_back(&member);

    ++member.load;
    ++load_total_;
    changes.push_back({.worker = member.given.worker, .unit = unit, .added = true});
}

void Placement::disown(Member& member, std::uint32_t unit, std::vector<PlacementChange>& changes) {
    std::erase(owners_[unit], member.given.worker);
    std::erase(owner_members_[unit], &member);

    --member.load;
    --load_total_;
    changes.push_back({.worker = member.given.worker, .unit = unit, .added = false});
}

void Placement::join(const PlacementMember& given, std::vector<PlacementChange>& changes) {
    MOEX_CHECK(!members_.contains(given.worker), text("worker ", given.worker, " joined twice"));

    Member& member = members_[given.worker];
    member.given = given;
    member.capacity = std::min(given.capacity_units, options_.num_units);
    capacity_total_ += member.capacity;

    if (member.capacity == 0) return;

    add_points(member);
    fill_missing(changes);
    take_share(member, changes);
    shed_above_bound(changes);
}

void Placement::add_points(Member& member) {
    const PlacementMember& given = member.given;
    const std::uint32_t num_points = std::clamp<std::uint32_t>(member.capacity, 8, 128);
    const std::size_t ring_old = ring_.size();
    for (std::uint32_t i = 0; i < num_points; ++i) {
        member.points.push_back(mix_hash(mix_hash(options_.seed, given.ring_key), i));
        ring_.emplace_back(member.points.back(), given.worker);
    }

    std::sort(member.points.begin(), member.points.end());
    std::sort(ring_.begin() + static_cast<std::ptrdiff_t>(ring_old), ring_.end());
    std::inplace_merge(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(ring_old),
                       ring_.end());
}

// The member's points on the ring stay those of its first capacity: a limit that is moved up and
// down again leaves every unit where it was preferred.
void Placement::resize(WorkerId worker, std::uint32_t capacity_units,
                       std::span<const std::uint32_t> spare,
                       std::vector<PlacementChange>& changes) {
    const auto found = members_.find(worker);
    if (found == members_.end()) return;
    Member& member = found->second;
    member.given.capacity_units = capacity_units;
    capacity_total_ -= member.capacity;
    member.capacity = std::min(capacity_units, options_.num_units);
    capacity_total_ += member.capacity;
    if (member.points.empty() && member.capacity > 0) add_points(member);

    const auto let_go = [&](std::uint32_t unit) {
        const auto& owners = owner_members_[unit];
        if (std::find(owners.begin(), owners.end(), &member) == owners.end()) return;
        disown(member, unit, changes);
        missing_.push_back(unit);
    };
    for (std::size_t i = 0; i < spare.size() && member.load > member.capacity; ++i)
        let_go(spare[i]);
    for (std::uint32_t unit = options_.num_units; unit-- > 0 && member.load > member.capacity;)
        let_go(unit);

    // No shed_above_bound(): beside larger workers its fair share may be far less than what it
    // still holds.
    fill_missing(changes);
    if (member.capacity > 0) take_share(member, changes);
}

void Placement::leave(WorkerId worker, std::vector<PlacementChange>& changes) {
    const auto found = members_.find(worker);
    if (found == members_.end()) return;

    if (found->second.load > 0) {
        for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
            auto& owners = owners_[unit];
            const auto at = std::find(owners.begin(), owners.end(), worker);
            if (at == owners.end()) continue;
            owner_members_[unit].erase(owner_members_[unit].begin() + (at - owners.begin()));
            owners.erase(at);
            missing_.push_back(unit);
        }
        load_total_ -= found->second.load;
    }

    std::erase_if(ring_, [&](const auto& point) { return point.second == worker; });
    capacity_total_ -= found->second.capacity;
    members_.erase(found);
    fill_missing(changes);
}

// Gives copies to the units that lack them: every unit its first, then
// every unit its second, so that scarce capacity covers all first.
void Placement::fill_missing(std::vector<PlacementChange>& changes) {
    std::sort(missing_.begin(), missing_.end());
    missing_.erase(std::unique(missing_.begin(), missing_.end()), missing_.end());

    std::vector<std::uint32_t> gave_way;
    for (std::uint32_t copy = 1; copy <= options_.replicas; ++copy) {
        if (copy > members_.size()) break;
        std::uint32_t donor = 0;
        for (const std::uint32_t unit : missing_) {
            if (owners_[unit].size() >= copy) continue;

            // else each missing unit would walk the whole ring in vain
            Member* owner = load_total_ < capacity_total_ ? choose_owner(unit) : nullptr;
            // those with room hold it already
            if (owner == nullptr) owner = make_way(unit, copy, donor, gave_way, changes);
            if (owner == nullptr) continue;
            own(*owner, unit, changes);
        }

        missing_.insert(missing_.end(), gave_way.begin(), gave_way.end());
        gave_way.clear();
    }

    std::erase_if(missing_,
                  [&](std::uint32_t unit) { return owners_[unit].size() >= options_.replicas; });
}

// Room for a `copy`-th copy of `unit` where nobody has any left: at a worker that holds a copy
// beyond the `copy`-th of another unit, which goes. Of those that hold it the relatively fullest.
// `donor`: the units before it have nothing to give; kept from call to call, so that a pass over
// all missing units visits each donor once.
Placement::Member* Placement::make_way(std::uint32_t unit, std::uint32_t copy, std::uint32_t& donor,
                                       std::vector<std::uint32_t>& gave_way,
                                       std::vector<PlacementChange>& changes) {
    for (std::uint32_t from = donor; from < options_.num_units; ++from) {
        if (owners_[from].size() <= copy) {
            if (from == donor) ++donor;
            continue;
        }

        Member* fullest = nullptr;
        for (Member* owner : owner_members_[from]) {
            const auto& own_already = owner_members_[unit];
            if (std::find(own_already.begin(), own_already.end(), owner) != own_already.end())
                continue;
            if (fullest == nullptr || std::uint64_t{owner->load} * fullest->capacity >
                                          std::uint64_t{fullest->load} * owner->capacity)
                fullest = owner;
        }
        if (fullest == nullptr) continue;

        disown(*fullest, from, changes);
        gave_way.push_back(from);
        return fullest;
    }
    return nullptr;
}

// The next worker clockwise that is below its bound and
// holds no copy, on a new address prefix if one is near.
Placement::Member* Placement::choose_owner(std::uint32_t unit) {
    if (ring_.empty()) return nullptr;

    constexpr std::size_t prefix_steps_max = 256;  // how far to look for another prefix
    const std::size_t start = static_cast<std::size_t>(
        std::lower_bound(ring_.begin(), ring_.end(),
                         std::pair<std::uint64_t, WorkerId>(unit_points_[unit], 0)) -
        ring_.begin());

    Member* same_prefix = nullptr;
    WorkerId last = 0;
    for (std::size_t step = 0; step < ring_.size(); ++step) {
        if (same_prefix != nullptr && step >= prefix_steps_max) break;

        const WorkerId worker = ring_[(start + step) % ring_.size()].second;
        if (worker == last) continue;
        last = worker;

        Member& member = members_.at(worker);
        if (member.load >= bound(member)) continue;

        const auto& owners = owners_[unit];
        if (std::find(owners.begin(), owners.end(), worker) != owners.end()) continue;

        if (collisions(unit, 0, member.given.address_prefix) == 0) return &member;
        if (same_prefix == nullptr) same_prefix = &member;
    }

    if (same_prefix != nullptr) return same_prefix;

    // Everyone near its bound holds a copy already:
    // whoever has room at all, the least filled first.
    Member* best = nullptr;

    for (auto& [worker, member] : members_) {
        if (member.load >= member.capacity) continue;

        const auto& owners = owners_[unit];
        if (std::find(owners.begin(), owners.end(), worker) != owners.end()) continue;
        if (best == nullptr || std::uint64_t{member.load} * best->capacity <
                                   std::uint64_t{best->load} * member.capacity)
            best = &member;
    }

    return best;
}

// Moves units to the newcomer until it holds its fair share: always from the relatively
// fullest owner, the unit nearest to the newcomer on the ring, units whose copies share
// an address prefix before others, and never one that would then share more.
void Placement::take_share(Member& newcomer, std::vector<PlacementChange>& changes) {
    const auto share = static_cast<std::uint32_t>(std::floor(fair(newcomer) + 1e-9));
    if (newcomer.load >= share) return;

    const std::uint64_t prefix = newcomer.given.address_prefix;

    for (auto& [worker, member] : members_) {
        member.candidates.clear();
        member.is_heap = false;
    }

    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
        const auto& owners = owner_members_[unit];
        if (std::find(owners.begin(), owners.end(), &newcomer) != owners.end()) continue;

        auto point = std::lower_bound(newcomer.points.begin(), newcomer.points.end(),
                                      unit_points_[unit]);
        const std::uint64_t distance = (point == newcomer.points.end() ? newcomer.points.front()
                                                                       : *point) -
                                       unit_points_[unit];

        for (Member* owner : owners) {
            const std::uint32_t before = collisions(unit, owner->given.worker,
                                                    owner->given.address_prefix);
            const std::uint32_t after = collisions(unit, owner->given.worker, prefix);
            if (after <= before)
                owner->candidates.push_back(
                    {.spreads_prefixes = after < before, .distance = distance, .unit = unit});
        }
    }

    const auto fill = [&](const Member& member) {
        return member.load / std::max(1e-9, fair(member));
    };

    std::priority_queue<std::tuple<double, WorkerId, Member*>> fullest;
    for (auto& [worker, member] : members_)
        if (!member.candidates.empty()) fullest.emplace(fill(member), worker, &member);

    // A newcomer takes few units of each donor: a heap gives them without sorting the rest.
    const auto worse = [](const Candidate& a, const Candidate& b) {
        return a.spreads_prefixes != b.spreads_prefixes ? b.spreads_prefixes
               : a.distance != b.distance               ? a.distance > b.distance
                                                        : a.unit > b.unit;
    };

    while (newcomer.load < share && !fullest.empty()) {
        Member& donor = *std::get<Member*>(fullest.top());
        fullest.pop();

        if (fill(donor) <= fill(newcomer)) break;
        auto& candidates = donor.candidates;
        if (!std::exchange(donor.is_heap, true))
            std::make_heap(candidates.begin(), candidates.end(), worse);

        while (!candidates.empty()) {
            const std::uint32_t unit = candidates.front().unit;
            std::pop_heap(candidates.begin(), candidates.end(), worse);
            candidates.pop_back();

            const auto& owners = owner_members_[unit];
            // taken from another owner
            if (std::find(owners.begin(), owners.end(), &newcomer) != owners.end()) continue;

            disown(donor, unit, changes);
            own(newcomer, unit, changes);
            break;
        }

        if (!candidates.empty()) fullest.emplace(fill(donor), donor.given.worker, &donor);
    }
}

// Where capacity was scarce, a worker may be full of units whose second copy the newcomer just
// took: it has none to give to the newcomer, but others, who gave, have room for some of its own.
void Placement::shed_above_bound(std::vector<PlacementChange>& changes) {
    for (auto& [worker, member] : members_) {
        for (std::uint32_t unit = 0; unit < options_.num_units && member.load > bound(member);
             ++unit) {
            const auto& owners = owner_members_[unit];
            if (std::find(owners.begin(), owners.end(), &member) == owners.end()) continue;

            Member* const other = choose_owner(unit);
            if (other == nullptr || other->load >= bound(*other)) continue;

            disown(member, unit, changes);
            own(*other, unit, changes);
        }
    }
}

}  // namespace moex
