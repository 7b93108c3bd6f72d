#include "web-worker/native/native_platform.h"

#include <deque>
#include <iostream>
#include <map>
#include <random>

#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/native/asio.h"

namespace moex::native {
namespace {

// One WebSocket connection, plain or TLS. Calls `core` only while it is the platform's present one.
class Socket : public std::enable_shared_from_this<Socket> {
  public:
    virtual ~Socket() = default;
    virtual void open() = 0;
    virtual void send(ByteView frame) = 0;
    virtual void close(std::uint16_t code, std::string reason) = 0;

    std::function<void()> on_open;
    std::function<void(ByteView)> on_frame;
    std::function<void()> on_text;
    std::function<void(std::uint16_t, std::string)> on_closed;  // once
};

template <class Stream>
class SocketOver : public Socket {
  public:
    template <class... Arguments>
    SocketOver(asio::io_context& io, const NativeOptions& options, Arguments&&... arguments)
        : options_(options),
          resolver_(io),
          socket_(io, std::forward<Arguments>(arguments)...) {}

    void open() override {
        resolver_.async_resolve(
            options_.fetch.hub.host, options_.fetch.hub.port,
            [this, self = shared_from_this()](beast::error_code error, auto found) {
                if (closing_) return;  // said already
                if (error)
                    return end(
                        1006, text("cannot find ", options_.fetch.hub.host, ": ", error.message()));
                auto& lowest = beast::get_lowest_layer(socket_);
                lowest.expires_after(std::chrono::seconds(15));
                lowest.async_connect(
                    found, [this, self](beast::error_code failed, const tcp::endpoint&) {
                        if (closing_) return;
                        if (failed)
                            return end(1006, text("cannot reach the hub: ", failed.message()));
                        beast::error_code ignored;
                        beast::get_lowest_layer(socket_).socket().set_option(tcp::no_delay(true),
                                                                             ignored);
                        secure();
                    });
            });
    }
    void send(ByteView frame) override {
        outbox_.emplace_back(frame.begin(), frame.end());
        if (outbox_.size() == 1 && opened_) write();
    }
    void close(std::uint16_t code, std::string reason) override {
        if (std::exchange(closing_, true)) return;  // one closing handshake
        if (!opened_) {
            resolver_.cancel();
            beast::get_lowest_layer(socket_).close();
            return end(code, std::move(reason));
        }
        socket_.async_close(websocket::close_reason(static_cast<websocket::close_code>(code),
                                                    reason.substr(0, 120)),
                            [this, self = shared_from_this(), code, reason](beast::error_code) {
                                end(code, reason);
                            });
    }

  private:
    void secure() {
        if constexpr (std::is_same_v<Stream, beast::ssl_stream<beast::tcp_stream>>) {
            auto& tls = socket_.next_layer();
            SSL_set_tlsext_host_name(tls.native_handle(), options_.fetch.hub.host.c_str());
            if (!options_.fetch.insecure_tls)
                tls.set_verify_callback(ssl::host_name_verification(options_.fetch.hub.host));
            tls.async_handshake(ssl::stream_base::client, [this, self = this->shared_from_this()](
                                                              beast::error_code error) {
                if (closing_) return;
                if (error)
                    return end(1006, text("TLS: ", error.message(),
                                          "; --ca FILE trusts a certificate of your own"));
                upgrade();
            });
        } else {
            upgrade();
        }
    }
    void upgrade() {
        beast::get_lowest_layer(socket_).expires_never();
        websocket::stream_base::timeout timeout = websocket::stream_base::timeout::suggested(
            beast::role_type::client);
        socket_.set_option(timeout);
        socket_.read_message_max(frame_bytes_max);
        socket_.binary(true);
        socket_.set_option(websocket::stream_base::decorator(
            [token = options_.token](websocket::request_type& request) {
                if (!token.empty()) request.set(http::field::authorization, text("Bearer ", token));
            }));
        socket_.async_handshake(
            response_, options_.fetch.hub.authority(), "/worker",
            [this, self = this->shared_from_this()](beast::error_code error) {
                if (closing_) return;
                // A refused upgrade with 401 or 403 is final: the token is wrong.
                const unsigned status = response_.result_int();
                if (error && (status == 401 || status == 403))
                    return end(1008, text("the hub answered ", status, " to the join token"));
                if (error) return end(1006, text("the hub refused the upgrade: ", error.message()));
                opened_ = true;
                on_open();
                if (!outbox_.empty()) write();
                read();
            });
    }
    void read() {
        socket_.async_read(
            buffer_, [this, self = this->shared_from_this()](beast::error_code error, std::size_t) {
                if (error) {
                    const auto& reason = socket_.reason();
                    if (error == websocket::error::closed)
                        return end(reason.code,
                                   std::string(reason.reason.data(), reason.reason.size()));
                    return end(1006, error.message());
                }
                if (!closing_ && socket_.got_text()) {
                    on_text();
                } else if (!closing_) {
                    const auto data = buffer_.data();
                    on_frame(ByteView(static_cast<const std::byte*>(data.data()), data.size()));
                }
                buffer_.consume(buffer_.size());
                read();
            });
    }
    void write() {
        socket_.async_write(
            asio::buffer(outbox_.front().data(), outbox_.front().size()),
            [this, self = this->shared_from_this()](beast::error_code error, std::size_t) {
                if (error) return;  // the read ends it
                outbox_.pop_front();
                if (!outbox_.empty()) write();
            });
    }
    void end(std::uint16_t code, std::string reason) {
        if (auto handler = std::exchange(on_closed, nullptr)) handler(code, std::move(reason));
    }

