#include "hub/dispatch/placement/placement.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
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

// Hashes the first `ipv4_bytes` of an IPv4 address, or the first 8 bytes of an IPv6 address.
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
    : options_(std::move(options)),
      owners_(options_.num_units),
      owner_members_(options_.num_units) {
    options_.layer_units = std::max(1u, options_.layer_units);
    unit_points_.reserve(options_.num_units);
    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
        unit_points_.push_back(mix_hash(options_.seed, 0x100000000ull + layer_of(unit)));
        missing_.push_back(unit);
    }
    layer_members_.resize(options_.num_units == 0 ? 0 : layer_of(options_.num_units - 1) + 1);
}

bool Placement::owns(const Member& member, std::uint32_t unit) const {
    const auto& owners = owner_members_[unit];
    return std::find(owners.begin(), owners.end(), &member) != owners.end();
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

std::uint32_t Placement::share(const Member& member) const {
    return static_cast<std::uint32_t>(std::floor(fair(member) + 1e-9));
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
    if (owners_[unit].size() > options_.replicas) extras_.insert(unit);
    if (member.layer_load[layer_of(unit)]++ == 0) layer_members_[layer_of(unit)].push_back(&member);

    ++member.load;
    ++load_total_;
    changes.push_back({.worker = member.given.worker, .unit = unit, .added = true});
}

void Placement::forget(Member& member, std::uint32_t unit) {
    std::erase(owners_[unit], member.given.worker);
    std::erase(owner_members_[unit], &member);
    if (owners_[unit].size() <= options_.replicas) extras_.erase(unit);
    if (--member.layer_load[layer_of(unit)] == 0)
        std::erase(layer_members_[layer_of(unit)], &member);

    --member.load;
    --load_total_;
}

void Placement::disown(Member& member, std::uint32_t unit, std::vector<PlacementChange>& changes) {
    forget(member, unit);
    changes.push_back({.worker = member.given.worker, .unit = unit, .added = false});
}

void Placement::join(const PlacementMember& given, std::vector<PlacementChange>& changes,
                     bool fill) {
    MOEX_CHECK(!members_.contains(given.worker), text("worker ", given.worker, " joined twice"));

    Member& member = members_[given.worker];
    member.given = given;
    member.capacity = std::min(given.capacity_units, options_.num_units);
    member.layer_load.resize(layer_members_.size());
    member.is_pinned = is_pinned(given.ring_key);
    capacity_total_ += member.capacity;
    enter_group(member);

    if (member.capacity == 0) return;

    add_points(member);
    give_cached(member, changes);
    if (fill) fill_missing(changes);
    member.wants_share = unbalanced_ = true;
}

// Gives the member units that it has cached (so that it need not download them) and that lack
// copies. This happens before any other assignment.
void Placement::give_cached(Member& member, std::vector<PlacementChange>& changes) {
    if (member.given.cached.empty()) return;
    const bool grouped = options_.choice.rule == PlacementRule::groups;
    for (std::uint32_t unit = 0; unit < options_.num_units && member.load < member.capacity; ++unit)
        if (has_cached(member, unit) && owners_[unit].size() < options_.replicas &&
            !owns(member, unit) && (!grouped || is_home(member, unit)))
            own(member, unit, changes);
}

void Placement::rename(WorkerId from, const PlacementMember& to,
                       std::vector<PlacementChange>& changes) {
    auto node = members_.extract(from);
    MOEX_CHECK(!node.empty() && !members_.contains(to.worker),
               text("worker ", from, " cannot become ", to.worker));
    Member& member = node.mapped();
    node.key() = to.worker;
    members_.insert(std::move(node));

    for (auto& [point, worker] : ring_)
        if (worker == from) worker = to.worker;
    std::sort(ring_.begin(), ring_.end());
    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
        if (!owns(member, unit)) continue;
        std::replace(owners_[unit].begin(), owners_[unit].end(), from, to.worker);
        changes.push_back({.worker = to.worker, .unit = unit, .added = true});
    }

    const std::uint32_t capacity_units = to.capacity_units;
    member.given = to;
    resize(to.worker, capacity_units, {}, changes);
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

// Changes the member's capacity. The member's points on the ring remain those of its first
// capacity. A limit that is lowered and raised again therefore leaves every unit at the worker
// where the ring preferred it.
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
    for (const std::uint32_t unit : std::vector(extras_.begin(), extras_.end()))
        if (member.load > member.capacity) let_go(unit);
    for (std::uint32_t unit = options_.num_units; unit-- > 0 && member.load > member.capacity;)
        let_go(unit);

    even_groups();
    fill_lost(changes);
    if (member.capacity > 0) member.wants_share = unbalanced_ = true;
}

void Placement::leave(WorkerId worker, std::vector<PlacementChange>& changes) {
    const auto found = members_.find(worker);
    if (found == members_.end()) return;

    Member& leaver = found->second;
    for (std::uint32_t unit = 0; unit < options_.num_units && leaver.load > 0; ++unit) {
        if (!owns(leaver, unit)) continue;
        forget(leaver, unit);
        missing_.push_back(unit);
    }

    std::erase_if(ring_, [&](const auto& point) { return point.second == worker; });
    capacity_total_ -= found->second.capacity;
    members_.erase(found);
    even_groups();
    fill_lost(changes);
}

