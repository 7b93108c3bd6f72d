// The native worker's WebSocket beside a server that sends control frames, fragments and closes at
// every moment. Built with the address sanitizer in every build: a second write in flight once
// sent freed memory to the hub, and most runs did not notice.
#include "web-worker/native/websocket_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/sha.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "web-worker/native/asio.h"

namespace moex::native {
namespace {

constexpr int op_continuation = 0, op_binary = 2, op_close = 8, op_ping = 9, op_pong = 10;

struct PeerFrame {
    int opcode = -1;
    std::string payload;
    bool operator==(const PeerFrame&) const = default;
};

// The server's end of one connection: with blocking calls, on a thread of the test.
class Peer {
  public:
    explicit Peer(int socket) : socket_(socket) {}
    Peer(const Peer&) = delete;
    ~Peer() { ::close(socket_); }

    // Answers the upgrade. The bytes of `behind` are sent in the same TCP segment as the response
    // 101.
    bool accept_upgrade(const std::string& behind) {
        std::size_t end;
        while ((end = in_.find("\r\n\r\n")) == std::string::npos)
            if (!fill()) return false;

        const std::string mark = "Sec-WebSocket-Key: ";
        const std::size_t at = in_.find(mark) + mark.size();
        const std::string key = in_.substr(at, in_.find("\r\n", at) - at);
        in_.erase(0, end + 4);
        return send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade"
            "\r\nSec-WebSocket-Accept: " +
            accept_of(key) + "\r\n\r\n" + behind);
    }

    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (sent <= 0) return false;
            bytes.remove_prefix(static_cast<std::size_t>(sent));
        }
        return true;
    }

    // Returns the frames up to the client's close frame, after which a server ends the connection.
    std::vector<PeerFrame> read_to_close() {
        std::vector<PeerFrame> frames;
        do frames.push_back(read());
        while (frames.back().opcode != op_close && frames.back().opcode >= 0);
        return frames;
    }

    // Returns the client's next frame, unmasked. Opcode -1: the connection has ended.
    PeerFrame read() {
        if (!have(2)) return {};
        std::size_t size = byte(1) & 127, at = 2;
        const std::size_t extra = size == 126 ? 2 : size == 127 ? 8 : 0;
        if (!have(at + extra)) return {};
        if (extra) size = 0;
        for (std::size_t i = 0; i < extra; ++i) size = size << 8 | byte(at + i);
        at += extra;

        if (!have(at + 4 + size)) return {};
        PeerFrame frame{.opcode = static_cast<int>(byte(0) & 15),
                        .payload = in_.substr(at + 4, size)};
        for (std::size_t i = 0; i < size; ++i) frame.payload[i] ^= in_[at + i % 4];
        in_.erase(0, at + 4 + size);
        return frame;
    }

  private:
    static std::string accept_of(const std::string& key) {
        const std::string text = key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";  // RFC 6455, 1.3
        unsigned char hash[SHA_DIGEST_LENGTH];
        SHA1(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash);
        constexpr char digits[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        std::string out;
        for (int i = 0; i < SHA_DIGEST_LENGTH; i += 3) {
            const int third = i + 2 < SHA_DIGEST_LENGTH ? hash[i + 2] : 0;
            const int bits = hash[i] << 16 | hash[i + 1] << 8 | third;
            for (int shift = 18; shift >= 0; shift -= 6) out += digits[bits >> shift & 63];
        }
        out.back() = '=';  // base64 of 20 bytes ends with one padding character
        return out;
    }
    std::size_t byte(std::size_t at) const { return static_cast<unsigned char>(in_[at]); }
    bool have(std::size_t size) {
        while (in_.size() < size)
            if (!fill()) return false;
        return true;
    }
    bool fill() {
        char buffer[65536];
        const ssize_t size = ::recv(socket_, buffer, sizeof buffer, 0);
        if (size <= 0) return false;
        in_.append(buffer, static_cast<std::size_t>(size));
        return true;
    }

    const int socket_;
    std::string in_;
};

std::string frame_of(int opcode, const std::string& payload, bool is_last = true) {
    std::string frame(1, static_cast<char>((is_last ? 0x80 : 0) | opcode));
    if (payload.size() < 126) {
        frame += static_cast<char>(payload.size());
    } else {
        frame += static_cast<char>(126);
        frame += static_cast<char>(payload.size() >> 8);
        frame += static_cast<char>(payload.size());
    }
    return frame + payload;
}

// Returns a message that names its sender and number, so that the test notices bytes of another
// frame.
std::string content(char sender, std::size_t number, std::size_t size) {
    std::string text = sender + std::to_string(number) + ':';
    while (text.size() < size) text += static_cast<char>('a' + (text.size() + number) % 26);
    return text;
}

