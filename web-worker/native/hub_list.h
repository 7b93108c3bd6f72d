// The hubs that a native worker may join: those that its operator named, and those of the fleet
// that the newest WELCOME or HUBS lists. It chooses the hub of each connection. A hub whose
// connection breaks is tried once more, since its worker's place there is kept for a while; a hub
// that stops or cannot be reached comes last from then on. The others of the fleet are tried in the
// order of hub_choice.h. Owner: the worker's event loop.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.h"
#include "web-worker/native/hub_url.h"
#include "web-worker/session/hub_choice.h"

namespace moex::native {

class HubList {
  public:
    // `given` has at least one hub; the first one is tried first. `random` returns numbers in
    // [0, 1), see rank_hubs().
    explicit HubList(std::vector<HubUrl> given, std::function<double()> random = {});

    // The hub to connect to now.
    const HubUrl& current() const { return tries_.front(); }

    // Takes the hubs of a WELCOME of the current hub: its id and need, and the others. An address
    // that cannot be read is left out, and so is one without TLS if the current hub has TLS: the
    // token is not sent in the clear because a hub says so. A loopback, private or link-local
    // address is left out unless the current hub's address is of the same kind: a hub elsewhere
    // does not choose where in this network the worker sends requests. Names are not resolved for
    // this.
    void welcomed(const HubPlace& here, const std::vector<HubPlace>& others);
    // Returns hubs whose round trip shall be measured now: the current one and others, the neediest
    // first, without those that are known. A hub can list any addresses, in any number of frames,
    // so that the number of connections is bounded: `measured_at_once` by one call,
    // `measured_per_minute` by all calls, and one to an address and minute.
    std::vector<HubUrl> to_measure(double now_ms);
    static constexpr std::size_t measured_at_once = 8, measured_per_minute = 24;
    // Takes the round trip to a hub; nullopt: it did not answer in time.
    void measured(const HubUrl& hub, std::optional<double> rtt_ms);
    // Returns the best other hub, if it is clearly better than the current one.
    std::optional<HubPlace> better() const;
    // The next connection goes to `hub`. Returns false if its address is left out as above.
    bool move_to(const HubPlace& hub);
    // The connection to the current hub has ended: `is_open` if there was one, `is_stopping` if the
    // hub said that it stops.
    void ended(bool is_open, bool is_stopping);
    // The current hub has another key than the known one; the next connection goes to another hub.
    // Returns true if all hubs were refused so, one after the other: no further try would help.
    // Keys are known by address, so that one address with several ids counts once.
    bool refused();

  private:
    struct Other {
        HubPlace place;
        HubUrl url;
    };
    std::optional<HubUrl> url_of(const HubPlace& hub) const;
    HubOption option(const HubNeed& need, const HubUrl& hub) const;
    void rank();
    void list_tries();

    const std::vector<HubUrl> given_;
    const std::function<double()> random_;
    HubPlace here_;              // of the newest WELCOME
    std::vector<Other> others_;  // the best one first
    struct RoundTrip {
        double begun_ms = 0;
        std::optional<double> rtt_ms;  // nullopt: there was no answer, or is none yet
    };
    std::map<std::string, RoundTrip> round_trips_;  // by host and port
    std::deque<double> begun_ms_;                   // of the measurements of the last minute
    std::vector<HubUrl> tries_;                     // in this order; never empty
    std::set<std::string> refused_;  // addresses with another key, since the last other event
};

}  // namespace moex::native
