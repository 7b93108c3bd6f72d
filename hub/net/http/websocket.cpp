#include "hub/net/http/websocket.h"

namespace moex::net {
namespace {

template <class Stream>
class WebSocketOver : public WebSocket {
  public:
    WebSocketOver(Stream stream, std::shared_ptr<ssl::context> context, WebSocketLimits limits)
        : context_(std::move(context)),
          stream_(std::move(stream)) {
        websocket::stream_base::timeout timeout{};
        timeout.handshake_timeout = limits.handshake;
        timeout.idle_timeout = limits.idle;
        timeout.keep_alive_pings = true;
        stream_.set_option(timeout);

        stream_.binary(true);
        stream_.auto_fragment(false);
    }

    asio::any_io_executor executor() override { return stream_.get_executor(); }

    void accept(const GatedRequest& request, std::function<void(NetError)> handler) override {
        upgrade_.method(beast_http::verb::get);
        upgrade_.target(request.raw_target);
        upgrade_.version(11);
        for (const auto& [name, value] : request.headers) upgrade_.insert(name, value);
        stream_.set_option(
            websocket::stream_base::decorator([id = request.id](websocket::response_type& answer) {
                answer.set("X-Request-Id", id);
            }));
        stream_.async_accept(upgrade_, std::move(handler));
    }

    void set_read_limit(std::uint64_t bytes) override { stream_.read_message_max(bytes); }

    void read(std::function<void(NetError, Bytes, bool)> handler) override {
        frame_.clear();
        read_handler_ = std::move(handler);
        buffer_.emplace(asio::dynamic_buffer(frame_));
        stream_.async_read(*buffer_, [this](NetError error, std::size_t) {
            auto done = std::move(read_handler_);
            done(error, std::move(frame_), stream_.got_binary());
        });
    }

    void write(std::span<const ByteView> parts, std::function<void(NetError)> handler) override {
        parts_.clear();
        if (is_tls && parts.size() > 1) {
            // Join the parts of the message, because TLS would write one record for each part.
            std::size_t total = 0;
            for (const ByteView part : parts) total += part.size();
            joined_.clear();
            joined_.reserve(total);
            for (const ByteView part : parts)
                joined_.insert(joined_.end(), part.begin(), part.end());
            parts_.emplace_back(joined_.data(), joined_.size());
        } else {
            for (const ByteView part : parts) parts_.emplace_back(part.data(), part.size());
        }
        stream_.async_write(std::span<const asio::const_buffer>(parts_),
                            [this, handler = std::move(handler)](NetError error, std::size_t) {
                                joined_ = {};
                                handler(error);
                            });
    }

    void close(std::uint16_t code, const std::string& reason,
               std::function<void(NetError)> handler) override {
        websocket::close_reason why(static_cast<websocket::close_code>(code));
        why.reason.assign(reason.data(),
                          std::min<std::size_t>(reason.size(), why.reason.max_size()));
        stream_.async_close(why, std::move(handler));
    }

    void abort() override {
        NetError ignored;
        beast::get_lowest_layer(stream_).close(ignored);
    }

  private:
    using FrameBuffer = decltype(asio::dynamic_buffer(std::declval<Bytes&>()));
    std::shared_ptr<ssl::context> context_;
    // No permessage-deflate: the extension costs memory per peer, and activations are hardly
    // compressible.
    websocket::stream<Stream, false> stream_;
    beast_http::request<beast_http::empty_body> upgrade_;
    static constexpr bool is_tls = !std::is_same_v<Stream, tcp::socket>;
    std::vector<asio::const_buffer> parts_;  // parts of the message that is being written
    Bytes joined_;
    Bytes frame_;
    std::optional<FrameBuffer> buffer_;
    std::function<void(NetError, Bytes, bool)> read_handler_;
};

}  // namespace

std::unique_ptr<WebSocket> make_websocket(tcp::socket socket, WebSocketLimits limits) {
    return std::make_unique<WebSocketOver<tcp::socket>>(std::move(socket), nullptr, limits);
}
std::unique_ptr<WebSocket> make_websocket(ssl::stream<tcp::socket> stream,
                                          std::shared_ptr<ssl::context> context,
                                          WebSocketLimits limits) {
    return std::make_unique<WebSocketOver<ssl::stream<tcp::socket>>>(std::move(stream),
                                                                     std::move(context), limits);
}

}  // namespace moex::net
