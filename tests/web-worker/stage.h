// The worker's core on a stage: the hub's side and the platform in one, scripted by a test, over a
// real Vulkan device that can be told to break. What the worker sent lies in `sent`.
// Time is virtual: timers run as soon as nothing else is at hand.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "protocol/expert_reference.h"
#include "protocol/life_guard.h"
#include "web-worker/gpu/device_decorator.h"
#include "web-worker/native/blob_memory.h"
#include "web-worker/worker_core.h"

namespace moex {

// One small model: experts of a formula, a blob of about 11 kB each.
inline constexpr ExpertShape stage_shape{96, 64, 32};
inline const std::uint64_t stage_blob_bytes = expert_blob_layout(stage_shape).size_bytes;
inline const WireLimits stage_limits{.hidden_size = 96,
                                     .num_layers = 1,
                                     .num_experts = 8,
                                     .num_tokens_max = 16,
                                     .num_pairs_max = 32};
// with more experts than any test's memory holds; expert e has the weights of e % 8
inline const WireLimits wide_limits{.hidden_size = 96,
                                    .num_layers = 1,
                                    .num_experts = 512,
                                    .num_tokens_max = 16,
                                    .num_pairs_max = 32};

Sha256 hash_of(std::uint16_t expert);
std::vector<AssignedUnit> units_of(const std::vector<std::uint16_t>& experts);
std::vector<std::uint16_t> first_experts(std::uint64_t count);  // 0, 1, ...

// Two rows for one expert, f32; and the error of an answer to it beside the reference in doubles.
GroupDispatch group_of(std::uint32_t sequence_id, std::uint16_t expert);
double error_of(const std::vector<float>& y, const GroupDispatch& group);

// The real device, until it is told to break: then it is lost, as a
// browser's is when its GPU process dies. It has `memory_bytes`, and like
// WebGPU it gives a buffer beyond that and says afterwards that there was none.
class FragileDevice : public gpu::DeviceDecorator {
  public:
    FragileDevice(std::unique_ptr<gpu::Device> device, std::uint64_t memory_bytes,
                  std::uint64_t binding_bytes, std::function<void(std::function<void()>)> post);

    void break_down(std::string reason, gpu::LossKind kind = gpu::LossKind::other);
    void release_reads();
    bool hold_reads = false;  // the GPU takes its time
    std::vector<std::function<void()>> held_reads;

    const gpu::AdapterInfo& adapter() const override { return adapter_; }
    Result<gpu::BufferId> create_buffer(std::uint64_t size_bytes, gpu::BufferUsage usage,
                                        std::string_view label) override;
    void read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override;
    void on_lost(std::function<void(gpu::Loss)> handler) override { lost_ = std::move(handler); }
    void expect_work(double within_ms) override { expected_ms.push_back(within_ms); }
    std::vector<double> expected_ms;  // what it was told to stay awake for
    bool is_shared() const override { return others_compute; }
    bool others_compute = false;
    std::uint64_t transfer(gpu::BufferId buffer, std::uint64_t offset_bytes, ByteView bytes,
                           gpu::TransferKind kind, std::function<void()> done) override;
    void await_transfer(std::uint64_t number) override;
    std::map<std::uint64_t, gpu::TransferKind> transfers;  // what was asked of it, by number
    std::set<std::uint64_t> awaited;                       // by submissions

  private:
    gpu::AdapterInfo adapter_;
    std::unique_ptr<gpu::Device> owned_;  // the one below
    std::uint64_t memory_bytes_;
    std::function<void(std::function<void()>)> post_;
    std::function<void(gpu::Loss)> lost_;
    LifeGuard life_;
};

class Stage : public Platform {
  public:
    explicit Stage(std::uint64_t budget_bytes = 64u << 20, WorkerOptions options = {});
    ~Stage() override { core.reset(); }

    // ---- Platform
    void connect() override;
    void send(ByteView frame) override { sent.emplace_back(frame.begin(), frame.end()); }
    void close(std::uint16_t code, std::string_view reason) override;
    void fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool urgent,
                    std::function<void(std::uint64_t, bool)> progress,
                    std::function<void(Result<Bytes>)> done) override;
    void cancel_fetches() override;
    HeldBlob find_blob(const Sha256& hash) override;
    double now_ms() override { return clock_ms; }
    std::uint64_t set_timer(double delay_ms, std::function<void()> function) override;
    void clear_timer(std::uint64_t timer) override { timers.erase(timer); }
    double random() override { return 0.5; }
    void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) override;
    void report(const WorkerStatus& status) override { phases.push_back(status.phase); }

    // ---- verbs
    void run_until(const std::function<bool()>& finished);
    void run_until_phase(WorkerPhase phase);
    // Until the worker has shown its status once more.
    void run_until_shown();
    // The next frame of `type`; frames of other types stay.
    Bytes next(FrameType type);
    bool has_sent(FrameType type) const;
    void give(const Bytes& frame) { core->on_frame(frame); }
    void hang_up(std::uint16_t code, std::string reason);
    // Answers HELLO, whose budget is the value.
    std::uint64_t welcome();
    Bytes welcome_frame() const;
    // Assigns, and waits until READY has named as many experts.
    void assign(const std::vector<std::uint16_t>& experts);
    void serve(const std::vector<std::uint16_t>& experts);
    // Asks for a group; its answer must come and be right.
    void expect_answer(std::uint32_t sequence_id, std::uint16_t expert);
    // Loses the GPU; how long it took until another was opened, or -1 when none will be.
    double lose_device(const std::string& reason);
    const WorkerStatus& status() const { return core->status(); }

    // ---- the hub and the line to it
    WireLimits limits = stage_limits;
    std::vector<std::string> hub_caps{"budget"};
    std::optional<WorkerArithmetic> hub_asks;
    std::string hub_nonce;
    bool connected = false;
    bool hub_is_down = false;
    bool hold_closing = false;  // no close notice comes
    int connects = 0;
    std::uint16_t closed_with = 0;  // by the worker
    std::deque<Bytes> sent;

    // ---- the GPU
    bool no_gpu = false;              // none is opened
    FragileDevice* device = nullptr;  // the newest
    int devices_opened = 0;
    std::uint64_t binding_bytes = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t device_memory_bytes = std::numeric_limits<std::uint64_t>::max();

    // ---- downloads
    int fetches = 0, generation = 0;
    bool hold_fetches = false;  // a slow network
    std::vector<std::function<void()>> held_fetches;
    int fetches_failing = 0;     // the first so many
    bool remembers = false;      // every blob lies in this machine's memory
    bool shares_memory = false;  // and the GPU reads it there
    native::BlobMemory memory{16u << 20, [this](ByteView piece, bool begins) {
                                  if (shares_memory && begins && device != nullptr)
                                      shared = device->share_memory(piece);
                              }};
    Status shared;

    // ---- time and people
    double clock_ms = 0;
    // else timers of seconds do not strike: the GPU's work takes no time on this clock
    bool long_waits = false;
    bool hold_timers = false;  // none strikes: time stands still
    std::uint64_t last_timer = 0;
    using Timers = std::map<std::uint64_t, std::pair<double, std::function<void()>>>;
    Timers timers;
    std::vector<WorkerPhase> phases;

    std::unique_ptr<WorkerCore> core;

  private:
    Timers::iterator next_timer();
    void post(std::function<void()> function);

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> functions_;
};

}  // namespace moex
