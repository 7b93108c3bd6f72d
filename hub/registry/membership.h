// Which hubs of a fleet live. A hub has a row with a deadline by the store's clock, and renews it
// at a third of its life. A hub without a row that counts is sent no requests by other hubs; it
// goes on to serve those that it gets. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hub/base/clock.h"
#include "protocol/result.h"

namespace moex {

class Store;

struct Member {
    std::string hub_id;  // of the hub's state folder; eight hexadecimal digits
    // Number of the hub's incarnation: larger than those of all that entered before.
    std::int64_t fence = 0;
    std::string address;  // of the hub's pages and API, without a path: https://hub.example
    std::string model, package_sha256, version;
    std::uint64_t streams = 0;  // answers that run
    std::uint64_t workers = 0;
    // What the workers hold, as in HubNeed (protocol/messages.h). units is 0 at a hub that takes no
    // workers, and at one that does not report it.
    std::uint64_t units = 0, missing = 0, thin = 0;
    std::string keys_seen;     // digest of the keys that the hub uses
    std::int64_t left_ms = 0;  // until its deadline; negative: since its deadline
};

// A hub, and all hubs of its store, as of the last renewal of its lease.
struct FleetView {
    Member self;  // without an id before the hub has entered
    std::vector<Member> members;
    // A lease after the members were read. They are old from then on: the store is away, or a later
    // incarnation has entered, which ends the time at once.
    TimePoint fresh_until{};
    bool is_fresh(TimePoint now) const { return !self.hub_id.empty() && now < fresh_until; }
};

class Membership {
  public:
    virtual ~Membership() = default;

    // Enters a new incarnation of member.hub_id for `life`, in place of the one before. Returns its
    // fence number.
    virtual Result<std::int64_t> enter(const Member& member, Duration life) = 0;
    // Extends the lease of incarnation member.fence to `life` from now, and replaces the hub's row
    // by `member`; a life of zero ends the lease. Errors: not_found: the store has no row of this
    // hub; cancelled: a later incarnation has entered.
    virtual Status renew(const Member& member, Duration life) = 0;
    // Returns all hubs of the last day, by their ids; left_ms <= 0 marks an ended lease.
    virtual Result<std::vector<Member>> watch() = 0;
    // Returns true if `fence` is the present incarnation of the hub, whether or not its lease
    // lives: what an earlier incarnation still sends is refused.
    virtual Result<bool> fence(std::string_view hub_id, std::int64_t fence) = 0;
};

// The members in the table `hubs` of a PostgreSQL store, which outlives the result.
std::unique_ptr<Membership> make_membership(Store& store);

}  // namespace moex
