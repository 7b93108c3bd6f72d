// The id of one request. The answer's X-Request-Id and the access log have it, so that an operator
// can match a user's report with a line of the log.
#pragma once

#include <string>

#include "hub/api/http.h"

namespace moex::net {

inline constexpr std::size_t request_id_chars_max = 128;

// Returns "req-" and 24 random hex digits.
std::string make_request_id();

// Returns the client's X-Request-Id if the request has exactly one, of 1 to 128 visible ASCII
// characters, and otherwise a new id. An id that a proxy has set is kept in this way.
std::string request_id_of(const HttpRequest& request);

}  // namespace moex::net