// The fixture: a listening socket on a free port, one server thread, and the client on the test's
// thread.
class WebSocketClientTest : public testing::Test {
  protected:
    WebSocketClientTest() {
        listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
            ::listen(listener_, 8) != 0 ||
            ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
            throw std::runtime_error("cannot listen on the loopback interface");
        port_ = ntohs(address.sin_port);
    }
    ~WebSocketClientTest() override { ::close(listener_); }

    // Runs `serve` on a thread for the one connection of a client that `set_up` has prepared;
    // returns when both sides are done.
    void connect(const std::function<void(WebSocketClient&)>& set_up,
                 const std::function<void(Peer&)>& serve) {
        std::thread server([&] {
            Peer peer(::accept(listener_, nullptr, nullptr));
            serve(peer);
        });

        asio::io_context io;
        HubAddress hub;
        hub.url.host = "127.0.0.1";
        hub.url.port = std::to_string(port_);
        auto client = make_websocket(io, hub, "token");
        client->on_text = [] {};
        client->on_frame = [](ByteView) {};
        client->on_closed = [this](std::uint16_t code, const std::string&) {
            ++closed_;
            close_code_ = code;
        };
        set_up(*client);
        client->open();
        client.reset();  // the client's pending operations keep it alive
        io.run();
        server.join();
    }

    static void send(WebSocketClient& client, const std::string& text) {
        client.send(std::as_bytes(std::span(text)));
    }

    int closed_ = 0;
    std::uint16_t close_code_ = 0;

  private:
    int listener_ = -1;
    std::uint16_t port_ = 0;
};

