// One WebSocket of the server side behind a plain interface: the same
// for TCP and TLS, so that the rest of the room is compiled once.
// Every call, and every handler, on the socket's strand. At most one read and one write in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "hub/net/http/asio.h"
#include "hub/net/http/request_gate.h"
#include "protocol/bytes.h"

namespace moex::net {

struct WebSocketLimits {
    // Half of `idle` in silence sends a ping.
    std::chrono::milliseconds handshake{10'000}, idle{30'000};
};

class WebSocket {
  public:
    virtual ~WebSocket() = default;
    virtual asio::any_io_executor executor() = 0;
    virtual void accept(const GatedRequest& request, std::function<void(NetError)> handler) = 0;
    // A longer message ends the connection with 1009. Holds from the next frame header on,
    // for a read that is pending as well.
    virtual void set_read_limit(std::uint64_t bytes) = 0;
    // `frame` is handed over whole; `binary` is false for a text message.
    virtual void read(std::function<void(NetError, Bytes frame, bool binary)> handler) = 0;
    // One message of all `parts` in order, gathered as it is written; what they show must live
    // until the handler runs.
    virtual void write(std::span<const ByteView> parts, std::function<void(NetError)> handler) = 0;
    virtual void close(std::uint16_t code, const std::string& reason,
                       std::function<void(NetError)> handler) = 0;
    virtual void abort() = 0;
};

std::unique_ptr<WebSocket> make_websocket(tcp::socket socket, WebSocketLimits limits);
// The stream's context must live as long as it does.
std::unique_ptr<WebSocket> make_websocket(ssl::stream<tcp::socket> stream,
                                          std::shared_ptr<ssl::context> context,
                                          WebSocketLimits limits);

}  // namespace moex::net
