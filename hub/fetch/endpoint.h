// Endpoint: one server of Hugging Face's shape, and the hosts to which it redirects. The token is
// sent to the endpoint's own origin and never to another host.
// Owner: one thread; each thread of a download has an Endpoint of its own.
#pragma once

#include <string>

#include "hub/fetch/web_client.h"

namespace moex {

// Reads the token from the value of the environment variable HF_TOKEN. A token that could break a
// header line is refused, without showing it.
Result<std::string> parse_token(std::string_view value);

class Endpoint {
  public:
    // `token` may be empty. A '/' at the end of the address has no effect.
    Endpoint(WebAddress address, std::string token, WebClientOptions options);

    struct Answer {
        WebHead head;        // head of the answer after all redirects
        WebAddress from;     // the address that sent `head`, after all redirects
        std::string commit;  // X-Repo-Commit, as the endpoint sent it; empty: it sent none
    };
    // Asks for `path` below the endpoint ("/api/models/x/tree/main"), or for an absolute URL, and
    // follows up to 8 redirects. `range` and the callbacks have the meaning of WebClient::ask();
    // the callbacks get only the answer after the last redirect.
    Result<Answer> get(const std::string& path, const std::string& range,
                       const WebClient::OnHead& on_head, const WebClient::OnBody& on_body);
    Result<Answer> get(const WebAddress& address, const std::string& range,
                       const WebClient::OnHead& on_head, const WebClient::OnBody& on_body);

    // Returns the whole body of an answer with status 200 and at most `bytes_max` bytes. Errors
    // have the code of the status, see error_of(). `answer` receives the head unless it is null.
    Result<std::string> get_text(const std::string& path, std::uint64_t bytes_max,
                                 Answer* answer = nullptr);

    const WebAddress& address() const { return address_; }
    // Returns the seconds in the last answer's `Retry-After` header; 0: the answer has none.
    std::uint64_t wait_s() const { return wait_s_; }
    Result<WebAddress> resolve(const std::string& path) const;

  private:
    WebAddress address_;
    std::string token_;
    WebClient client_;
    std::uint64_t wait_s_ = 0;
};

// A server that asks for a longer wait than this ends the pull, and a person decides.
inline constexpr std::uint64_t retry_after_s_max = 300;

// Returns an error that describes a failed HTTP status. `unavailable`: a retry may succeed.
Error error_of(const WebHead& head, std::string_view what);

}  // namespace moex
