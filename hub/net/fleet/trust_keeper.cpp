#include "hub/net/fleet/trust_keeper.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace moex::net {
namespace {

std::int64_t seconds_of(Duration duration) {
    return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

// A record that was forgotten here begins at zero.
template <class Count>
Count grown(Count before, Count now) {
    return now > before ? now - before : 0;
}

}  // namespace

WorkerTrust trust_learned(const TrustRecord& before, const TrustRecord& now, TimePoint at,
                          std::int64_t at_s) {
    // These counts never fall, unless the record was forgotten here for want of room. What it said
    // still holds then.
    const bool is_forgotten = now.times_suspected < before.times_suspected ||
                              now.rows_verified_ever < before.rows_verified_ever;
    WorkerTrust learned{.lies = std::int64_t{now.lies} - std::int64_t{before.lies},
                        .times_suspected = grown(before.times_suspected, now.times_suspected),
                        .suspected = now.suspected || (is_forgotten && before.suspected),
                        .seen_s = at_s};
    if (is_forgotten) learned.lies = std::max<std::int64_t>(0, learned.lies);
    if (now.lied_at != TimePoint{}) learned.lied_s = at_s - seconds_of(at - now.lied_at);
    learned.rows_verified_ever = grown(before.rows_verified_ever, now.rows_verified_ever);
    // A suspicion has set these counts to zero.
    const TrustRecord since = learned.times_suspected > 0 ? TrustRecord{} : before;
    learned.rows_answered = grown(since.rows_answered, now.rows_answered);
    learned.rows_verified = grown(since.rows_verified, now.rows_verified);
    learned.answers_verified = grown(since.answers_verified, now.answers_verified);
    return learned;
}

TrustRecord with_trust(const WorkerTrust& stored, const WorkerTrust& learned, TimePoint at,
                       std::int64_t at_s) {
    WorkerTrust sum = stored;
    sum += learned;
    TrustRecord record{.rows_answered = sum.rows_answered,
                       .rows_verified = sum.rows_verified,
                       .answers_verified = sum.answers_verified,
                       .rows_verified_ever = sum.rows_verified_ever,
                       .lies = static_cast<std::uint32_t>(std::max<std::int64_t>(0, sum.lies)),
                       .times_suspected = static_cast<std::uint32_t>(sum.times_suspected),
                       .suspected = stored.suspected || learned.suspected};
    if (sum.lied_s != 0) record.lied_at = at - std::chrono::seconds(at_s - sum.lied_s);
    return record;
}

FoundTrust trust_found(const TrustRecord& written, const TrustRecord& local,
                       const WorkerTrust& stored, TimePoint at, std::int64_t at_s) {
    const WorkerTrust learned = trust_learned(written, local, at, at_s);
    FoundTrust found{.local = with_trust(stored, learned, at, at_s),
                     .written = with_trust(stored, {.suspected = stored.suspected}, at, at_s)};
    // Another hub may have forgotten lies that are known here. They are not added again.
    found.local.lies = std::max(found.local.lies, local.lies);
    found.written.lies = static_cast<std::uint32_t>(
        std::max<std::int64_t>(0, std::int64_t{found.local.lies} - learned.lies));
    return found;
}

void TrustLookups::add(const std::string& worker_key) {
    if (waiting_.size() < waiting_max) waiting_.insert(worker_key);
}

std::set<std::string> TrustLookups::begin() {
    if (is_running_ || waiting_.empty()) return {};
    is_running_ = true;
    return std::exchange(waiting_, {});
}

void TrustKeeper::joined(const std::string& worker_key) {
    SwarmBackend* swarm = hub_.swarm;
    if (swarm == nullptr || worker_key.empty() || !hub_.registry.is_shared()) return;
    written_.try_emplace(worker_key, swarm->trust_record(worker_key));
    lookups_.add(worker_key);
    look_up();
}

void TrustKeeper::look_up() {
    std::set<std::string> keys = lookups_.begin();
    if (keys.empty()) return;
    asio::post(hub_.disk_thread, [this, keys = std::move(keys)] {
        std::map<std::string, WorkerTrust> stored;
        for (const std::string& worker_key : keys) {
            const auto one = hub_.registry.worker_trust(worker_key);
            // The store is away: these workers begin anew here.
            if (!one.ok() && one.error().code == ErrorCode::unavailable) break;
            if (one.ok()) stored.emplace(worker_key, *one);
        }
        asio::post(hub_.swarm_strand, [this, stored = std::move(stored)] {
            for (const auto& [worker_key, trust] : stored) found(worker_key, trust);
            lookups_.end();
            look_up();
        });
    });
}

void TrustKeeper::found(const std::string& worker_key, const WorkerTrust& stored) {
    SwarmBackend* swarm = hub_.swarm;
    const auto written = written_.find(worker_key);
    if (swarm == nullptr || written == written_.end()) return;
    const FoundTrust found = trust_found(written->second, swarm->trust_record(worker_key), stored,
                                         now_steady(), std::time(nullptr));
    swarm->set_trust_record(worker_key, found.local);
    written->second = found.written;
}

void TrustKeeper::write(const std::string& worker_key) {
    const auto written = written_.find(worker_key);
    if (written != written_.end()) write(worker_key, written->second);
}

void TrustKeeper::write(const std::string& worker_key, TrustRecord& written) {
    SwarmBackend* swarm = hub_.swarm;
    if (swarm == nullptr) return;
    const TrustRecord now = swarm->trust_record(worker_key);
    if (now != written)
        hub_.registry.add_worker_trust(
            worker_key, trust_learned(written, now, now_steady(), std::time(nullptr)));
    written = now;
}

void TrustKeeper::record() {
    SwarmBackend* swarm = hub_.swarm;
    if (swarm == nullptr || written_.empty()) return;
    std::set<std::string> connected;
    for (const WorkerView& worker : swarm->core().workers()) connected.insert(worker.worker_key);

    for (auto at = written_.begin(); at != written_.end();) {
        write(at->first, at->second);
        at = connected.contains(at->first) ? std::next(at) : written_.erase(at);
    }
}

}  // namespace moex::net
