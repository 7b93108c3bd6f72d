#include "hub/fetch/web_address.h"

#include <arpa/inet.h>
#include <curl/curl.h>

#include <cctype>
#include <memory>

#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::size_t url_bytes_max = 8192;

using Url = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

std::string part_of(const Url& url, CURLUPart part, unsigned flags = 0) {
    char* found = nullptr;
    if (curl_url_get(url.get(), part, &found, flags) != CURLUE_OK || found == nullptr) return "";
    std::string value = found;
    curl_free(found);
    return value;
}

bool is_loopback(const std::string& host) {
    in_addr address{};
    if (inet_pton(AF_INET, host.c_str(), &address) == 1)
        return (ntohl(address.s_addr) >> 24) == 127;
    return host == "localhost" || host == "[::1]";
}

std::string shown(std::string_view url) {
    std::string out(url.substr(0, 200));
    for (char& c : out)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return out;
}

Result<WebAddress> address_of(const Url& url, std::string_view given, PlainHttp plain) {
    const std::string scheme = part_of(url, CURLUPART_SCHEME);
    std::string host = part_of(url, CURLUPART_HOST);
    for (char& c : host) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));

    if (scheme != "https" && scheme != "http")
        return Error{ErrorCode::invalid_argument,
                     text("address \"", shown(given), "\": wanted https://HOST...")};
    if (!part_of(url, CURLUPART_USER).empty() || !part_of(url, CURLUPART_PASSWORD).empty())
        return Error{ErrorCode::invalid_argument,
                     text("address at ", host,
                          ": a name or password inside an address is refused, "
                          "because process lists and logs show addresses")};
    if (scheme == "http" && plain == PlainHttp::loopback_only && !is_loopback(host))
        return Error{ErrorCode::invalid_argument,
                     text("address \"", shown(given),
                          "\": plain http is for this machine alone (127.0.0.1, [::1], localhost); "
                          "wanted https")};

    WebAddress address;
    address.url = part_of(url, CURLUPART_URL);
    address.origin = text(scheme, "://", host, ":",
                          part_of(url, CURLUPART_PORT, CURLU_DEFAULT_PORT));
    address.is_https = scheme == "https";
    return address;
}

Error cannot_parse(std::string_view url) {
    return {ErrorCode::invalid_argument,
            text("address \"", shown(url), "\" is no URL; wanted https://HOST...")};
}

}  // namespace

Result<WebAddress> parse_web_address(std::string_view url, PlainHttp plain) {
    const Url parsed(curl_url(), &curl_url_cleanup);
    if (url.size() > url_bytes_max || !parsed ||
        curl_url_set(parsed.get(), CURLUPART_URL, std::string(url).c_str(), 0) != CURLUE_OK)
        return cannot_parse(url);
    return address_of(parsed, url, plain);
}

Result<WebAddress> follow_location(const WebAddress& from, std::string_view location) {
    const Url parsed(curl_url(), &curl_url_cleanup);
    // the second call resolves `location` relative to the first URL
    if (location.size() > url_bytes_max || !parsed ||
        curl_url_set(parsed.get(), CURLUPART_URL, from.url.c_str(), 0) != CURLUE_OK ||
        curl_url_set(parsed.get(), CURLUPART_URL, std::string(location).c_str(), 0) != CURLUE_OK)
        return cannot_parse(location);

    MOEX_ASSIGN(address, address_of(parsed, location, PlainHttp::loopback_only));
    if (from.is_https && !address.is_https)
        return Error{ErrorCode::invalid_argument,
                     text(from.origin, " redirects to \"", shown(location),
                          "\", which is plain http; such a redirect is refused")};
    return address;
}

std::string percent_encoded(std::string_view part, bool keep_slash) {
    constexpr char digits[] = "0123456789ABCDEF";
    std::string out;
    for (const char c : part) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = std::isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~' ||
                           (keep_slash && c == '/');
        if (plain)
            out += c;
        else
            (out += '%') += {digits[byte >> 4], digits[byte & 15]};
    }
    return out;
}

}  // namespace moex
