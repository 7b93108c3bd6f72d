// Tests of frames that share rows with other frames, over a real socket, with TLS and without. Each
// frame arrives as one message with all bytes. No rows are kept in memory once the peer has
// disconnected in the middle of a frame.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "hub/commands/self_signed.h"
#include "hub/net/http/websocket.h"
#include "protocol/wire_frame.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

constexpr std::uint32_t row_size = 2048;

// Makes a frame of every second of `num_rows` rows, so that no two of its rows are adjacent in
// memory.
WireFrame frame_of(std::uint32_t num_rows) {
    auto rows = std::make_shared<WireRows>();
    rows->row_size = row_size;
    rows->bytes.resize(wire_rows_bytes(Dtype::f16, num_rows, row_size));
    for (std::size_t i = 0; i < rows->bytes.size(); ++i)
        rows->bytes[i] = static_cast<std::byte>(i * 7 + i / row_size);
    std::vector<std::uint32_t> numbers;
    for (std::uint32_t row = 0; row < num_rows; row += 2) numbers.push_back(row);
    return {Bytes(48, std::byte{1}), std::move(rows), std::move(numbers), Bytes(7, std::byte{2})};
}

// Makes a TLS context with a self-signed certificate for "localhost".
std::shared_ptr<ssl::context> own_tls() {
    const Certificate made = make_self_signed({"localhost"}, 1).value();
    auto tls = std::make_shared<ssl::context>(ssl::context::tls_server);
    tls->use_certificate_chain(asio::buffer(made.certificate_pem));
    tls->use_private_key(asio::buffer(made.key_pem), ssl::context::pem);
    return tls;
}

// Serves one connection, and writes one frame to it. A null `tls` means no TLS.
class OneFrameServer {
  public:
    explicit OneFrameServer(WireFrame frame, std::shared_ptr<ssl::context> tls = nullptr)
        : tls_(std::move(tls)),
          frame_(std::move(frame)) {
        thread_ = std::thread([this] { serve(); });
    }
    ~OneFrameServer() { thread_.join(); }
    std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
    // Returns the error with which the write of the frame ended. The frame is destroyed by then.
    NetError written() { return written_.get_future().get(); }

  private:
    void serve() {
        if (!tls_) return send_to(acceptor_.accept());
        ssl::stream<tcp::socket> stream(acceptor_.accept(), *tls_);
        stream.handshake(ssl::stream_base::server);
        send_to(std::move(stream));
    }
    template <class Stream>
    void send_to(Stream stream) {
        RequestGate gate{GateLimits{}};
        std::string in(4096, '\0');
        while (gate.state() != RequestGate::State::done)
            gate.feed(std::string_view(in).substr(0, stream.read_some(asio::buffer(in))));

        if constexpr (std::is_same_v<Stream, tcp::socket>)
            socket_ = make_websocket(std::move(stream), {});
        else
            socket_ = make_websocket(std::move(stream), tls_, {});
        socket_->accept(gate.take(), [this](NetError) {
            frame_->append_spans(parts_);
            socket_->write(parts_, [this](NetError error) {
                frame_.reset();
                written_.set_value(error);
            });
        });
        io_.run();
    }

    asio::io_context io_;
    tcp::acceptor acceptor_{io_, {asio::ip::address_v4::loopback(), 0}};
    const std::shared_ptr<ssl::context> tls_;
    std::unique_ptr<WebSocket> socket_;
    std::optional<WireFrame> frame_;
    std::vector<ByteView> parts_;
    std::promise<NetError> written_;
    std::thread thread_;
};

TEST(GatheredWritesTest, ArriveAsOneMessageWithAllTheirBytes) {
    OneFrameServer server(frame_of(300));  // more parts than one system call writes
    RawClient client(server.port());
    ASSERT_TRUE(client.upgrade(server.port(), {}));
    const RawFrame got = client.read_frame();
    EXPECT_FALSE(server.written());
    EXPECT_EQ(got.opcode, op_binary);
    const Bytes want = frame_of(300).whole();
    EXPECT_EQ(got.payload.size(), want.size());
    EXPECT_TRUE(got.payload == as_text_view(want));
}

TEST(GatheredWritesTest, ArriveAsOneMessageOverTlsToo) {
    OneFrameServer server(frame_of(300), own_tls());
    asio::io_context io;
    ssl::context any(ssl::context::tls_client);
    websocket::stream<ssl::stream<tcp::socket>> client(io, any);
    beast::get_lowest_layer(client).connect({asio::ip::address_v4::loopback(), server.port()});
    client.next_layer().handshake(ssl::stream_base::client);
    client.handshake("localhost", "/worker");

    std::string got;
    auto buffer = asio::dynamic_buffer(got);
    client.read(buffer);
    EXPECT_FALSE(server.written());
    EXPECT_TRUE(client.got_binary());
    EXPECT_TRUE(client.is_message_done());
    const Bytes want = frame_of(300).whole();
    EXPECT_EQ(got.size(), want.size());
    EXPECT_TRUE(got == as_text_view(want));
    beast::get_lowest_layer(client).close();
}

TEST(GatheredWritesTest, HoldNothingOnceThePeerHasGoneInTheMiddle) {
    OneFrameServer server(frame_of(12'000));  // 24 MB: more than any socket's buffer takes
    RawClient client(server.port());
    ASSERT_TRUE(client.upgrade(server.port(), {}));
    client.close();
    EXPECT_TRUE(server.written());
}

}  // namespace
}  // namespace moex::net
