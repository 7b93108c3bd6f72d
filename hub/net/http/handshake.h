// Judges the opening handshake of a WebSocket from the request alone. Pure.
// Source: RFC 6455 section 4.2.1.
#pragma once

#include <string_view>

#include "hub/api/http.h"

namespace moex::net {

// Returns true if `value` is 16 bytes in base64, as Sec-WebSocket-Key must be.
bool is_websocket_key(std::string_view value);

// Returns true if `request` requests a WebSocket of version 13. HTTP/1.0 has no Upgrade (RFC 9110
// section 7.8), so the result is false for an HTTP/1.0 request.
bool is_websocket_handshake(const HttpRequest& request);

}  // namespace moex::net
