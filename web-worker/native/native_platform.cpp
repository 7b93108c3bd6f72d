#include "web-worker/native/native_platform.h"

#include <algorithm>
#include <csignal>
#include <iostream>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "protocol/life_guard.h"
#include "protocol/spin_wait.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/native/asio.h"
#include "web-worker/native/blob_fetcher.h"
#include "web-worker/native/hub_list.h"
#include "web-worker/native/known_hub.h"
#include "web-worker/native/round_trips.h"
#include "web-worker/native/shared_device.h"
#include "web-worker/native/websocket_client.h"

namespace moex::native {
namespace {

constexpr std::uint16_t going_away = 1001, closed_abnormally = 1006;
// A hub that takes longer to answer is not worth joining while others answer.
constexpr auto measured_within = std::chrono::milliseconds(500);
constexpr auto leave_max = std::chrono::seconds(12);
constexpr auto leave_check = std::chrono::milliseconds(10);

// Checks the hub on a thread of its own, and calls back on the event loop.
class HubChecks {
  public:
    HubChecks(asio::io_context& io, const NativeOptions& options)
        : io_(io),
          known_(options.known_hubs, options.hub_key) {}
    ~HubChecks() {
        known_.stop();
        thread_.join();
    }
    void start(HubAddress hub, std::function<void(Result<SignedHub>)> done) {
        asio::post(thread_, [this, hub = std::move(hub), done = std::move(done)] {
            asio::post(io_, [done, found = known_.check(hub)] { done(found); });
        });
    }

  private:
    asio::io_context& io_;
    KnownHub known_;
    asio::thread_pool thread_{1};
};

// Measures round trips on a thread of its own, and calls back on the event loop.
class RoundTrips {
  public:
    using Times = std::vector<std::optional<double>>;
    explicit RoundTrips(asio::io_context& io) : io_(io) {}
    // Measurements that have not begun are dropped.
    ~RoundTrips() {
        thread_.stop();
        thread_.join();
    }
    void start(std::vector<HubUrl> hubs, std::function<void(const Times&)> done) {
        asio::post(thread_, [this, hubs = std::move(hubs), done = std::move(done)] {
            asio::post(io_, [done, times = round_trips_ms(hubs, measured_within)] { done(times); });
        });
    }

  private:
    asio::io_context& io_;
    asio::thread_pool thread_{1};
};

class NativePlatform : public Platform {
  public:
    NativePlatform(asio::io_context& io, SharedDevice& devices, HubChecks& checks,
                   RoundTrips& round_trips, const NativeOptions& options,
                   const std::filesystem::path& cache,
                   std::function<void(const WorkerStatus&)> on_status)
        : io_(io),
          devices_(devices),
          checks_(checks),
          round_trips_(round_trips),
          options_(options),
          on_status_(std::move(on_status)),
          hubs_(options.hubs, [this] { return random(); }),
          fetcher_(
              address(),
              {.folder = cache,
               .limit_bytes = options.cache_bytes,
               .report =
                   [](const std::string& sentence) {
                       std::cerr << text("worker: ", sentence, '\n');
                   }},
              options.host_bytes,
              [this](std::function<void()> function) { post(std::move(function)); },
              [this](ByteView memory, bool begins) { notify_device(memory, begins); }) {}
    void set_core(WorkerCore* core) { core_ = core; }
    void post(std::function<void()> function) { asio::post(io_, std::move(function)); }

    // The address of the hub to which this worker is, or will be, connected.
    HubAddress address() const {
        return {.url = hubs_.current(),
                .ca_file = options_.ca_file,
                .insecure_tls = options_.insecure_tls};
    }