// Assigns the units that lost their only loaded copies when workers left. Each such unit goes to a
// member with the fewest such units to download. By the ring alone, a neighbour of the leaver could
// have to download a whole layer. A unit also counts as lost if another worker was to hold its
// second copy but has not loaded it.
void Placement::fill_lost(std::vector<PlacementChange>& changes) {
    const auto has_nobody = [this](std::uint32_t unit) {
        return std::ranges::none_of(owner_members_[unit],
                                    [&](const Member* owner) { return is_loaded(*owner, unit); });
    };
    spreads_lost_ = options_.choice.rule != PlacementRule::groups &&
                    std::ranges::any_of(missing_, has_nobody);
    if (!spreads_lost_) return fill_missing(changes);

    std::vector<std::uint32_t> lost;
    for (auto& [worker, member] : members_) member.to_load = 0;
    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
        if (!has_nobody(unit)) continue;
        if (!owner_members_[unit].empty()) ++owner_members_[unit].front()->to_load;
        if (owner_members_[unit].size() == 1 && options_.was_held && options_.was_held(unit))
            lost.push_back(unit);
    }

    for (const std::uint32_t unit : lost) {
        Member& owner = *owner_members_[unit].front();
        if (owner.to_load <= to_load_most()) continue;
        --owner.to_load;
        disown(owner, unit, changes);
        missing_.push_back(unit);
    }

    fill_missing(changes);
    spreads_lost_ = false;
}

bool Placement::is_loaded(const Member& owner, std::uint32_t unit) const {
    return options_.is_loaded && options_.is_loaded(owner.given.worker, unit);
}

// Assigns copies of the units that lack copies: first one copy of every unit, then a second copy,
// so that scarce capacity covers all units first.
void Placement::fill_missing(std::vector<PlacementChange>& changes) {
    std::sort(missing_.begin(), missing_.end());
    missing_.erase(std::unique(missing_.begin(), missing_.end()), missing_.end());
    const auto has_enough = [this](std::uint32_t unit) {
        return owners_[unit].size() >= options_.replicas;
    };
    std::erase_if(missing_, has_enough);
    if (!missing_.empty()) take_unloaded_extras(changes);

    std::vector<std::uint32_t> gave_way;
    for (std::uint32_t copy = 1; copy <= options_.replicas; ++copy) {
        if (copy > members_.size()) break;
        std::uint32_t donor = 0;
        for (const std::uint32_t unit : missing_) {
            if (owners_[unit].size() >= copy) continue;

            const auto owner_within = [&](std::uint32_t to_load_max) {
                // without room anywhere, choose_owner() would search the whole ring in vain for
                // each missing unit
                const bool is_room = load_total_ < capacity_total_;
                Member* owner = is_room ? choose_owner(unit, to_load_max) : nullptr;
                // no member with room may own this unit, so another copy must give way
                if (owner == nullptr)
                    owner = make_way(unit, copy, to_load_max, donor, gave_way, changes);
                return owner;
            };
            const bool is_lost = spreads_lost_ && owners_[unit].empty();
            Member* owner = is_lost ? owner_within(to_load_most()) : nullptr;
            if (owner == nullptr) owner = owner_within(options_.num_units);
            if (owner == nullptr) continue;
            owner->to_load += owners_[unit].empty();
            own(*owner, unit, changes);
        }

        missing_.insert(missing_.end(), gave_way.begin(), gave_way.end());
        gave_way.clear();
    }

    std::erase_if(missing_, has_enough);
}

