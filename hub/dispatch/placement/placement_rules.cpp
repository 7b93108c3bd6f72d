// The placement rules other than fan-out: `hash` places each unit by its own hash, and `groups`
// assigns layers round-robin to groups of workers.
#include <algorithm>
#include <tuple>
#include <utility>

#include "hub/dispatch/placement/placement.h"

namespace moex {

// Returns the rank of a member for a unit. The rank does not depend on when the member joined, and
// it is independent for each unit.
std::uint64_t Placement::hash_rank(const Member& member, std::uint32_t unit) const {
    return mix_hash(mix_hash(options_.seed, member.given.ring_key), unit);
}

// Chooses the new owner by rule `hash`: among the members below their bound, the one with the
// highest rank. A member with a new address prefix takes precedence.
Placement::Member* Placement::choose_by_hash(std::uint32_t unit, std::uint32_t to_load_max) {
    const auto key = [&](const Member& member) {
        return std::tuple(collisions(unit, 0, member.given.address_prefix) == 0,
                          hash_rank(member, unit));
    };
    Member* best = nullptr;
    for (auto& [worker, member] : members_)
        if (may_own(member, unit, to_load_max) && (best == nullptr || key(*best) < key(member)))
            best = &member;
    return best;
}

// Moves units to a newcomer by rule `hash`: first the units that it has cached, then those for
// which its rank is highest. Units are taken only from members above their own share.
std::uint32_t Placement::take_hashed(Member& newcomer, std::uint32_t moves_max,
                                     std::vector<PlacementChange>& changes) {
    if (newcomer.load >= share(newcomer)) return 0;

    std::vector<std::tuple<bool, std::uint64_t, std::uint32_t>> wanted;
    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit)
        if (!owns(newcomer, unit) && !owners_[unit].empty())
            wanted.emplace_back(has_cached(newcomer, unit), hash_rank(newcomer, unit), unit);
    std::sort(wanted.rbegin(), wanted.rend());

    std::uint32_t num_moved = 0;
    const std::uint64_t prefix = newcomer.given.address_prefix;
    for (const auto& [is_cached, rank, unit] : wanted) {
        if (newcomer.load >= share(newcomer) || num_moved == moves_max) break;

        Member* donor = nullptr;
        for (Member* owner : owner_members_[unit]) {
            if (owner->is_pinned || owner->load <= share(*owner)) continue;
            if (collisions(unit, owner->given.worker, prefix) >
                collisions(unit, owner->given.worker, owner->given.address_prefix))
                continue;
            if (donor == nullptr || hash_rank(*owner, unit) < hash_rank(*donor, unit))
                donor = owner;
        }
        if (donor == nullptr) continue;

        num_moved += !is_cached && is_loaded(*donor, unit);
        disown(*donor, unit, changes);
        own(newcomer, unit, changes);
    }
    return num_moved;
}

bool Placement::is_home(const Member& member, std::uint32_t unit) const {
    return member.group == layer_of(unit) % options_.choice.num_groups;
}

bool Placement::is_home(WorkerId worker, std::uint32_t unit) const {
    const auto found = members_.find(worker);
    return options_.choice.rule != PlacementRule::groups || found == members_.end() ||
           is_home(found->second, unit);
}

std::vector<std::uint32_t> Placement::group_sizes() const {
    std::vector<std::uint32_t> sizes(options_.choice.num_groups);
    for (const auto& [worker, member] : members_)
        if (member.capacity > 0) ++sizes[member.group];
    return sizes;
}

// Puts the newcomer into the smallest group. Among groups of equal size it chooses the one of which
// the newcomer has cached the most layers.
void Placement::enter_group(Member& newcomer) {
    if (options_.choice.rule != PlacementRule::groups) return;
    // the newcomer has no group yet; `sizes` does not count it
    newcomer.group = options_.choice.num_groups;
    std::vector<std::uint32_t> sizes(options_.choice.num_groups);
    for (const auto& [worker, member] : members_)
        if (member.capacity > 0 && &member != &newcomer) ++sizes[member.group];

    std::vector<std::uint32_t> cached(sizes.size());
    for (std::uint32_t unit = 0; unit < newcomer.given.cached.size(); ++unit)
        cached[layer_of(unit) % sizes.size()] += newcomer.given.cached[unit];
    newcomer.group = 0;
    for (std::uint32_t group = 1; group < sizes.size(); ++group)
        if (std::tuple(sizes[group], cached[newcomer.group]) <
            std::tuple(sizes[newcomer.group], cached[group]))
            newcomer.group = group;
}

