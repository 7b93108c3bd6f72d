// The native worker includes Beast and TLS here. This header is slow to compile: only
// http_client.cpp and websocket_client.cpp include it, behind plain headers.
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/beast/websocket.hpp>
#include <boost/beast/websocket/ssl.hpp>

#include "web-worker/native/asio.h"
#include "web-worker/native/hub_address.h"

namespace moex::native {
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
namespace ssl = asio::ssl;
using tcp = asio::ip::tcp;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

// Loads the certificates that TLS trusts, as `hub` names them. Throws when the CA file cannot be
// read.
inline void set_trust(ssl::context& tls, const HubAddress& hub) {
    tls.set_default_verify_paths();
    if (!hub.ca_file.empty()) tls.load_verify_file(hub.ca_file);
    tls.set_verify_mode(hub.insecure_tls ? ssl::verify_none : ssl::verify_peer);
}

// Sends the hub's host name to the server (SNI), and checks that the server's certificate is for
// this name.
inline void expect_host(TlsStream& stream, const HubAddress& hub) {
    SSL_set_tlsext_host_name(stream.native_handle(), hub.url.host.c_str());
    if (!hub.insecure_tls) stream.set_verify_callback(ssl::host_name_verification(hub.url.host));
}

}  // namespace moex::native