    // ---- The following functions use the socket.
    void connect() override {
        socket_.reset();  // events of an earlier connection are ignored
        is_open_ = is_moving_ = false;
        const std::uint64_t number = check_ = ++num_checks_;
        fetcher_.use(address());
        checks_.start(address(), [this, number, life = life_.watch()](Result<SignedHub> hub) {
            if (!life.alive() || core_ == nullptr || check_ != number) return;
            check_ = 0;
            if (hub.ok()) {
                hub_ = *std::move(hub);
                return open_socket();
            }
            const bool is_other = hub.error().code == ErrorCode::unauthorized;
            if (is_other && hubs_.refused()) return core_->on_other_hub(hub.error().message);
            if (!is_other) hubs_.ended(false, false);
            core_->on_closed(closed_abnormally, hub.error().message);
        });
    }
    void knows_hubs(const HubPlace& here, const std::vector<HubPlace>& others) override {
        hubs_.welcomed(here, others);
        if (!others.empty()) measure({});
    }
    void choose_hub() override {
        measure([this, mine = std::weak_ptr<WebSocketClient>(socket_)] {
            const auto hub = hubs_.better();
            if (hub && core_ != nullptr && socket_ != nullptr && mine.lock() == socket_)
                core_->on_better_hub(*hub);
        });
    }
    bool move_to(const HubPlace& hub) override {
        is_moving_ = hubs_.move_to(hub);
        return is_moving_;
    }
    void open_socket() {
        socket_ = make_websocket(io_, address(), options_.token);
        // Ignore events of an earlier connection.
        const auto present = [this, mine = std::weak_ptr<WebSocketClient>(socket_)] {
            return core_ != nullptr && socket_ != nullptr && mine.lock() == socket_;
        };

        socket_->on_open = [this, present] {
            if (!present()) return;
            is_open_ = true;
            core_->on_open();
        };
        socket_->on_text = [this, present] {
            if (present()) core_->on_text();
        };
        socket_->on_frame = [this, present](ByteView frame) {
            if (present()) core_->on_frame(frame);
        };

        // on_closed() is posted, and never called inside connect() or close(): WorkerCore expects
        // it after these calls have returned.
        socket_->on_closed = [this, present](std::uint16_t code, std::string reason) {
            post([this, present, code, reason = std::move(reason)] {
                if (!present()) return;
                socket_.reset();
                // The hub that a move goes to is the current one already.
                if (!std::exchange(is_moving_, false)) hubs_.ended(is_open_, code == going_away);
                core_->on_closed(code, reason);
            });
        };

        socket_->open();
    }
    void send(ByteView frame) override {
        if (socket_) socket_->send(frame);
    }
    void close(std::uint16_t code, std::string_view reason) override {
        if (socket_) return socket_->close(code, std::string(reason));
        if (std::exchange(check_, 0) == 0) return;
        post([this, code, reason = std::string(reason), life = life_.watch()] {
            if (life.alive() && core_ != nullptr) core_->on_closed(code, reason);
        });
    }
    bool connected() const { return socket_ != nullptr || check_ != 0; }

    // ---- The following functions provide blobs.
    void fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool urgent,
                    std::function<void(std::uint64_t, bool)> progress,
                    std::function<void(Result<Bytes>)> done) override {
        if (hub_.is_signed && !hub_.blobs.contains(hash))
            return post([this, done = std::move(done), hash, cancelled = num_cancelled_,
                         life = life_.watch()] {
                if (life.alive() && cancelled == num_cancelled_)
                    done(Error{ErrorCode::hash_mismatch,
                               text("blob ", to_hex(hash).substr(0, 12),
                                    " is not in the manifest that the hub signed")});
            });
        fetcher_.fetch(hash, size_bytes, urgent, std::move(progress), std::move(done));
    }
    void accept_layer(const Sha256& blob, const Signature& signature,
                      std::function<void(bool)> done) override {
        if (hub_.is_signed && !hub_.has_signed_layer(blob, signature)) return done(false);
        if (hub_.is_signed) hub_.blobs.insert(blob);
        done(true);
    }
    void cancel_fetches() override {
        ++num_cancelled_;
        fetcher_.cancel();
    }
    // A hub that names another package than the signed one has just changed it, or is not the hub
    // that signed: the worker connects again.
    void serves_model(std::string_view model) override {
        if (hub_.is_signed && model != hub_.package_sha256)
            return close(1001, "the hub's model is not the one that it signed");
        fetcher_.serves_model(model);
    }
    HeldBlob find_blob(const Sha256& hash) override { return fetcher_.find(hash); }

    // ---- The following functions provide time and timers.
    double now_ms() override {
        return std::chrono::duration<double, std::milli>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
    // A delay of 0 means the next iteration of the event loop, after frames that arrived meanwhile.
    // Such a timer needs no clock.
    std::uint64_t set_timer(double delay_ms, std::function<void()> function) override {
        const std::uint64_t id = ++last_timer_;
        const auto fire = [this, id] {
            if (const auto due = timers_.extract(id)) due.mapped().function();
        };
        Timer& timer = timers_[id] = {std::move(function), nullptr};
        if (delay_ms <= 0) {
            // Post a second function: the event loop polls its sockets between two posted
            // functions.
            post([this, fire, life = life_.watch()] {
                if (!life.alive()) return;
                post([fire, life] {
                    if (life.alive()) fire();
                });
            });
            return id;
        }
        timer.clock = std::make_unique<asio::steady_timer>(
            io_, std::chrono::microseconds(static_cast<std::int64_t>(delay_ms * 1000)));
        timer.clock->async_wait([fire](NetError error) {
            if (!error) fire();
        });
        return id;
    }
    void clear_timer(std::uint64_t timer) override { timers_.erase(timer); }
    double random() override { return std::uniform_real_distribution<double>(0, 1)(generator_); }

    // ---- The following functions open the GPU and report the status that people see.
    void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) override {
        post([this, done = std::move(done)] {
            auto lent = devices_.lend();
            if (lent.ok() && std::exchange(shared_with_, devices_.number()) != devices_.number())
                for (const ByteView memory : fetcher_.memory_pieces())
                    devices_.share_memory(memory);
            done(std::move(lent));
        });
    }

