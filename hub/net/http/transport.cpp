#include "hub/net/http/transport.h"

#include <algorithm>
#include <ctime>
#include <stdexcept>

#include "protocol/text.h"

namespace moex::net {
namespace {

// The most bytes of one system call that sends, as many as one write() has at most
// (http_answer.cpp). With Asio's own bound of 64 kB a body of weights costs 1.4 times the processor
// time: a call, a wait for the socket and a turn of the event loop for each part.
constexpr std::size_t send_bytes_max = std::size_t{256} << 10;

class PlainTransport : public Transport {
  public:
    explicit PlainTransport(tcp::socket socket) : socket_(std::move(socket)) {}
    tcp::socket& socket() override { return socket_; }
    bool secure() const override { return false; }
    void handshake(std::function<void(NetError)> handler) override {
        asio::dispatch(socket_.get_executor(), [handler = std::move(handler)] { handler({}); });
    }
    void read_some(asio::mutable_buffer into,
                   std::function<void(NetError, std::size_t)> handler) override {
        socket_.async_read_some(into, std::move(handler));
    }
    void write(std::vector<asio::const_buffer> buffers,
               std::function<void(NetError)> handler) override {
        const auto send_at_most = [](NetError error, std::size_t) {
            return error ? 0 : send_bytes_max;
        };
        asio::async_write(
            socket_, buffers, send_at_most,
            [handler = std::move(handler)](NetError error, std::size_t) { handler(error); });
    }
    void finish_writing(std::function<void()> handler) override {
        NetError ignored;
        socket_.shutdown(tcp::socket::shutdown_send, ignored);
        asio::post(socket_.get_executor(), std::move(handler));
    }
    void close() override {
        NetError ignored;
        socket_.close(ignored);
    }
    std::unique_ptr<WebSocket> upgrade(WebSocketLimits limits) override {
        return make_websocket(std::move(socket_), limits);
    }

  private:
    tcp::socket socket_;
};

class TlsTransport : public Transport {
  public:
    TlsTransport(tcp::socket socket, std::shared_ptr<ssl::context> context,
                 ssl::stream_base::handshake_type side = ssl::stream_base::server)
        : context_(std::move(context)),
          stream_(std::move(socket), *context_),
          side_(side) {}
    // Asks for the certificate of `host`, and verifies it.
    void expect_host(const std::string& host) {
        SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
        NetError ignored;
        stream_.set_verify_mode(ssl::verify_peer, ignored);
        stream_.set_verify_callback(ssl::host_name_verification(host), ignored);
    }
    tcp::socket& socket() override { return stream_.next_layer(); }
    bool secure() const override { return true; }
    void handshake(std::function<void(NetError)> handler) override {
        stream_.async_handshake(side_, std::move(handler));
    }
    void read_some(asio::mutable_buffer into,
                   std::function<void(NetError, std::size_t)> handler) override {
        stream_.async_read_some(into, std::move(handler));
    }
    void write(std::vector<asio::const_buffer> buffers,
               std::function<void(NetError)> handler) override {
        asio::async_write(
            stream_, buffers,
            [handler = std::move(handler)](NetError error, std::size_t) { handler(error); });
    }
    void finish_writing(std::function<void()> handler) override {
        stream_.async_shutdown([handler = std::move(handler)](NetError) { handler(); });
    }
    void close() override {
        NetError ignored;
        stream_.next_layer().close(ignored);
    }
    std::unique_ptr<WebSocket> upgrade(WebSocketLimits limits) override {
        return make_websocket(std::move(stream_), context_, limits);
    }

  private:
    std::shared_ptr<ssl::context> context_;  // declared before `stream_`, which refers to it
    ssl::stream<tcp::socket> stream_;
    const ssl::stream_base::handshake_type side_;
};

}  // namespace

std::unique_ptr<Transport> make_plain_transport(tcp::socket socket) {
    return std::make_unique<PlainTransport>(std::move(socket));
}
std::unique_ptr<Transport> make_tls_transport(tcp::socket socket,
                                              std::shared_ptr<ssl::context> context) {
    return std::make_unique<TlsTransport>(std::move(socket), std::move(context));
}

std::unique_ptr<Transport> make_tls_client_transport(tcp::socket socket,
                                                     std::shared_ptr<ssl::context> context,
                                                     const std::string& host) {
    auto transport = std::make_unique<TlsTransport>(std::move(socket), std::move(context),
                                                    ssl::stream_base::client);
    transport->expect_host(host);
    return transport;
}

std::shared_ptr<ssl::context> make_tls_client_context(const std::string& ca_file) {
    auto context = std::make_shared<ssl::context>(ssl::context::tls_client);
    SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
    NetError error;
    if (ca_file.empty())
        context->set_default_verify_paths(error);
    else
        context->load_verify_file(ca_file, error);
    if (error)
        throw std::runtime_error(
            text(ca_file, ": cannot read certificates (PEM): ", error.message()));
    return context;
}

std::shared_ptr<ssl::context> make_tls_context(const std::string& certificate_file,
                                               const std::string& key_file) {
    auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
    SSL_CTX* raw = context->native_handle();
    SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
    SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    SSL_CTX_set_cipher_list(raw, "ECDHE+AESGCM:ECDHE+CHACHA20");
    SSL_CTX_set_ciphersuites(
        raw, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");

    NetError error;
    context->use_certificate_chain_file(certificate_file, error);
    if (error)
        throw std::runtime_error(
            text(certificate_file, ": cannot read a certificate chain (PEM): ", error.message()));

    context->use_private_key_file(key_file, ssl::context::pem, error);
    if (error)
        throw std::runtime_error(text(key_file, ": cannot read a private key (PEM) that fits ",
                                      certificate_file, ": ", error.message()));

    if (SSL_CTX_check_private_key(raw) != 1)
        throw std::runtime_error(text(key_file, ": the key does not belong to ", certificate_file));
    return context;
}

std::int64_t certificate_end(const ssl::context& context) {
    const X509* certificate = SSL_CTX_get0_certificate(
        const_cast<ssl::context&>(context).native_handle());
    std::tm end{};
    if (!certificate || ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) return 0;
    return ::timegm(&end);
}

std::vector<std::string> certificate_names(const ssl::context& context) {
    std::vector<std::string> names;
    const X509* certificate = SSL_CTX_get0_certificate(
        const_cast<ssl::context&>(context).native_handle());
    auto* alternatives = static_cast<GENERAL_NAMES*>(
        certificate ? X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)
                    : nullptr);

    for (int i = 0; i < sk_GENERAL_NAME_num(alternatives); ++i) {
        const GENERAL_NAME* name = sk_GENERAL_NAME_value(alternatives, i);
        if (name->type != GEN_DNS && name->type != GEN_IPADD) continue;

        const ASN1_STRING* value = name->type == GEN_DNS ? name->d.dNSName : name->d.iPAddress;
        const auto* bytes = ASN1_STRING_get0_data(value);
        const auto size = static_cast<std::size_t>(ASN1_STRING_length(value));

        if (name->type == GEN_DNS) {
            names.emplace_back(reinterpret_cast<const char*>(bytes), size);
        } else if (size == 4) {
            asio::ip::address_v4::bytes_type address;
            std::copy_n(bytes, size, address.begin());
            names.push_back(asio::ip::address_v4(address).to_string());
        } else if (size == 16) {
            asio::ip::address_v6::bytes_type address;
            std::copy_n(bytes, size, address.begin());
            names.push_back(asio::ip::address_v6(address).to_string());
        }
    }

    GENERAL_NAMES_free(alternatives);
    return names;
}

}  // namespace moex::net
