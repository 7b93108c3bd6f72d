#include "web-worker/native/native_platform.h"

#include <csignal>
#include <iostream>
#include <map>
#include <random>

#include "protocol/spin_wait.h"
#include "web-worker/gpu/device_decorator.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/native/asio.h"
#include "web-worker/native/blob_fetcher.h"
#include "web-worker/native/websocket_client.h"

namespace moex::native {
namespace {

constexpr auto leave_max = std::chrono::seconds(2);
constexpr double leave_check_ms = 10;

// A device that says when it is gone.
class LentDevice : public gpu::DeviceDecorator {
  public:
    LentDevice(std::unique_ptr<gpu::Device> device, gpu::Device*& known)
        : DeviceDecorator(*device),
          own_(std::move(device)),
          known_(known) {}
    ~LentDevice() override {
        if (known_ == own_.get()) known_ = nullptr;
    }

  private:
    std::unique_ptr<gpu::Device> own_;
    gpu::Device*& known_;
};

class NativePlatform : public Platform {
  public:
    NativePlatform(asio::io_context& io, const NativeOptions& options,
                   std::function<void(const WorkerStatus&)> on_status)
        : io_(io),
          options_(options),
          on_status_(std::move(on_status)),
          fetcher_(
              options.hub,
              {.folder = options.cache,
               .limit_bytes = options.cache_bytes,
               .tell =
                   [](const std::string& sentence) {
                       std::cerr << text("worker: ", sentence, '\n');
                   }},
              options.host_bytes,
              [this](std::function<void()> function) { post(std::move(function)); },
              [this](ByteView memory, bool begins) { tell_device(memory, begins); }) {}
    void set_core(WorkerCore* core) { core_ = core; }
    void post(std::function<void()> function) { asio::post(io_, std::move(function)); }

    // ---- the socket
    void connect() override {
        socket_ = make_websocket(io_, options_.hub, options_.token);
        // An older connection's last words are nobody's.
        const auto present = [this, mine = std::weak_ptr<WebSocketClient>(socket_)] {
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

    // ---- blobs
    void fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool urgent,
                    std::function<void(std::uint64_t, bool)> progress,
                    std::function<void(Result<Bytes>)> done) override {
        fetcher_.fetch(hash, size_bytes, urgent, std::move(progress), std::move(done));
    }
    void cancel_fetches() override { fetcher_.cancel(); }
    void serves_model(std::string_view model) override { fetcher_.serves_model(model); }
    HeldBlob find_blob(const Sha256& hash) override { return fetcher_.find(hash); }

    // ---- time
    double now_ms() override {
        return std::chrono::duration<double, std::milli>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
    std::uint64_t set_timer(double delay_ms, std::function<void()> function) override {
        const std::uint64_t id = ++last_timer_;
        auto timer = std::make_unique<asio::steady_timer>(
            io_, std::chrono::microseconds(static_cast<std::int64_t>(delay_ms * 1000)));
        timer->async_wait([this, id, function = std::move(function)](NetError error) {
            if (error || timers_.erase(id) == 0) return;
            function();
        });
        timers_[id] = std::move(timer);
        return id;
    }
    void clear_timer(std::uint64_t timer) override { timers_.erase(timer); }
    double random() override { return std::uniform_real_distribution<double>(0, 1)(generator_); }

    // ---- the GPU and people
    void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) override {
        post([this, done = std::move(done)] {
            auto opened = gpu::open_vulkan_device(
                {.device = options_.device,
                 .stay_awake = options_.stay_awake ? gpu::StayAwake::alone : gpu::StayAwake::never},
                [this](std::function<void()> function) { post(std::move(function)); });
            if (opened.ok() && (*opened)->adapter().software && !options_.software_gpu)
                opened = Error{ErrorCode::unsupported, "the only GPU is a software driver"};
            if (!opened.ok()) return done(std::move(opened));
            device_ = opened->get();
            device_answers_here_ = false;
            for (const ByteView memory : fetcher_.memory_pieces()) tell_device(memory, true);
            done(std::unique_ptr<gpu::Device>(
                std::make_unique<LentDevice>(std::move(*opened), device_)));
        });
    }

    // ---- the loop
    // Runs what is there, without waiting. Whether something was.
    bool poll() {
        const bool ran = io_.poll() > 0;
        return (device_ != nullptr && device_->answer_read(false)) || ran;
    }
    // Waits for something, and runs it. False: it is over.
    bool run_one() {
        answer_reads(false);
        return io_.run_one() > 0;
    }
    // Whether the loop looks for what the GPU has read, or is woken for it.
    void answer_reads(bool here) {
        if (device_ != nullptr && here != device_answers_here_)
            device_->set_owner_answers(device_answers_here_ = here);
    }

    void report(const WorkerStatus& status) override { on_status_(status); }

  private:
    // A device that does not read it itself is given a copy of what lies there.
    void tell_device(ByteView memory, bool begins) {
        if (device_ == nullptr) return;
        if (begins)
            (void)device_->share_memory(memory);
        else
            device_->unshare_memory(memory);
    }

    asio::io_context& io_;
    const NativeOptions& options_;
    std::function<void(const WorkerStatus&)> on_status_;
    WorkerCore* core_ = nullptr;
    std::shared_ptr<WebSocketClient> socket_;
    std::uint64_t last_timer_ = 0;
    std::map<std::uint64_t, std::unique_ptr<asio::steady_timer>> timers_;
    std::mt19937_64 generator_{std::random_device{}()};
    gpu::Device* device_ = nullptr;  // the core's; null: there is none
    bool device_answers_here_ = false;
    BlobFetcher fetcher_;
};

// The first signal leaves: it closes with 1001 and goes when the hub has
// answered, or after two seconds. The second goes at once.
class Leaving {
  public:
    Leaving(asio::io_context& io, NativePlatform& platform, WorkerCore& core)
        : io_(io),
          platform_(platform),
          core_(core),
          signals_(io, SIGINT, SIGTERM),
          patience_(io) {
        signals_.async_wait([this](NetError error, int) {
            if (!error) leave();
        });
    }

