#include "hub/net/server.h"

#include <algorithm>
#include <condition_variable>
#include <stdexcept>
#include <thread>

#include "hub/base/log.h"
#include "hub/net/health_watch.h"
#include "hub/net/host_watch.h"
#include "hub/net/housekeeping.h"
#include "hub/net/http/transport.h"
#include "hub/net/listener.h"
#include "protocol/spin_wait.h"
#include "protocol/thread_name.h"

namespace moex::net {
namespace {

// The strand and timer of the swarm.
class StrandHost : public SwarmHost {
  public:
    explicit StrandHost(HubContext& hub) : hub_(hub), timer_(hub.swarm_strand) {}
    void post(std::function<void()> function) override {
        asio::post(hub_.swarm_strand, std::move(function));
    }
    void set_timer(TimePoint at, std::function<void()> function) override {
        timer_.expires_at(at);
        timer_.async_wait([function = std::move(function)](NetError error) {
            if (!error) function();
        });
    }
    void cancel() { timer_.cancel(); }

  private:
    HubContext& hub_;
    asio::steady_timer timer_;
};

// Returns the IP address under which other machines reach this machine: the source address of the
// default route. No packet is sent.
std::string outward_address(asio::io_context& io, bool v6) {
    NetError error;
    asio::ip::udp::socket socket(io);
    // addresses of the ranges for documentation; none is contacted
    const asio::ip::udp::endpoint somewhere(
        asio::ip::make_address(v6 ? "2001:db8::1" : "192.0.2.1"), 9);
    socket.open(somewhere.protocol(), error);
    if (!error) socket.connect(somewhere, error);
    return error ? (v6 ? "::1" : "127.0.0.1") : socket.local_endpoint(error).address().to_string();
}

std::shared_ptr<ssl::context> read_tls(const ServerOptions& options) {
    if (options.tls_cert.empty() != options.tls_key.empty())
        throw std::runtime_error("TLS wants both --tls-cert and --tls-key");
    return options.tls_cert.empty()
               ? nullptr
               : make_tls_context(options.tls_cert.string(), options.tls_key.string());
}

std::vector<std::string> with_names(std::vector<std::string> hosts,
                                    const std::vector<std::string>& certified) {
    hosts.insert(hosts.end(), certified.begin(), certified.end());
    return hosts;
}

}  // namespace

struct Server::State {
    State(ServerOptions options, std::shared_ptr<const ModelPackage> package, Registry& registry,
          std::vector<std::string> hosts)
        : hub(std::move(options), std::move(package), registry, std::move(hosts)),
          routes(hub),
          host(hub),
          housekeeping(hub),
          health_watch(hub),
          host_watch(hub),
          drain_timer(hub.swarm_strand),
          signals(hub.swarm_strand) {}

    HubContext hub;
    Routes routes;
    StrandHost host;
    Housekeeping housekeeping;
    HealthWatch health_watch;
    HostWatch host_watch;
    std::unique_ptr<Listener> listener;
    asio::steady_timer drain_timer;
    asio::signal_set signals;
    asio::executor_work_guard<asio::io_context::executor_type> work{hub.io.get_executor()};
    std::vector<std::thread> threads;
    std::vector<std::string> certified;  // names of the TLS certificate at the start
    std::atomic<int> stops{0};
    std::atomic<bool> finished{false};
    TimePoint drain_until{};

    // Returns the name of this hub for other machines: a name that the operator configured, the IP
    // address if the certificate contains it, or a name of the certificate.
    std::string outward_name(const std::vector<std::string>& certified) {
        if (!hub.options.hosts.empty()) return host_of_address(hub.options.hosts[0]);
        std::string address = outward_address(hub.io, hub.options.listen_address == "::");
        if (certified.empty() ||
            std::find(certified.begin(), certified.end(), address) != certified.end())
            return address;
        const auto fits = [](const std::string& name) {
            return name.find('*') == std::string::npos && !is_loopback_address(name);
        };
        const auto found = std::find_if(certified.begin(), certified.end(), fits);
        return found == certified.end() ? address : *found;
    }

    void name_urls(bool tls, const std::vector<std::string>& certified) {
        if (!hub.options.trusted_proxies.empty() && !hub.options.hosts.empty()) {
            // use the scheme of the trusted proxy: pages that use WebGPU need TLS
            hub.base_url = "https://" + hub.options.hosts[0];
            while (hub.base_url.ends_with('/')) hub.base_url.pop_back();
            return;
        }
        std::string name = hub.options.listen_address;
        if (name == "0.0.0.0" || name == "::") name = outward_name(certified);
        if (name.find(':') != std::string::npos) name = text('[', name, ']');
        hub.base_url = text(tls ? "https://" : "http://", name, ':', listener->port());
    }

