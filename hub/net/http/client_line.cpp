#include "hub/net/http/client_line.h"

#include "protocol/text.h"

namespace moex::net {
namespace {

constexpr Duration connect_within = std::chrono::seconds(3);

}  // namespace

Result<HubAddress> HubAddress::parse(std::string_view url) {
    HubAddress address;
    const std::string shown(url.substr(0, 200));
    const auto wrong = [&] {
        return Error{ErrorCode::invalid_argument,
                     text("wanted http://HOST:PORT or https://HOST, found \"", shown, '"')};
    };
    if (url.starts_with("https://"))
        address.secure = true;
    else if (!url.starts_with("http://"))
        return wrong();
    url.remove_prefix(address.secure ? 8 : 7);
    while (url.ends_with('/')) url.remove_suffix(1);
    if (url.empty() || url.find_first_of("/?#@ ") != std::string_view::npos) return wrong();

    address.port = address.secure ? "443" : "80";
    const std::size_t bracket = url.rfind(']'), colon = url.rfind(':');
    if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
        address.port = url.substr(colon + 1);
        url = url.substr(0, colon);
        if (address.port.empty() ||
            address.port.find_first_not_of("0123456789") != std::string::npos)
            return wrong();
    }
    if (url.starts_with('[') && url.ends_with(']')) url = url.substr(1, url.size() - 2);
    address.host = url;
    if (address.host.empty()) return wrong();
    return address;
}

std::string HubAddress::authority() const {
    const bool is_v6 = host.find(':') != std::string::npos;
    return is_v6 ? text('[', host, "]:", port) : text(host, ':', port);
}
std::string HubAddress::url() const { return text(secure ? "https://" : "http://", authority()); }

ClientLine::ClientLine(Strand strand, HubAddress address, std::shared_ptr<ssl::context> tls,
                       Events events, Duration silent_max)
    : strand_(std::move(strand)),
      address_(std::move(address)),
      tls_(std::move(tls)),
      events_(std::move(events)),
      silent_max_(silent_max),
      resolver_(strand_),
      timer_(strand_) {}

void ClientLine::start(const ClientRequest& request) {
    out_ = text(request.method, ' ', request.target, " HTTP/1.1\r\nHost: ", address_.authority(),
                "\r\n");
    for (const auto& [name, value] : request.headers) out_ += text(name, ": ", value, "\r\n");
    if (!request.body.empty() || request.method == "POST")
        out_ += text("Content-Length: ", request.body.size(), "\r\n");
    out_ += "Connection: close\r\n\r\n";
    out_ += request.body;

    wait_at_most(connect_within);
    NetError error;
    const auto numeric = asio::ip::make_address(address_.host, error);
    if (!error) {
        const auto port = static_cast<std::uint16_t>(std::stoul(address_.port));
        return connect(tcp::resolver::results_type::create(tcp::endpoint(numeric, port),
                                                           address_.host, address_.port));
    }
    resolver_.async_resolve(address_.host, address_.port,
                            [self = shared_from_this()](NetError failure, const auto& found) {
                                if (self->over_) return;
                                if (failure) return self->finish(End::unreachable);
                                self->connect(found);
                            });
}

void ClientLine::connect(const tcp::resolver::results_type& found) {
    connecting_.emplace(strand_);
    asio::async_connect(*connecting_, found,
                        [self = shared_from_this()](NetError error, const tcp::endpoint&) {
                            if (self->over_) return;
                            if (error == asio::error::connection_refused)
                                return self->finish(End::refused);
                            if (error) return self->finish(End::unreachable);
                            self->on_connected();
                        });
}

void ClientLine::on_connected() {
    NetError ignored;
    connecting_->set_option(tcp::no_delay(true), ignored);
    transport_ = address_.secure
                     ? make_tls_client_transport(*std::move(connecting_), tls_, address_.host)
                     : make_plain_transport(*std::move(connecting_));
    connecting_.reset();
    transport_->handshake([self = shared_from_this()](NetError error) {
        if (self->over_) return;
        if (error) return self->finish(End::cut);
        self->wait_at_most(self->silent_max_);
        self->transport_->write({asio::buffer(self->out_)}, [self](NetError failure) {
            if (!self->over_ && failure) self->finish(End::cut);
        });
        self->read();
    });
}

void ClientLine::resume() {
    paused_ = false;
    if (transport_ && has_head_) read();
}

void ClientLine::read() {
    if (over_ || paused_ || reading_) return;
    reading_ = true;
    transport_->read_some(asio::buffer(buffer_),
                          [self = shared_from_this()](NetError error, std::size_t size) {
                              self->reading_ = false;
                              if (!self->over_) self->on_read(error, size);
                          });
}

void ClientLine::on_read(NetError error, std::size_t size) {
    using State = ReplyReader::State;
    if (error) return finish(reader_.end() == State::whole ? End::whole : End::cut);
    wait_at_most(silent_max_);
    std::string body;
    const State state = reader_.feed({buffer_.data(), size}, body);
    if (state == State::wrong) return finish(End::cut);
    if (state != State::head && !std::exchange(has_head_, true)) events_.on_head(reader_.head());
    if (!over_ && !body.empty()) events_.on_body(body);
    if (over_) return;
    if (state == State::whole) return finish(End::whole);
    read();
}

void ClientLine::finish(End end) {
    const auto on_end = std::move(events_.on_end);
    close();
    on_end(end);
}

void ClientLine::close() {
    if (std::exchange(over_, true)) return;
    timer_.cancel();
    resolver_.cancel();
    NetError ignored;
    if (connecting_) connecting_->close(ignored);
    if (transport_) transport_->close();
}

void ClientLine::wait_at_most(Duration duration) {
    timer_.expires_after(duration);
    timer_.async_wait([self = shared_from_this()](NetError error) {
        if (error || self->over_) return;
        // The hub is not asked for more while the client reads slowly.
        if (self->paused_) return self->wait_at_most(self->silent_max_);
        self->finish(self->transport_ ? End::silent : End::unreachable);
    });
}

}  // namespace moex::net
