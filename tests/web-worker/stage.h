// A stage for the worker's core: a scripted hub and a platform in one object, over a real Vulkan
// device that can be made to fail. `sent` stores the frames that the worker sent. Time is virtual:
// a timer fires as soon as no other event is pending.
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

// A small model: the experts are computed by a formula, and a blob has about 11 kB.
inline constexpr ExpertShape stage_shape{96, 64, 32};
inline const std::uint64_t stage_blob_bytes = expert_blob_layout(stage_shape).size_bytes;
// The same experts with biases and a clamp, which about a third of the values reach.
inline constexpr ExpertShape clamped_shape{96, 64, 32, true, 0.25f};
inline const WireLimits stage_limits{.hidden_size = 96,
                                     .num_layers = 1,
                                     .num_experts = 8,
                                     .num_tokens_max = 16,
                                     .num_pairs_max = 32};
// A model with more experts than the memory of any test holds. Expert e has the weights of expert e
// % 8.
inline const WireLimits wide_limits{.hidden_size = 96,
                                    .num_layers = 1,
                                    .num_experts = 512,
                                    .num_tokens_max = 16,
                                    .num_pairs_max = 32};

Sha256 hash_of(std::uint16_t expert);
std::vector<AssignedUnit> units_of(const std::vector<std::uint16_t>& experts);
std::vector<std::uint16_t> first_experts(std::uint64_t count);  // 0, 1, ...

// group_of() makes a group of two f32 rows for one expert. The other function computes the error of
// its answer against the reference in double.
GroupDispatch group_of(std::uint32_t sequence_id, std::uint16_t expert);
double error_of(const std::vector<float>& y, const GroupDispatch& group,
                const ExpertShape& shape = stage_shape);

// The real device until break_down(): then it is lost, as a browser's device is when its GPU
// process crashes. It has `memory_bytes` of memory. Like WebGPU, it first returns a buffer that
// exceeds this memory, and reports out of memory afterwards.
class FragileDevice : public gpu::DeviceDecorator {
  public:
    FragileDevice(std::unique_ptr<gpu::Device> device, std::uint64_t memory_bytes,
                  std::uint64_t binding_bytes, std::function<void(std::function<void()>)> post);

    void break_down(std::string reason, gpu::LossKind kind = gpu::LossKind::other);
    void release_reads();
    bool hold_reads = false;  // true: readbacks wait until release_reads() is called
    std::vector<std::function<void()>> held_reads;
    std::uint64_t peak_bytes = 0;  // the most bytes of buffers since a test set it

    const gpu::AdapterInfo& adapter() const override { return adapter_; }
    Result<gpu::BufferId> create_buffer(std::uint64_t size_bytes, gpu::BufferUsage usage,
                                        std::string_view label) override;
    void read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override;
    void on_lost(std::function<void(gpu::Loss)> handler) override { lost_ = std::move(handler); }
    void expect_work(double within_ms) override { expected_ms.push_back(within_ms); }
    std::vector<double> expected_ms;  // arguments of expect_work()
    bool is_shared() const override { return others_compute; }
    bool others_compute = false;
    std::uint64_t transfer(gpu::BufferId buffer, std::uint64_t offset_bytes, ByteView bytes,
                           gpu::TransferKind kind, std::function<void()> done) override;
    void await_transfer(std::uint64_t number) override;
    // Kind of each transfer, keyed by transfer number.
    std::map<std::uint64_t, gpu::TransferKind> transfers;
    std::set<std::uint64_t> awaited;  // numbers of the transfers that later submissions await

  private:
    gpu::AdapterInfo adapter_;
    std::unique_ptr<gpu::Device> owned_;  // the real device
    std::uint64_t memory_bytes_;
    std::function<void(std::function<void()>)> post_;
    std::function<void(gpu::Loss)> lost_;
    LifeGuard life_;
};

class Stage : public Platform {
  public:
    explicit Stage(std::uint64_t budget_bytes = 64u << 20, WorkerOptions options = {});
    ~Stage() override { core.reset(); }

