#include "hub/net/listener.h"

#include <stdexcept>

#include "hub/base/log.h"
#include "hub/net/access/connection_room.h"
#include "hub/net/http_connection.h"

namespace moex::net {

Listener::Listener(HubContext& hub, const Routes& routes, std::shared_ptr<ssl::context> tls)
    : hub_(hub),
      routes_(routes),
      strand_(asio::make_strand(hub.io)),
      acceptor_(strand_),
      pause_(strand_),
      tls_(std::move(tls)) {
    const std::string where = text(hub.options.listen_address, ':', hub.options.listen_port);
    NetError error;
    const auto address = asio::ip::make_address(
        hub.options.listen_address == "localhost" ? "127.0.0.1" : hub.options.listen_address,
        error);
    if (error)
        throw std::runtime_error(
            text(where, ": want an IP address to listen on, like 127.0.0.1 or 0.0.0.0"));

    const tcp::endpoint endpoint(address, hub.options.listen_port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);

    if (error == asio::error::address_in_use)
        throw std::runtime_error(text(
            where, ": the port is in use; stop the other program or choose another with --listen"));
    if (error) throw std::runtime_error(text(where, ": cannot listen: ", error.message()));
    port_ = acceptor_.local_endpoint().port();
}

void Listener::start() {
    asio::post(strand_, [this] { accept(); });
}

void Listener::stop() {
    asio::post(strand_, [this] {
        NetError ignored;
        acceptor_.close(ignored);
        pause_.cancel();
    });
}

void Listener::replace_tls(std::shared_ptr<ssl::context> tls) {
    const std::lock_guard lock(tls_mutex_);
    tls_ = std::move(tls);
}

void Listener::accept() {
    if (!acceptor_.is_open()) return;
    acceptor_.async_accept(asio::make_strand(hub_.io), [this](NetError error, tcp::socket socket) {
        on_accepted(error, std::move(socket));
    });
}

void Listener::on_accepted(NetError error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
        serve(std::move(socket));
        return accept();
    }

    // The process is most likely out of file descriptors. Wait until some are free instead of
    // spinning.
    log_rarely(LogLevel::warn, "http: accept failed", kv("error", error.message()));
    pause_.expires_after(100ms);
    pause_.async_wait([this](NetError stopped) {
        if (!stopped) accept();
    });
}

// Returns true if the limits admit one more connection from `address`.
bool Listener::has_room_for(const std::string& address) const {
    const std::string peer = rate_key(address);
    const OpenConnections open{
        .all = hub_.http_connections->size() + hub_.worker_connections->size(),
        .of_address = hub_.http_connections->count_of(peer) +
                      hub_.worker_connections->count_of(peer)};
    const auto live = hub_.live();
    const ConnectionRoom room{.connections_max = live->connections_max,
                              .per_address_max = live->connections_per_address_max,
                              .loopback_factor = hub_.options.rates.loopback_factor};
    if (hub_.proxies.trusts(address)) return has_room(room, open, ClientKind::trusted_proxy);
    return has_room(room, open,
                    is_loopback_address(address) ? ClientKind::loopback : ClientKind::remote);
}

void Listener::serve(tcp::socket socket) {
    NetError error;
    const tcp::endpoint remote = socket.remote_endpoint(error);
    if (error) return;

    const std::string address = remote.address().to_string();
    if (!has_room_for(address)) return;  // the destructor of the socket closes the connection

    socket.set_option(tcp::no_delay(true), error);
    std::shared_ptr<ssl::context> tls;
    {
        const std::lock_guard lock(tls_mutex_);
        tls = tls_;
    }

    auto transport = tls ? make_tls_transport(std::move(socket), std::move(tls))
                         : make_plain_transport(std::move(socket));
    std::make_shared<HttpConnection>(hub_, routes_, std::move(transport), address)->start();
}

}  // namespace moex::net
