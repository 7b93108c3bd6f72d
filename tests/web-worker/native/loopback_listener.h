// A socket that listens on a free port of 127.0.0.1, for servers of tests.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "web-worker/native/http_client.h"

namespace moex::native {

class LoopbackListener {
  public:
    explicit LoopbackListener(int backlog) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        EXPECT_EQ(listen(socket_, backlog), 0);
        socklen_t size = sizeof address;
        getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
    }
    ~LoopbackListener() { close(socket_); }
    LoopbackListener(const LoopbackListener&) = delete;

    // Waits for a connection; returns its socket, or -1 after stop().
    int next() const { return accept(socket_, nullptr, nullptr); }
    void stop() const { shutdown(socket_, SHUT_RDWR); }
    HubAddress address() const {
        return {.url = {.host = "127.0.0.1", .port = std::to_string(port_)}};
    }

  private:
    const int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port_ = 0;
};

}  // namespace moex::native
