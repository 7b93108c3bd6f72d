#include "hub/net/fleet/worker_moves.h"

#include <algorithm>

namespace moex::net {
namespace {

// A move from a hub with one worker more only exchanges the two hubs.
constexpr std::uint64_t difference_min = 2;

bool may_move(const WorkerView& worker) {
    return worker.reads_hubs && !worker.drained && !worker.pinned &&
           worker.state != WorkerState::connecting && worker.state != WorkerState::draining;
}

std::vector<Member> others_like(const Member& self, std::span<const Member> members) {
    std::vector<Member> others;
    for (const Member& member : members)
        if (member.hub_id != self.hub_id && is_alike(self, member)) others.push_back(member);
    std::ranges::stable_sort(others, [](const Member& a, const Member& b) {
        const double lack_a = need_of(a).lack(), lack_b = need_of(b).lack();
        return lack_a != lack_b ? lack_a > lack_b : a.workers < b.workers;
    });
    return others;
}

// Returns the workers that may be asked, those with the least to lose here first: workers without
// whole layers, then those whose layers no recent step used; among equals the one that joined last.
std::vector<const WorkerView*> movable_workers(const MoveInputs& in) {
    std::vector<const WorkerView*> workers;
    for (const WorkerView& worker : in.workers) {
        const auto share = in.copies.shares.find(worker.id);
        if (may_move(worker) && !in.asked.contains(worker.id) && share != in.copies.shares.end() &&
            !share->second.is_loading)
            workers.push_back(&worker);
    }
    std::ranges::stable_sort(workers, [&](const WorkerView* a, const WorkerView* b) {
        const auto loss = [&](const WorkerView* worker) {
            const UnitCopies::Share& share = in.copies.shares.at(worker->id);
            return std::pair(share.layers_used > 0, share.layers > 0);
        };
        return loss(a) != loss(b) ? loss(a) < loss(b) : a->joined_at > b->joined_at;
    });
    return workers;
}

// The hubs that can be given workers, the neediest first, and this hub among them.
struct Fleet {
    std::vector<Member> takers;
    std::uint64_t workers = 0;  // of this hub
    double mean_workers = 0;

    // Returns whether this hub acts, if `givers` hubs could give `taker` a worker.
    bool acts(double uniform, const Member& taker, std::ptrdiff_t givers) const {
        const double wanted = std::max(1.0, mean_workers - static_cast<double>(taker.workers));
        return uniform * static_cast<double>(givers) < wanted;
    }
};

Fleet fleet_of(const MoveInputs& in) {
    Fleet fleet;
    for (Member& other : others_like(in.self, in.members))
        if (other.units > 0) fleet.takers.push_back(std::move(other));
    fleet.workers = in.copies.shares.size();
    double all = static_cast<double>(fleet.workers);
    for (const Member& taker : fleet.takers) all += static_cast<double>(taker.workers);
    fleet.mean_workers = all / static_cast<double>(fleet.takers.size() + 1);
    return fleet;
}

// Returns the hub that lacks clearly more than this one will, if this hub has to act.
const Member* neediest(const Fleet& fleet, double lack_here, double uniform) {
    const Member& taker = fleet.takers.front();
    const double lack = need_of(taker).lack();
    if (lack - lack_here < clearly_more) return nullptr;
    const auto givers = 1 + std::ranges::count_if(fleet.takers, [&](const Member& other) {
                            return other.workers >= 2 &&
                                   lack - need_of(other).lack() >= clearly_more;
                        });
    return fleet.acts(uniform, taker, givers) ? &taker : nullptr;
}

// Returns the hub with the fewest workers, if it has at least two fewer and this hub has to act.
const Member* poorest(const Fleet& fleet, double uniform) {
    const Member& taker = *std::ranges::min_element(fleet.takers, {}, &Member::workers);
    const std::uint64_t enough = taker.workers + difference_min;
    if (fleet.workers < enough) return nullptr;
    const auto givers = 1 + std::ranges::count_if(fleet.takers, [&](const Member& other) {
                            return other.workers >= enough;
                        });
    return fleet.acts(uniform, taker, givers) ? &taker : nullptr;
}

}  // namespace

bool is_alike(const Member& self, const Member& other) {
    return other.left_ms > 0 && other.package_sha256 == self.package_sha256;
}

HubNeed need_of(const Member& member) {
    const auto narrow = [](std::uint64_t count) {
        return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, UINT32_MAX));
    };
    const std::uint32_t units = narrow(member.units);
    const std::uint32_t missing = std::min(narrow(member.missing), units);
    return {.units = units,
            .missing = missing,
            .thin = std::min(narrow(member.thin), units - missing),
            .workers = narrow(member.workers),
            .streams = narrow(member.streams)};
}

