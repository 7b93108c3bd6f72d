// Fetches the status of a running hub (/api/status) over plain HTTP.
#pragma once

#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

// Returns the body of GET /api/status at http://HOST[:PORT]. `key` is sent as Bearer token if it is
// not empty. The function fails after a timeout of ten seconds, and for a body above 64 MiB.
Result<std::string> fetch_status(const std::string& url, std::string_view key);

}  // namespace moex
