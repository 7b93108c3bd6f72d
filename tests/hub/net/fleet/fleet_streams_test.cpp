// Tests what becomes of a request for a stream of another hub, when the connection to that hub ends
// without an answer, and of a front's client that reads nothing. A hub of the test takes
// connections, and ends or answers them as it is told.
#include "hub/net/fleet/fleet_streams.h"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <condition_variable>
#include <filesystem>

#include "hub/net/front/front_connection.h"
#include "protocol/text.h"
#include "tests/support/must.h"
#include "tests/support/wait_until.h"

namespace moex::net {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::must;

// Takes one connection after the other. Each entry of `answers` is the answer on one of them; an
// empty text ends the connection without a word.
class OtherHub {
  public:
    explicit OtherHub(std::vector<std::string> answers)
        : thread_([this, answers = std::move(answers)] {
              for (const std::string& answer : answers) {
                  NetError stopped;
                  tcp::socket socket = acceptor_.accept(stopped);
                  if (stopped) return;
                  std::string request;
                  asio::read_until(socket, asio::dynamic_buffer(request), "\r\n\r\n");
                  requests_.push_back(request.substr(0, request.find('\r')));
                  NetError broken;
                  if (!answer.empty()) asio::write(socket, asio::buffer(answer), broken);
              }
              close_port();
          }) {}
    ~OtherHub() { stop(); }
    std::string address() const { return text("http://127.0.0.1:", port_); }
    // Takes no further connection. Returns the first lines of the requests.
    std::vector<std::string> requests() {
        stop();
        return requests_;
    }

  private:
    // Ends accept(), too. The descriptor stays open, since two threads use it.
    void close_port() { ::shutdown(acceptor_.native_handle(), SHUT_RDWR); }
    void stop() {
        close_port();
        if (thread_.joinable()) thread_.join();
    }

    asio::io_context io_;
    tcp::acceptor acceptor_{io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
    const std::uint16_t port_ = acceptor_.local_endpoint().port();
    std::vector<std::string> requests_;
    std::thread thread_;
};

// What the client gets, or that the stream is taken over.
struct Outcome {
    std::mutex mutex;
    std::condition_variable changed;
    std::string said;
    void say(std::string what) {
        const std::lock_guard lock(mutex);
        said += what;
        changed.notify_all();
    }
    void say_at_last(const std::string& what) {
        const std::lock_guard lock(mutex);
        if (said.empty()) said = what;
        changed.notify_all();
    }
    std::string wait() {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, 60s, [&] { return !said.empty(); });
        return said;
    }
};

class Client : public HttpResponder {
  public:
    explicit Client(Outcome& outcome) : outcome_(outcome) {}
    // Without an answer the connection breaks.
    ~Client() override { outcome_.say_at_last("broken"); }
    void respond(HttpResponse response) override {
        outcome_.say(text(response.status, ' ', response.body));
    }
    void begin_stream(const std::string&) override {}
    void expect_stream() override {}
    void send_event(StreamEvent, std::function<void()>) override {}
    void end_stream() override {}
    void on_disconnect(std::function<void()>) override {}