FleetPlaces places_of(const Member& self, std::span<const Member> members) {
    FleetPlaces places{.own = self.hub_id, .others = {}, .need = need_of(self)};
    for (const Member& other : others_like(self, members)) {
        if (places.others.size() == hub_places_max) break;
        places.others.push_back({other.hub_id, other.address, need_of(other)});
    }
    return places;
}

HubNeed need_without(const UnitCopies& copies, WorkerId worker, bool computes_experts) {
    HubNeed need{.units = copies.units, .missing = copies.missing, .thin = copies.thin};
    const auto found = copies.shares.find(worker);
    if (found == copies.shares.end()) return need;
    const UnitCopies::Share& share = found->second;
    std::uint32_t room = copies.room - std::min(copies.room, share.room);
    const auto take_room = [&](std::uint32_t count) {
        const std::uint32_t taken = std::min(count, room);
        room -= taken;
        return count - taken;
    };

    const std::uint32_t alone = computes_experts ? take_room(share.alone) : share.alone;
    need.missing += alone;
    // Without this worker there may be too few workers for the copies, however much room they have.
    const bool has_workers = copies.shares.size() > copies.wanted;
    need.thin += has_workers ? take_room(share.thinned) : share.thinned;
    need.thin = std::min(need.thin, need.units - need.missing);
    return need;
}

MoveChoice choose_move(const MoveInputs& in) {
    const Fleet fleet = fleet_of(in);
    if (fleet.takers.empty() || fleet.workers < 2) return {};
    const HubNeed now{
        .units = in.copies.units, .missing = in.copies.missing, .thin = in.copies.thin};

    bool keeps_holders = false;
    for (const WorkerView* worker : movable_workers(in)) {
        const UnitCopies::Share& share = in.copies.shares.at(worker->id);
        const HubNeed after = need_without(in.copies, worker->id, in.computes_experts);
        const Member* taker = neediest(fleet, after.lack(), in.uniform);
        if (taker == nullptr && after.lack() <= now.lack()) taker = poorest(fleet, in.uniform);
        // A hub that lacks clearly less than this one would send the worker back.
        if (taker == nullptr || after.lack() - need_of(*taker).lack() >= clearly_more) continue;
        if (after.missing > now.missing || share.layers_alone > 0) {
            keeps_holders = true;
            continue;
        }
        return {.move = WorkerMove{worker->id, {taker->hub_id, taker->address, need_of(*taker)}}};
    }
    return {.move = {}, .keeps_holders = keeps_holders};
}

bool HubNews::changes(std::span<const HubPlace> others, std::uint32_t look) {
    const auto is_new = [&](const HubPlace& hub) { return !lacks_.contains(hub.id); };
    const auto differs = [&](const HubPlace& hub) {
        return std::abs(hub.need.lack() - lacks_.at(hub.id)) >= clearly_more;
    };
    const bool are_others = others.size() != lacks_.size() || std::ranges::any_of(others, is_new);
    if (!are_others &&
        (look < sent_at_ + needs_every_looks || std::ranges::none_of(others, differs)))
        return false;

    lacks_.clear();
    for (const HubPlace& hub : others) lacks_[hub.id] = hub.need.lack();
    sent_at_ = look;
    return true;
}

}  // namespace moex::net