// Evens the groups after a leave or a resize: while the largest group has at least two members more
// than the smallest, the newest member of the largest group moves to the smallest.
void Placement::even_groups() {
    if (options_.choice.rule != PlacementRule::groups) return;
    for (auto sizes = group_sizes();; sizes = group_sizes()) {
        const auto least = std::min_element(sizes.begin(), sizes.end());
        const auto most = std::max_element(sizes.begin(), sizes.end());
        if (*most < *least + 2) return;

        Member* last = nullptr;
        for (auto& [worker, member] : members_)
            if (member.group == most - sizes.begin() && member.capacity > 0 && !member.is_pinned)
                last = &member;
        if (last == nullptr) return;
        last->group = static_cast<std::uint32_t>(least - sizes.begin());
        unbalanced_ = true;
    }
}

// Compares two members as owners of a unit: a member of the unit's own group is better, then one
// with a new address prefix, then the one with the fewest units of the layer.
bool Placement::is_better_place(const Member& a, const Member& b, std::uint32_t unit) const {
    const std::uint32_t layer = layer_of(unit);
    const auto key = [&](const Member& member) {
        return std::tuple(!is_home(member, unit),
                          collisions(unit, 0, member.given.address_prefix) > 0,
                          member.layer_load[layer], member.load);
    };
    const auto key_a = key(a), key_b = key(b);
    return key_a != key_b ? key_a < key_b : hash_rank(a, unit) < hash_rank(b, unit);
}

Placement::Member* Placement::choose_in_group(std::uint32_t unit) {
    Member* best = nullptr;
    for (auto& [worker, member] : members_)
        if (member.load < member.capacity && !owns(member, unit) &&
            (best == nullptr || is_better_place(member, *best, unit)))
            best = &member;
    return best;
}

// Moves units to their own group, and evens the units within each group. Each move serves one of
// these two aims, and no move undoes another. Moves that cost no download happen at once, however
// small the budget is. Otherwise the first worker would meanwhile load units that belong to others,
// and these units would be downloaded twice.
std::uint32_t Placement::rebalance_groups(std::uint32_t moves_max,
                                          std::vector<PlacementChange>& changes) {
    const auto is_better = [&](const Member& to, const Member& from, std::uint32_t unit) {
        if (!is_home(from, unit)) return true;
        const std::uint32_t layer = layer_of(unit);
        return from.layer_load[layer] >= to.layer_load[layer] + 2 &&
               collisions(unit, from.given.worker, to.given.address_prefix) <=
                   collisions(unit, from.given.worker, from.given.address_prefix);
    };
    std::vector<std::vector<Member*>> groups(options_.choice.num_groups);
    for (auto& [worker, member] : members_)
        if (member.capacity > 0) groups[member.group].push_back(&member);
    const auto place_at_home = [&](std::uint32_t unit) {
        Member* best = nullptr;
        for (Member* member : groups[layer_of(unit) % groups.size()])
            if (member->load < member->capacity && !owns(*member, unit) &&
                (best == nullptr || is_better_place(*member, *best, unit)))
                best = member;
        return best;
    };

    std::uint32_t num_moved = 0;
    bool has_moved = true;
    while (has_moved) {
        has_moved = unbalanced_ = false;
        for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
            for (Member* from : std::vector(owner_members_[unit])) {
                if (from->is_pinned) continue;
                Member* const to = place_at_home(unit);
                if (to == nullptr || !is_better(*to, *from, unit)) continue;

                const bool is_paid = !has_cached(*to, unit) && is_loaded(*from, unit);
                if (is_paid && num_moved == moves_max) {
                    unbalanced_ = true;  // a later call moves the unit
                    continue;
                }
                num_moved += is_paid;
                disown(*from, unit, changes);
                own(*to, unit, changes);
                has_moved = true;
            }
        }
    }
    return num_moved;
}

std::uint32_t Placement::num_away() const {
    if (options_.choice.rule != PlacementRule::groups) return 0;
    std::uint32_t count = 0;
    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit)
        count += std::ranges::none_of(owner_members_[unit],
                                      [&](const Member* owner) { return is_home(*owner, unit); });
    return count;
}

// Reports units that are held outside of their group although a member of the group has room for
// them.
void Placement::check_groups(std::vector<std::string>& broken) const {
    if (options_.choice.rule != PlacementRule::groups || unbalanced_) return;
    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
        const auto& owners = owner_members_[unit];
        const bool may_move = std::ranges::any_of(owners, [&](const Member* owner) {
            return !is_home(*owner, unit) && !owner->is_pinned;
        });
        if (!may_move) continue;
        for (const auto& [worker, member] : members_)
            if (is_home(member, unit) && member.load < member.capacity && !owns(member, unit))
                broken.push_back(moex::text("unit ", unit, " lies outside of its group, where ",
                                            worker, " has room"));
    }
}

}  // namespace moex