    // ---- The following functions implement Platform.
    void connect() override;
    void knows_hubs(const HubPlace& here, const std::vector<HubPlace>& others) override {
        known_hub = here.id;
        known_need = here.need;
        other_hubs = others;
    }
    void choose_hub() override {
        ++choices;
        if (better_hub) core->on_better_hub(*better_hub);
    }
    bool move_to(const HubPlace& hub) override {
        moves_to = hub;
        return can_move;
    }
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

    // ---- The following functions are the actions that a test takes.
    void run_until(const std::function<bool()>& finished);
    void run_until_phase(WorkerPhase phase);
    // Runs events until the worker has shown its status once more.
    void run_until_shown();
    // Returns the next frame of `type` that the worker sent. Frames of other types stay in `sent`.
    Bytes next(FrameType type);
    bool has_sent(FrameType type) const;
    void give(const Bytes& frame) { core->on_frame(frame); }
    void hang_up(std::uint16_t code, std::string reason);
    // Answers HELLO with WELCOME, and returns the budget that HELLO reported.
    std::uint64_t welcome();
    Bytes welcome_frame() const;
    // Assigns `experts`, and runs until READY has reported as many experts.
    void assign(const std::vector<std::uint16_t>& experts);
    void serve(const std::vector<std::uint16_t>& experts);
    // Sends a group, and checks that its answer arrives and is right.
    void expect_answer(std::uint32_t sequence_id, std::uint16_t expert);
    // Loses the GPU. Returns the time until another device was opened, or -1 if none will be
    // opened.
    double lose_device(const std::string& reason);
    const WorkerStatus& status() const { return core->status(); }

    // ---- The following members describe the scripted hub and the connection to it.
    WireLimits limits = stage_limits;
    ExpertShape shape = stage_shape;  // or clamped_shape
    std::vector<std::string> hub_caps{"budget"};
    std::optional<WorkerArithmetic> hub_asks;
    std::string hub_nonce;
    std::string hub_id;          // of the scripted hub; empty: it is in no fleet
    std::vector<HubPlace> hubs;  // that its WELCOME lists
    std::string known_hub;       // what the platform was told: the id, the others, a move
    HubNeed hub_need, known_need;
    std::vector<HubPlace> other_hubs;
    int choices = 0;                     // calls of choose_hub()
    std::optional<HubPlace> better_hub;  // its answer
    HubPlace moves_to;
    bool can_move = true;
    bool connected = false;
    bool hub_is_down = false;
    bool hold_closing = false;  // true: on_closed() is not called after close()
    int connects = 0;
    std::uint16_t closed_with = 0;  // the code with which the worker closed the connection
    std::deque<Bytes> sent;

    // ---- The following members describe the GPU.
    bool no_gpu = false;              // true: create_device() fails
    FragileDevice* device = nullptr;  // the newest device
    int devices_opened = 0;
    std::uint64_t binding_bytes = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t device_memory_bytes = std::numeric_limits<std::uint64_t>::max();

    // ---- The following members describe downloads.
    int fetches = 0, generation = 0;
    bool hold_fetches = false;  // true: fetches wait in held_fetches, as on a slow network
    std::vector<std::function<void()>> held_fetches;
    int fetches_failing = 0;     // the first fetches, up to this number, fail
    bool remembers = false;      // true: find_blob() finds every blob in memory
    bool shares_memory = false;  // true: the GPU can read the memory of blobs
    native::BlobMemory memory{16u << 20, [this](ByteView piece, bool begins) {
                                  if (shares_memory && begins && device != nullptr)
                                      shared = device->share_memory(piece);
                              }};
    Status shared;

    // ---- The following members describe time and the status that people see.
    double clock_ms = 0;
    // If false, timers of 5 seconds or more do not fire, since the GPU's work takes no time on this
    // clock.
    bool long_waits = false;
    bool hold_timers = false;  // true: no timer fires
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