  private:
    void leave() {
        core_.stop();
        signals_.async_wait([this](NetError error, int) {
            if (!error) io_.stop();
        });
        patience_.expires_after(leave_max);
        patience_.async_wait([this](NetError) { io_.stop(); });
        stop_when_closed();
    }
    void stop_when_closed() {
        if (!platform_.connected()) return io_.stop();
        platform_.set_timer(leave_check_ms, [this] { stop_when_closed(); });
    }

    asio::io_context& io_;
    NativePlatform& platform_;
    WorkerCore& core_;
    asio::signal_set signals_;
    asio::steady_timer patience_;
};

// SIGUSR1 asks for figures, as often as it comes.
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

// Signs what each WELCOME gave to sign.
class Signer {
  public:
    explicit Signer(const NativeOptions& options) : options_(options) {}
    void look_at(const WorkerStatus& status, WorkerCore& core) {
        if (!options_.identity || status.nonce.empty() || status.nonce == signed_) return;
        signed_ = status.nonce;
        const HubUrl& url = options_.hub.url;
        const std::string origin = (url.tls ? "https://" : "http://") + url.authority();
        const auto signature = options_.identity->sign(
            identity_text(status.nonce, origin, status.worker_id));
        if (signature.ok())
            core.identify(status.worker_id,
                          {options_.identity->public_key(), *signature, options_.shows_nickname});
    }

  private:
    const NativeOptions& options_;
    std::string signed_;
};

}  // namespace

int run_native_worker(const NativeOptions& options, WorkerOptions worker,
                      std::function<void(const WorkerStatus&)> on_status) {
    asio::io_context io;
    auto keep_running = asio::make_work_guard(io);
    int exit_code = 0;
    std::unique_ptr<WorkerCore> core;
    Signer signer(options);
    NativePlatform platform(io, options, [&](const WorkerStatus& status) {
        on_status(status);
        if (core) signer.look_at(status, *core);
        if (status.phase == WorkerPhase::failed || status.phase == WorkerPhase::refused) {
            exit_code = 1;
            asio::post(io, [&io] { io.stop(); });
        }
    });
    core = std::make_unique<WorkerCore>(platform, std::move(worker));
    platform.set_core(core.get());

    Leaving leaving(io, platform, *core);
    Asked asked(io, [&] {
        if (options.on_asked) options.on_asked(core->status());
    });
    asio::post(io, [&] { core->start(); });
    SpinWait<std::chrono::steady_clock> spin(options.spin_max);
    while (spin.look([&] { return platform.poll(); }) || platform.run_one()) {
        spin.came();
        platform.answer_reads(spin.pays());
    }

    platform.set_core(nullptr);
    core.reset();
    return exit_code;
}

}  // namespace moex::native
