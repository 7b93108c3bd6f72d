// The worker's core against a scripted hub, on a real Vulkan device.
// Time is virtual: timers run as soon as nothing else is at hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>

#include "protocol/expert_reference.h"
#include "web-worker/expert_store.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/worker_core.h"

namespace moex {
namespace {

constexpr ExpertShape shape{96, 64, 32};
const std::uint64_t blob_bytes = expert_blob_layout(shape).size_bytes;
const WireLimits limits{.hidden_size = 96,
                        .num_layers = 1,
                        .num_experts = 8,
                        .num_tokens_max = 16,
                        .num_pairs_max = 32};
const WireLimits wide_limits{.hidden_size = 96,
                             .num_layers = 1,
                             .num_experts = 512,
                             .num_tokens_max = 16,
                             .num_pairs_max = 32};

ExpertWeights weights_of(std::uint16_t expert) {
    ExpertWeights weights{.shape = shape};
    for (auto* matrix : {&weights.gate, &weights.up, &weights.down})
        for (std::uint32_t i = 0; i < 96 * 64; ++i)
            matrix->push_back(0.004f * static_cast<float>(
                                           static_cast<int>((i + 31 * expert) * 7919 % 201) - 100));
    return weights;
}
Sha256 hash_of(std::uint16_t expert) {
    Sha256 hash{};
    hash[0] = static_cast<std::byte>(expert + 1);
    return hash;
}

// The real device, until it is told to break: then it is lost, as a
// browser's is when its GPU process dies. It has `memory_bytes`, and like
// WebGPU it gives a buffer beyond that and says afterwards that there was none.
class FragileDevice : public gpu::Device {
  public:
    FragileDevice(std::unique_ptr<gpu::Device> device, std::uint64_t memory_bytes,
                  std::uint64_t binding_bytes, std::function<void(std::function<void()>)> post)
        : adapter_(device->adapter()),
          device_(std::move(device)),
          memory_bytes_(memory_bytes),
          post_(std::move(post)) {
        adapter_.max_binding_bytes = std::min(adapter_.max_binding_bytes, binding_bytes);
    }
    void break_down(std::string reason) {
        post_([this, reason = std::move(reason), guard = std::weak_ptr<int>(alive_)] {
            if (guard.expired()) return;
            if (auto handler = std::exchange(lost_, nullptr)) handler(reason);
        });
    }
    const gpu::AdapterInfo& adapter() const override { return adapter_; }
    Result<gpu::BufferId> create_buffer(std::uint64_t size_bytes, gpu::BufferUsage usage,
                                        std::string_view label) override {
        if (counters().buffer_bytes + size_bytes > memory_bytes_)
            break_down(text("out of memory: ", size_bytes, " bytes for ", label));
        return device_->create_buffer(size_bytes, usage, label);
    }
    void destroy_buffer(gpu::BufferId buffer) override { device_->destroy_buffer(buffer); }
    void write_buffer(gpu::BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) override {
        device_->write_buffer(buffer, offset_bytes, bytes);
    }
    void create_pipeline(std::string_view kernel,
                         std::function<void(Result<gpu::PipelineId>)> done) override {
        device_->create_pipeline(kernel, std::move(done));
    }
    Result<gpu::BindGroupId> create_bind_group(gpu::PipelineId pipeline,
                                               std::span<const gpu::Binding> bindings) override {
        return device_->create_bind_group(pipeline, bindings);
    }
    void destroy_bind_group(gpu::BindGroupId bind_group) override {
        device_->destroy_bind_group(bind_group);
    }
    void submit(std::span<const gpu::Command> commands) override { device_->submit(commands); }
    void read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        if (!hold_reads) return device_->read_buffer(buffer, size_bytes, std::move(done));
        held_reads.push_back([this, buffer, size_bytes, done = std::move(done)]() mutable {
            device_->read_buffer(buffer, size_bytes, std::move(done));
        });
    }
    void release_reads() {
        hold_reads = false;
        for (auto& read : std::exchange(held_reads, {})) read();
    }
    bool hold_reads = false;  // the GPU takes its time
    std::vector<std::function<void()>> held_reads;

    void on_lost(std::function<void(std::string)> handler) override { lost_ = std::move(handler); }
    gpu::DeviceCounters counters() const override { return device_->counters(); }

  private:
    gpu::AdapterInfo adapter_;
    std::unique_ptr<gpu::Device> device_;
    std::uint64_t memory_bytes_;
    std::function<void(std::function<void()>)> post_;
    std::function<void(std::string)> lost_;
    std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

// The hub's side and the platform in one: what the worker sent lies in `sent`.
class Stage : public Platform {
  public:
    explicit Stage(std::uint64_t budget_bytes = 64u << 20)
        : core(std::make_unique<WorkerCore>(
              *this, WorkerOptions{.token = "t", .budget_bytes = budget_bytes})) {}
    ~Stage() override { core.reset(); }

