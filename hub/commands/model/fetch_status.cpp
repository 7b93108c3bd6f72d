#include "hub/commands/model/fetch_status.h"

#include <algorithm>
#include <chrono>

#include "hub/net/http/asio.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint64_t body_bytes_max = 64u << 20;
constexpr auto operation_max = std::chrono::seconds(10);

struct HubAddress {
    std::string authority, host, port = "80";
};

Result<HubAddress> address_of(const std::string& url) {
    const std::string scheme = "http://";
    if (!url.starts_with(scheme))
        return Error{ErrorCode::invalid_argument,
                     text("--from-metrics: wanted http://HOST:PORT, found \"", url,
                          "\"; of a hub behind TLS: curl URL/api/status | moex-hub model "
                          "--from-metrics -")};
    HubAddress address;
    address.authority = url.substr(scheme.size());
    address.authority.resize(std::min(address.authority.size(), address.authority.find('/')));
    address.host = address.authority;
    const std::size_t colon = address.host.rfind(':');
    if (colon != std::string::npos && address.host.find(']', colon) == std::string::npos) {
        address.port = address.host.substr(colon + 1);
        address.host.resize(colon);
    }
    if (address.host.starts_with('[') && address.host.ends_with(']'))
        address.host = address.host.substr(1, address.host.size() - 2);
    return address;
}

// A connection for one HTTP request. Deadlines apply only to asynchronous operations, so each
// operation is started asynchronously and run to its end. Throws net::beast::system_error.
class Question {
  public:
    net::beast_http::response<net::beast_http::string_body> ask(
        const HubAddress& address,
        const net::beast_http::request<net::beast_http::empty_body>& request) {
        const auto found = net::tcp::resolver(io_).resolve(address.host, address.port);
        wait([&](auto done) { stream_.async_connect(found, done); });
        wait([&](auto done) { net::beast_http::async_write(stream_, request, done); });

        net::beast::flat_buffer buffer;
        net::beast_http::response_parser<net::beast_http::string_body> parser;
        parser.body_limit(body_bytes_max);
        wait([&](auto done) { net::beast_http::async_read(stream_, buffer, parser, done); });
        return parser.release();
    }

  private:
    template <class Start>
    void wait(Start start) {
        stream_.expires_after(operation_max);
        net::NetError result;
        start([&result](net::NetError error, auto&&...) { result = error; });
        io_.restart();
        io_.run();
        if (result) throw net::beast::system_error(result);
    }

    net::asio::io_context io_;
    net::beast::tcp_stream stream_{io_};
};

}  // namespace

Result<std::string> fetch_status(const std::string& url, std::string_view key) try {
    MOEX_ASSIGN(address, address_of(url));
    net::beast_http::request<net::beast_http::empty_body> request{net::beast_http::verb::get,
                                                                  "/api/status", 11};
    request.set(net::beast_http::field::host, address.authority);
    if (!key.empty()) request.set(net::beast_http::field::authorization, text("Bearer ", key));

    const auto response = Question().ask(address, request);
    if (response.result_int() != 200)
        return Error{ErrorCode::unavailable,
                     text(url, "/api/status answers ", response.result_int(),
                          "; a hub with keys wants --key-file")};
    return response.body();
} catch (const net::beast::system_error& error) {
    return Error{ErrorCode::unavailable, text(url, ": ", error.code().message())};
}

}  // namespace moex
