// A client's connection to a front: reads requests, one at a time, and writes the answers of their
// exchanges. Owner: the connection's strand.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>

#include "hub/net/front/front_exchange.h"

namespace moex::net {

class FrontConnection : public std::enable_shared_from_this<FrontConnection> {
  public:
    FrontConnection(FrontContext& front, ClientLine::Strand strand,
                    std::unique_ptr<Transport> transport, std::string peer_address);
    ~FrontConnection();
    void start();

  private:
    void read();
    void on_read(NetError error, std::size_t size);
    void process();
    // Counts the bytes of the request's body. Returns false if the front holds too many.
    bool hold_body();
    void release_body();
    void handle(GatedRequest request);
    void answer(unsigned status, std::string_view code, std::string_view message);
    void send(std::string bytes);
    void write();
    void on_written(NetError error);
    void on_answer_end(bool keep_alive);
    void close();
    void wait_at_most(Duration duration);

    FrontContext& front_;
    const ClientLine::Strand strand_;
    std::unique_ptr<Transport> transport_;
    const std::string peer_address_;
    RequestGate gate_;
    asio::steady_timer timer_, unread_timer_;
    std::array<char, 16384> buffer_;
    std::string in_;
    std::shared_ptr<FrontExchange> exchange_;  // null: no request runs
    std::deque<std::string> outbox_;
    std::size_t outbox_bytes_ = 0;
    std::size_t written_ = 0;  // of the front of the outbox
    std::uint64_t body_bytes_held_ = 0;
    bool writing_ = false, closes_ = false, closed_ = false;
};

}  // namespace moex::net
