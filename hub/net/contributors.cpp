#include "hub/net/contributors.h"

#include <utility>

namespace moex::net {

void Contributors::joined(WorkerId worker) { live_[worker]; }

void Contributors::identified(WorkerId worker, const Identity& identity) {
    const auto found = live_.find(worker);
    if (found == live_.end()) return;  // the worker has already disconnected
    found->second.identity = identity;
    found->second.is_new = true;
}

void Contributors::count(const WorkerView& worker, bool verifies) {
    const auto found = live_.find(worker.id);
    if (found == live_.end()) return;
    Live& live = found->second;
    const LentWork now{worker.pairs_answered, verifies ? worker.pairs_credited : 0};
    const LentWork fresh{now.pairs - live.counted.pairs, now.verified - live.counted.verified};
    live.counted = now;

    const bool has_worked = fresh != LentWork{};
    if (has_worked) registry_.add_work(fresh);
    if (live.identity && (has_worked || std::exchange(live.is_new, false)))
        registry_.add_contribution(live.identity->public_key,
                                   live.identity->shows_nickname ? worker.nickname : "", fresh);
}

void Contributors::left(const WorkerView& worker, bool verifies) {
    count(worker, verifies);
    live_.erase(worker.id);
}

void Contributors::forget(const PublicKey& key) {
    for (auto& [worker, live] : live_)
        if (live.identity && live.identity->public_key == key) live.identity.reset();
}

}  // namespace moex::net
