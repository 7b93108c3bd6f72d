// What a running hub answers at /api/status, asked over plain HTTP.
#pragma once

#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

// http://HOST[:PORT]: the body of GET /api/status there, with `key` as its bearer's where there is
// one. Gives up after ten seconds without an end, and above 64 MiB.
Result<std::string> fetch_status(const std::string& url, std::string_view key);

}  // namespace moex
