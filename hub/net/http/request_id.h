// The name of one request: it stands in the answer's X-Request-Id and in
// the access log, so that a user's report can be matched with a line there.
#pragma once

#include <string>

#include "hub/api/http.h"

namespace moex::net {

inline constexpr std::size_t request_id_chars_max = 128;

// "req-" and 24 random hex digits.
std::string make_request_id();

// What the client calls it in its one X-Request-Id, where that is 1 to 128
// visible ASCII characters; otherwise a new one. A proxy's id lives on so.
std::string request_id_of(const HttpRequest& request);

}  // namespace moex::net
