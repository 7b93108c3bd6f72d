// One accepted connection as a stream of bytes, over TCP or TLS. Every call is made, and every
// handler runs, on the socket's strand. At most one read and one write are in flight.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "hub/net/http/asio.h"
#include "hub/net/http/websocket.h"

namespace moex::net {

class Transport {
  public:
    virtual ~Transport() = default;
    virtual tcp::socket& socket() = 0;
    virtual bool secure() const = 0;
    virtual void handshake(std::function<void(NetError)> handler) = 0;
    virtual void read_some(asio::mutable_buffer into,
                           std::function<void(NetError, std::size_t)> handler) = 0;
    virtual void write(std::vector<asio::const_buffer> buffers,
                       std::function<void(NetError)> handler) = 0;
    // Closes the outgoing direction of the connection. Bytes from the peer can still be read.
    virtual void finish_writing(std::function<void()> handler) = 0;
    virtual void close() = 0;
    // Turns the connection into a WebSocket; this object is then empty. Requires that no read or
    // write is in flight.
    virtual std::unique_ptr<WebSocket> upgrade(WebSocketLimits limits) = 0;
};

std::unique_ptr<Transport> make_plain_transport(tcp::socket socket);
// The client's side of a TLS connection, which verifies that the server has the name `host`.
std::unique_ptr<Transport> make_tls_client_transport(tcp::socket socket,
                                                     std::shared_ptr<ssl::context> context,
                                                     const std::string& host);
// Makes a context for clients: TLS 1.2 and 1.3, with the system's certificates, or with those of
// `ca_file` alone. Throws std::runtime_error if that file cannot be read.
std::shared_ptr<ssl::context> make_tls_client_context(const std::string& ca_file);
std::unique_ptr<Transport> make_tls_transport(tcp::socket socket,
                                              std::shared_ptr<ssl::context> context);

// Makes a context for TLS 1.2 and 1.3, ECDHE with AEAD only, without renegotiation and compression.
// Throws std::runtime_error with a sentence that says what is wrong.
std::shared_ptr<ssl::context> make_tls_context(const std::string& certificate_file,
                                               const std::string& key_file);
// Returns the time at which the certificate expires, in Unix seconds; 0 if it has no readable end.
std::int64_t certificate_end(const ssl::context& context);
// Returns the names and addresses of the certificate, as a Host header writes them, without
// brackets and port.
std::vector<std::string> certificate_names(const ssl::context& context);

}  // namespace moex::net
