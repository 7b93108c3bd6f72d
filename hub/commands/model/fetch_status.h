// Fetches /api/status of a running hub over plain HTTP.
#pragma once

#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

// Returns the body of GET /api/status at http://HOST[:PORT]. A `key` is sent as Bearer. Errors: a
// timeout of ten seconds, and a body above 64 MiB.
Result<std::string> fetch_status(const std::string& url, std::string_view key);

}  // namespace moex
