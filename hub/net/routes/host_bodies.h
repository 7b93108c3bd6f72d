// What the host's routes read of a request's body, and how they say no.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "hub/api/http.h"
#include "hub/api/refusal.h"
#include "protocol/result.h"

namespace moex::net {

Refusal refusal_to_host(const Error& error);
Checked<nlohmann::json> object_of(const HttpRequest& request);
Checked<std::string> string_field(const nlohmann::json& body, const char* name);
// A whole number that may be left out: then `absent`.
Checked<std::uint64_t> number_field(const nlohmann::json& body, const char* name, std::uint64_t max,
                                    std::uint64_t absent = 0);

}  // namespace moex::net
