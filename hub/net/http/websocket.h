// One WebSocket of the server. The interface is the same for TCP and TLS, so that the rest of the
// room is compiled once. Every call is made, and every handler runs, on the socket's strand. At
// most one read and one write are in flight.
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
    // The hub sends a ping after half of the time `idle` without a message from the peer.
    std::chrono::milliseconds handshake{10'000}, idle{30'000};
};

class WebSocket {
  public:
    virtual ~WebSocket() = default;
    virtual asio::any_io_executor executor() = 0;
    virtual void accept(const GatedRequest& request, std::function<void(NetError)> handler) = 0;
    // Sets the length limit of received messages; a longer message ends the connection with close
    // code 1009. The limit applies from the next frame header on, also to a read that is pending.
    virtual void set_read_limit(std::uint64_t bytes) = 0;
    // The handler gets a whole message as `frame`; `binary` is false for a text message.
    virtual void read(std::function<void(NetError, Bytes frame, bool binary)> handler) = 0;
    // Writes one message of all `parts` in order, without copying them. The bytes of `parts` must
    // stay valid until the handler runs.
    virtual void write(std::span<const ByteView> parts, std::function<void(NetError)> handler) = 0;
    virtual void close(std::uint16_t code, const std::string& reason,
                       std::function<void(NetError)> handler) = 0;
    virtual void abort() = 0;
};

std::unique_ptr<WebSocket> make_websocket(tcp::socket socket, WebSocketLimits limits);
// Makes a WebSocket over TLS. `context` is the TLS context of `stream`, and is kept as long as the
// WebSocket.
std::unique_ptr<WebSocket> make_websocket(ssl::stream<tcp::socket> stream,
                                          std::shared_ptr<ssl::context> context,
                                          WebSocketLimits limits);

}  // namespace moex::net