    void connect() override {
        ++connects;
        if (hub_is_down) return post([this] { core->on_closed(1006, ""); });
        connected = true;
        post([this] { core->on_open(); });
    }
    void send(ByteView frame) override { sent.emplace_back(frame.begin(), frame.end()); }
    void close(std::uint16_t code, std::string_view reason) override {
        if (connected) closed_with = code;
        hang_up(code, std::string(reason));
    }
    void fetch_blob(const Sha256& hash, std::uint64_t size_bytes,
                    std::function<void(std::uint64_t, bool)> progress,
                    std::function<void(Result<Bytes>)> done) override {
        ++fetches;
        auto arrive = [this, hash, size_bytes, progress = std::move(progress),
                       done = std::move(done), at = generation] {
            if (at != generation) return;
            if (fetches <= fetches_failing) return done(Error{ErrorCode::io_error, "HTTP 503"});
            progress(size_bytes, true);
            done(quantize_expert_int4(
                weights_of(static_cast<std::uint16_t>(std::to_integer<int>(hash[0]) - 1))));
        };
        if (hold_fetches)
            held_fetches.push_back(std::move(arrive));
        else
            post(std::move(arrive));
    }
    void cancel_fetches() override {
        ++generation;
        held_fetches.clear();
    }
    double now_ms() override { return clock_ms; }
    std::uint64_t set_timer(double delay_ms, std::function<void()> function) override {
        timers[++last_timer] = {clock_ms + delay_ms, std::move(function)};
        return last_timer;
    }
    void clear_timer(std::uint64_t timer) override { timers.erase(timer); }
    double random() override { return 0.5; }
    void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) override {
        post([this, done = std::move(done)] {
            const auto later = [this](std::function<void()> function) {
                post(std::move(function));
            };
            auto opened = gpu::open_vulkan_device({}, later);
            if (!opened.ok()) return done(opened.error());
            auto fragile = std::make_unique<FragileDevice>(std::move(*opened), device_memory_bytes,
                                                           binding_bytes, later);
            device = fragile.get();
            ++devices_opened;
            done(Result<std::unique_ptr<gpu::Device>>(std::move(fragile)));
        });
    }
    void report(const WorkerStatus& status) override { phases.push_back(status.phase); }

    void hang_up(std::uint16_t code, std::string reason) {
        if (!std::exchange(connected, false)) return;
        if (hold_closing) return;
        post([this, code, reason = std::move(reason)] { core->on_closed(code, reason); });
    }
    void run_until(const std::function<bool()>& finished) {
        while (!finished()) {
            std::function<void()> function;
            {
                std::unique_lock lock(mutex_);
                if (functions_.empty() && next_timer() == timers.end())
                    wake_.wait(lock, [&] { return !functions_.empty(); });
                if (!functions_.empty()) {
                    function = std::move(functions_.front());
                    functions_.pop_front();
                }
            }
            if (!function) {
                const auto next = next_timer();
                clock_ms = std::max(clock_ms, next->second.first);
                function = std::move(next->second.second);
                timers.erase(next);
            }
            function();
        }
    }
    // The next frame of `type`; frames of other types stay.
    Bytes next(FrameType type) {
        auto found = sent.end();
        run_until([&] {
            found = std::find_if(sent.begin(), sent.end(), [&](const Bytes& frame) {
                return decode_frame_header(frame)->type == type;
            });
            return found != sent.end();
        });
        Bytes frame = std::move(*found);
        sent.erase(found);
        return frame;
    }
    // Loses the GPU; how long it took until another was opened, or -1 when none will be.
    double lose_device(const std::string& reason) {
        const double began_ms = clock_ms;
        const int before = devices_opened;
        device->break_down(reason);
        long_waits = true;
        run_until(
            [&] { return devices_opened > before || core->status().phase == WorkerPhase::failed; });
        long_waits = false;
        return devices_opened > before ? clock_ms - began_ms : -1;
    }
    void give(const Bytes& frame) { core->on_frame(frame); }
    void welcome() {
        (void)next(FrameType::hello);
        give(encode_welcome({.worker_id = 7,
                             .model_name = "m",
                             .package_sha256 = std::string(64, 'a'),
                             .limits = limits,
                             .expert_shape = shape,
                             .top_k = 2,
                             .expert_blob_bytes = blob_bytes}));
    }
    void assign(const std::vector<std::uint16_t>& experts) {
        std::vector<AssignedUnit> units;
        for (const std::uint16_t expert : experts) units.push_back({0, expert, hash_of(expert)});
        give(encode_assign(units));
        std::size_t ready = 0;
        while (ready < experts.size())
            ready += decode_units(next(FrameType::ready), limits)->size();
        EXPECT_EQ(ready, experts.size());
    }
    void serve(const std::vector<std::uint16_t>& experts) {
        core->start();
        welcome();
        assign(experts);
    }

    bool connected = false;
    bool hub_is_down = false;
    bool hold_closing = false;  // no close notice comes
    int connects = 0;
    std::uint16_t closed_with = 0;  // by the worker
    bool long_waits =
        false;  // else timers of seconds do not strike: the GPU's work takes no time on this clock
    FragileDevice* device = nullptr;  // the newest
    int devices_opened = 0;
    std::uint64_t binding_bytes = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t device_memory_bytes = std::numeric_limits<std::uint64_t>::max();
    int fetches = 0, generation = 0;
    bool hold_fetches = false;  // a slow network
    std::vector<std::function<void()>> held_fetches;
    int fetches_failing = 0;  // the first so many
    double clock_ms = 0;
    std::uint64_t last_timer = 0;
    std::map<std::uint64_t, std::pair<double, std::function<void()>>> timers;
    std::deque<Bytes> sent;
    std::vector<WorkerPhase> phases;
    std::unique_ptr<WorkerCore> core;

