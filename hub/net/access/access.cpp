#include "hub/net/access/access.h"

#include <algorithm>

#include "hub/net/http/asio.h"

namespace moex::net {
namespace {

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return out;
}
// Returns the items of a comma-separated header value, without surrounding blanks. There is at
// least one item, which may be empty.
std::vector<std::string_view> list_items(std::string_view value) {
    std::vector<std::string_view> items;
    for (;;) {
        const std::size_t comma = std::min(value.find(','), value.size());
        std::string_view item = value.substr(0, comma);
        while (!item.empty() && (item.front() == ' ' || item.front() == '\t'))
            item.remove_prefix(1);
        while (!item.empty() && (item.back() == ' ' || item.back() == '\t')) item.remove_suffix(1);
        items.push_back(item);
        if (comma == value.size()) return items;
        value.remove_prefix(comma + 1);
    }
}
// "hub.example." is the name "hub.example", written with the root of the DNS (RFC 3986, 3.2.2).
void drop_root_dot(std::string& host) {
    if (host.size() > 1 && host.back() == '.') host.pop_back();
}
bool is_wildcard(std::string_view address) { return address == "0.0.0.0" || address == "::"; }

}  // namespace

bool is_loopback_address(std::string_view address) {
    boost::system::error_code error;
    const auto parsed = asio::ip::make_address(std::string(address), error);
    if (error) return address == "localhost";
    if (parsed.is_v6() && parsed.to_v6().is_v4_mapped())
        return asio::ip::make_address_v4(asio::ip::v4_mapped, parsed.to_v6()).is_loopback();
    return parsed.is_loopback();
}

std::string host_of_address(std::string_view address) {
    std::string_view host = address.substr(0, address.find('/'));
    if (host.starts_with('['))
        host = host.substr(1, std::min(host.find(']'), host.size()) - 1);
    else if (std::count(host.begin(), host.end(), ':') == 1)
        host = host.substr(0, host.find(':'));

    std::string name = lower(host);
    drop_root_dot(name);
    return name;
}

std::optional<Authority> parse_authority(std::string_view raw) {
    if (raw.empty() || raw.size() > 300) return std::nullopt;

    Authority out;
    std::string_view rest;
    boost::system::error_code error;

    if (raw[0] == '[') {
        const std::size_t end = raw.find(']');
        if (end == std::string_view::npos) return std::nullopt;
        out.host = lower(raw.substr(1, end - 1));
        const auto address = asio::ip::make_address_v6(out.host, error);
        if (error || out.host.find('%') != std::string::npos) return std::nullopt;
        out.host = address.to_string();
        out.is_address = true;
        rest = raw.substr(end + 1);
    } else {
        const std::size_t colon = raw.find(':');
        out.host = lower(raw.substr(0, colon));
        drop_root_dot(out.host);
        rest = colon == std::string_view::npos ? std::string_view() : raw.substr(colon);
        const auto is_name = [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                   c == '_';
        };
        if (out.host.empty() || !std::all_of(out.host.begin(), out.host.end(), is_name))
            return std::nullopt;
        asio::ip::make_address_v4(out.host, error);
        out.is_address = !error;
    }

    if (rest.empty()) return out;
    if (rest[0] != ':' || rest.size() < 2 || rest.size() > 6) return std::nullopt;
    out.port = std::string(rest.substr(1));
    if (!std::all_of(out.port.begin(), out.port.end(), [](char c) { return c >= '0' && c <= '9'; }))
        return std::nullopt;
    return out;
}

AccessPolicy::AccessPolicy(AccessOptions options) : options_(std::move(options)) {
    for (std::string& host : options_.hosts) host = host_of_address(host);
    for (std::string& origin : options_.cors_origins) origin = lower(origin);
}

bool AccessPolicy::host_allowed(std::string_view host_header) const {
    const std::optional<Authority> authority = parse_authority(host_header);
    if (!authority) return false;
    if (authority->host == "localhost" || authority->host == options_.listen_address) return true;
    if (authority->is_address && is_loopback_address(authority->host)) return true;

    // DNS rebinding needs a name that the attacker owns. A Host header with an IP address is
    // therefore safe: on a wildcard listener every address of this machine is allowed, not only the
    // address that the hub prints.
    if (authority->is_address && is_wildcard(options_.listen_address)) return true;

    return std::any_of(options_.hosts.begin(), options_.hosts.end(), [&](const std::string& known) {
        if (!known.starts_with("*.")) return known == authority->host;
        const std::size_t dot = authority->host.find('.');
        return dot != std::string::npos && dot > 0 &&
               std::string_view(authority->host).substr(dot) == std::string_view(known).substr(1);
    });
}

