#include "hub/net/http/handshake.h"

#include <algorithm>

#include "hub/net/http/fields.h"

namespace moex::net {

bool is_websocket_key(std::string_view value) {
    // 16 bytes are 128 bits: 22 base64 digits of 6 bits. The last 4 bits of the last digit are
    // unused.
    constexpr std::size_t digits = 22;
    if (value.size() != digits + 2 || value.substr(digits) != "==") return false;

    const auto is_digit = [](char c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
               c == '+' || c == '/';
    };
    const std::string_view word = value.substr(0, digits);
    constexpr std::string_view last_digits = "AQgw";  // digits whose 4 unused bits are zero
    return std::all_of(word.begin(), word.end(), is_digit) &&
           last_digits.find(word.back()) != std::string_view::npos;
}

bool is_websocket_handshake(const HttpRequest& request) {
    return !request.http_1_0 && lists_token(request.headers, "upgrade", "websocket") &&
           lists_token(request.headers, "connection", "upgrade") &&
           request.header("sec-websocket-version").value_or("") == "13" &&
           is_websocket_key(request.header("sec-websocket-key").value_or(""));
}

}  // namespace moex::net
