// Addresses of web servers that this program asks as a client, checked before any connection.
// Plain http is allowed on this machine alone, because a token or a checkpoint in clear text could
// be read and changed on its way.
#pragma once

#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

struct WebAddress {
    std::string url;
    // scheme, host and port, e.g. "https://example.org:443"; two addresses with equal origins are
    // the same server
    std::string origin;
    bool is_https = false;
};

enum class PlainHttp { loopback_only, anywhere };

// Parses an absolute URL. Refuses other schemes than https and http, http to another machine unless
// `plain` allows it, and names or passwords inside the URL.
Result<WebAddress> parse_web_address(std::string_view url,
                                     PlainHttp plain = PlainHttp::loopback_only);
// Returns the address to which the header `Location: location` of an answer of `from` leads. A step
// from https to http is refused.
Result<WebAddress> follow_location(const WebAddress& from, std::string_view location);

// Returns `part` with every byte that is not a letter, a digit or one of -._~ as %XX. A '/' stays
// if `keep_slash` is set.
std::string percent_encoded(std::string_view part, bool keep_slash);

}  // namespace moex