  private:
    using Timers = std::map<std::uint64_t, std::pair<double, std::function<void()>>>;
    Timers::iterator next_timer() {
        auto next = timers.end();
        for (auto one = timers.begin(); one != timers.end(); ++one)
            if ((long_waits || one->second.first < clock_ms + 5000) &&
                (next == timers.end() || one->second.first < next->second.first))
                next = one;
        return next;
    }
    void post(std::function<void()> function) {
        const std::lock_guard lock(mutex_);
        functions_.push_back(std::move(function));
        wake_.notify_one();
    }
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> functions_;
};

GroupDispatch group_of(std::uint32_t sequence_id, std::uint16_t expert) {
    GroupDispatch group{.sequence_id = sequence_id};
    group.shape = {.layer = 0,
                   .num_tokens = 2,
                   .hidden_dim = 96,
                   .dtype = Dtype::f32,
                   .unsummed = false,
                   .num_pairs = 2,
                   .num_experts = 1};
    group.experts = {{expert, 2}};
    group.rows = {0, 1};
    group.gates = {float_to_half(0.5f), float_to_half(0.25f)};
    for (int i = 0; i < 2 * 96; ++i)
        group.x.push_back(0.02f * static_cast<float>(i * 37 % 101 - 50));
    return group;
}
double error_of(const std::vector<float>& y, const GroupDispatch& group) {
    const Bytes blob = quantize_expert_int4(weights_of(group.experts[0].expert));
    std::vector<double> expected(group.x.size());
    expert_reference(std::span<double>(expected),
                     dequantize_expert(*view_expert_blob(blob, shape, ExpertDtype::int4)),
                     std::vector<double>(group.x.begin(), group.x.end()));
    for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] *= half_to_float(group.gates[i / 96]);
    return normalized_rms_error(y, expected);
}

TEST(WorkerCoreTest, ServesWhatItWasAssigned) {
    Stage stage;
    stage.serve({1, 4});
    const GroupDispatch group = group_of(11, 4);
    stage.give(encode_group_dispatch(group, false));
    const auto result = decode_group_result(stage.next(FrameType::group_result), limits);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->sequence_id, 11u);
    EXPECT_LE(error_of(result->y, group), 1e-6);
    EXPECT_EQ(stage.core->status().adapter.backend, "vulkan");
    EXPECT_LE(stage.core->status().self_test_nrmse, 1e-6);

    // The published call: f16 rows, one expert, by the three plain kernels.
    Dispatch call{.sequence_id = 12,
                  .layer = 0,
                  .expert = 1,
                  .dtype = Dtype::f16,
                  .x = group.x,
                  .gates = group.gates};
    round_rows(Dtype::f16, call.x, 96);
    stage.give(encode_dispatch(call, 96, false));
    const auto single = decode_result(stage.next(FrameType::result), limits);
    ASSERT_TRUE(single.ok()) << single.error().message;
    GroupDispatch same = group;
    same.x = call.x;
    same.experts[0].expert = 1;
    EXPECT_LE(error_of(single->y, same), 5e-4);

    stage.give(encode_heartbeat(99));
    EXPECT_EQ(decode_frame_header(stage.next(FrameType::heartbeat))->sequence_id, 99u);
    stage.give(encode_group_dispatch(group_of(13, 5), false));
    const auto refused = decode_error(stage.next(FrameType::error));
    EXPECT_EQ(refused->sequence_id, 13u);
    EXPECT_EQ(refused->code, "unknown_expert");
    EXPECT_FALSE(refused->fatal);
}

TEST(WorkerCoreTest, AnExpertThatCannotBeFetchedIsTriedAgain) {
    Stage stage;
    stage.fetches_failing = 3;
    stage.serve({2});
    EXPECT_EQ(stage.fetches, 4);
    EXPECT_EQ(stage.core->status().errors, 3u);
    EXPECT_EQ(stage.core->status().units_assigned, 1u);
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::serving);
}

TEST(WorkerCoreTest, AWeightSyncAssignsOneUnit) {
    Stage stage;
    stage.serve({1});
    stage.give(
        encode_weight_sync({.sequence_id = 3, .layer = 0, .expert = 6, .blob = hash_of(6)}, 96));
    EXPECT_EQ(decode_units(stage.next(FrameType::ready), limits).value(),
              (std::vector<Unit>{{0, 6}}));
}

TEST(WorkerCoreTest, ACancelledGroupThatWaitsIsDroppedAndTooManyAreBusy) {
    Stage stage;
    stage.serve({1});
    // two run, four wait
    for (std::uint32_t id = 1; id <= 7; ++id)
        stage.give(encode_group_dispatch(group_of(id, 1), false));
    EXPECT_EQ(decode_frame_header(stage.next(FrameType::busy))->sequence_id, 7u);
    stage.give(encode_cancel(4));
    stage.give(encode_cancel(77));
    std::vector<std::uint32_t> answered;
    for (int i = 0; i < 5; ++i)
        answered.push_back(
            decode_group_result(stage.next(FrameType::group_result), limits)->sequence_id);
    EXPECT_EQ(answered, (std::vector<std::uint32_t>{1, 2, 3, 5, 6}));
    EXPECT_EQ(stage.core->status().groups_cancelled, 1u);
}

