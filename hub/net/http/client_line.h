// One request to a hub, and its answer as it arrives. Every call is made, and every event runs, on
// the strand that is given. The connection is closed after the answer.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/net/http/asio.h"
#include "hub/net/http/reply_reader.h"
#include "hub/net/http/transport.h"
#include "protocol/result.h"

namespace moex::net {

// The address of a hub: http://127.0.0.1:8080, https://hub.example.
struct HubAddress {
    std::string host, port;
    bool secure = false;
    static Result<HubAddress> parse(std::string_view url);
    std::string authority() const;  // of the Host header
    std::string url() const;
};

struct ClientRequest {
    std::string method, target;
    std::vector<std::pair<std::string, std::string>> headers;  // without Host and Content-Length
    std::string body;
};

class ClientLine : public std::enable_shared_from_this<ClientLine> {
  public:
    enum class End {
        whole,        // the answer is complete
        cut,          // the connection ended before that
        refused,      // no program listens at the address
        unreachable,  // there is no connection, for another reason
        silent,       // nothing arrived for too long
    };
    struct Events {
        std::function<void(const ReplyHead&)> on_head;
        std::function<void(std::string_view)> on_body;
        std::function<void(End)> on_end;  // once, last; not after close()
    };
    using Strand = asio::strand<asio::io_context::executor_type>;
    // A hub pings a stream every 15 s, and an answer that takes longer is announced.
    static constexpr Duration silence = std::chrono::seconds(60);
    // `tls` is used for https addresses, and verifies the hub's name. `silent_max`: how long
    // nothing may arrive, unless the line is paused.
    ClientLine(Strand strand, HubAddress address, std::shared_ptr<ssl::context> tls, Events events,
               Duration silent_max = silence);
    void start(const ClientRequest& request);
    void pause() { paused_ = true; }  // reads no more until resume()
    void resume();
    void close();  // no event runs after this

  private:
    void connect(const tcp::resolver::results_type& found);
    void on_connected();
    void read();
    void on_read(NetError error, std::size_t size);
    void finish(End end);
    void wait_at_most(Duration duration);

    const Strand strand_;
    const HubAddress address_;
    const std::shared_ptr<ssl::context> tls_;
    Events events_;
    const Duration silent_max_;
    tcp::resolver resolver_;
    std::optional<tcp::socket> connecting_;
    std::unique_ptr<Transport> transport_;
    asio::steady_timer timer_;
    std::string out_;
    std::array<char, 16384> buffer_;
    ReplyReader reader_;
    bool has_head_ = false, paused_ = false, reading_ = false, over_ = false;
};

}  // namespace moex::net