    void report(const WorkerStatus& status) override { on_status_(status); }

  private:
    // Measures the round trips to hubs that are not known. `done`, if there is one, is called after
    // that. One measurement runs at a time; hubs that are listed meanwhile wait for the next news.
    void measure(std::function<void()> done) {
        if (done) after_measuring_.push_back(std::move(done));
        if (std::exchange(is_measuring_, true)) return;
        const std::vector<HubUrl> hubs = hubs_.to_measure(now_ms());
        round_trips_.start(hubs,
                           [this, hubs, life = life_.watch()](const RoundTrips::Times& times) {
                               if (!life.alive()) return;
                               is_measuring_ = false;
                               for (std::size_t i = 0; i < hubs.size(); ++i)
                                   hubs_.measured(hubs[i], times[i]);
                               for (const auto& call : std::exchange(after_measuring_, {})) call();
                           });
    }

    // Registers the blob fetcher's memory with the device that this worker was lent. If another
    // device is lent later, create_device() registers all memory with it.
    void notify_device(ByteView memory, bool begins) {
        if (shared_with_ == 0 || shared_with_ != devices_.number()) return;
        if (begins)
            devices_.share_memory(memory);
        else
            devices_.unshare_memory(memory);
    }

    asio::io_context& io_;
    SharedDevice& devices_;
    HubChecks& checks_;
    RoundTrips& round_trips_;
    std::uint64_t num_checks_ = 0;
    std::uint64_t check_ = 0;          // number of the check that runs; 0: none
    std::uint64_t num_cancelled_ = 0;  // calls of cancel_fetches()
    SignedHub hub_;                    // of the newest connection
    const NativeOptions& options_;
    std::function<void(const WorkerStatus&)> on_status_;
    WorkerCore* core_ = nullptr;
    std::shared_ptr<WebSocketClient> socket_;
    std::uint64_t last_timer_ = 0;
    struct Timer {
        std::function<void()> function;
        // Null: a timer of 0 ms, which runs in the next iteration of the event loop.
        std::unique_ptr<asio::steady_timer> clock;
    };
    std::map<std::uint64_t, Timer> timers_;
    std::mt19937_64 generator_{std::random_device{}()};
    HubList hubs_;
    bool is_measuring_ = false;
    std::vector<std::function<void()>> after_measuring_;
    bool is_open_ = false;           // the present connection was opened
    bool is_moving_ = false;         // it ends because the worker joins another hub
    std::uint64_t shared_with_ = 0;  // number of the shared device that maps the fetcher's memory
    BlobFetcher fetcher_;
    LifeGuard life_;
};

// The parts of one worker of this process.
struct Running {
    Running(asio::io_context& io, SharedDevice& devices, HubChecks& checks, RoundTrips& round_trips,
            const NativeOptions& options, NativeWorker worker,
            std::function<void(const WorkerStatus&)> on_status)
        : platform(io, devices, checks, round_trips, options, worker.cache, std::move(on_status)),
          core(std::make_unique<WorkerCore>(platform, std::move(worker.options))) {
        platform.set_core(core.get());
    }
    ~Running() {
        platform.set_core(nullptr);
        core.reset();
    }

    NativePlatform platform;
    std::unique_ptr<WorkerCore> core;
    std::string signed_nonce;  // nonce of the newest WELCOME that contained a nonce
};
using AllRunning = std::vector<std::unique_ptr<Running>>;

// Stops the process at a signal. At the first signal each worker leaves: it serves until others
// hold its experts, and the hub closes its connection. The process ends after that, or when
// leave_max has passed. A second signal ends the process at once.
class Leaving {
  public:
    Leaving(asio::io_context& io, const AllRunning& workers)
        : io_(io),
          workers_(workers),
          signals_(io, SIGINT, SIGTERM),
          timeout_(io),
          check_(io) {
        signals_.async_wait([this](NetError error, int) {
            if (!error) leave();
        });
    }

