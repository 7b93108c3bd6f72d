// A client made of one blocking socket: sends any bytes, reads
// with a deadline. For what well-behaved libraries refuse to send.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace moex::net {

struct RawResponse {
    unsigned status = 0;                         // 0: none came
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;
};

constexpr int op_binary = 2;  // a WebSocket's opcode

// One WebSocket frame as the server sent it.
struct RawFrame {
    int opcode = -1;  // -1: the connection ended first
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
    // Up to `wait` for the answer's head and body; `head_only` for HEAD.
    RawResponse read_response(bool head_only = false,
                              std::chrono::milliseconds wait = std::chrono::seconds(5));
    // Reads and drops until the server closes; false when it did not within `wait`.
    bool wait_closed(std::chrono::milliseconds wait = std::chrono::seconds(5));
    // Bytes until `mark` has come, or what there was.
    std::string read_until(std::string_view mark,
                           std::chrono::milliseconds wait = std::chrono::seconds(5));

    // GET /worker with these further header lines; true after 101.
    bool upgrade(std::uint16_t port, const std::string& header_lines);
    bool send_frame(int opcode, std::string_view payload, bool masked = true, bool fin = true,
                    int reserved_bits = 0);
    RawFrame read_frame(std::chrono::milliseconds wait = std::chrono::seconds(5));
    // The next close frame, past any others; opcode -1 when the connection just ends.
    RawFrame read_close(std::chrono::milliseconds wait = std::chrono::seconds(5));
    void close();

  private:
    using Clock = std::chrono::steady_clock;
    bool fill(Clock::time_point until);  // more bytes into in_
    int socket_ = -1;
    std::string in_;
};

// Calls `happened`, which asks the hub over the wire, until it returns true. Returns false if 60 s
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
