#include "hub/net/front/front.h"

#include <condition_variable>
#include <stdexcept>
#include <thread>

#include "hub/base/log.h"
#include "hub/net/front/front_connection.h"
#include "hub/registry/membership.h"
#include "hub/registry/postgres_store.h"
#include "protocol/thread_name.h"

namespace moex::net {
namespace {

constexpr Duration look_every = std::chrono::milliseconds(250);
constexpr Duration drain_within = std::chrono::seconds(30);
constexpr std::uint64_t body_bytes_max = 1u << 20;

// Follows the hubs of a store on a thread of its own. While the store is away, the hubs are those
// that it had last.
class HubWatch {
  public:
    HubWatch(HubList& hubs, std::unique_ptr<PostgresStore> store)
        : hubs_(hubs),
          store_(std::move(store)),
          members_(make_membership(*store_)) {
        look();
        thread_ = std::thread([this] {
            name_thread("fleet");
            std::unique_lock lock(mutex_);
            while (!wake_.wait_for(lock, look_every, [this] { return stopping_; })) {
                lock.unlock();
                (void)store_->look();
                look();
                lock.lock();
            }
        });
    }
    ~HubWatch() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        thread_.join();
    }

  private:
    void look() {
        const auto members = members_->watch();
        if (!members.ok()) return;
        std::vector<HubList::Known> known;
        for (const Member& member : *members)
            if (auto address = HubAddress::parse(member.address); address.ok())
                known.push_back({*std::move(address), member.left_ms > 0});
        hubs_.set(known);
    }

    HubList& hubs_;
    std::unique_ptr<PostgresStore> store_;
    std::unique_ptr<Membership> members_;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace

struct Front::State {
    State(FrontOptions wanted, const FleetKey& key)
        : options(std::move(wanted)),
          front(key, options.trusted_proxies, options.body_bytes_max),
          acceptor(front.io),
          signals(front.io),
          drain_timer(front.io),
          accept_timer(front.io) {
        front.connections_max = options.connections_max;
    }

    void listen() {
        NetError error;
        const auto address = asio::ip::make_address(options.listen_address, error);
        const tcp::endpoint endpoint(address, options.port);
        if (!error) acceptor.open(endpoint.protocol(), error);
        if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
        if (!error) acceptor.bind(endpoint, error);
        if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
        if (error)
            throw std::runtime_error(text("cannot listen on ", options.listen_address, " port ",
                                          options.port, ": ", error.message()));
    }
    void accept() {
        auto strand = asio::make_strand(front.io);
        acceptor.async_accept(strand, [this, strand](NetError error, tcp::socket socket) {
            if (!acceptor.is_open()) return;
            if (error) return accept_later(error);
            serve(strand, std::move(socket));
            accept();
        });
    }
    // The process is most likely out of file descriptors.
    void accept_later(NetError error) {
        log_rarely(LogLevel::warn, "front: accept failed", kv("error", error.message()));
        accept_timer.expires_after(std::chrono::milliseconds(100));
        accept_timer.async_wait([this](NetError stopped) {
            if (!stopped && acceptor.is_open()) accept();
        });
    }
    void serve(const ClientLine::Strand& strand, tcp::socket socket) {
        NetError error;
        const auto peer = socket.remote_endpoint(error);
        if (error) return;
        if (front.connections >= front.connections_max)
            return log_rarely(LogLevel::warn, "front: a connection is refused, since it has enough",
                              kv("connections_max", front.connections_max));
        socket.set_option(tcp::no_delay(true), error);
        auto transport = tls ? make_tls_transport(std::move(socket), tls)
                             : make_plain_transport(std::move(socket));
        std::make_shared<FrontConnection>(front, strand, std::move(transport),
                                          peer.address().to_string())
            ->start();
    }
    void wait_signal() {
        signals.async_wait([this](NetError error, int) {
            if (error) return;
            NetError ignored;
            if (!acceptor.is_open()) return front.io.stop();
            log_info("front: stopping", kv("requests", front.requests.load()));
            acceptor.close(ignored);
            drain_until = now_steady() + drain_within;
            watch_drain();
            wait_signal();
        });
    }
    void watch_drain() {
        if (front.requests == 0 || now_steady() >= drain_until) return front.io.stop();
        drain_timer.expires_after(std::chrono::milliseconds(20));
        drain_timer.async_wait([this](NetError error) {
            if (!error) watch_drain();
        });
    }

    const FrontOptions options;
    FrontContext front;
    std::shared_ptr<ssl::context> tls;
    tcp::acceptor acceptor;
    asio::signal_set signals;
    asio::steady_timer drain_timer, accept_timer;
    TimePoint drain_until{};
    std::unique_ptr<HubWatch> watch;
};

Front::Front(FrontOptions options, const FleetKey& key)
    : state_(std::make_unique<State>(std::move(options), key)) {
    State& state = *state_;
    const FrontOptions& wanted = state.options;
    state.front.gate.body_bytes_max = body_bytes_max;
    state.front.hub_tls = make_tls_client_context(wanted.hub_ca_file);
    if (wanted.tls_cert.empty() != wanted.tls_key.empty())
        throw std::runtime_error("TLS wants both --tls-cert and --tls-key");
    if (!wanted.tls_cert.empty()) state.tls = make_tls_context(wanted.tls_cert, wanted.tls_key);

    std::vector<HubList::Known> hubs;
    for (const std::string& url : wanted.hub_urls) {
        auto address = HubAddress::parse(url);
        if (!address.ok()) throw std::runtime_error(text("--hub: ", address.error().message));
        hubs.push_back({*std::move(address)});
    }
    state.front.hubs.set(hubs);
    if (!wanted.store_url.empty()) {
        const auto address = PostgresAddress::parse(wanted.store_url);
        if (!address.ok()) throw std::runtime_error(address.error().message);
        auto store = PostgresStore::open(*address);
        if (!store.ok()) throw std::runtime_error(store.error().message);
        state.watch = std::make_unique<HubWatch>(state.front.hubs, *std::move(store));
    }
    state.listen();
}

Front::~Front() = default;

std::string Front::base_url() const {
    const auto endpoint = state_->acceptor.local_endpoint();
    const std::string host = endpoint.address().is_v6()
                                 ? text('[', endpoint.address().to_string(), ']')
                                 : endpoint.address().to_string();
    return text(state_->tls ? "https://" : "http://", host, ':', endpoint.port());
}

void Front::run() {
    State& state = *state_;
    for (const int number : {SIGINT, SIGTERM}) state.signals.add(number);
    state.wait_signal();
    state.accept();
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
        threads.emplace_back([&state] {
            name_thread("net");
            state.front.io.run();
        });
    for (std::thread& thread : threads) thread.join();
    const FrontContext& front = state.front;
    log_info("front: stopped", kv("followed", front.followed.load()),
             kv("repeated", front.repeated.load()), kv("failed", front.failed.load()));
}

}  // namespace moex::net
