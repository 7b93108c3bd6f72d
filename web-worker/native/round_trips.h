// Measures round trips to hubs.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "web-worker/native/hub_url.h"

namespace moex::native {

// Opens a TCP connection to each hub at the same time, and closes it again: a connection opens
// after one round trip. Returns the times in milliseconds, in the order of `hubs`; nullopt for a
// hub that did not answer within `limit`. Blocks for that time, and while names are resolved.
std::vector<std::optional<double>> round_trips_ms(std::span<const HubUrl> hubs,
                                                  std::chrono::milliseconds limit);

}  // namespace moex::native
