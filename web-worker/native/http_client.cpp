#include "web-worker/native/http_client.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "web-worker/native/beast.h"

namespace moex::native {
namespace {
constexpr auto operation_max = std::chrono::seconds(30);
constexpr auto stop_check = std::chrono::milliseconds(100);
constexpr std::size_t piece_bytes = 64 << 10;
}  // namespace

struct HttpClient::Connection {
    asio::io_context io;
    ssl::context tls{ssl::context::tls_client};
    std::optional<beast::tcp_stream> plain;
    std::optional<TlsStream> secure;
    beast::flat_buffer buffer;
    std::array<std::byte, piece_bytes> piece;
    const std::atomic<bool>* stopping = nullptr;

    void open(const HubAddress& hub) {
        // Beast reads as many bytes as the buffer has room for; a new one has room for 512.
        buffer.reserve(piece_bytes);
        tcp::resolver resolver(io);
        const auto found = resolver.resolve(hub.url.host, hub.url.port);
        if (!hub.url.tls) {
            plain.emplace(io);
            wait([&](auto done) { plain->async_connect(found, done); });
            return;
        }
        set_trust(tls, hub);
        secure.emplace(io, tls);
        expect_host(*secure, hub);
        wait([&](auto done) { beast::get_lowest_layer(*secure).async_connect(found, done); });
        wait([&](auto done) { secure->async_handshake(ssl::stream_base::client, done); });
    }

    // Runs one asynchronous operation until it is over. Beast applies deadlines to asynchronous
    // operations only.
    template <class Start>
    beast::error_code try_wait(Start start) {
        (secure ? beast::get_lowest_layer(*secure) : *plain).expires_after(operation_max);
        beast::error_code result = asio::error::operation_aborted;
        start([&result](beast::error_code error, auto&&...) { result = error; });
        io.restart();
        while (io.run_for(stop_check), !io.stopped())
            if (stopping != nullptr && *stopping) {
                (secure ? beast::get_lowest_layer(*secure) : *plain).cancel();
                io.run();
            }
        return result;
    }
    template <class Start>
    void wait(Start start) {
        if (const beast::error_code error = try_wait(start)) throw beast::system_error(error);
    }

    // Reads a body of `left` bytes: what was read behind the head, then the others straight into
    // the reader's memory. Beast's parser would copy them twice. Returns false if the reader
    // stopped.
    template <class Stream>
    bool read_plain(Stream& stream, std::uint64_t left, const Reader& reader) {
        while (left > 0) {
            std::span<std::byte> room;
            if (reader.room) room = reader.room();
            if (room.empty()) room = piece;
            room = room.first(static_cast<std::size_t>(std::min<std::uint64_t>(room.size(), left)));
            std::size_t got = asio::buffer_copy(asio::buffer(room.data(), room.size()),
                                                buffer.data());
            buffer.consume(got);
            if (got == 0) {
                const beast::error_code error = try_wait([&](auto done) {
                    stream.async_read_some(
                        asio::buffer(room.data(), room.size()),
                        [&got, done](beast::error_code code, std::size_t bytes) mutable {
                            got = bytes;
                            done(code);
                        });
                });
                if (error) throw beast::system_error(error);
            }
            left -= got;
            if (!reader.take(room.first(got))) return false;
        }
        return true;
    }

    // Reads a body of unknown length.
    template <class Stream, class Parser>
    bool read_chunks(Stream& stream, Parser& parser, const Reader& reader) {
        auto& body = parser.get().body();
        while (!parser.is_done()) {
            body.data = piece.data();
            body.size = piece.size();
            const beast::error_code error = try_wait(
                [&](auto done) { http::async_read_some(stream, buffer, parser, done); });
            if (error && error != http::error::need_buffer) throw beast::system_error(error);
            if (!reader.take(ByteView(piece.data(), piece.size() - body.size))) return false;
        }
        return true;
    }

    // Reads one response. Returns false if the connection cannot be used again, or if the reader
    // stopped.
    template <class Stream>
    bool get(Stream& stream, const http::request<http::empty_body>& request, const Reader& reader) {
        wait([&](auto done) { http::async_write(stream, request, done); });

        http::response_parser<http::buffer_body> parser;
        parser.body_limit(std::numeric_limits<std::uint64_t>::max());  // `take` counts
        wait([&](auto done) { http::async_read_header(stream, buffer, parser, done); });
        if (!reader.begin(parser.get().result_int())) return false;

        const auto length = parser.content_length();
        const bool is_whole = length ? read_plain(stream, *length, reader)
                                     : read_chunks(stream, parser, reader);
        return is_whole && parser.get().keep_alive();
    }
};

HttpClient::HttpClient(HubAddress hub, const std::atomic<bool>* stopping)
    : hub_(std::move(hub)),
      stopping_(stopping) {}
HttpClient::~HttpClient() = default;

Status HttpClient::get(std::string_view path, std::uint64_t first, const Reader& reader) try {
    if (!connection_) {
        connection_ = std::make_unique<Connection>();
        connection_->stopping = stopping_;
        connection_->open(hub_);
    }
    http::request<http::empty_body> request{http::verb::get,
                                            beast::string_view(path.data(), path.size()), 11};
    request.set(http::field::host, hub_.url.authority());
    if (first > 0) request.set(http::field::range, text("bytes=", first, "-"));

    Connection& open = *connection_;
    const bool keep = open.secure ? open.get(*open.secure, request, reader)
                                  : open.get(*open.plain, request, reader);
    if (!keep) connection_.reset();
    return {};
} catch (const std::exception& error) {
    connection_.reset();
    return Error{ErrorCode::unavailable, error.what()};
}

}  // namespace moex::native
