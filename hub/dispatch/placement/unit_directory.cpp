#include "hub/dispatch/placement/unit_directory.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "protocol/check.h"

namespace moex {
namespace {
constexpr Duration load_again_max = 10min;
// interval at which lost workers that keep their place are checked
constexpr Duration look_every = 1s;
constexpr Duration balance_every = 250ms;  // interval of rebalancing while moves are left to do
constexpr Duration more_come_within = 500ms, more_come_max = 3s;
// how long no place is kept, after a quarter of the workers is lost
constexpr Duration many_left_for = 2s;
constexpr Duration more_leave_within = 250ms;
// A worker that loads half of its orders sooner than half_loaded_soon may have more units ordered
// ahead. A worker that takes longer than half_loaded_late may have fewer.
constexpr Duration half_loaded_soon = 250ms, half_loaded_late = 1s;
constexpr std::uint32_t ahead_least = 2;
}  // namespace

UnitDirectory::UnitDirectory(UnitDirectoryOptions options)
    : options_(std::move(options)),
      placement_(placement_options()),
      holders_(options_.placement.num_units),
      ready_(options_.placement.num_units),
      held_until_(options_.placement.num_units),
      moves_saved_(options_.moves_at_once) {}

PlacementOptions UnitDirectory::placement_options() const {
    PlacementOptions options = options_.placement;
    options.is_loaded = [this](WorkerId owner, std::uint32_t unit) {
        const auto found = members_.find(owner);
        return found != members_.end() && found->second->has(unit, UnitHolder::ready);
    };
    options.was_held = [this](std::uint32_t unit) { return held_until_[unit] != TimePoint{}; };
    return options;
}

bool UnitDirectory::is_awaited(std::uint32_t unit) const {
    return std::ranges::any_of(placement_.owners(unit),
                               [this](WorkerId owner) { return members_.contains(owner); });
}

bool UnitDirectory::may_return(std::uint32_t unit) const {
    return !away_.empty() && std::ranges::any_of(placement_.owners(unit), [this](WorkerId owner) {
        return std::ranges::any_of(away_, [&](const Away& away) { return away.id == owner; });
    });
}

void UnitDirectory::join(UnitHolder& holder, const PlacementMember& member, TimePoint now) {
    holder.units.assign(num_units(), 0);
    for (std::uint32_t unit = 0; unit < member.cached.size(); ++unit)
        if (member.cached[unit]) holder.units[unit] = UnitHolder::cached;
    holder.ring_key = member.ring_key;
    holder.capacity_units = member.capacity_units;
    holder.loading_since = now;
    holder.loads_ahead = options_.loads_ahead;
    members_[holder.id] = &holder;
    balance_at_ = now;

    const auto place = std::find_if(away_.begin(), away_.end(), [&](const Away& away) {
        return away.ring_key == member.ring_key;
    });
    if (place == away_.end()) {
        const bool fills = member.cached.empty() && !awaits_groups();
        placement_.join(member, changes_, fills);
        if (fills) {
            fill_at_.reset();
        } else {
            if (!fill_at_) fill_at_most_ = now + more_come_max;
            fill_at_ = std::min(now + more_come_within, fill_at_most_);
        }
    } else {
        placement_.rename(place->id, member, changes_);
        away_.erase(place);
    }
}

// Returns true while groups without workers may still get some, because workers that are started
// together also join within a moment. To give the layers of these groups to other groups at once
// would cause double downloads.
bool UnitDirectory::awaits_groups() const {
    return options_.placement.choice.rule == PlacementRule::groups &&
           std::ranges::all_of(members_,
                               [](const auto& one) { return one.second->num_ready == 0; });
}

void UnitDirectory::leave(UnitHolder& holder, bool may_return, TimePoint now) {
    for (std::uint32_t unit = 0; unit < holder.units.size(); ++unit) {
        if (holder.has(unit, UnitHolder::ready)) std::erase(ready_[unit], &holder);
        if (holder.has(unit, UnitHolder::assigned)) {
            std::erase(holders_[unit], &holder);
            held_until_[unit] = now;
        }
        holder.units[unit] = 0;
    }
    holder.num_assigned = holder.num_ready = holder.num_later = holder.told_later = 0;
    holder.assign_pending = false;
    const bool was_member = members_.erase(holder.id) > 0;
    if (may_return && was_member && now >= many_left_until_)
        keep_place(holder, now);
    else
        placement_.leave(holder.id, changes_);
    // The workers of a mass leave are lost one by one. Delay the orders until no more workers
    // leave. Otherwise units that are lost later, but needed first, would wait behind the units of
    // the worker that was lost first.
    if (now < many_left_until_) loads_at_ = now + more_leave_within;
}

// Keeps the place of a worker that is lost alone, because it is most likely back in a moment. If a
// quarter of all workers is lost within a short time, a network link has failed, and no place is
// kept.
void UnitDirectory::keep_place(const UnitHolder& holder, TimePoint now) {
    away_.push_back({.id = holder.id,
                     .ring_key = holder.ring_key,
                     .until = now + options_.return_within,
                     .look_at = now + options_.uncovered_within});
    if (away_.size() <= std::max<std::size_t>(1, (members_.size() + away_.size()) / 4)) return;

    many_left_until_ = now + many_left_for;
    for (const Away& away : std::exchange(away_, {})) placement_.leave(away.id, changes_);
}

bool UnitDirectory::is_covered(std::uint32_t unit) const {
    return std::any_of(ready_[unit].begin(), ready_[unit].end(),
                       [this](const UnitHolder* holder) { return options_.serves(*holder); });
}

bool UnitDirectory::is_covered_without(const UnitHolder& holder, std::uint32_t unit) const {
    return std::ranges::any_of(ready_[unit], [&](const UnitHolder* other) {
        return other != &holder && options_.serves(*other);
    });
}

void UnitDirectory::hand_over(UnitHolder& holder, TimePoint now) {
    std::vector<std::uint32_t> released;
    for (std::uint32_t unit = 0; unit < holder.units.size(); ++unit)
        if (holder.has(unit, UnitHolder::assigned) &&
            (!holder.has(unit, UnitHolder::ready) || is_covered_without(holder, unit)))
            released.push_back(unit);
    on_budget(holder, 0, released, now);
}

bool UnitDirectory::is_handing_over(const UnitHolder& holder) const {
    for (std::uint32_t unit = 0; unit < holder.units.size(); ++unit)
        if (holder.has(unit, UnitHolder::ready) && is_awaited(unit) &&
            !is_covered_without(holder, unit))
            return true;
    return false;
}

// Some units of a lost worker are not ready at any other worker: assigns them to other workers.
// Returns false if the lost worker then keeps no unit.
bool UnitDirectory::give_uncovered(const Away& away) {
    std::vector<std::uint32_t> uncovered;
    std::uint32_t num_kept = 0;
    for (std::uint32_t unit = 0; unit < num_units(); ++unit) {
        const auto owners = placement_.owners(unit);
        if (std::find(owners.begin(), owners.end(), away.id) == owners.end()) continue;
        if (is_covered(unit))
            ++num_kept;
        else
            uncovered.push_back(unit);
    }
    if (!uncovered.empty()) placement_.resize(away.id, num_kept, uncovered, changes_);
    return num_kept > 0;
}

void UnitDirectory::wake(TimePoint now) {
    std::erase_if(away_, [&](Away& away) {
        const bool looks = away.look_at <= now;
        if (looks) away.look_at = now + look_every;
        if (away.until > now && (!looks || give_uncovered(away))) return false;
        placement_.leave(away.id, changes_);
        return true;
    });
    if (fill_at_ && *fill_at_ <= now) {
        fill_at_.reset();
        placement_.fill(changes_);
    }
    if (loads_at_ && *loads_at_ <= now) {
        loads_at_.reset();
        for (const auto& [id, holder] : members_) holder->assign_pending |= holder->num_later > 0;
    }
    settle(now);
}

std::optional<TimePoint> UnitDirectory::wake_at() const {
    std::optional<TimePoint> at;
    const auto sooner = [&](TimePoint when) { at = std::min(at.value_or(when), when); };
    for (const Away& away : away_) sooner(std::min(away.until, away.look_at));
    if (loads_at_) sooner(*loads_at_);
    if (fill_at_)
        sooner(*fill_at_);
    else if (placement_.unbalanced())
        sooner(balance_at_);
    return at;
}

// Moves units towards the fair shares. Moves of loaded units draw on a budget that grows with time;
// the first moves to a newcomer happen at once.
void UnitDirectory::rebalance(TimePoint now) {
    if (moves_at_ != TimePoint{})
        moves_saved_ = std::min(
            options_.moves_at_once,
            moves_saved_ + options_.moves_per_s * to_ms(now - moves_at_) / 1000);
    moves_at_ = now;
    if (!placement_.unbalanced() || fill_at_ || now < balance_at_) return;

    balance_at_ = now + balance_every;
    moves_saved_ -= placement_.rebalance(static_cast<std::uint32_t>(std::max(0.0, moves_saved_)),
                                         changes_);
}

void UnitDirectory::settle(TimePoint now) {
    rebalance(now);
    for (const PlacementChange& change : std::exchange(changes_, {})) {
        const auto found = members_.find(change.worker);
        if (found == members_.end()) continue;
        UnitHolder& holder = *found->second;
        if (change.added) {
            holder.units[change.unit] |= UnitHolder::wanted;
            if (holder.has(change.unit, UnitHolder::assigned)) continue;
            holder.assign_pending = true;
        } else {
            holder.units[change.unit] &= static_cast<std::uint8_t>(~UnitHolder::wanted);
            touched_.push_back(change.unit);
            // the unit may be one of the `num_later` units that are still to be ordered
            holder.assign_pending |= holder.num_later > 0;
        }
    }

    release_surplus_of_touched(now);
    for (const auto& [id, holder] : members_)
        if (holder->assign_pending) assign_wanted(*holder, now);
    release_surplus_of_touched(now);
    tell_what_is_to_come();
}

// Sends each worker its new number of units to come. The number is part of an order with units if
// there is one, otherwise it is sent alone.
void UnitDirectory::tell_what_is_to_come() {
    for (const auto& [id, holder] : members_) {
        if (holder->num_later == holder->told_later) continue;
        holder->told_later = holder->num_later;

        const auto last = std::ranges::find_if(
            orders_.rbegin(), orders_.rend(),
            [&, worker = id](const UnitOrder& order) { return order.worker == worker; });
        if (last == orders_.rend() || last->release)
            orders_.push_back({.worker = id, .release = false, .units = {}});
    }
}

// Appends an order. If the worker's latest order has the same direction (hold or release), the
// units join that order, so that a single frame carries them instead of a frame per unit.
void UnitDirectory::order(const UnitHolder& holder, bool release, Units units) {
    if (units.empty()) return;
    const auto last = std::find_if(orders_.rbegin(), orders_.rend(), [&](const UnitOrder& order) {
        return order.worker == holder.id;
    });
    if (last != orders_.rend() && last->release == release)
        last->units.insert(last->units.end(), units.begin(), units.end());
    else
        orders_.push_back(
            {.worker = holder.id, .release = release, .units = {units.begin(), units.end()}});
}

// Releases surplus copies of the units in `touched_`. Workers that waited for room are then ordered
// to load the units for which they now have room.
void UnitDirectory::release_surplus_of_touched(TimePoint now) {
    while (!touched_.empty()) {
        std::vector<UnitHolder*> freed;
        while (!touched_.empty()) {
            const std::uint32_t unit = touched_.back();
            touched_.pop_back();
            release_surplus(unit, now, freed);
        }
        for (UnitHolder* holder : freed)
            if (holder->assign_pending) assign_wanted(*holder, now);
    }
}

// Returns how soon the unit is needed, as a distance in units: 0 for the layer that is needed next,
// and more for the layers after it.
std::uint32_t UnitDirectory::needed_after(std::uint32_t unit) const {
    return (unit + num_units() - needed_first_) % num_units();
}

// Orders the worker to load the units that the placement wants it to hold, as far as its room and
// its limit of units ahead allow. Units that no worker holds or loads come first, in the order in
// which they are needed; among these, units of the worker's own group precede units that it keeps
// for a group without workers. Next come units that no worker has ready.
void UnitDirectory::assign_wanted(UnitHolder& holder, TimePoint now) {
    holder.assign_pending = false;
    holder.num_later = 0;
    const std::uint32_t room = holder.capacity_units -
                               std::min(holder.capacity_units, holder.num_assigned);
    struct Wish {
        bool is_held, is_download;
        std::size_t num_ready, num_holders;
        bool is_away;
        std::uint64_t order;
        std::uint32_t unit;
    };

    std::vector<Wish> wishes;
    for (std::uint32_t unit = 0; unit < num_units(); ++unit) {
        if (!holder.has(unit, UnitHolder::wanted) || holder.has(unit, UnitHolder::assigned))
            continue;
        const bool is_held = !holders_[unit].empty();
        wishes.push_back({is_held, !holder.has(unit, UnitHolder::cached), ready_[unit].size(),
                          holders_[unit].size(), !placement_.is_home(holder.id, unit),
                          is_held ? mix_hash(holder.id, unit) : needed_after(unit), unit});
    }

    if (wishes.empty()) return;

    std::sort(wishes.begin(), wishes.end(), [](const Wish& a, const Wish& b) {
        return std::tie(a.is_held, a.is_download, a.num_ready, a.num_holders, a.is_away, a.order) <
               std::tie(b.is_held, b.is_download, b.num_ready, b.num_holders, b.is_away, b.order);
    });

    if (wishes.size() > room) {
        // the worker is ordered the remaining units when it has released a unit
        holder.assign_pending = true;
        wishes.resize(room);
        for (std::uint32_t unit = 0; unit < num_units(); ++unit)
            if (holder.has(unit, UnitHolder::assigned) && !holder.has(unit, UnitHolder::wanted))
                touched_.push_back(unit);
    }

    std::vector<std::uint32_t> units;
    for (const Wish& wish : wishes) {
        if (wish.is_download && (loads_at_ || holder.num_loading() >= holder.loads_ahead)) {
            ++holder.num_later;
            continue;
        }
        assign(holder, wish.unit, now);
        units.push_back(wish.unit);
    }
    if (!units.empty()) holder.told_at = now;
    order(holder, false, units);
}

void UnitDirectory::assign(UnitHolder& holder, std::uint32_t unit, TimePoint now) {
    if (holder.num_loading() == 0) holder.loading_since = now;
    holder.units[unit] |= UnitHolder::assigned;
    ++holder.num_assigned;
    holders_[unit].push_back(&holder);
}

bool UnitDirectory::on_ready(UnitHolder& holder, Units units, TimePoint now) {
    if (holder.units.empty()) return false;  // the worker has not joined, so it has no units yet
    const std::uint32_t before = holder.num_ready;
    for (const std::uint32_t unit : units) {
        // the unit was already released, or the worker reported it twice
        if (!holder.has(unit, UnitHolder::assigned) || holder.has(unit, UnitHolder::ready))
            continue;
        holder.units[unit] |= UnitHolder::ready;
        ++holder.num_ready;
        ready_[unit].push_back(&holder);
        touched_.push_back(unit);
    }

    if (holder.num_ready == before) return false;
    holder.loading_since = now;
    if (holder.num_loading() == 0) holder.times_stuck = 0;
    if (!holder.assign_pending) {
        tell_more(holder);
        if (holder.assign_pending) adapt_ahead(holder, now);
    }
    return true;
}

void UnitDirectory::on_missing(UnitHolder& holder, Units units, bool again, TimePoint now) {
    std::vector<std::uint32_t> told;
    for (const std::uint32_t unit : units) {
        mark_not_ready(holder, unit, now);
        if (holder.has(unit, UnitHolder::assigned)) told.push_back(unit);
    }
    if (again) order(holder, false, told);
}

std::vector<std::uint32_t> UnitDirectory::held_elsewhere(const UnitHolder& holder) const {
    std::vector<std::uint32_t> units;
    for (std::uint32_t unit = 0; unit < holder.units.size(); ++unit)
        if (holder.has(unit, UnitHolder::wanted) && is_covered_without(holder, unit))
            units.push_back(unit);
    return units;
}

void UnitDirectory::on_budget(UnitHolder& holder, std::uint32_t capacity_units, Units dropped,
                              TimePoint now) {
    if (holder.units.empty()) return;
    for (const std::uint32_t unit : dropped) unassign(holder, unit, now);

    // If the capacity is too small even without `dropped`, first give up the units that the worker
    // has not loaded: no request needs them.
    std::vector<std::uint32_t> spare(dropped.begin(), dropped.end());
    for (std::uint32_t unit = 0; unit < num_units(); ++unit)
        if (holder.has(unit, UnitHolder::wanted) && !holder.has(unit, UnitHolder::ready))
            spare.push_back(unit);
    const std::vector<std::uint32_t> elsewhere = held_elsewhere(holder);
    spare.insert(spare.end(), elsewhere.begin(), elsewhere.end());

    holder.room_again_at.reset();
    // the placement may still want the worker to hold a unit that it just dropped
    holder.assign_pending = true;
    set_capacity(holder, capacity_units, spare, now);
}

void UnitDirectory::check_loading(UnitHolder& holder, std::uint32_t capacity_units, TimePoint now) {
    if (holder.num_loading() > 0 && now - holder.loading_since >= options_.load_within) {
        take_back_unloaded(holder, now);
    } else if (holder.room_again_at && *holder.room_again_at <= now) {
        holder.room_again_at.reset();
        set_capacity(holder, capacity_units, {}, now);
    }
}

// Assigns the units that the worker has not loaded to other workers. For a while the worker gets no
// units other than those that it holds.
void UnitDirectory::take_back_unloaded(UnitHolder& holder, TimePoint now) {
    if (holder.units.empty()) return;
    std::vector<std::uint32_t> spare, released;
    std::uint32_t num_kept = 0;
    for (std::uint32_t unit = 0; unit < num_units(); ++unit) {
        const bool is_ready = holder.has(unit, UnitHolder::ready);
        if (holder.has(unit, UnitHolder::wanted)) {
            if (is_ready)
                ++num_kept;
            else
                spare.push_back(unit);
        }
        if (is_ready || !holder.has(unit, UnitHolder::assigned)) continue;

        unassign(holder, unit, now);
        released.push_back(unit);
    }
    order(holder, true, released);

    ++holder.times_stuck;
    holder.room_again_at = now + std::min<Duration>(options_.load_again_after * holder.times_stuck,
                                                    load_again_max);
    set_capacity(holder, num_kept, spare, now);
}

void UnitDirectory::set_capacity(UnitHolder& holder, std::uint32_t capacity_units, Units spare,
                                 TimePoint now) {
    holder.capacity_units = capacity_units;
    placement_.resize(holder.id, capacity_units, spare, changes_);
    balance_at_ = now;
    settle(now);
}

bool UnitDirectory::add_extra(std::uint32_t unit) {
    if (fill_at_ || loads_at_) return false;
    return placement_.add_extra(
        unit,
        [this](WorkerId worker) {
            const auto found = members_.find(worker);
            if (found == members_.end()) return false;  // the worker is lost and its place is kept
            const UnitHolder& holder = *found->second;
            return holder.num_loading() == 0 && holder.num_later == 0 && !holder.assign_pending &&
                   holder.num_assigned < holder.capacity_units && options_.serves(holder);
        },
        changes_);
}

void UnitDirectory::mark_not_ready(UnitHolder& holder, std::uint32_t unit, TimePoint now) {
    if (!holder.has(unit, UnitHolder::ready)) return;
    if (holder.num_ready == holder.num_assigned) holder.loading_since = now;
    holder.units[unit] &= static_cast<std::uint8_t>(~UnitHolder::ready);
    --holder.num_ready;
    std::erase(ready_[unit], &holder);
}

void UnitDirectory::unassign(UnitHolder& holder, std::uint32_t unit, TimePoint now) {
    if (!holder.has(unit, UnitHolder::assigned)) return;
    mark_not_ready(holder, unit, now);
    holder.units[unit] &= static_cast<std::uint8_t>(~UnitHolder::assigned);
    --holder.num_assigned;
    std::erase(holders_[unit], &holder);
    held_until_[unit] = now;
    tell_more(holder);
}

// Orders more units when at least half of the units ordered ahead are loaded, or need not be loaded
// any more.
void UnitDirectory::tell_more(UnitHolder& holder) const {
    if (holder.num_later > 0 && 2 * holder.num_loading() <= holder.loads_ahead)
        holder.assign_pending = true;
}

// Adapts the number of units ordered ahead to the worker's connection. On a fast connection half of
// the units would be loaded before the next order arrives. On a slow connection, old orders would
// delay units that are needed now.
void UnitDirectory::adapt_ahead(UnitHolder& holder, TimePoint now) const {
    const Duration took = now - holder.told_at;
    if (took < half_loaded_soon)
        holder.loads_ahead = std::min(2 * holder.loads_ahead, num_units());
    else if (took > half_loaded_late)
        holder.loads_ahead = std::max(holder.loads_ahead / 2, ahead_least);
}

// Releases copies beyond the placement's wish once enough other copies of the unit are ready.
void UnitDirectory::release_surplus(std::uint32_t unit, TimePoint now,
                                    std::vector<UnitHolder*>& freed) {
    const auto owners = placement_.owners(unit);
    const auto num_ready_owners = static_cast<std::size_t>(
        std::count_if(ready_[unit].begin(), ready_[unit].end(), [&](const UnitHolder* holder) {
            return holder->has(unit, UnitHolder::wanted) && options_.serves(*holder);
        }));

    for (std::size_t i = holders_[unit].size(); i-- > 0;) {
        UnitHolder& holder = *holders_[unit][i];
        if (holder.has(unit, UnitHolder::wanted)) continue;

        // If the worker lacks room for a unit that it should hold, it may release the present unit
        // as soon as one other copy of that unit is ready.
        const bool lacks_room = holder.assign_pending &&
                                holder.num_assigned >= holder.capacity_units;
        const std::size_t enough = lacks_room ? std::min<std::size_t>(1, owners.size())
                                              : owners.size();
        const bool copies_elsewhere = !owners.empty() && num_ready_owners >= enough;
        if (holder.has(unit, UnitHolder::ready) && !copies_elsewhere) continue;

        unassign(holder, unit, now);
        order(holder, true, Units(&unit, 1));
        if (holder.assign_pending) freed.push_back(&holder);
    }
}

std::vector<std::string> UnitDirectory::check(const UnitHolder& holder, bool settled) const {
    std::vector<std::string> broken;
    const auto wrong = [&](auto&&... what) { broken.push_back(text(what...)); };
    const auto in = [&](const std::vector<UnitHolder*>& list) {
        return std::count(list.begin(), list.end(), &holder);
    };

    std::uint32_t num_assigned = 0, num_ready = 0, num_untold = 0;
    for (std::uint32_t unit = 0; unit < holder.units.size(); ++unit) {
        const bool is_assigned = holder.has(unit, UnitHolder::assigned),
                   is_ready = holder.has(unit, UnitHolder::ready);
        num_assigned += is_assigned;
        num_ready += is_ready;
        num_untold += holder.has(unit, UnitHolder::wanted) && !is_assigned;
        if (is_ready && !is_assigned) wrong("unit ", unit, " is ready and not assigned");
        if (in(holders_[unit]) != is_assigned || in(ready_[unit]) != is_ready)
            wrong("unit ", unit, " is listed ", in(holders_[unit]), " and ", in(ready_[unit]),
                  " times, its flags say ", is_assigned, " and ", is_ready);

        const auto owners = placement_.owners(unit);
        const bool owned = std::find(owners.begin(), owners.end(), holder.id) != owners.end();
        if (settled && owned != holder.has(unit, UnitHolder::wanted))
            wrong("unit ", unit, " is wanted ", !owned, ", the placement says ", owned);
    }
    if (num_assigned != holder.num_assigned || num_ready != holder.num_ready)
        wrong("counts ", holder.num_assigned, " assigned, ", holder.num_ready, " ready; it has ",
              num_assigned, " and ", num_ready);
    if (!settled) return broken;

    const bool will_be_told = holder.assign_pending || loads_at_ ||
                              2 * holder.num_loading() > holder.loads_ahead;
    if (holder.num_later > num_untold || holder.told_later != holder.num_later)
        wrong(holder.num_later, " units are to come, it knows of ", holder.told_later,
              ", the placement wants ", num_untold);
    if (num_untold > 0 && !will_be_told) wrong(num_untold, " wanted units will never be ordered");
    return broken;
}

}  // namespace moex
