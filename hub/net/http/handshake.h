// The opening handshake of a WebSocket, judged from the request alone. Pure.
// Source: RFC 6455 section 4.2.1.
#pragma once

#include <string_view>

#include "hub/api/http.h"

namespace moex::net {

// Whether `value` is the base64 of 16 bytes, as Sec-WebSocket-Key must be.
bool is_websocket_key(std::string_view value);

// Whether `request` asks for a WebSocket of version 13. Upgrade means
// nothing in HTTP/1.0 (RFC 9110 section 7.8), so such a request does not.
bool is_websocket_handshake(const HttpRequest& request);

}  // namespace moex::net
