// The hubs that a native worker may join: those that its operator named, and those of the fleet
// that the newest WELCOME lists. It chooses the hub of each connection. A hub whose connection
// breaks is tried once more, since its worker's place there is kept for a while; a hub that stops
// or cannot be reached comes last from then on. Owner: the worker's event loop.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.h"
#include "web-worker/native/hub_url.h"

namespace moex::native {

class HubList {
  public:
    // `given` has at least one hub; the first one is tried first.
    explicit HubList(std::vector<HubUrl> given);

    // The hub to connect to now.
    const HubUrl& current() const { return tries_.front(); }

    // Takes the hubs of a WELCOME of the current hub: its id, and the others, the best first. An
    // address that cannot be read is left out, and so is one without TLS if the current hub has
    // TLS: the token is not sent in the clear because a hub says so. A loopback, private or
    // link-local address is left out unless the current hub's address is of the same kind: a hub
    // elsewhere does not choose where in this network the worker sends requests. Names are not
    // resolved for this.
    void welcomed(std::string_view id, const std::vector<HubPlace>& others);
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
    std::optional<HubUrl> url_of(const HubPlace& hub) const;

    const std::vector<HubUrl> given_;
    std::vector<HubUrl> tries_;      // in this order; never empty
    std::set<std::string> refused_;  // addresses with another key, since the last other event
};

}  // namespace moex::native