TEST(WorkerCoreTest, RoundsAfterWarmUpCreateNothing) {
    Stage stage;
    stage.serve({1, 2});
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::serving; });
    const gpu::DeviceCounters warm = stage.core->status().device_at_warm;
    for (std::uint32_t id = 1; id <= 6; ++id) {
        stage.give(encode_group_dispatch(group_of(id, 1 + id % 2), false));
        (void)stage.next(FrameType::group_result);
    }
    stage.phases.clear();
    stage.run_until([&] { return !stage.phases.empty(); });
    const gpu::DeviceCounters after = stage.core->status().device;
    EXPECT_EQ(after.submits - warm.submits, 6u);
    EXPECT_EQ(after.readbacks - warm.readbacks, 6u);
    EXPECT_EQ(after.buffers_created, warm.buffers_created);
    EXPECT_EQ(after.bind_groups_created, warm.bind_groups_created);
    EXPECT_EQ(after.pipelines_created, warm.pipelines_created);
}

TEST(WorkerCoreTest, ComesBackWithoutADownloadAndSaysWhatItStillHolds) {
    Stage stage;
    stage.serve({1, 4});
    EXPECT_EQ(stage.fetches, 2);
    stage.hang_up(1006, "");
    stage.welcome();
    stage.assign({1, 4});
    EXPECT_EQ(stage.fetches, 2);
}

// It once came on the next connection, where the hub had never asked.
TEST(WorkerCoreTest, AnAnswerThatOutlivesItsConnectionIsNotSent) {
    Stage stage;
    stage.serve({1});
    stage.device->hold_reads = true;
    stage.give(encode_group_dispatch(group_of(40, 1), false));
    stage.hang_up(1006, "");
    stage.welcome();
    stage.assign({1});
    stage.device->release_reads();
    stage.give(encode_group_dispatch(group_of(1, 1), false));
    EXPECT_EQ(decode_group_result(stage.next(FrameType::group_result), limits)->sequence_id, 1u);
}

// It once answered "every slot is taken" for ever,
// when the hub came back with another share for it.
TEST(WorkerCoreTest, ExpertsOfAnEarlierShareMakeRoomForTheNext) {
    Stage stage(3 * blob_bytes);  // two, and the lanes
    stage.serve({1, 4});
    stage.hang_up(1001, "restart");
    stage.welcome();
    stage.assign({2, 6});
}

// The queue once outlived the model it was for.
TEST(WorkerCoreTest, AnotherMemoryLimitWhileGroupsWaitReconnects) {
    Stage stage;
    stage.serve({1});
    for (std::uint32_t id = 1; id <= 5; ++id)
        stage.give(encode_group_dispatch(group_of(id, 1), false));
    stage.core->set_budget(100 * blob_bytes);
    stage.give(encode_group_dispatch(group_of(6, 1), false));  // was on its way already
    stage.welcome();
    stage.assign({1, 2});
    for (const Bytes& frame : stage.sent)
        EXPECT_NE(decode_frame_header(frame)->type, FrameType::error);
    stage.give(encode_group_dispatch(group_of(1, 2), false));
    EXPECT_TRUE(decode_group_result(stage.next(FrameType::group_result), limits).ok());
}

TEST(WorkerCoreTest, APausedWorkerLeavesAndKeepsItsWeights) {
    Stage stage;
    stage.serve({1});
    stage.core->pause();
    EXPECT_FALSE(stage.connected);
    stage.run_until(
        [&] { return !stage.phases.empty() && stage.phases.back() == WorkerPhase::paused; });
    EXPECT_EQ(stage.core->status().units_ready, 1u);
    stage.core->resume();
    stage.welcome();
    stage.assign({1});
    stage.give(encode_group_dispatch(group_of(2, 1), false));
    EXPECT_TRUE(decode_group_result(stage.next(FrameType::group_result), limits).ok());
    EXPECT_EQ(stage.fetches, 1);
}

TEST(WorkerCoreTest, PauseAndResumeAtAnyMomentEndInService) {
    Stage stage;
    stage.core->start();
    stage.core->pause();  // before there is a GPU
    stage.run_until([&] { return stage.devices_opened == 1; });
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::paused);
    stage.run_until([&] { return stage.core->status().self_test_rounds == 1; });
    EXPECT_FALSE(stage.connected);
    stage.core->resume();
    stage.core->pause();  // before the line is open
    stage.core->resume();
    stage.welcome();
    stage.core->pause();   // and once more before anything was assigned
    stage.core->resume();  // while the platform is still closing
    stage.welcome();
    stage.assign({1});
    stage.give(encode_group_dispatch(group_of(2, 1), false));
    EXPECT_TRUE(decode_group_result(stage.next(FrameType::group_result), limits).ok());
}

