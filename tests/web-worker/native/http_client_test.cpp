// Tests how a native worker reads the bodies of its hub's answers, from a server of this test.
#include "web-worker/native/http_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "protocol/text.h"
#include "tests/web-worker/native/loopback_listener.h"

namespace moex::native {
namespace {

// Accepts one connection after the other. Reads one request for each answer, and sends the answer
// in the given pieces. A connection ends after an answer that ends with an empty piece.
class Server {
  public:
    using Answer = std::vector<std::string>;
    explicit Server(std::vector<Answer> answers) : answers_(std::move(answers)) {
        thread_ = std::thread([this] { run(); });
    }
    ~Server() {
        listener_.stop();
        thread_.join();
    }
    HubAddress address() const { return listener_.address(); }
    int connections() const { return connections_; }
    const std::string& requests() const { return requests_; }  // once all answers were read

  private:
    void run() {
        int client = -1;
        for (const Answer& answer : answers_) {
            if (client < 0) {
                client = listener_.next();
                ++connections_;
            }
            std::string request;
            char byte = 0;
            while (!request.ends_with("\r\n\r\n") && recv(client, &byte, 1, 0) == 1)
                request += byte;
            requests_ += request;
            for (const std::string& piece : answer)
                (void)!send(client, piece.data(), piece.size(), MSG_NOSIGNAL);
            if (answer.back().empty()) close(std::exchange(client, -1));
        }
        if (client >= 0) close(client);
    }

    LoopbackListener listener_{4};
    std::vector<Answer> answers_;
    std::atomic<int> connections_ = 0;
    std::string requests_;
    std::thread thread_;
};

std::string head_of(std::size_t bytes) {
    return text("HTTP/1.1 200 OK\r\nContent-Length: ", bytes, "\r\n\r\n");
}
std::string pattern(std::size_t bytes) {
    std::string out(bytes, 0);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(i * 31 + i / 251);
    return out;
}

struct Body {
    Status status;
    std::string bytes;
    bool is_in_place = true;  // all pieces were in the memory of `room`
};
// Reads one body with memory for `room_bytes` of it, and stops after `wanted` bytes.
Body get(HttpClient& client, std::size_t room_bytes, std::size_t wanted = SIZE_MAX,
         std::uint64_t first = 0) {
    Body body;
    std::vector<std::byte> memory(room_bytes);
    std::size_t have = 0;
    HttpClient::Reader reader;
    reader.begin = [](unsigned status) { return status == 200 || status == 206; };
    reader.room = [&] { return std::span(memory).subspan(std::min(have, memory.size())); };
    reader.take = [&](ByteView piece) {
        body.is_in_place &= piece.data() == memory.data() + have;
        body.bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        have += piece.size();
        return have < wanted;
    };
    body.status = client.get("/weights/a", first, reader);
    return body;
}

TEST(HttpClientTest, BodyIsReadIntoTheRoomThatTheReaderHas) {
    const std::string large = pattern(300'001), small = pattern(10);
    Server server({{head_of(large.size()) + large.substr(0, 1000), large.substr(1000)},
                   {head_of(small.size()), small.substr(0, 3), small.substr(3)},
                   {head_of(0)},
                   {head_of(small.size()) + small}});
    HttpClient client(server.address());
    Body body = get(client, large.size());
    EXPECT_TRUE(body.status.ok());
    EXPECT_EQ(body.bytes, large);
    EXPECT_TRUE(body.is_in_place);
    EXPECT_EQ(get(client, small.size()).bytes, small);
    EXPECT_EQ(get(client, 0).bytes, "");
    EXPECT_EQ(get(client, 4).bytes, small) << "more than the reader has room for";
    EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClientTest, AReaderNeedsNoRoomOfItsOwn) {
    const std::string body = pattern(200'000);
    Server server({{head_of(body.size()) + body}});
    HttpClient client(server.address());
    std::string bytes;
    const Status status = client.get(
        "/a", 0,
        {.begin = [](unsigned) { return true; },
         .take =
             [&](ByteView piece) {
                 bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
                 return true;
             }});
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(bytes, body);
}

TEST(HttpClientTest, BodyInChunksIsReadWhole) {
    Server server({{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n",
                    "3\r\nefg\r\n0\r\n\r\n"},
                   {head_of(1) + "x"}});
    HttpClient client(server.address());
    EXPECT_EQ(get(client, 7).bytes, "abcdefg");
    EXPECT_EQ(get(client, 1).bytes, "x");
    EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClientTest, BytesBeforeABrokenConnectionAreValid) {
    Server server({{head_of(10) + "abcd", ""},
                   {"HTTP/1.1 206 Partial Content\r\nContent-Length: 6\r\n\r\nefghij"}});
    HttpClient client(server.address());
    const Body part = get(client, 10);
    EXPECT_FALSE(part.status.ok());
    EXPECT_EQ(part.bytes, "abcd");
    const Body rest = get(client, 10, SIZE_MAX, 4);
    EXPECT_TRUE(rest.status.ok());
    EXPECT_EQ(rest.bytes, "efghij");
    EXPECT_NE(server.requests().find("bytes=4-"), std::string::npos);
    EXPECT_EQ(server.connections(), 2);
}

TEST(HttpClientTest, AReaderThatStopsClosesTheConnection) {
    const std::string body = pattern(100'000);
    Server server({{head_of(body.size()) + body, ""}, {head_of(1) + "x"}});
    HttpClient client(server.address());
    EXPECT_LT(get(client, 1000, 1).bytes.size(), body.size());
    EXPECT_EQ(get(client, 1).bytes, "x");
    EXPECT_EQ(server.connections(), 2);
}

}  // namespace
}  // namespace moex::native
