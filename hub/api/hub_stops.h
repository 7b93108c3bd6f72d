// The error that ends an answer when its hub stops. A front knows it by its code, and goes on at
// another hub.
#pragma once

#include <string>
#include <string_view>

#include "hub/api/refusal.h"

namespace moex {

inline constexpr std::string_view hub_stops_code = "shutting_down";

inline Refusal refuse_since_hub_stops() {
    return {503, "The server is stopping.", std::string(hub_stops_code), ""};
}

}  // namespace moex
