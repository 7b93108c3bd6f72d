// Lets what a hub learns about a worker's answers (answer_trust.h) follow the worker to the other
// hubs of the store: a proven worker is not unproven again because it has moved, and a liar does
// not begin anew.
//
// The swarm's strand must not wait for the store. So a worker is welcomed with what this hub knows,
// and its stored record arrives some milliseconds later, while it still loads experts; until then
// its answers are held like those of a newcomer. What was learned is written once a second as a
// difference, so that hubs at which one key is connected at the same time add up.
//
// Limits: more than 4,096 workers that wait for their records begin anew; a hub that is killed
// loses the last second of it. Records of whole layers (span_trust.h) stay at their hub. Owner: the
// swarm's strand.
#pragma once

#include <map>
#include <set>
#include <string>

#include "hub/net/hub_context.h"

namespace moex::net {

// These functions return what was learned between `before` and `now`, and a record with it.
WorkerTrust trust_learned(const TrustRecord& before, const TrustRecord& now, TimePoint at,
                          std::int64_t at_s);
TrustRecord with_trust(const WorkerTrust& stored, const WorkerTrust& learned, TimePoint at,
                       std::int64_t at_s);

// What holds once the stored record of a worker arrives: the record of this hub, which has learned
// the difference from `written` to `local` since it asked, and the part of it that the store has.
// Lies that this hub knows stay, even if another one has forgotten them.
struct FoundTrust {
    TrustRecord local, written;
};
FoundTrust trust_found(const TrustRecord& written, const TrustRecord& local,
                       const WorkerTrust& stored, TimePoint at, std::int64_t at_s);

// The worker keys whose records are looked up next. One job looks up all that wait when it begins,
// so that a crowd of joining workers queues no crowd of jobs.
class TrustLookups {
  public:
    static constexpr std::size_t waiting_max = 4'096;
    void add(const std::string& worker_key);  // beyond waiting_max the key is not looked up
    // Returns the keys for a job. Empty: none wait, or a job runs; end() ends it.
    std::set<std::string> begin();
    void end() { is_running_ = false; }

  private:
    std::set<std::string> waiting_;
    bool is_running_ = false;
};

class TrustKeeper {
  public:
    explicit TrustKeeper(HubContext& hub) : hub_(hub) {}

    // Looks the record of a worker up that has joined.
    void joined(const std::string& worker_key);
    // Writes what was learned about a worker at once: it has left, and another hub will ask for it,
    // or it has lied.
    void write(const std::string& worker_key);
    // Writes what was learned about all workers that joined.
    void record();

  private:
    void look_up();
    void found(const std::string& worker_key, const WorkerTrust& stored);
    void write(const std::string& worker_key, TrustRecord& written);

    HubContext& hub_;
    // By worker key: the record as the store has it, as far as this hub knows.
    std::map<std::string, TrustRecord> written_;
    TrustLookups lookups_;
};

}  // namespace moex::net
