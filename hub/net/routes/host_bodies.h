// Reads the JSON bodies of requests to the operator's routes, and makes their refusals.
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
// Returns the whole number in the body's field `name`, at most `max`, or `absent` if the body has
// no such field.
Checked<std::uint64_t> number_field(const nlohmann::json& body, const char* name, std::uint64_t max,
                                    std::uint64_t absent = 0);

}  // namespace moex::net