  private:
    Outcome& outcome_;
};

class FleetStreamsTest : public testing::Test {
  protected:
    FleetStreamsTest() {
        std::string pattern = (fs::temp_directory_path() / "moex-streams-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        folder_ = pattern;
        registry_ = must(Registry::open(folder_));
    }
    ~FleetStreamsTest() override { fs::remove_all(folder_); }

    // Passes a request on to `hub`, and returns what becomes of it.
    std::string pass_on_to(const OtherHub& hub) {
        Outcome outcome;
        {
            FleetStreams streams(
                *registry_, FleetKey({}),
                {.hub_id = "aaaaaaaa", .ca_file = {}, .on_lost = [](const auto&) {}});
            HttpRequest request;
            request.method = "GET";
            request.path = "/v1/streams/id";
            streams.pass_on(hub.address(), request, std::make_shared<Client>(outcome),
                            [&] { outcome.say("taken over"); });
            outcome.wait();
        }
        return outcome.said;
    }

    fs::path folder_;
    std::unique_ptr<Registry> registry_;
};

const std::string found = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

TEST_F(FleetStreamsTest, AHubThatDropsOneConnectionKeepsItsStream) {
    OtherHub hub({"", found});
    EXPECT_EQ(pass_on_to(hub), "200 hello");
    EXPECT_EQ(hub.requests(), std::vector<std::string>(2, "GET /v1/streams/id HTTP/1.1"));
}

TEST_F(FleetStreamsTest, AnAnswerWithoutEndBreaksTheConnection) {
    constexpr std::size_t length = 17u << 20;
    OtherHub hub({text("HTTP/1.1 200 OK\r\nContent-Length: ", length, "\r\n\r\n") +
                  std::string(length, 'x')});
    EXPECT_EQ(pass_on_to(hub), "broken");
}

TEST_F(FleetStreamsTest, AHubThatDropsTwoConnectionsLosesItsStream) {
    OtherHub hub({"", ""});
    EXPECT_EQ(pass_on_to(hub), "taken over");
    EXPECT_EQ(hub.requests().size(), 2u);
}

TEST_F(FleetStreamsTest, AHubThatClosesItsPortLosesItsStream) {
    OtherHub hub({""});
    EXPECT_EQ(pass_on_to(hub), "taken over");
}

// An answer that has begun is the client's: nobody asks again.
TEST_F(FleetStreamsTest, AnAnswerThatIsCutIsNotAskedForAgain) {
    OtherHub hub({"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"});
    Outcome outcome;
    FleetStreams streams(*registry_, FleetKey({}),
                         {.hub_id = "aaaaaaaa", .ca_file = {}, .on_lost = [](const auto&) {}});
    HttpRequest request;
    request.method = "GET";
    request.path = "/v1/streams/id";
    std::weak_ptr<Client> gone;
    {
        const auto client = std::make_shared<Client>(outcome);
        gone = client;
        streams.pass_on(hub.address(), request, client, [&] { outcome.say("taken over"); });
    }
    test::wait_until([&] { return gone.expired(); });
    EXPECT_EQ(outcome.said, "broken");
    EXPECT_EQ(hub.requests().size(), 1u);
}

// A front waits for a client that reads slowly, and so the hub waits for the front; it does not
// wait for ever.
TEST(FrontConnectionTest, AClientThatReadsNothingIsClosed) {
    std::string events;
    for (int i = 0; i < 64'000; ++i) events += "data: " + std::string(1000, 'x') + "\n\n";
    OtherHub hub({text("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: ",
                       events.size(), "\r\n\r\n") +
                  events});
    FrontContext front(FleetKey({}), {});
    front.unread_within = 100ms;
    front.hubs.set({{HubAddress::parse(hub.address()).value()}});
    tcp::acceptor acceptor(front.io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    const auto strand = asio::make_strand(front.io);
    std::weak_ptr<FrontConnection> connection;
    acceptor.async_accept(strand, [&](NetError, tcp::socket taken) {
        const auto made = std::make_shared<FrontConnection>(
            front, strand, make_plain_transport(std::move(taken)), "127.0.0.1");
        made->start();
        connection = made;
    });

    asio::io_context outside;
    tcp::socket client(outside);
    client.connect(acceptor.local_endpoint());
    asio::write(client, asio::buffer(std::string("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")));
    const auto work = asio::make_work_guard(front.io);
    const TimePoint until = now_steady() + 30s;
    bool was_there = false;
    while (now_steady() < until && !(was_there && connection.expired())) {
        front.io.run_one_for(10ms);
        was_there = was_there || !connection.expired();
    }
    EXPECT_TRUE(was_there);
    EXPECT_TRUE(connection.expired());
}

}  // namespace
}  // namespace moex::net
