#include "hub/net/http/fields.h"

#include <algorithm>
#include <array>

namespace moex::net {

std::string lower_case(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return out;
}

std::string_view trim_blanks(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

bool lists_token(const HeaderFields& headers, std::string_view name, std::string_view token) {
    for (const auto& [field, value] : headers) {
        if (field != name) continue;

        std::string_view rest = value;
        while (!rest.empty()) {
            const std::string_view item = rest.substr(0, rest.find(','));
            if (lower_case(trim_blanks(item)) == token) return true;
            rest.remove_prefix(std::min(rest.size(), item.size() + 1));
        }
    }
    return false;
}

bool is_singleton_field(std::string_view name) {
    static constexpr std::array<std::string_view, 20> names{
        "access-control-request-method",
        "authorization",
        "content-length",
        "content-location",
        "content-range",
        "content-type",
        "date",
        "from",
        "host",
        "if-modified-since",
        "if-range",
        "if-unmodified-since",
        "max-forwards",
        "origin",
        "proxy-authorization",
        "referer",
        "sec-websocket-key",
        "sec-websocket-version",
        "user-agent",
        "x-api-key",
    };
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace moex::net
