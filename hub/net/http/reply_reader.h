// Reads one HTTP/1.1 answer of a hub: its head, and its body by length, in chunks, or up to the end
// of the connection. Sans-IO: the caller feeds bytes as they arrive. Owner: one connection.
// Source: RFC 9112.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
    // Reads all of `in`, and appends the bytes of the body to `body`. Bytes behind the answer are
    // dropped.
    State feed(std::string_view in, std::string& body);
    // The connection has ended. Returns whether the answer is whole.
    State end();
    State state() const { return state_; }
    const ReplyHead& head() const { return head_; }  // valid from State::body on

  private:
    enum class Part { length, chunk_size, chunk_data, chunk_end, trailers, to_end };
    void parse_head();
    std::size_t feed_body(std::string_view in, std::string& body);
    void take_line();

    State state_ = State::head;
    Part part_ = Part::to_end;
    ReplyHead head_;
    std::string line_;  // bytes so far of the head, or of a line between chunks
    std::uint64_t remaining_ = 0;
};

}  // namespace moex::net