// The page once showed a Pause that did nothing, and no Resume.
TEST(WorkerCoreTest, APausedWorkerIsShownAsPausedWhateverItsGpuDoes) {
    Stage stage;
    stage.serve({1});
    stage.core->pause();
    stage.device->break_down("reset");
    stage.phases.clear();
    stage.run_until([&] { return stage.devices_opened == 2; });
    stage.run_until([&] { return stage.core->status().self_test_rounds == 2; });
    for (const WorkerPhase phase : stage.phases) EXPECT_EQ(phase, WorkerPhase::paused);
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::paused);
    stage.device->break_down("reset again");
    stage.run_until([&] { return !stage.timers.empty(); });
    stage.core->resume();
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::gpu_lost);
    EXPECT_NE(stage.core->status().detail.find("reset again"), std::string::npos)
        << stage.core->status().detail;
    stage.long_waits = true;
    stage.run_until([&] { return stage.devices_opened == 3; });
    stage.long_waits = false;
    stage.welcome();
    stage.assign({1});
}

// It went on downloading once, and had nothing to answer with when it came back.
TEST(WorkerCoreTest, APauseInMidDownloadStopsItAndResumeTakesItUp) {
    Stage stage;
    stage.core->start();
    stage.welcome();
    stage.hold_fetches = true;
    stage.give(encode_assign({{0, 1, hash_of(1)}, {0, 2, hash_of(2)}}));
    EXPECT_EQ(stage.held_fetches.size(), 2u);
    stage.core->pause();
    for (auto& arrive : std::exchange(stage.held_fetches, {})) arrive();
    stage.run_until(
        [&] { return !stage.phases.empty() && stage.phases.back() == WorkerPhase::paused; });
    EXPECT_EQ(stage.core->status().bytes_downloaded, 0u);
    EXPECT_EQ(stage.core->status().bytes_to_fetch, stage.core->status().bytes_fetched);
    stage.hold_fetches = false;
    stage.core->resume();
    stage.welcome();
    stage.assign({1, 2});
    EXPECT_EQ(stage.core->status().bytes_downloaded, 2 * blob_bytes);
}

TEST(WorkerCoreTest, AWorkerThatIsBackOnTheNetworkDoesNotWaitForItsNextTry) {
    Stage stage;
    stage.serve({1});
    stage.hang_up(1006, "");
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::offline; });
    EXPECT_GT(stage.core->status().retry_at_ms, stage.clock_ms);
    const double now_ms = stage.clock_ms;
    stage.core->on_network_back();
    stage.welcome();
    EXPECT_EQ(stage.clock_ms, now_ms);
}

TEST(WorkerCoreTest, ASilentHubIsLeft) {
    Stage stage;
    stage.serve({1});
    stage.long_waits = true;
    stage.run_until([&] { return !stage.connected; });  // time passes, no frame comes
    stage.long_waits = false;
    EXPECT_GE(stage.clock_ms, 12000);
    stage.welcome();
    stage.assign({1});
    EXPECT_EQ(stage.fetches, 1);
}

TEST(WorkerCoreTest, AGpuThatIsLostComesBackAndAnswersAsBefore) {
    Stage stage;
    stage.serve({1});
    EXPECT_LE(stage.lose_device("reset"), 1500);
    stage.welcome();
    stage.assign({1});
    const GroupDispatch group = group_of(2, 1);
    stage.give(encode_group_dispatch(group, false));
    const auto result = decode_group_result(stage.next(FrameType::group_result), limits);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_LE(error_of(result->y, group), 1e-6);
}

// The retry outlived the loss once, and tore down the connection that served by then.
TEST(WorkerCoreTest, AGpuLostWhileOfflineLeavesNoRetryBehind) {
    Stage stage;
    stage.serve({1});
    stage.hub_is_down = stage.long_waits = true;
    stage.hang_up(1001, "restart");
    stage.run_until([&] { return stage.connects == 5; });
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::offline; });
    const double retry_at_ms = stage.core->status().retry_at_ms;
    stage.hub_is_down = false;
    stage.lose_device("sleep");
    ASSERT_LT(stage.clock_ms, retry_at_ms);
    stage.welcome();
    stage.assign({1});
    const int connects = stage.connects;
    stage.long_waits = true;
    while (stage.clock_ms < retry_at_ms + 1000) {
        stage.give(encode_heartbeat(1));
        (void)stage.next(FrameType::heartbeat);
        const double before_ms = stage.clock_ms;
        stage.set_timer(1000, [] {});
        stage.run_until([&] { return stage.clock_ms >= before_ms + 1000; });
    }
    EXPECT_EQ(stage.connects, connects);
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::serving);
}

// It said "offline" once while the GPU was tested, and
// tried a second time beside the connection that followed.
TEST(WorkerCoreTest, AConnectionThatEndsWhileTheNextGpuIsTestedIsNoReasonToRetry) {
    Stage stage;
    stage.serve({1});
    stage.hold_closing = true;
    stage.lose_device("reset");
    ASSERT_EQ(stage.core->status().phase, WorkerPhase::warming);
    stage.core->on_closed(1006, "GPU lost");
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::warming);
    stage.welcome();
    stage.assign({1});
    EXPECT_EQ(stage.connects, 2);
}