  private:
    void leave() {
        for (const auto& worker : workers_) worker->core->leave();
        signals_.async_wait([this](NetError error, int) {
            if (!error) io_.stop();
        });
        timeout_.expires_after(leave_max);
        timeout_.async_wait([this](NetError) { io_.stop(); });
        stop_when_closed();
    }
    void stop_when_closed() {
        const bool is_connected = std::any_of(
            workers_.begin(), workers_.end(),
            [](const auto& worker) { return worker->platform.connected(); });
        if (!is_connected) return io_.stop();
        check_.expires_after(leave_check);
        check_.async_wait([this](NetError) { stop_when_closed(); });
    }

    asio::io_context& io_;
    const AllRunning& workers_;
    asio::signal_set signals_;
    asio::steady_timer timeout_, check_;
};

// Calls `answer` at each SIGUSR1.
class Asked {
  public:
    Asked(asio::io_context& io, std::function<void()> answer)
        : answer_(std::move(answer)),
          signals_(io, SIGUSR1) {
        listen();
    }

  private:
    void listen() {
        signals_.async_wait([this](NetError error, int) {
            if (error) return;
            answer_();
            listen();
        });
    }

    std::function<void()> answer_;
    asio::signal_set signals_;
};

// Signs the nonce of a WELCOME, once per nonce.
void sign(const NativeOptions& options, const WorkerStatus& status, Running& worker) {
    if (!options.identity || status.nonce.empty() || status.nonce == worker.signed_nonce) return;
    worker.signed_nonce = status.nonce;
    const HubUrl url = worker.platform.address().url;
    const std::string origin = (url.tls ? "https://" : "http://") + url.authority();
    const auto signature = options.identity->sign(
        identity_text(status.nonce, origin, status.worker_id));
    if (signature.ok())
        worker.core->identify(status.worker_id,
                              {options.identity->public_key(), *signature, options.shows_nickname});
}

Result<std::unique_ptr<gpu::Device>> open_device(asio::io_context& io,
                                                 const NativeOptions& options) {
    auto opened = gpu::open_vulkan_device(
        {.device = options.device,
         .stay_awake = options.stay_awake ? gpu::StayAwake::alone : gpu::StayAwake::never},
        [&io](std::function<void()> function) { asio::post(io, std::move(function)); });
    if (opened.ok() && (*opened)->adapter().software && !options.software_gpu)
        return Error{ErrorCode::unsupported, "the only GPU is a software driver"};
    return opened;
}

}  // namespace

int run_native_workers(const NativeOptions& options, std::vector<NativeWorker> workers,
                       std::function<void(std::size_t, const WorkerStatus&)> on_status) {
    asio::io_context io;
    auto keep_running = asio::make_work_guard(io);
    SharedDevice devices([&] { return open_device(io, options); });
    HubChecks checks(io, options);
    RoundTrips round_trips(io);
    int exit_code = 0;
    bool is_over = false;
    AllRunning running;
    for (std::size_t i = 0; i < workers.size(); ++i)
        running.push_back(std::make_unique<Running>(
            io, devices, checks, round_trips, options, std::move(workers[i]),
            [&, i](const WorkerStatus& status) {
                on_status(i, status);
                // The workers are being constructed or destroyed.
                if (i >= running.size() || is_over) return;
                sign(options, status, *running[i]);
                if (status.phase == WorkerPhase::failed || status.phase == WorkerPhase::refused) {
                    exit_code = 1;
                    asio::post(io, [&io] { io.stop(); });
                }
            }));

    Leaving leaving(io, running);
    Asked asked(io, [&] {
        std::vector<WorkerStatus> now;
        for (const auto& worker : running) now.push_back(worker->core->status());
        if (options.on_asked) options.on_asked(now);
    });
    asio::post(io, [&] {
        for (const auto& worker : running) worker->core->start();
    });

    // Runs one pending event without waiting, and returns whether there was one. Answers are sent
    // first: a hub waits for each answer, but perhaps not for an expert that has arrived.
    const auto poll = [&] {
        const bool answered = devices.answer_read();
        return io.poll_one() > 0 || answered;
    };
    // Waits for an event and runs it. Returns false when the event loop has stopped.
    const auto run_one = [&] {
        devices.answer_reads(false);
        return io.run_one() > 0;
    };
    SpinWait<std::chrono::steady_clock> spin(options.spin_max);
    while (spin.look(poll) || run_one()) {
        spin.came();
        devices.answer_reads(spin.pays());
    }
    is_over = true;
    running.clear();
    return exit_code;
}

}  // namespace moex::native
