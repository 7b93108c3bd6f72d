// One WebSocket connection to a hub, plain or TLS, on the owner's io_context. Events run on the
// io_context's thread. The object keeps itself alive until the connection has ended.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "protocol/bytes.h"
#include "web-worker/native/hub_address.h"

namespace boost::asio {
class io_context;
}

namespace moex::native {

class WebSocketClient {
  public:
    virtual ~WebSocketClient() = default;
    virtual void open() = 0;
    virtual void send(ByteView frame) = 0;  // `frame` is copied before send() returns
    virtual void close(std::uint16_t code, std::string reason) = 0;

    std::function<void()> on_open;
    std::function<void(ByteView)> on_frame;
    std::function<void()> on_text;
    std::function<void(std::uint16_t, std::string)> on_closed;  // once
};

// `token` is sent as a Bearer token in the upgrade request. Throws when the CA file cannot be read.
std::shared_ptr<WebSocketClient> make_websocket(boost::asio::io_context& io, const HubAddress& hub,
                                                const std::string& token);

}  // namespace moex::native
