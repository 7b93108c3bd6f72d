// Shares of members that joined or were resized: which units move to these members, and from which
// donors.
#include <algorithm>
#include <tuple>
#include <utility>

#include "hub/dispatch/placement/placement.h"

namespace moex {

std::uint32_t Placement::rebalance(std::uint32_t moves_max, std::vector<PlacementChange>& changes) {
    std::uint32_t num_moved = 0;
    if (options_.choice.rule == PlacementRule::groups) {
        num_moved = rebalance_groups(moves_max, changes);
    } else {
        const bool hashed = options_.choice.rule == PlacementRule::hash;
        for (auto& [worker, member] : members_) {
            if (!member.wants_share) continue;
            num_moved += hashed ? take_hashed(member, moves_max - num_moved, changes)
                                : take_share(member, moves_max - num_moved, changes);
            member.wants_share = num_moved == moves_max;
        }
        num_moved += shed_above_bound(moves_max - num_moved, changes);
        unbalanced_ = num_moved == moves_max;
    }

    // the donors may now have room for units that lack a copy
    if (!missing_.empty()) fill_missing(changes);
    return num_moved;
}

// Lists, for each member and layer, the units that the newcomer lacks. Units that would then have
// more copies on one address prefix are left out.
void Placement::list_fragments(Member& newcomer) {
    const std::uint64_t prefix = newcomer.given.address_prefix;
    for (auto& [worker, member] : members_) {
        member.fragments.clear();
        member.fair = std::max(1e-9, fair(member));
        member.fill = member.load / member.fair;
    }

    std::uint32_t count = 0;
    layer_begin_.assign(1, 0);
    for (std::uint32_t unit = 0; unit < options_.num_units; ++unit) {
        const std::uint32_t layer = layer_of(unit);
        for (Member* owner : owner_members_[unit]) {
            if (owns(newcomer, unit)) break;
            if (owner->is_pinned) continue;
            const std::uint32_t before = collisions(unit, owner->given.worker,
                                                    owner->given.address_prefix);
            const std::uint32_t after = collisions(unit, owner->given.worker, prefix);
            if (after > before) continue;

            if (owner->fragments.empty() || fragments_[owner->fragments.back()].layer != layer) {
                const auto point = std::lower_bound(newcomer.points.begin(), newcomer.points.end(),
                                                    unit_points_[unit]);
                const bool wraps = point == newcomer.points.end();
                owner->fragments.push_back(count);
                if (fragments_.size() <= count) fragments_.emplace_back();
                Fragment& fresh = fragments_[count++];
                fresh.donor = owner;
                fresh.layer = layer;
                fresh.distance = (wraps ? newcomer.points.front() : *point) - unit_points_[unit];
                fresh.units.clear();
                fresh.num_spread = fresh.num_cached = 0;
            }
            Fragment& fragment = fragments_[owner->fragments.back()];
            fragment.units.push_back(unit);
            fragment.num_spread += after < before;
            fragment.num_cached += has_cached(newcomer, unit);
        }
        if ((unit + 1) % options_.layer_units == 0) layer_begin_.push_back(count);
    }
    layer_begin_.resize(layer_members_.size() + 1, count);

    if (newcomer.given.cached.empty()) return;
    for (Fragment& fragment : std::span(fragments_).first(count))
        std::stable_partition(fragment.units.begin(), fragment.units.end(),
                              [&](std::uint32_t unit) { return !has_cached(newcomer, unit); });
}

std::span<Placement::Fragment> Placement::fragments_of_layer(std::uint32_t layer) {
    return std::span(fragments_)
        .subspan(layer_begin_[layer], layer_begin_[layer + 1] - layer_begin_[layer]);
}

// Limits a donation so that the donor remains at least as full as the newcomer will be.
Placement::Donation Placement::donation_of(const Member& newcomer, Fragment& fragment) const {
    const Member& donor = *fragment.donor;
    if (fragment.units.empty() || donor.fill <= newcomer.fill) return {};
    const double even = (donor.load * newcomer.fair - newcomer.load * donor.fair) /
                        (donor.fair + newcomer.fair);
    const std::uint32_t wanted = share(newcomer) - newcomer.load;
    const auto there = static_cast<std::uint32_t>(fragment.units.size());
    return {.fragment = &fragment,
            .num_units = std::min({fragment.num_cached > 0 ? fragment.num_cached : there, wanted,
                                   std::max(1u, static_cast<std::uint32_t>(even))})};
}

// Chooses a fragment with units that the newcomer has cached, from the fullest donor.
Placement::Donation Placement::next_cached(const Member& newcomer) {
    Donation best;
    for (Fragment& fragment : std::span(fragments_).first(layer_begin_.back())) {
        if (fragment.num_cached == 0) continue;
        const Donation donation = donation_of(newcomer, fragment);
        if (donation.fragment != nullptr &&
            (best.fragment == nullptr || fragment.donor->fill > best.fragment->donor->fill))
            best = donation;
    }
    return best;
}

// Chooses a donation from the given layer: one that takes all of a donor's units of the layer if
// possible, otherwise one from the fullest donor.
Placement::Donation Placement::next_of_layer(const Member& newcomer, std::uint32_t layer) {
    Donation best;
    for (Fragment& fragment : fragments_of_layer(layer)) {
        const Donation donation = donation_of(newcomer, fragment);
        if (donation.fragment == nullptr) continue;
        if (best.fragment == nullptr || std::tuple(donation.is_whole(), fragment.donor->fill) >
                                            std::tuple(best.is_whole(), best.fragment->donor->fill))
            best = donation;
    }
    return best;
}

// Chooses a donation from the fullest donor. Units that would then spread over more address
// prefixes are preferred, then a whole fragment, then the fragment nearest on the ring.
Placement::Donation Placement::next_of_fullest(const Member& newcomer) {
    Member* fullest = nullptr;
    for (auto& [worker, donor] : members_) {
        while (!donor.fragments.empty() && fragments_[donor.fragments.back()].units.empty())
            donor.fragments.pop_back();
        if (!donor.fragments.empty() && (fullest == nullptr || donor.fill > fullest->fill))
            fullest = &donor;
    }
    if (fullest == nullptr) return {};

    const auto key = [&](const Donation& donation) {
        return std::tuple(donation.fragment->num_spread == 0, !donation.is_whole(),
                          donation.fragment->distance);
    };
    Donation best;
    for (const std::uint32_t i : fullest->fragments) {
        const Donation donation = donation_of(newcomer, fragments_[i]);
        if (donation.fragment == nullptr) continue;
        if (best.fragment == nullptr || key(donation) < key(best)) best = donation;
    }
    return best;
}

std::uint32_t Placement::take_share(Member& newcomer, std::uint32_t moves_max,
                                    std::vector<PlacementChange>& changes) {
    if (newcomer.load >= share(newcomer)) return 0;
    list_fragments(newcomer);

    std::uint32_t num_moved = 0;
    while (newcomer.load < share(newcomer) && num_moved < moves_max) {
        Donation donation;
        if (!newcomer.given.cached.empty()) donation = next_cached(newcomer);
        const bool is_cached = donation.fragment != nullptr;
        // Continue with layers of which the newcomer already has a part.
        for (std::uint32_t layer = 0; layer < layer_members_.size(); ++layer) {
            if (donation.fragment != nullptr) break;
            const std::uint32_t has = newcomer.layer_load[layer];
            if (has > 0 && has < options_.layer_units) donation = next_of_layer(newcomer, layer);
        }
        const bool is_begun = donation.fragment != nullptr;
        if (!is_begun) donation = next_of_fullest(newcomer);
        if (donation.fragment == nullptr) break;
        // A newcomer that already has three quarters of its share takes only units that it has
        // cached. If it has none cached, it takes only whole layers, and the missing units of
        // layers of which it has a part.
        if (4 * newcomer.load >= 3 * share(newcomer) && !is_cached &&
            (!newcomer.given.cached.empty() || (!is_begun && !donation.is_whole())))
            break;

        Member& donor = *donation.fragment->donor;
        auto& units = donation.fragment->units;
        for (std::uint32_t i = 0; i < donation.num_units && num_moved < moves_max; ++i) {
            const std::uint32_t unit = units.back();
            num_moved += !has_cached(newcomer, unit) && is_loaded(donor, unit);
            disown(donor, unit, changes);
            own(newcomer, unit, changes);
            units.pop_back();
            if (is_cached) --donation.fragment->num_cached;
        }

        for (Fragment& other : fragments_of_layer(donation.fragment->layer))
            std::erase_if(other.units, [&](std::uint32_t unit) {
                const bool is_taken = owns(newcomer, unit);
                other.num_cached -= is_taken && has_cached(newcomer, unit);
                return is_taken;
            });
        donor.fill = donor.load / donor.fair;
        newcomer.fill = newcomer.load / newcomer.fair;
    }
    return num_moved;
}

// Moves units from members above their bound. Where capacity was scarce, the newcomer may just have
// taken the second copy of every unit of a full worker. That worker has no unit to give to the
// newcomer, but the donors have room for some of its units. A member that exceeds its bound by less
// than a layer of units keeps them, so that no layer is cut.
std::uint32_t Placement::shed_above_bound(std::uint32_t moves_max,
                                          std::vector<PlacementChange>& changes) {
    std::uint32_t num_moved = 0;
    for (auto& [worker, member] : members_) {
        if (member.is_pinned) continue;
        const std::uint32_t most = shed_above_bound_most(member);
        for (std::uint32_t unit = 0;
             unit < options_.num_units && member.load > most && num_moved < moves_max; ++unit) {
            if (!owns(member, unit)) continue;

            Member* const other = choose_owner(unit, options_.num_units);
            if (other == nullptr || other->load >= bound(*other)) continue;

            disown(member, unit, changes);
            own(*other, unit, changes);
            ++num_moved;
        }
    }
    return num_moved;
}

}  // namespace moex
