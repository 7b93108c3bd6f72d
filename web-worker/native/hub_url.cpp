#include "web-worker/native/hub_url.h"

namespace moex::native {

Result<HubUrl> parse_hub_url(std::string_view url) {
    const Error bad{
        ErrorCode::invalid_argument,
        text("--hub ", url,
             " is not a hub's address; wanted ws://HOST:PORT, wss://HOST:PORT or a join link")};

    HubUrl parsed;
    const std::size_t scheme_end = url.find("://");
    if (scheme_end == std::string_view::npos) return bad;
    const std::string_view scheme = url.substr(0, scheme_end);
    if (scheme == "wss" || scheme == "https")
        parsed.tls = true;
    else if (scheme != "ws" && scheme != "http")
        return bad;

    std::string_view rest = url.substr(scheme_end + 3);

    if (const std::size_t token = rest.find("token="); token != std::string_view::npos)
        parsed.token = rest.substr(token + 6, rest.find('&', token) - token - 6);

    rest = rest.substr(0, rest.find_first_of("?#"));
    if (rest.ends_with("/join.html")) rest.remove_suffix(std::string_view("/join.html").size());
    while (rest.ends_with('/')) rest.remove_suffix(1);
    if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
        parsed.path = rest.substr(slash);
        rest = rest.substr(0, slash);
    }

    if (!rest.empty() && rest.front() == '[') {
        const std::size_t end = rest.find(']');
        if (end == std::string_view::npos) return bad;
        parsed.host = rest.substr(1, end - 1);
        rest = rest.substr(end + 1);
    } else {
        const std::size_t colon = rest.find(':');
        parsed.host = rest.substr(0, colon);
        rest = colon == std::string_view::npos ? std::string_view{} : rest.substr(colon);
    }

    parsed.port = rest.empty() ? (parsed.tls ? "443" : "80") : std::string(rest.substr(1));

    if (parsed.host.empty() || parsed.port.empty() ||
        parsed.port.find_first_not_of("0123456789") != std::string::npos)
        return bad;
    return parsed;
}

}  // namespace moex::native
