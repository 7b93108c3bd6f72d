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
    std::ranges::stable_sort(others, {}, &Member::workers);
    return others;
}

}  // namespace

bool is_alike(const Member& self, const Member& other) {
    return other.left_ms > 0 && other.package_sha256 == self.package_sha256;
}

FleetPlaces places_of(const Member& self, std::span<const Member> members) {
    FleetPlaces places{.own = self.hub_id, .others = {}};
    for (const Member& other : others_like(self, members)) {
        if (places.others.size() == hub_places_max) break;
        places.others.push_back({other.hub_id, other.address});
    }
    return places;
}

bool can_spare_one(const Coverage& coverage, std::span<const WorkerView> workers,
                   const std::set<WorkerId>& asked) {
    const auto may_leave = [&](const WorkerView& worker) {
        return worker.state == WorkerState::draining || asked.contains(worker.id);
    };
    const auto leaving = std::ranges::count_if(workers, may_leave);
    return std::int64_t{coverage.replicas_min} >= leaving + 2;
}

std::optional<WorkerMove> choose_move(const Member& self, std::span<const Member> members,
                                      std::span<const WorkerView> workers,
                                      const std::set<WorkerId>& asked, double uniform) {
    const std::vector<Member> others = others_like(self, members);
    if (others.empty()) return std::nullopt;
    const Member& poorest = others.front();
    const std::uint64_t enough = poorest.workers + difference_min;
    if (self.workers < enough) return std::nullopt;

    // This hub is one of those that could give.
    double all_workers = static_cast<double>(self.workers), givers = 1;
    for (const Member& other : others) {
        all_workers += static_cast<double>(other.workers);
        givers += other.workers >= enough;
    }
    const double mean = all_workers / static_cast<double>(others.size() + 1);
    if (uniform * givers >= mean - static_cast<double>(poorest.workers)) return std::nullopt;

    // The worker that joined last has the least to lose here.
    const WorkerView* newest = nullptr;
    for (const WorkerView& worker : workers)
        if (may_move(worker) && !asked.contains(worker.id) &&
            (newest == nullptr || worker.joined_at > newest->joined_at))
            newest = &worker;
    if (newest == nullptr) return std::nullopt;
    return WorkerMove{newest->id, {poorest.hub_id, poorest.address}};
}

}  // namespace moex::net