// It was opened again without end once, twice a second.
TEST(WorkerCoreTest, AGpuThatFailsAgainAndAgainIsGivenUp) {
    Stage stage;
    stage.serve({1});
    double last_ms = 0;
    for (int fault = 1; fault <= 6; ++fault) {
        const double waited_ms = stage.lose_device("invalid command");
        EXPECT_GT(waited_ms, std::min(last_ms, 20000.0)) << fault;
        last_ms = waited_ms;
        stage.welcome();
        stage.assign({1});
    }
    EXPECT_LT(stage.lose_device("invalid command"), 0);
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::failed);
    EXPECT_TRUE(
        stage.core->status().detail.starts_with("This GPU fails again and again (invalid command)"))
        << stage.core->status().detail;
    EXPECT_FALSE(stage.connected);
    EXPECT_TRUE(stage.timers.empty());  // nothing is tried until a person asks for it
}

TEST(WorkerCoreTest, AFaultIsForgottenAfterAMinuteOfService) {
    Stage stage;
    stage.serve({1});
    for (int fault = 1; fault <= 8; ++fault) {
        EXPECT_LE(stage.lose_device("reset"), 1500) << fault;
        stage.welcome();
        stage.assign({1});
        stage.clock_ms += 61000;
    }
}

TEST(WorkerCoreTest, OutOfMemoryHalvesTheLimitUntilItFitsAndTheHubHearsOfIt) {
    Stage stage(1000 * blob_bytes);
    stage.device_memory_bytes = 1'500'000;
    std::vector<std::uint64_t> told;
    stage.core->start();
    for (int round = 0; round < 12 && stage.core->status().phase != WorkerPhase::serving; ++round) {
        told.push_back(decode_hello(stage.next(FrameType::hello))->device.budget_bytes);
        stage.give(encode_welcome({.worker_id = 7,
                                   .model_name = "m",
                                   .package_sha256 = std::string(64, 'a'),
                                   .limits = wide_limits,
                                   .expert_shape = shape,
                                   .top_k = 2,
                                   .expert_blob_bytes = blob_bytes}));
        std::vector<AssignedUnit> units;  // as many as it said it holds
        for (std::uint16_t i = 0; i < std::min<std::uint64_t>(512, told.back() / blob_bytes); ++i)
            units.push_back({0, i, hash_of(i % 8)});
        stage.give(encode_assign(units));
        stage.run_until([&] {
            return stage.core->status().phase == WorkerPhase::serving ||
                   stage.core->status().phase == WorkerPhase::gpu_lost;
        });
    }
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::serving);
    ASSERT_GE(told.size(), 2u);
    for (std::size_t i = 1; i < told.size(); ++i)
        EXPECT_NEAR(static_cast<double>(told[i]), static_cast<double>(told[i - 1]) / 2, 2);
    EXPECT_LE(stage.core->status().device.buffer_bytes, stage.device_memory_bytes);
}

// The lanes came on top of the limit once: a quarter of a gigabyte for a large model.
TEST(WorkerCoreTest, WeightsAndCallsInFlightStayWithinTheLimitTogether) {
    for (const std::uint64_t limit_bytes : {150'000ull, 400'000ull, 3'000'000ull}) {
        Stage stage(limit_bytes);
        stage.core->start();
        const std::uint64_t told = decode_hello(stage.next(FrameType::hello))->device.budget_bytes;
        stage.give(encode_welcome({.worker_id = 7,
                                   .model_name = "m",
                                   .package_sha256 = std::string(64, 'a'),
                                   .limits = wide_limits,
                                   .expert_shape = shape,
                                   .top_k = 2,
                                   .expert_blob_bytes = blob_bytes}));
        std::vector<AssignedUnit> units;
        for (std::uint16_t i = 0; i < told / blob_bytes; ++i)
            units.push_back({0, i, hash_of(i % 8)});
        ASSERT_GT(units.size(), 5u);
        stage.give(encode_assign(units));
        stage.run_until([&] { return stage.core->status().units_ready == units.size(); });
        stage.give(encode_group_dispatch(group_of(1, 2), false));
        EXPECT_TRUE(decode_group_result(stage.next(FrameType::group_result), wide_limits).ok());
        stage.phases.clear();
        stage.run_until([&] { return !stage.phases.empty(); });
        EXPECT_LE(stage.core->status().device.buffer_bytes, limit_bytes);
        EXPECT_GE(stage.core->status().device.buffer_bytes, limit_bytes / 2)
            << "memory that was offered is not used";
    }
}

// It once named sixteen of the adapter's bindings, and had
// room for half of the experts that it was given then.
TEST(WorkerCoreTest, HelloNamesWhatThisAdapterHoldsAndNoMoreIsFetched) {
    Stage stage;
    stage.binding_bytes = blob_bytes * 19 / 10;  // one blob an arena
    stage.core->start();
    const Bytes welcome = encode_welcome({.worker_id = 7,
                                          .model_name = "m",
                                          .package_sha256 = std::string(64, 'a'),
                                          .limits = wide_limits,
                                          .expert_shape = shape,
                                          .top_k = 2,
                                          .expert_blob_bytes = blob_bytes});
    std::uint64_t room = decode_hello(stage.next(FrameType::hello))->device.budget_bytes /
                         blob_bytes;
    EXPECT_GT(room, ExpertStore::arenas_max);  // the size of a blob is not known yet
    stage.give(welcome);
    room = decode_hello(stage.next(FrameType::hello))->device.budget_bytes / blob_bytes;
    EXPECT_EQ(room, ExpertStore::arenas_max);
    stage.give(welcome);
    std::vector<AssignedUnit> units;
    for (std::uint16_t i = 0; i < room + 3; ++i) units.push_back({0, i, hash_of(i % 8)});
    stage.give(encode_assign(units));
    const auto error = decode_error(stage.next(FrameType::error));
    EXPECT_EQ(error->code, "no_space");
    EXPECT_FALSE(error->fatal);
    stage.run_until([&] { return stage.core->status().units_ready == room; });
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::serving);
    EXPECT_EQ(stage.fetches, static_cast<int>(room));
    stage.give(encode_group_dispatch(group_of(1, static_cast<std::uint16_t>(room - 1)), false));
    EXPECT_TRUE(decode_group_result(stage.next(FrameType::group_result), wide_limits).ok());
}