AccessPolicy::Origin AccessPolicy::judge_origin(const HttpRequest& request) const {
    std::size_t count = 0;
    for (const auto& [name, value] : request.headers) count += name == "origin";
    if (count == 0) return Origin::none;
    if (count > 1) return Origin::foreign;

    const std::string origin = lower(*request.header("origin"));
    if (std::find(options_.cors_origins.begin(), options_.cors_origins.end(), origin) !=
        options_.cors_origins.end())
        return Origin::allowed;

    std::string_view rest(origin);
    std::string default_port;
    // A page of the hub has the scheme of the hub. If the hub has TLS, a page of the same name
    // without TLS may come from an attacker; without TLS, the hub has no page that was sent over
    // TLS.
    if (request.secure && rest.starts_with("https://"))
        rest.remove_prefix(8), default_port = "443";
    else if (!request.secure && rest.starts_with("http://"))
        rest.remove_prefix(7), default_port = "80";
    else
        return Origin::foreign;  // "null" too

    const std::optional<Authority> from = parse_authority(rest);
    const std::optional<Authority> own = parse_authority(request.header("host").value_or(""));
    if (!from || !own) return Origin::foreign;
    const auto port_of = [&](const Authority& authority) {
        return authority.port.empty() ? default_port : authority.port;
    };
    return from->host == own->host && port_of(*from) == port_of(*own) ? Origin::same
                                                                      : Origin::foreign;
}

std::string own_origin(const HttpRequest& request) {
    return text(request.secure ? "https://" : "http://", request.header("host").value_or(""));
}

std::optional<std::string> plain_address(std::string_view raw) {
    std::string text(raw);
    if (text.starts_with('[')) {
        const std::size_t end = text.find(']');
        if (end == std::string::npos) return std::nullopt;
        text = text.substr(1, end - 1);
    } else if (std::count(text.begin(), text.end(), ':') == 1) {
        text.resize(text.find(':'));
    }

    boost::system::error_code error;
    const auto address = asio::ip::make_address(text, error);
    if (error || text.find('%') != std::string::npos) return std::nullopt;
    if (address.is_v6() && address.to_v6().is_v4_mapped())
        return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
    return address.to_string();
}

TrustedProxies::TrustedProxies(const std::vector<std::string>& addresses) {
    for (const std::string& address : addresses)
        if (auto plain = plain_address(address)) addresses_.push_back(*std::move(plain));
}

bool TrustedProxies::trusts(std::string_view address) const {
    const auto plain = plain_address(address);
    return plain && std::find(addresses_.begin(), addresses_.end(), *plain) != addresses_.end();
}

Client TrustedProxies::client_of(
    std::string_view peer, bool secure,
    const std::vector<std::pair<std::string, std::string>>& headers) const {
    Client client{std::string(peer), is_loopback_address(peer), secure};
    if (!trusts(peer)) return client;

    // A trusted proxy on this machine forwards requests of other machines, so the client is not
    // local even if the proxy does not name it.
    client.loopback = false;
    std::vector<std::string_view> hops;  // addresses in the order in which the proxies added them
    for (const auto& [name, value] : headers) {
        const auto items = list_items(value);
        if (name == "x-forwarded-for") hops.insert(hops.end(), items.begin(), items.end());
        if (name == "x-forwarded-proto") client.secure = lower(items.back()) == "https";
    }

    for (auto hop = hops.rbegin(); hop != hops.rend(); ++hop) {
        const auto address = plain_address(*hop);
        if (!address) break;
        client.address = *address;
        if (trusts(*address)) continue;
        client.loopback = is_loopback_address(*address);
        break;
    }
    return client;
}

bool is_json_content_type(std::string_view value) {
    const std::string text = lower(value.substr(0, value.find(';')));
    const std::size_t end = text.find_last_not_of(" \t");
    return end != std::string::npos && text.substr(0, end + 1) == "application/json";
}

std::optional<std::string> bearer_key(const HttpRequest& request) {
    if (const auto value = request.header("authorization")) {
        if (value->size() > 7 && lower(value->substr(0, 7)) == "bearer ") {
            std::string_view key = value->substr(7);
            while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
            return std::string(key);
        }
        return std::nullopt;
    }
    if (const auto value = request.header("x-api-key")) return std::string(*value);
    return std::nullopt;
}

}  // namespace moex::net
