// WebClient: one HTTP client connection at a time, over libcurl, which brings TLS, proxies and
// connection reuse. Redirects are not followed here; the caller decides about each of them.
// Owner: one thread. The stop switch may be set by any thread.
// Source: RFC 9110 (HTTP semantics), libcurl's easy interface.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hub/fetch/web_address.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

struct WebClientOptions {
    std::uint32_t connect_s = 20;  // limit for name lookup, connect and TLS together
    std::uint32_t stall_s = 30;    // a transfer without a byte for this time is given up
    // File of additional trusted CA certificates (PEM); empty: only the system's certificates.
    std::string ca_file = {};
    // A request is given up within a second after this switch is set. nullptr: never.
    const std::atomic<bool>* stop = nullptr;
};

struct WebRequest {
    WebAddress address;
    std::vector<std::string> headers;   // "Name: value", without line breaks
    std::string range;                  // "0-99": the first 100 bytes; empty: everything
    const std::string* body = nullptr;  // JSON body of a POST; nullptr: the request is a GET
};

struct WebHead {
    int status = 0;
    std::map<std::string, std::string, std::less<>> headers;  // by name in lower case

    // Returns the value of a header, or an empty text.
    std::string_view header(std::string_view name) const {
        const auto found = headers.find(name);
        return found == headers.end() ? std::string_view() : std::string_view(found->second);
    }
};

class WebClient {
  public:
    explicit WebClient(WebClientOptions options);
    ~WebClient();
    WebClient(const WebClient&) = delete;

    // Receives the head before the first byte of the body. false: the body is not wanted.
    using OnHead = std::function<bool(const WebHead&)>;
    // Receives the body in pieces. false: no more is wanted.
    using OnBody = std::function<bool(ByteView)>;
    // Sends one request and returns the head of its answer, also if a callback stopped the
    // transfer. Errors: `unavailable` and `timeout` (a retry may succeed), `cancelled` (the stop
    // switch), `unauthorized` (the certificate is not trusted), `bad_field` (too many headers).
    Result<WebHead> ask(const WebRequest& request, const OnHead& on_head, const OnBody& on_body);

  private:
    struct Transfer;
    WebClientOptions options_;
    void* curl_;  // CURL*
};

// Returns the seconds of a `Retry-After` header, which is a number or a date; 0 if there is none.
std::uint64_t retry_after_s(const WebHead& head);

}  // namespace moex