TEST(WorkerCoreTest, AGroupTooLargeForItsMemoryIsRefusedWithWhatItTakes) {
    Stage stage(150'000);
    stage.serve({1});
    GroupDispatch group = group_of(1, 1);
    group.shape.num_tokens = group.shape.num_pairs = 16;
    group.experts = {{1, 16}};
    group.rows.clear();
    for (std::uint16_t row = 0; row < 16; ++row) group.rows.push_back(row);
    group.gates.assign(16, float_to_half(0.5f));
    group.x.resize(16 * 96, 0.1f);
    stage.give(encode_group_dispatch(group, false));
    const auto error = decode_error(stage.next(FrameType::error));
    EXPECT_EQ(error->code, "num_tokens_range");
    const std::uint32_t takes = static_cast<std::uint32_t>(std::stoul(error->wanted));
    ASSERT_LT(takes, 16u);
    group.shape.num_tokens = group.shape.num_pairs = takes;
    group.experts = {{1, static_cast<std::uint16_t>(takes)}};
    group.rows.resize(takes);
    group.gates.resize(takes);
    group.x.resize(takes * 96);
    stage.give(encode_group_dispatch(group, false));
    EXPECT_TRUE(decode_group_result(stage.next(FrameType::group_result), limits).ok());
}

TEST(WorkerCoreTest, AMemoryLimitWithoutRoomForOneExpertIsSaid) {
    Stage stage(blob_bytes);
    stage.core->start();
    stage.welcome();
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::failed; });
    EXPECT_EQ(stage.core->status().detail,
              "The memory limit of 11 kB has no room for one expert of this model, which takes 11 "
              "kB. Raise the limit, then start again.");
    EXPECT_FALSE(stage.connected);
}

TEST(WorkerCoreTest, AGpuWithoutMemoryForOneExpertSaysSo) {
    Stage stage(3 * blob_bytes);
    stage.core->start();
    stage.welcome();
    stage.give(encode_assign({{0, 1, hash_of(1)}}));
    stage.device->break_down("out of memory: 7 bytes");
    stage.welcome();
    stage.device->break_down("out of memory: 7 bytes");
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::failed; });
    EXPECT_TRUE(stage.core->status().detail.starts_with("This GPU has too little free memory"))
        << stage.core->status().detail;
}

TEST(WorkerCoreTest, ARefusedTokenIsFinal) {
    Stage stage;
    stage.core->start();
    (void)stage.next(FrameType::hello);
    stage.hang_up(1008, "bad token");
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::refused; });
    EXPECT_FALSE(stage.connected);
}

// It went on asking for its experts once, and kept those it had on the GPU.
TEST(WorkerCoreTest, ARefusedWorkerFetchesNothingMoreAndFreesItsMemory) {
    Stage stage;
    stage.serve({1});
    stage.fetches_failing = 1000;
    stage.give(encode_assign({{0, 2, hash_of(2)}, {0, 3, hash_of(3)}}));
    // both wait for another try
    stage.run_until([&] { return stage.core->status().errors == 2; });
    stage.hold_fetches = true;
    // and one is on its way
    stage.give(encode_assign({{0, 4, hash_of(4)}}));
    stage.give(encode_error({.sequence_id = no_sequence_id,
                             .code = "unauthorized",
                             .found = "removed by the host",
                             .fatal = true}));
    stage.hang_up(1008, "removed");
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::refused; });
    EXPECT_TRUE(stage.held_fetches.empty());
    EXPECT_EQ(stage.core->status().device.buffer_bytes, 0u);
    stage.hold_fetches = false;
    const int fetches = stage.fetches;
    stage.long_waits = true;
    stage.run_until([&] { return stage.timers.empty(); });
    EXPECT_EQ(stage.fetches, fetches);
}

// The bar stood at half for ever once.
TEST(WorkerCoreTest, AnExpertReleasedBetweenTwoTriesIsNoLongerWaitedFor) {
    Stage stage;
    stage.serve({1});
    stage.fetches_failing = 1000;
    stage.give(encode_assign({{0, 2, hash_of(2)}}));
    stage.run_until([&] { return stage.core->status().errors == 1; });
    stage.give(encode_release({{0, 2}}));
    EXPECT_EQ(stage.core->status().phase, WorkerPhase::serving);
    stage.long_waits = true;
    stage.run_until(
        [&] { return stage.core->status().bytes_to_fetch == stage.core->status().bytes_fetched; });
    EXPECT_EQ(stage.fetches, 2);
}

