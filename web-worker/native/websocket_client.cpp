#include "web-worker/native/websocket_client.h"

#include <deque>

#include "protocol/frame.h"
#include "web-worker/native/beast.h"

namespace moex::native {
namespace {

constexpr auto connect_max = std::chrono::seconds(15);
// Beast masks a message in pieces of this size. An answer of usual size is sent with one write.
constexpr std::size_t write_bytes = 64 << 10;

template <class Stream>
class WebSocketOver : public WebSocketClient,
                      public std::enable_shared_from_this<WebSocketOver<Stream>> {
  public:
    static constexpr bool is_tls = std::is_same_v<Stream, TlsStream>;

    WebSocketOver(asio::io_context& io, const HubAddress& hub, std::string token)
        : hub_(hub),
          token_(std::move(token)),
          resolver_(io),
          socket_(make(io, tls_, hub)) {}

    void open() override {
        resolver_.async_resolve(
            hub_.url.host, hub_.url.port,
            [this, self = this->shared_from_this()](beast::error_code error, auto found) {
                if (closing_) return;  // close() was called: on_closed was called already
                if (error)
                    return end(1006, text("cannot find ", hub_.url.host, ": ", error.message()));
                connect(found);
            });
    }

    void send(ByteView frame) override {
        if (closing_) return;  // no frame may be sent after the close frame
        outbox_.emplace_back(frame.begin(), frame.end());
        write_next();
    }

    void close(std::uint16_t code, std::string reason) override {
        if (std::exchange(closing_, true)) return;  // only one closing handshake is made
        if (!opened_) {
            resolver_.cancel();
            beast::get_lowest_layer(socket_).close();
            return end(code, std::move(reason));
        }
        const websocket::close_reason why(static_cast<websocket::close_code>(code),
                                          reason.substr(0, 120));
        socket_.async_close(why, [this, self = this->shared_from_this(), code,
                                  reason](beast::error_code) { end(code, reason); });
    }

  private:
    static websocket::stream<Stream> make(asio::io_context& io, ssl::context& tls,
                                          const HubAddress& hub) {
        if constexpr (is_tls) {
            set_trust(tls, hub);
            return websocket::stream<Stream>(io, tls);
        } else {
            return websocket::stream<Stream>(io);
        }
    }

    void connect(const tcp::resolver::results_type& found) {
        auto& lowest = beast::get_lowest_layer(socket_);
        lowest.expires_after(connect_max);
        lowest.async_connect(found, [this, self = this->shared_from_this()](beast::error_code error,
                                                                            const tcp::endpoint&) {
            if (closing_) return;
            if (error) return end(1006, text("cannot reach the hub: ", error.message()));
            beast::error_code ignored;
            beast::get_lowest_layer(socket_).socket().set_option(tcp::no_delay(true), ignored);
            secure();
        });
    }

    void secure() {
        if constexpr (is_tls) {
            expect_host(socket_.next_layer(), hub_);
            socket_.next_layer().async_handshake(
                ssl::stream_base::client,
                [this, self = this->shared_from_this()](beast::error_code error) {
                    if (closing_) return;
                    if (error)
                        return end(1006, text("TLS: ", error.message(),
                                              "; --ca FILE trusts a certificate of your own"));
                    upgrade();
                });
        } else {
            upgrade();
        }
    }

    void upgrade() {
        beast::get_lowest_layer(socket_).expires_never();
        socket_.set_option(websocket::stream_base::timeout::suggested(beast::role_type::client));
        socket_.set_option(
            websocket::stream_base::decorator([token = token_](websocket::request_type& request) {
                if (!token.empty()) request.set(http::field::authorization, text("Bearer ", token));
            }));
        socket_.read_message_max(frame_bytes_max);
        socket_.binary(true);
        socket_.auto_fragment(false);  // one WebSocket message is one protocol frame
        socket_.write_buffer_bytes(write_bytes);

        socket_.async_handshake(
            response_, hub_.url.authority(), hub_.url.worker_target(),
            [this, self = this->shared_from_this()](beast::error_code error) {
                if (closing_) return;
                // A refused upgrade with 401 or 403 is final: the token is wrong.
                const unsigned status = response_.result_int();
                if (error && (status == 401 || status == 403))
                    return end(1008, text("the hub answered ", status, " to the join token"));
                if (error) return end(1006, text("the hub refused the upgrade: ", error.message()));

                opened_ = true;
                on_open();
                write_next();
                read();
            });
    }

    void read() {
        socket_.async_read(buffer_, [this, self = this->shared_from_this()](beast::error_code error,
                                                                            std::size_t) {
            if (error == websocket::error::closed) {
                const auto& reason = socket_.reason();
                return end(reason.code, std::string(reason.reason.data(), reason.reason.size()));
            }
            if (error) return end(1006, error.message());

            if (!closing_ && socket_.got_text()) {
                on_text();
            } else if (!closing_) {
                const auto data = buffer_.data();
                on_frame(ByteView(static_cast<const std::byte*>(data.data()), data.size()));
            }
            buffer_.consume(buffer_.size());
            // async_close() itself reads all data up to the close frame. A second read in parallel
            // would find the frame header that async_close() is reading.
            if (!closing_) read();
        });
    }

    // At most one write is in flight. Beast would queue a second write behind a pong or a close
    // frame, and would then read a frame that the first write's handler has freed.
    void write_next() {
        if (writing_ || !opened_ || outbox_.empty()) return;
        writing_ = true;
        socket_.async_write(
            asio::buffer(outbox_.front().data(), outbox_.front().size()),
            [this, self = this->shared_from_this()](beast::error_code error, std::size_t) {
                if (error) return;  // the pending read fails, which ends the connection
                writing_ = false;
                outbox_.pop_front();
                write_next();
            });
    }

    void end(std::uint16_t code, std::string reason) {
        if (auto handler = std::exchange(on_closed, nullptr)) handler(code, std::move(reason));
    }

    const HubAddress hub_;
    const std::string token_;
    ssl::context tls_{ssl::context::tls_client};
    tcp::resolver resolver_;
    websocket::stream<Stream> socket_;
    websocket::response_type response_;
    beast::flat_buffer buffer_;
    std::deque<Bytes> outbox_;
    bool opened_ = false, writing_ = false, closing_ = false;
};

}  // namespace

std::shared_ptr<WebSocketClient> make_websocket(asio::io_context& io, const HubAddress& hub,
                                                const std::string& token) {
    if (hub.url.tls) return std::make_shared<WebSocketOver<TlsStream>>(io, hub, token);
    return std::make_shared<WebSocketOver<beast::tcp_stream>>(io, hub, token);
}

}  // namespace moex::native
