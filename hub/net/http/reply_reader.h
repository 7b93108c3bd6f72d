// Reads one HTTP/1.1 answer of a hub: its head, and its body by length, in chunks, or up to the end
// of the connection. Sans-IO: the caller feeds bytes as they arrive. Owner: one connection.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/net/http/asio.h"

namespace moex::net {

struct ReplyHead {
    unsigned status = 0;
    std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
    // Returns the value of the first header of that name; empty: there is none.
    std::string_view header(std::string_view name) const;
};

class ReplyReader {
  public:
    enum class State { head, body, whole, wrong };
    ReplyReader() { begin(); }
    // Reads all of `in`, and appends the bytes of the body to `body`. Bytes behind the answer are
    // dropped.
    State feed(std::string_view in, std::string& body);
    // The connection has ended. Returns whether the answer is whole.
    State end();
    State state() const { return state_; }
    const ReplyHead& head() const { return head_; }  // valid from State::body on

  private:
    void begin();
    void take_head();

    State state_ = State::head;
    std::optional<beast_http::response_parser<beast_http::string_body>> parser_;
    ReplyHead head_;
    std::string held_;  // the beginning of a head or of a line between chunks
};

}  // namespace moex::net