TEST(WorkerCoreTest, AHubThatNeverSaysWelcomeIsLeft) {
    Stage stage;
    stage.core->start();
    (void)stage.next(FrameType::hello);
    stage.long_waits = true;
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::offline; });
    EXPECT_GE(stage.clock_ms, 12000);
    stage.welcome();
    stage.long_waits = false;
    stage.assign({1});
}

// It was tried about once a second for ever.
TEST(WorkerCoreTest, AHubThatBreaksAfterEachWelcomeIsLeftAloneEverLonger) {
    Stage stage;
    stage.core->start();
    stage.long_waits = true;
    double last_ms = 0, waits_ms = 0;
    for (int i = 0; i < 5; ++i) {
        stage.welcome();
        stage.hang_up(1006, "");
        stage.run_until([&] { return stage.core->status().phase == WorkerPhase::offline; });
        waits_ms = stage.core->status().retry_at_ms - stage.clock_ms;
        EXPECT_GT(waits_ms, last_ms);
        last_ms = waits_ms;
    }
    stage.welcome();
    for (int second = 0; second < 12; ++second) {  // now it serves
        stage.clock_ms += 1000;
        stage.give(encode_heartbeat(1));
    }
    stage.hang_up(1006, "");
    stage.run_until([&] { return stage.core->status().phase == WorkerPhase::offline; });
    EXPECT_LE(stage.core->status().retry_at_ms - stage.clock_ms, 1000);
}

TEST(WorkerCoreTest, AFrameThatBreaksTheRulesClosesTheConnection) {
    Stage stage;
    stage.serve({1});
    Bytes broken = encode_group_dispatch(group_of(1, 1), false);
    broken.resize(broken.size() - 4);
    stage.give(broken);
    EXPECT_TRUE(decode_error(stage.next(FrameType::error))->fatal);
    EXPECT_FALSE(stage.connected);
}

Bytes frame_of(FrameType type, std::string_view payload) {
    ByteWriter out;
    begin_frame(out, type, 0);
    out.raw(as_byte_view(payload));
    return finish_frame(std::move(out));
}

struct BadFrame {
    const char* what;
    std::function<Bytes()> frame;
    const char* code;
};
class BadFrameTest : public testing::TestWithParam<BadFrame> {};
TEST_P(BadFrameTest, IsAnsweredWithAFatalErrorAnd1002) {
    Stage stage;
    stage.serve({1});
    stage.give(GetParam().frame());
    const auto error = decode_error(stage.next(FrameType::error));
    EXPECT_TRUE(error->fatal);
    EXPECT_EQ(error->code, GetParam().code);
    EXPECT_EQ(stage.closed_with, 1002);
    stage.welcome();  // and comes back
}
INSTANTIATE_TEST_SUITE_P(
    Table, BadFrameTest,
    testing::Values(
        BadFrame{"Challenge", [] { return frame_of(FrameType::challenge, ""); }, "unknown_type"},
        BadFrame{"Proof", [] { return frame_of(FrameType::proof, "x"); }, "unknown_type"},
        BadFrame{"Hello", [] { return encode_hello({}); }, "unknown_type"},
        BadFrame{"SecondWelcome",
                 [] {
                     return encode_welcome({.worker_id = 8,
                                            .model_name = "n",
                                            .limits = limits,
                                            .expert_shape = shape,
                                            .top_k = 2,
                                            .expert_blob_bytes = blob_bytes});
                 },
                 "unknown_type"},
        BadFrame{"CancelWithPayload", [] { return frame_of(FrameType::cancel, "x"); },
                 "payload_size"},
        BadFrame{"HeartbeatWithPayload", [] { return encode_heartbeat(1, "{}"); }, "payload_size"},
        BadFrame{"PrefetchOfOneByte", [] { return frame_of(FrameType::prefetch, "x"); },
                 "payload_size"},
        BadFrame{"DrainOfTwoBytes", [] { return frame_of(FrameType::drain, "ab"); },
                 "payload_size"}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(WorkerCoreTest, ATextMessageEndsTheConnectionWithItsCode) {
    Stage stage;
    stage.serve({1});
    stage.core->on_text();
    EXPECT_TRUE(decode_error(stage.next(FrameType::error))->fatal);
    EXPECT_EQ(stage.closed_with, 1003);
}

// Experts that come one at a time once took an arena each, and the sixteenth was the last.
TEST(ExpertStoreTest, ManySmallReservationsFillTheBudget) {
    std::deque<std::function<void()>> unused;
    auto device = gpu::open_vulkan_device(
        {}, [&](std::function<void()> function) { unused.push_back(std::move(function)); });
    ASSERT_TRUE(device.ok()) << device.error().message;
    ExpertStore store(**device, 256, 256 * 1000);
    const Bytes blob(256);
    for (std::uint16_t i = 0; i < 1000; ++i) {
        ASSERT_TRUE(store.reserve(i + 1u).ok());
        ASSERT_TRUE(store.put(Unit{0, i}, blob).ok()) << i;
    }
    EXPECT_LE(store.arenas().size(), ExpertStore::arenas_max);
    EXPECT_EQ(store.put(Unit{1, 0}, blob).error().code, ErrorCode::no_space);
    store.drop(Unit{0, 17});
    EXPECT_TRUE(store.put(Unit{1, 0}, blob).ok());
}

}  // namespace
}  // namespace moex
