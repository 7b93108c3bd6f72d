// A client made of one blocking socket: it sends any bytes, and reads with a deadline. Tests use it
// for requests that well-behaved libraries refuse to send.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace moex::net {

struct RawResponse {
    unsigned status = 0;                         // 0: none came
    std::map<std::string, std::string> headers;  // names are in lower case
    std::string body;
};

constexpr int op_binary = 2;  // a WebSocket's opcode

// A WebSocket frame as the server sent it.
struct RawFrame {
    int opcode = -1;  // -1: the connection ended before a frame arrived
    std::string payload;
    std::uint16_t close_code() const {
        return payload.size() < 2
                   ? 0
                   : static_cast<std::uint16_t>((payload[0] & 255) << 8 | (payload[1] & 255));
    }
};

class RawClient {
  public:
    explicit RawClient(std::uint16_t port);
    RawClient(const RawClient&) = delete;
    ~RawClient();
    bool send(std::string_view bytes);
    // Waits up to `wait` for the answer's head and body. `head_only`: the answer has no body, as
    // for HEAD.
    RawResponse read_response(bool head_only = false,
                              std::chrono::milliseconds wait = std::chrono::seconds(5));
    // Reads and drops bytes until the server closes the connection. Returns false if it is still
    // open after `wait`.
    bool wait_closed(std::chrono::milliseconds wait = std::chrono::seconds(5));
    // Returns the bytes received up to and including `mark`, or all bytes received if `mark` does
    // not arrive.
    std::string read_until(std::string_view mark,
                           std::chrono::milliseconds wait = std::chrono::seconds(5));

    // Requests an upgrade of /worker with further header lines. Returns true if the status is 101.
    bool upgrade(std::uint16_t port, const std::string& header_lines);
    bool send_frame(int opcode, std::string_view payload, bool masked = true, bool fin = true,
                    int reserved_bits = 0);
    RawFrame read_frame(std::chrono::milliseconds wait = std::chrono::seconds(5));
    // Returns the next close frame, and skips all other frames. The opcode is -1 if the connection
    // ends without a close frame.
    RawFrame read_close(std::chrono::milliseconds wait = std::chrono::seconds(5));
    void close();

  private:
    using Clock = std::chrono::steady_clock;
    bool fill(Clock::time_point until);  // receives more bytes into `in_`
    int socket_ = -1;
    std::string in_;
};

// Calls `happened`, which sends requests to the hub, until it returns true. Returns false if 60 s
// were not enough.
template <class Condition>
bool eventually(Condition happened) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!happened())
        if (std::chrono::steady_clock::now() > until) return false;
    return true;
}

RawResponse fetch(std::uint16_t port, const std::string& method, const std::string& path,
                  const std::string& header_lines = {}, const std::string& body = {});

}  // namespace moex::net
