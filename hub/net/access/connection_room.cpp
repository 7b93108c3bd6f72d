#include "hub/net/access/connection_room.h"

#include <algorithm>

namespace moex::net {

std::uint32_t ConnectionRoom::reserve() const {
    constexpr std::uint32_t reserve_max = 16;
    return std::min(reserve_max, connections_max / 8);
}

bool has_room(const ConnectionRoom& room, const OpenConnections& open, ClientKind client) {
    const std::size_t shared = room.connections_max - room.reserve();
    const bool may_take_reserve = client == ClientKind::loopback;
    if (open.all >= (may_take_reserve ? room.connections_max : shared)) return false;
    if (client == ClientKind::trusted_proxy) return true;

    const double factor = client == ClientKind::loopback ? room.loopback_factor : 1.0;
    return open.of_address < shared &&
           static_cast<double>(open.of_address) < room.per_address_max * factor;
}

}  // namespace moex::net