    const NativeOptions& options_;
    tcp::resolver resolver_;
    websocket::stream<Stream> socket_;
    websocket::response_type response_;
    beast::flat_buffer buffer_;
    std::deque<Bytes> outbox_;
    bool opened_ = false, closing_ = false;
};

class NativePlatform : public Platform {
  public:
    NativePlatform(asio::io_context& io, const NativeOptions& options,
                   std::function<void(const WorkerStatus&)> on_status)
        : io_(io),
          options_(options),
          on_status_(std::move(on_status)),
          fetcher_(options.fetch,
                   [this](std::function<void()> function) { post(std::move(function)); }) {
        if (options.fetch.hub.tls) {
            tls_.set_default_verify_paths();
            if (!options.fetch.ca_file.empty()) tls_.load_verify_file(options.fetch.ca_file);
            tls_.set_verify_mode(options.fetch.insecure_tls ? ssl::verify_none : ssl::verify_peer);
        }
    }
    void set_core(WorkerCore* core) { core_ = core; }
    void post(std::function<void()> function) { asio::post(io_, std::move(function)); }

    void connect() override {
        if (options_.fetch.hub.tls)
            socket_ = std::make_shared<SocketOver<beast::ssl_stream<beast::tcp_stream>>>(
                io_, options_, tls_);
        else
            socket_ = std::make_shared<SocketOver<beast::tcp_stream>>(io_, options_);
        const std::weak_ptr<Socket> mine = socket_;
        const auto present = [this, mine] {
            return core_ != nullptr && socket_ != nullptr && mine.lock() == socket_;
        };
        socket_->on_open = [this, present] {
            if (present()) core_->on_open();
        };
        socket_->on_text = [this, present] {
            if (present()) core_->on_text();
        };
        socket_->on_frame = [this, present](ByteView frame) {
            if (present()) core_->on_frame(frame);
        };
        // Never inside connect() or close(): the core expects to be called afterwards.
        socket_->on_closed = [this, present](std::uint16_t code, std::string reason) {
            post([this, present, code, reason = std::move(reason)] {
                if (!present()) return;
                socket_.reset();
                core_->on_closed(code, reason);
            });
        };
        socket_->open();
    }
    void send(ByteView frame) override {
        if (socket_) socket_->send(frame);
    }
    void close(std::uint16_t code, std::string_view reason) override {
        if (socket_) socket_->close(code, std::string(reason));
    }
    bool connected() const { return socket_ != nullptr; }

    void fetch_blob(const Sha256& hash, std::uint64_t size_bytes,
                    std::function<void(std::uint64_t, bool)> progress,
                    std::function<void(Result<Bytes>)> done) override {
        fetcher_.fetch(hash, size_bytes, std::move(progress), std::move(done));
    }
    void cancel_fetches() override { fetcher_.cancel(); }

    double now_ms() override {
        return std::chrono::duration<double, std::milli>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
    std::uint64_t set_timer(double delay_ms, std::function<void()> function) override {
        const std::uint64_t id = ++last_timer_;
        auto timer = std::make_unique<asio::steady_timer>(
            io_, std::chrono::microseconds(static_cast<std::int64_t>(delay_ms * 1000)));
        timer->async_wait([this, id, function = std::move(function)](beast::error_code error) {
            if (error || timers_.erase(id) == 0) return;
            function();
        });
        timers_[id] = std::move(timer);
        return id;
    }
    void clear_timer(std::uint64_t timer) override { timers_.erase(timer); }
    double random() override { return std::uniform_real_distribution<double>(0, 1)(generator_); }

    void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) override {
        post([this, done = std::move(done)] {
            done(gpu::open_vulkan_device(
                {.device = options_.device},
                [this](std::function<void()> function) { post(std::move(function)); }));
        });
    }
    void report(const WorkerStatus& status) override { on_status_(status); }

  private:
    asio::io_context& io_;
    const NativeOptions& options_;
    std::function<void(const WorkerStatus&)> on_status_;
    ssl::context tls_{ssl::context::tls_client};
    WorkerCore* core_ = nullptr;
    std::shared_ptr<Socket> socket_;
    std::uint64_t last_timer_ = 0;
    std::map<std::uint64_t, std::unique_ptr<asio::steady_timer>> timers_;
    std::mt19937_64 generator_{std::random_device{}()};
    BlobFetcher fetcher_;
};

}  // namespace

int run_native_worker(const NativeOptions& options, WorkerOptions worker,
                      std::function<void(const WorkerStatus&)> on_status) {
    asio::io_context io;
    auto keep_running = asio::make_work_guard(io);
    int exit_code = 0;
    NativePlatform platform(io, options, [&](const WorkerStatus& status) {
        on_status(status);
        if (status.phase == WorkerPhase::failed || status.phase == WorkerPhase::refused) {
            exit_code = 1;
            asio::post(io, [&io] { io.stop(); });
        }
    });
    auto core = std::make_unique<WorkerCore>(platform, std::move(worker));
    platform.set_core(core.get());
    asio::signal_set signals(io, SIGINT, SIGTERM);
    asio::steady_timer patience(io);
    // Leaves: closes with 1001 and goes when the hub has answered,
    // or after two seconds; a second signal goes at once.
    signals.async_wait([&](beast::error_code error, int) {
        if (error) return;
        core->stop();
        signals.async_wait([&](beast::error_code again, int) {
            if (!again) io.stop();
        });
        patience.expires_after(std::chrono::seconds(2));
        patience.async_wait([&](beast::error_code) { io.stop(); });
        auto check = std::make_shared<std::function<void()>>();
        *check = [&, check] {
            if (!platform.connected()) return io.stop();
            platform.set_timer(10, *check);
        };
        (*check)();
    });
    asio::post(io, [&] { core->start(); });
    io.run();
    platform.set_core(nullptr);
    core.reset();
    return exit_code;
}

}  // namespace moex::native