    // An exception ends the handler that threw it, and not the hub.
    void run_io(Duration spin_max) {
        name_thread("net");
        SpinWait<std::chrono::steady_clock> spin(spin_max);
        for (;;) try {
                while (spin.look([&] { return hub.io.poll() > 0; }) || hub.io.run_one() > 0)
                    spin.came();
                return;
            } catch (const std::exception& failure) {
                log_rarely(LogLevel::error, "http: a handler failed", kv("error", failure.what()));
            }
    }

    // Handles SIGHUP: certificate, access log, keys and settings may have been replaced. A file
    // that cannot be read keeps its old content in force.
    void on_signal(int number) {
        if (number != SIGHUP) return begin_stop();
        try {
            if (auto tls = read_tls(hub.options)) {
                host_watch.serve_certificate_until(certificate_end(*tls));
                listener->replace_tls(std::move(tls));
                log_info("http: certificate read again");
            }
        } catch (const std::exception& failure) {
            log_error("http: the old certificate stays", kv("error", failure.what()));
        }
        try {
            hub.access_log.reopen();
        } catch (const std::exception& failure) {
            log_error("http: the old access log stays", kv("error", failure.what()));
        }
        if (hub.options.on_reload) asio::post(hub.disk_thread, hub.options.on_reload);
    }
    void wait_signal() {
        signals.async_wait([this](NetError error, int number) {
            if (error) return;
            wait_signal();
            on_signal(number);
        });
    }

    void begin_stop() {
        const int stop_number = ++stops;
        if (stop_number == 2) log_info("http: stops at once");
        asio::post(hub.swarm_strand, [this, stop_number] {
            if (stop_number > 1) return close_everything();
            log_info("http: draining", kv("requests", hub.active_requests.load()));
            hub.draining = true;
            if (Engine* engine = hub.engine) engine->drain();
            drain_until = now_steady() + hub.live()->drain_within;
            watch_drain();
        });
    }

    // End the streams of clients first and the workers' connections after them, because workers
    // compute for the streams.
    void watch_drain() {
        Engine* engine = hub.engine;
        const bool idle = (!engine || engine->idle()) && hub.active_requests == 0;
        if (idle || now_steady() >= drain_until) return close_everything();
        drain_timer.expires_after(20ms);
        drain_timer.async_wait([this](NetError error) {
            if (!error) watch_drain();
        });
    }

