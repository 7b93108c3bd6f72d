// Tests the measurement of round trips with real sockets.
#include "web-worker/native/round_trips.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace moex::native {
namespace {

using std::chrono::milliseconds;

class Listener {
  public:
    explicit Listener(bool listens = true) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        if (listens) EXPECT_EQ(listen(socket_, 4), 0);
        socklen_t size = sizeof address;
        getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
    }
    ~Listener() { close(socket_); }
    HubUrl url() const { return {.host = "127.0.0.1", .port = std::to_string(port_)}; }

  private:
    int socket_;
    std::uint16_t port_ = 0;
};

TEST(RoundTripsTest, HubsThatAnswerAreMeasuredAndOthersAreNot) {
    const Listener one, two, closed(false);
    const HubUrl hubs[] = {one.url(), closed.url(), two.url(), {.host = "a name", .port = "1"}};
    const auto times = round_trips_ms(hubs, milliseconds(5000));
    ASSERT_EQ(times.size(), 4u);
    ASSERT_TRUE(times[0] && times[2]);
    EXPECT_GT(*times[0], 0);
    EXPECT_FALSE(times[1]) << "a refused connection is no hub";
    EXPECT_FALSE(times[3]);
    EXPECT_TRUE(round_trips_ms({}, milliseconds(5000)).empty());
}

// The address is of a network for documentation (RFC 5737), from which no answer comes.
TEST(RoundTripsTest, AHubThatDoesNotAnswerEndsAtTheLimit) {
    const Listener one;
    const HubUrl hubs[] = {{.host = "192.0.2.1", .port = "9"}, one.url()};
    const auto times = round_trips_ms(hubs, milliseconds(50));
    EXPECT_FALSE(times[0]);
    EXPECT_TRUE(times[1]);
}

}  // namespace
}  // namespace moex::native
