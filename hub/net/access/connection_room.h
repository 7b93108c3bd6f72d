// How many connections clients may hold open, and the reserve for the operator. A client that opens
// all connections that it may must not keep the operator of the hub out, so the last connections
// are for clients on this machine. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moex::net {

struct ConnectionRoom {
    std::uint32_t connections_max = 0;
    // connections from one address; loopback may have loopback_factor times as many
    std::uint32_t per_address_max = 0;
    double loopback_factor = 1;

    // The connections of connections_max that only other addresses of this machine may take: an
    // eighth, at most 16.
    std::uint32_t reserve() const;
};

// The connections that are open when a client asks for one more.
struct OpenConnections {
    std::size_t all = 0, of_address = 0;
};
enum class ClientKind { remote, loopback, trusted_proxy };
// Returns true if one more connection is admitted. No single address, and not all remote clients
// together, may take the reserve. A trusted proxy has no limit of its own, because it forwards many
// clients, and may not take the reserve either.
bool has_room(const ConnectionRoom& room, const OpenConnections& open, ClientKind client);

}  // namespace moex::net
