// Extra copies of popular units, beyond `replicas`: which member gets an extra copy, and when it is
// removed.
#include <algorithm>
#include <tuple>

#include "hub/dispatch/placement/placement.h"

namespace moex {

bool Placement::add_extra(std::uint32_t unit, const std::function<bool(WorkerId)>& may_take,
                          std::vector<PlacementChange>& changes) {
    if (!missing_.empty() || unbalanced_ || owners_[unit].size() != options_.replicas) return false;

    const bool grouped = options_.choice.rule == PlacementRule::groups;
    const auto key = [&](const Member& member) {
        return std::tuple(collisions(unit, 0, member.given.address_prefix) > 0,
                          member.layer_load[layer_of(unit)] == 0,
                          static_cast<double>(member.load) / member.capacity,
                          hash_rank(member, unit));
    };
    Member* best = nullptr;
    for (auto& [worker, member] : members_) {
        // A member with a greater load would have to move other units away because of this extra
        // copy.
        if (member.load >= std::min(member.capacity, shed_above_bound_most(member)) ||
            owns(member, unit) || (grouped && !is_home(member, unit)) || !may_take(worker))
            continue;
        if (best == nullptr || key(member) < key(*best)) best = &member;
    }
    if (best == nullptr) return false;
    own(*best, unit, changes);
    return true;
}

void Placement::take_extra(std::uint32_t unit, std::vector<PlacementChange>& changes) {
    if (!extras_.contains(unit)) return;
    Member* last = nullptr;
    for (Member* owner : owner_members_[unit]) {
        const auto key = [&](const Member& member) {
            return std::tuple(!is_loaded(member, unit), !member.is_pinned);
        };
        if (last == nullptr || key(*owner) >= key(*last)) last = owner;
    }
    disown(*last, unit, changes);
}

// Some unit lacks a copy: drop the extra copies that are not loaded yet.
void Placement::take_unloaded_extras(std::vector<PlacementChange>& changes) {
    for (const std::uint32_t unit : std::vector(extras_.begin(), extras_.end()))
        if (std::ranges::any_of(owner_members_[unit],
                                [&](const Member* owner) { return !is_loaded(*owner, unit); }))
            take_extra(unit, changes);
}

std::vector<std::string> Placement::check_extras() const {
    std::vector<std::string> broken;
    const auto wrong = [&](auto&&... what) { broken.push_back(moex::text(what...)); };

    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
        const std::size_t copies = owners_[unit].size();
        if (copies > options_.replicas + 1 ||
            (copies > options_.replicas) != extras_.contains(unit))
            wrong("unit ", unit, " has ", copies, " copies; extras say ", extras_.contains(unit));
        if (copies >= std::min<std::size_t>(options_.replicas, members_.size())) continue;
        for (const std::uint32_t extra : extras_)
            for (const Member* owner : owner_members_[extra])
                if (!owns(*owner, unit))
                    wrong("unit ", unit, " lacks a copy while worker ", owner->given.worker,
                          " holds one too many of ", extra);
    }
    return broken;
}

}  // namespace moex
