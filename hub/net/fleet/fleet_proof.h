// How hubs and fronts of a fleet show each other who they are: a header with a code over the
// request, made with the fleet's key, which is good for a minute. It gives no rights of a client:
// the client's key goes with the request as it is. What it gives: the address of the client counts
// (X-Forwarded-For), a stream may have the id that is asked for (X-Moex-Stream), and it goes on for
// a while after its connection broke.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/registry/fleet_key.h"

namespace moex::net {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

// Adds the proof to `headers`, which has the headers that it covers already.
void prove_fleet(const FleetKey& key, std::string_view method, std::string_view target,
                 HeaderList& headers, std::int64_t now_s);
// True if the headers, with names in lower case, have a proof of this minute.
bool is_of_fleet(const FleetKey& key, std::string_view method, std::string_view target,
                 const HeaderList& headers, std::int64_t now_s);

}  // namespace moex::net