TEST_F(WebSocketClientTest, PingBehindTheUpgradeLeavesHelloWhole) {
    const std::vector<std::string> sent = {content('c', 0, 495), content('c', 1, 200'000),
                                           content('c', 2, 20)};
    std::vector<PeerFrame> read;
    connect(
        [&](WebSocketClient& client) {
            client.on_open = [&] {
                for (const std::string& text : sent) send(client, text);
            };
        },
        [&](Peer& peer) {
            ASSERT_TRUE(peer.accept_upgrade(frame_of(op_ping, "one") + frame_of(op_ping, "two")));
            while (read.size() < sent.size() + 2) read.push_back(peer.read());
            peer.send(frame_of(op_ping, "three") + frame_of(op_close, "\x03\xe8"));
            for (const PeerFrame& next : peer.read_to_close()) read.push_back(next);
        });

    std::vector<std::string> frames, pongs;
    for (const PeerFrame& frame : read) {
        if (frame.opcode == op_binary) frames.push_back(frame.payload);
        if (frame.opcode == op_pong) pongs.push_back(frame.payload);
    }
    EXPECT_EQ(frames, sent);
    EXPECT_EQ(pongs, (std::vector<std::string>{"one", "two", "three"}));
    EXPECT_EQ(closed_, 1);
    EXPECT_EQ(close_code_, 1000);
}

// A random conversation, made from a seed: the server sends messages, whole or in fragments, and
// puts control frames between them; the client answers each message with one to three frames.
struct Conversation {
    explicit Conversation(unsigned seed) : random(seed) {
        for (int i = 0; i < 20; ++i) {
            const std::string message = content('s', messages.size(), draw(1, 1500));
            switch (draw(0, 3)) {
                case 0: ping(); break;
                case 1: parts.push_back(frame_of(op_pong, "")); break;
                case 2: add(message, {frame_of(op_binary, message)}); break;
                case 3: add_fragments(message); break;
            }
        }
    }

    std::size_t draw(std::size_t from, std::size_t to) {
        return std::uniform_int_distribution<std::size_t>(from, to)(random);
    }
    void ping() {
        pings.push_back(content('p', pings.size(), draw(1, 100)));
        parts.push_back(frame_of(op_ping, pings.back()));
    }
    void add(const std::string& message, const std::vector<std::string>& frames) {
        messages.push_back(message);
        parts.insert(parts.end(), frames.begin(), frames.end());
        for (std::size_t i = draw(1, 3); i > 0; --i)
            answers.push_back({messages.size(), content('c', answers.size(), draw(1, 9000))});
    }
    void add_fragments(const std::string& message) {
        const std::size_t cut = message.size() / 2;
        parts.push_back(frame_of(op_binary, message.substr(0, cut), false));
        ping();
        add(message, {frame_of(op_continuation, message.substr(cut))});
    }
    std::vector<std::string> frames_wanted() const {
        std::vector<std::string> all{hello};
        for (const auto& [message, text] : answers) all.push_back(text);
        return all;
    }

    std::mt19937 random;
    const std::string hello = content('h', 0, 500);
    // The frames, messages and pings that the server sends.
    std::vector<std::string> parts, messages, pings;
    // {number of messages after which the client answers, frame}.
    std::vector<std::pair<std::size_t, std::string>> answers;
};

// Sets up a client that answers as the conversation `talk` prescribes, and records the messages
// that it receives.
void play(
    WebSocketClient& client, const Conversation& talk, std::vector<std::string>& heard,
    const std::function<void()>& after_message = [] {}) {
    client.on_open = [&client, &talk] { client.send(std::as_bytes(std::span(talk.hello))); };
    client.on_frame = [&client, &talk, &heard, after_message](ByteView frame) {
        heard.emplace_back(reinterpret_cast<const char*>(frame.data()), frame.size());
        for (const auto& [message, text] : talk.answers)
            if (message == heard.size()) client.send(std::as_bytes(std::span(text)));
        after_message();
    };
}

TEST_F(WebSocketClientTest, FramesAreWholeAndInOrderAmongControlFrames) {
    for (unsigned seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE(seed);
        const Conversation talk(seed);
        std::vector<std::string> heard, frames, pongs;
        closed_ = 0;
        connect([&](WebSocketClient& client) { play(client, talk, heard); },
                [&](Peer& peer) {
                    // With odd seeds, the server sends everything in one TCP segment behind the
                    // response 101.
                    std::string all;
                    for (const std::string& part : talk.parts) all += part;
                    ASSERT_TRUE(peer.accept_upgrade(seed % 2 ? all : ""));
                    if (seed % 2 == 0)
                        for (const std::string& part : talk.parts) peer.send(part);

                    const std::size_t wanted = talk.frames_wanted().size() + talk.pings.size();
                    while (frames.size() + pongs.size() < wanted) {
                        const PeerFrame next = peer.read();
                        ASSERT_GE(next.opcode, 0);
                        if (next.opcode == op_binary) frames.push_back(next.payload);
                        if (next.opcode == op_pong) pongs.push_back(next.payload);
                    }
                    peer.send(frame_of(op_close, "\x03\xe8"));
                    EXPECT_EQ(peer.read().opcode, op_close);
                });
        EXPECT_EQ(heard, talk.messages);
        EXPECT_EQ(frames, talk.frames_wanted());
        EXPECT_EQ(pongs, talk.pings);
        EXPECT_EQ(closed_, 1);
    }
}

// The ways in which a connection ends in the middle of a conversation.
enum class Ending { server_close, server_cut, server_half_frame, client_close };

TEST_F(WebSocketClientTest, ConnectionEndsOnceAtEveryMoment) {
    for (const Ending ending : {Ending::server_close, Ending::server_cut, Ending::server_half_frame,
                                Ending::client_close}) {
        for (unsigned moment = 0; moment < 21; ++moment) {
            SCOPED_TRACE(testing::Message() << "ending " << int(ending) << ", moment " << moment);
            const Conversation talk(100 + moment);
            std::vector<std::string> heard, frames;
            closed_ = 0;
            connect(
                [&](WebSocketClient& client) {
                    play(client, talk, heard, [&] {
                        if (ending == Ending::client_close && heard.size() == 1 + moment / 3)
                            client.close(1001, "the test closes");
                    });
                },
                [&](Peer& peer) {
                    ASSERT_TRUE(peer.accept_upgrade(""));
                    const bool is_whole = ending == Ending::client_close;
                    for (std::size_t i = 0; i < (is_whole ? talk.parts.size() : moment); ++i)
                        peer.send(talk.parts[std::min(i, talk.parts.size() - 1)]);
                    if (ending == Ending::server_cut) return;
                    if (ending == Ending::server_half_frame) {
                        peer.send(frame_of(op_binary, "half", false) + "\x80\x7e");
                        return;
                    }
                    if (ending == Ending::server_close) peer.send(frame_of(op_close, "\x03\xe8"));

                    for (const PeerFrame& next : peer.read_to_close())
                        if (next.opcode == op_binary) frames.push_back(next.payload);
                });

            EXPECT_EQ(closed_, 1);
            // Each frame that arrived is a frame that the client sent, complete and in order.
            const std::vector<std::string> wanted = talk.frames_wanted();
            ASSERT_LE(frames.size(), wanted.size());
            for (std::size_t i = 0; i < frames.size(); ++i) EXPECT_EQ(frames[i], wanted[i]);
        }
    }
}

TEST_F(WebSocketClientTest, FrameBehindTheCloseIsNotSent) {
    std::vector<int> opcodes;
    connect(
        [&](WebSocketClient& client) {
            client.on_open = [&] {
                client.close(1001, "leaving");
                send(client, "too late");
            };
        },
        [&](Peer& peer) {
            ASSERT_TRUE(peer.accept_upgrade(frame_of(op_ping, "") + frame_of(op_ping, "")));
            for (const PeerFrame& next : peer.read_to_close()) opcodes.push_back(next.opcode);
            peer.send(frame_of(op_close, "\x03\xe9"));
        });
    EXPECT_EQ(std::count(opcodes.begin(), opcodes.end(), op_binary), 0);
    EXPECT_EQ(std::count(opcodes.begin(), opcodes.end(), op_close), 1);
    EXPECT_EQ(closed_, 1);
    EXPECT_EQ(close_code_, 1001);
}

}  // namespace
}  // namespace moex::native