    bool closing = false;
    TimePoint close_until{};
    void close_everything() {  // swarm strand
        if (closing) return;
        closing = true;
        hub.draining = true;
        drain_timer.cancel();
        housekeeping.finish();
        if (SwarmBackend* swarm = hub.swarm) swarm->drain(Duration{0});
        hub.worker_connections->shut_all();
        listener->stop();
        hub.http_connections->shut_all();
        close_until = now_steady() + 3s;
        watch_close();
    }
    void watch_close() {
        // A second stop() does not wait for the peers to close.
        const bool gone = hub.worker_connections->size() == 0 && hub.http_connections->size() == 0;
        if (!gone && stops < 2 && now_steady() < close_until) {
            drain_timer.expires_after(10ms);
            drain_timer.async_wait([this](NetError error) {
                if (!error) watch_close();
            });
            return;
        }
        housekeeping.stop();
        health_watch.stop();
        host_watch.stop();
        {
            const std::unique_lock rooms(hub.attached_mutex);
            hub.api = nullptr;  // the caller may destroy engine, swarm and API after run()
            hub.swarm = nullptr;
            hub.engine = nullptr;
        }
        hub.registry.flush();
        NetError ignored;
        signals.cancel(ignored);
        finished = true;
        finished.notify_all();
    }
};

Server::Server(ServerOptions options, std::shared_ptr<const ModelPackage> package,
               Registry& registry) {
    const auto tls = read_tls(options);
    const std::vector<std::string> certified = tls ? certificate_names(*tls)
                                                   : std::vector<std::string>();
    std::vector<std::string> hosts = with_names(options.hosts, certified);
    state_ = std::make_unique<State>(std::move(options), std::move(package), registry,
                                     std::move(hosts));
    state_->certified = certified;

    HubContext& hub = state_->hub;
    if (const Status allowed = check_address(hub.options); !allowed.ok())
        throw std::runtime_error(allowed.error().message);

    hub.keys_required = keys_required(hub.options);
    state_->listener = std::make_unique<Listener>(hub, state_->routes, tls);
    state_->name_urls(tls != nullptr, certified);

    if (tls) state_->host_watch.serve_certificate_until(certificate_end(*tls));
    state_->host_watch.look();

    if (const auto url = hub.join_url(); !url.ok()) throw std::runtime_error(url.error().message);

    registry.watch_keys([&hub] {
        const std::shared_lock attached(hub.attached_mutex);
        if (hub.api) hub.accounts.end_dead_keys();
    });
}

Server::~Server() {
    State& state = *state_;
    state.hub.registry.watch_keys(nullptr);
    state.hub.disk_thread.join();
    state.hub.hash_threads.join();
    state.hub.swarm = nullptr;

    state.work.reset();
    state.hub.io.stop();
    for (std::thread& thread : state.threads) thread.join();

    // Destroy the handlers that are still queued. They release their connections here, while all
    // objects that they use still exist.
    state.hub.http_connections->shut_all();
    state.hub.worker_connections->shut_all();
    state.host.cancel();
    state.hub.io.restart();
    state.hub.io.poll();
}

std::uint16_t Server::port() const { return state_->listener->port(); }
std::string Server::base_url() const { return state_->hub.base_url; }
std::string Server::join_url() const { return state_->hub.join_url().value(); }
std::string Server::make_admin_url() const {
    const Result<std::string> token = state_->hub.registry.make_claim();
    if (!token.ok()) throw std::runtime_error(token.error().message);
    return text(state_->hub.base_url, "/admin.html#once=", *token);
}
Server::Load Server::load() const {
    const HubContext& hub = state_->hub;
    return {hub.active_requests, hub.workers_connected, hub.units, hub.units_missing,
            hub.units_thin};
}
SwarmHost& Server::swarm_host() { return state_->host; }

void Server::give_layers(WholeLayers layers) { state_->hub.layers = std::move(layers); }

void Server::attach(SwarmBackend& swarm, Engine& engine, Api& api) {
    state_->hub.engine = &engine;
    state_->hub.api = &api;
    state_->hub.swarm = &swarm;
    state_->health_watch.look();
}

ApiObserver Server::api_observer() {
    HubContext& hub = state_->hub;
    ApiObserver observer;
    observer.on_finished = [&hub](const char* reason) { hub.metrics.on_finished(reason); };
    observer.on_latency = [&hub](double ttft_s, double e2e_s, double gap_s, double queue_s) {
        hub.metrics.on_latency(ttft_s, e2e_s, gap_s, queue_s);
        ++hub.answers_begun;
        hub.first_token_us += static_cast<std::uint64_t>(ttft_s * 1e6);
    };
    observer.has_lied = [&hub = state_->hub](std::uint64_t worker) {
        const SwarmBackend* swarm = hub.swarm;
        return swarm != nullptr && swarm->has_lied(worker);
    };
    return observer;
}

void Server::on_worker_event(const WorkerEvent& event) {
    HubContext& hub = state_->hub;
    hub.metrics.on_worker_event(event.kind);
    state_->health_watch.look();
    if (event.kind == WorkerEvent::Kind::joined) hub.contributors.joined(event.worker);
    state_->housekeeping.on_worker_event(event);
    SwarmBackend* swarm = hub.swarm;
    if (swarm != nullptr &&
        (event.kind == WorkerEvent::Kind::left || event.kind == WorkerEvent::Kind::removed ||
         event.kind == WorkerEvent::Kind::banned))
        hub.contributors.left(*event.view, swarm->core().options().checks.on);
    if (event.kind == WorkerEvent::Kind::removed && event.code &&
        *event.code != CloseCode::going_away)
        hub.metrics.on_ejection(*event.code);
}

void Server::run(std::size_t num_threads, Duration spin_max) {
    State& state = *state_;
    if (state.hub.options.handle_signals) {
        NetError ignored;
        for (const int number : {SIGINT, SIGTERM, SIGHUP}) state.signals.add(number, ignored);
        state.wait_signal();
    }

    asio::post(state.hub.disk_thread, [] { name_thread("disk"); });
    state.listener->start();
    state.housekeeping.start();
    state.health_watch.start();
    state.host_watch.start();

    // The calling thread only waits, because a wake-up meant for this thread could reach another
    // thread. The other threads serve the strand after run() has returned, for the objects that
    // stop then.
    for (std::size_t i = 0; i < std::max<std::size_t>(num_threads, 2); ++i)
        state.threads.emplace_back([&state, spin_max] { state.run_io(spin_max); });
    state.finished.wait(false);
}

void Server::change(const ServerOptions& options) {
    state_->hub.change(options, with_names(options.hosts, state_->certified));
}

void Server::stop() { state_->begin_stop(); }

}  // namespace moex::net