// Makes room for copy number `copy` of `unit` when no member has room: a member that holds a
// surplus copy of another unit (beyond copy number `copy`) drops that copy. Among such members the
// one that is fullest relative to its capacity is chosen. `donor`: units with a smaller number have
// no surplus copy. The caller keeps `donor` between calls, so that a pass over all missing units
// visits each donor once.
Placement::Member* Placement::make_way(std::uint32_t unit, std::uint32_t copy,
                                       std::uint32_t to_load_max, std::uint32_t& donor,
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
            if (owner->to_load > to_load_max) continue;
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

// Returns the most units that a member may have to load: a few more than the member with the
// fewest. The margin avoids that a layer is cut for the sake of a few units. The bound matters
// because in the end all workers wait for the member that has the most units to load.
std::uint32_t Placement::to_load_most() const {
    std::uint32_t least = options_.num_units;
    for (const auto& [worker, member] : members_)
        if (member.capacity > 0) least = std::min(least, member.to_load);
    return least + options_.layer_units / 32;
}

bool Placement::may_own(const Member& member, std::uint32_t unit, std::uint32_t to_load_max) const {
    return member.load < bound(member) && member.to_load <= to_load_max && !owns(member, unit);
}

// Chooses the next owner of the unit. A member that holds other units of the layer is preferred,
// the least filled first; otherwise the next member on the ring. A member with a new address prefix
// takes precedence over both.
Placement::Member* Placement::choose_owner(std::uint32_t unit, std::uint32_t to_load_max) {
    const auto less_filled = [](const Member& a, const Member& b) {
        return std::uint64_t{a.load} * b.capacity < std::uint64_t{b.load} * a.capacity;
    };

    if (options_.choice.rule == PlacementRule::groups) return choose_in_group(unit);
    const bool hashed = options_.choice.rule == PlacementRule::hash;
    Member* neighbour = hashed ? choose_by_hash(unit, to_load_max) : nullptr;
    if (neighbour != nullptr) return neighbour;

    Member* same_prefix = nullptr;
    for (Member* member : layer_members_[layer_of(unit)]) {
        if (!may_own(*member, unit, to_load_max)) continue;
        const bool is_new = collisions(unit, 0, member->given.address_prefix) == 0;
        Member*& best = is_new ? neighbour : same_prefix;
        if (best == nullptr || less_filled(*member, *best)) best = member;
    }
    if (neighbour != nullptr) return neighbour;
    if (Member* const next = choose_on_ring(unit, to_load_max, same_prefix)) return next;
    if (same_prefix != nullptr) return same_prefix;

    // All members below their bound hold a copy already. Take any member with room, the least
    // filled first.
    Member* best = nullptr;
    for (auto& [worker, member] : members_)
        if (member.load < member.capacity && member.to_load <= to_load_max && !owns(member, unit) &&
            (best == nullptr || less_filled(member, *best)))
            best = &member;
    return best;
}

// Finds the next member clockwise on the ring that is below its bound, holds no copy of the unit
// and has a new address prefix, if one is near. If `same_prefix` is null, it is set to the first
// such member without a new address prefix.
Placement::Member* Placement::choose_on_ring(std::uint32_t unit, std::uint32_t to_load_max,
                                             Member*& same_prefix) {
    // number of ring points to search for a new address prefix
    constexpr std::size_t prefix_steps_max = 256;
    const std::size_t start = static_cast<std::size_t>(
        std::lower_bound(ring_.begin(), ring_.end(),
                         std::pair<std::uint64_t, WorkerId>(unit_points_[unit], 0)) -
        ring_.begin());

    WorkerId last = 0;
    for (std::size_t step = 0; step < ring_.size(); ++step) {
        if (same_prefix != nullptr && step >= prefix_steps_max) break;

        const WorkerId worker = ring_[(start + step) % ring_.size()].second;
        if (worker == last) continue;
        last = worker;

        Member& member = members_.at(worker);
        if (!may_own(member, unit, to_load_max)) continue;
        if (collisions(unit, 0, member.given.address_prefix) == 0) return &member;
        if (same_prefix == nullptr) same_prefix = &member;
    }
    return nullptr;
}

void Placement::pin(std::uint64_t ring_key, bool on) {
    if (on)
        pinned_.insert(ring_key);
    else
        pinned_.erase(ring_key);
    for (auto& [worker, member] : members_)
        if (member.given.ring_key == ring_key) member.is_pinned = on;
}

double Placement::workers_per_layer() const {
    std::size_t count = 0;
    for (const auto& members : layer_members_) count += members.size();
    return static_cast<double>(count) / std::max(1.0, static_cast<double>(layer_members_.size()));
}

std::vector<std::string> Placement::check() const {
    std::vector<std::string> broken;
    const auto wrong = [&](auto&&... what) { broken.push_back(moex::text(what...)); };

    std::uint64_t load_total = 0;
    for (const auto& [worker, member] : members_) {
        std::uint32_t load = 0;
        for (const std::uint32_t of_layer : member.layer_load) load += of_layer;
        if (load != member.load || member.load > member.capacity)
            wrong("worker ", worker, " holds ", load, ", says ", member.load, ", has room for ",
                  member.capacity);
        load_total += load;
    }

    std::uint64_t num_owners = 0;
    std::size_t copies_most = 0, copies_least = options_.replicas;
    std::uint32_t least_of = 0;
    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
        const std::size_t copies = owners_[unit].size();
        num_owners += copies;
        copies_most = std::max(copies_most, copies);
        if (copies < copies_least) copies_least = copies, least_of = unit;
        if (copies >= options_.replicas) continue;
        for (const auto& [worker, member] : members_)
            if (member.load < member.capacity && !owns(member, unit))
                wrong("unit ", unit, " has ", copies, " copies, worker ", worker,
                      " has room and none of it");
    }
    if (load_total != load_total_ || num_owners != load_total_)
        wrong("loads add up to ", load_total, ", owners to ", num_owners, ", not ", load_total_);
    if (copies_least == 0 && copies_most > 1 && !members_.empty())
        wrong("unit ", least_of, " has nobody while others have ", copies_most, " copies");
    check_groups(broken);
    for (std::string& what : check_extras()) broken.push_back(std::move(what));
    return broken;
}

}  // namespace moex
