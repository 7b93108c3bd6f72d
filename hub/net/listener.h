// Accepts connections on one address and starts an HttpConnection for each. Holds the TLS context,
// which can be replaced while the hub runs.
#pragma once

#include <memory>
#include <mutex>

#include "hub/net/hub_context.h"
#include "hub/net/routes/routes.h"

namespace moex::net {

class Listener {
  public:
    // Binds to the address at once. Throws std::runtime_error with a sentence if this fails. `tls`
    // is null for plain HTTP.
    Listener(HubContext& hub, const Routes& routes, std::shared_ptr<ssl::context> tls);
    std::uint16_t port() const { return port_; }
    void start();
    void stop();                                          // any thread
    void replace_tls(std::shared_ptr<ssl::context> tls);  // for new connections

  private:
    void accept();
    void on_accepted(NetError error, tcp::socket socket);
    bool has_room_for(const std::string& address) const;
    void serve(tcp::socket socket);

    HubContext& hub_;
    const Routes& routes_;
    asio::strand<asio::io_context::executor_type> strand_;
    tcp::acceptor acceptor_;
    asio::steady_timer pause_;
    std::uint16_t port_ = 0;
    std::mutex tls_mutex_;
    std::shared_ptr<ssl::context> tls_;
};

}  // namespace moex::net
