#include "tests/web-worker/stage.h"

#include <algorithm>
#include <numeric>

#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {
namespace {

ExpertWeights weights_of(std::uint16_t expert, const ExpertShape& shape) {
    ExpertWeights weights{.shape = shape};
    const auto fill = [&](std::vector<float>& values, std::uint32_t size, float step) {
        for (std::uint32_t i = 0; i < size; ++i)
            values.push_back(
                step * static_cast<float>(static_cast<int>((i + 31 * expert) * 7919 % 201) - 100));
    };
    for (auto* matrix : {&weights.gate, &weights.up, &weights.down}) fill(*matrix, 96 * 64, 0.004f);
    if (!shape.has_bias) return weights;
    fill(weights.gate_bias, 64, 0.003f);
    fill(weights.up_bias, 64, 0.005f);
    fill(weights.down_bias, 96, 0.02f);
    return weights;
}

}  // namespace

Sha256 hash_of(std::uint16_t expert) {
    Sha256 hash{};
    hash[0] = static_cast<std::byte>(expert % 8 + 1);
    return hash;
}

std::vector<AssignedUnit> units_of(const std::vector<std::uint16_t>& experts) {
    std::vector<AssignedUnit> units;
    for (const std::uint16_t expert : experts) units.push_back({0, expert, hash_of(expert)});
    return units;
}

std::vector<std::uint16_t> first_experts(std::uint64_t count) {
    std::vector<std::uint16_t> experts(count);
    std::iota(experts.begin(), experts.end(), std::uint16_t{0});
    return experts;
}

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

double error_of(const std::vector<float>& y, const GroupDispatch& group, const ExpertShape& shape) {
    const Bytes blob = quantize_expert(
        weights_of(static_cast<std::uint16_t>(group.experts[0].expert % 8), shape));
    std::vector<double> expected(group.x.size());
    expert_reference(std::span<double>(expected),
                     dequantize_expert(*view_expert_blob(blob, shape, shape.codes)),
                     std::vector<double>(group.x.begin(), group.x.end()));
    for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] *= half_to_float(group.gates[i / 96]);
    return normalized_rms_error(y, expected);
}

// ---- FragileDevice

FragileDevice::FragileDevice(std::unique_ptr<gpu::Device> device, std::uint64_t memory_bytes,
                             std::uint64_t binding_bytes,
                             std::function<void(std::function<void()>)> post)
    : DeviceDecorator(*device),
      adapter_(device->adapter()),
      owned_(std::move(device)),
      memory_bytes_(memory_bytes),
      post_(std::move(post)) {
    adapter_.max_binding_bytes = std::min(adapter_.max_binding_bytes, binding_bytes);
}

void FragileDevice::break_down(std::string reason, gpu::LossKind kind) {
    post_([this, loss = gpu::Loss{kind, std::move(reason)}, life = life_.watch()] {
        if (!life.alive()) return;
        if (auto handler = std::exchange(lost_, nullptr)) handler(loss);
    });
}

Result<gpu::BufferId> FragileDevice::create_buffer(std::uint64_t size_bytes, gpu::BufferUsage usage,
                                                   std::string_view label) {
    if (counters().buffer_bytes + size_bytes > memory_bytes_)
        break_down(text(size_bytes, " bytes for ", label), gpu::LossKind::out_of_memory);
    auto made = device_.create_buffer(size_bytes, usage, label);
    peak_bytes = std::max(peak_bytes, counters().buffer_bytes);
    return made;
}

std::uint64_t FragileDevice::transfer(gpu::BufferId buffer, std::uint64_t offset_bytes,
                                      ByteView bytes, gpu::TransferKind kind,
                                      std::function<void()> done) {
    const std::uint64_t number = device_.transfer(buffer, offset_bytes, bytes, kind,
                                                  std::move(done));
    if (number > 0) transfers[number] = kind;
    return number;
}

void FragileDevice::await_transfer(std::uint64_t number) {
    if (number > 0) awaited.insert(number);
    device_.await_transfer(number);
}

void FragileDevice::read_buffer(gpu::BufferId buffer, std::uint64_t size_bytes,
                                std::function<void(Result<ByteView>)> done) {
    if (!hold_reads) return device_.read_buffer(buffer, size_bytes, std::move(done));
    held_reads.push_back([this, buffer, size_bytes, done = std::move(done)]() mutable {
        device_.read_buffer(buffer, size_bytes, std::move(done));
    });
}

void FragileDevice::release_reads() {
    hold_reads = false;
    for (auto& read : std::exchange(held_reads, {})) read();
}

// ---- implementation of Platform by Stage

Stage::Stage(std::uint64_t budget_bytes, WorkerOptions options) {
    options.token = "t";
    options.budget_bytes = budget_bytes;
    core = std::make_unique<WorkerCore>(*this, std::move(options));
}

void Stage::connect() {
    ++connects;
    if (hub_is_down) return post([this] { core->on_closed(1006, ""); });
    connected = true;
    post([this] { core->on_open(); });
}

void Stage::close(std::uint16_t code, std::string_view reason) {
    if (connected) closed_with = code;
    hang_up(code, std::string(reason));
}

namespace {
Bytes blob_named(const Sha256& hash, const ExpertShape& shape) {
    return quantize_expert(
        weights_of(static_cast<std::uint16_t>(std::to_integer<int>(hash[0]) - 1), shape));
}
}  // namespace

HeldBlob Stage::find_blob(const Sha256& hash) {
    if (!remembers) return {};
    memory.keep(hash, blob_named(hash, shape));
    return memory.find(hash);
}

void Stage::fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool,
                       std::function<void(std::uint64_t, bool)> progress,
                       std::function<void(Result<Bytes>)> done) {
    ++fetches;
    auto arrive = [this, hash, size_bytes, progress = std::move(progress), done = std::move(done),
                   at = generation] {
        if (at != generation) return;
        if (fetches <= fetches_failing) return done(Error{ErrorCode::io_error, "HTTP 503"});
        progress(size_bytes, true);
        done(blob_named(hash, shape));
    };
    if (hold_fetches)
        held_fetches.push_back(std::move(arrive));
    else
        post(std::move(arrive));
}

void Stage::cancel_fetches() {
    ++generation;
    held_fetches.clear();
}

std::uint64_t Stage::set_timer(double delay_ms, std::function<void()> function) {
    timers[++last_timer] = {clock_ms + delay_ms, std::move(function)};
    return last_timer;
}

void Stage::create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) {
    post([this, done = std::move(done)] {
        if (no_gpu) return done(Error{ErrorCode::unsupported, "no adapter"});
        const auto later = [this](std::function<void()> function) { post(std::move(function)); };
        auto opened = gpu::open_vulkan_device({}, later);
        if (!opened.ok()) return done(opened.error());
        auto fragile = std::make_unique<FragileDevice>(std::move(*opened), device_memory_bytes,
                                                       binding_bytes, later);
        device = fragile.get();
        if (shares_memory)
            for (const ByteView piece : memory.pieces()) (void)device->share_memory(piece);
        ++devices_opened;
        done(Result<std::unique_ptr<gpu::Device>>(std::move(fragile)));
    });
}

// ---- time

void Stage::post(std::function<void()> function) {
    const std::lock_guard lock(mutex_);
    functions_.push_back(std::move(function));
    wake_.notify_one();
}

Stage::Timers::iterator Stage::next_timer() {
    auto next = timers.end();
    if (hold_timers) return next;
    for (auto one = timers.begin(); one != timers.end(); ++one)
        if ((long_waits || one->second.first < clock_ms + 5000) &&
            (next == timers.end() || one->second.first < next->second.first))
            next = one;
    return next;
}

void Stage::run_until(const std::function<bool()>& finished) {
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

// ---- verbs

void Stage::run_until_phase(WorkerPhase phase) {
    run_until([&] { return status().phase == phase; });
}

void Stage::run_until_shown() {
    phases.clear();
    run_until([&] { return !phases.empty(); });
}

bool Stage::has_sent(FrameType type) const {
    return std::any_of(sent.begin(), sent.end(), [&](const Bytes& frame) {
        return decode_frame_header(frame)->type == type;
    });
}

Bytes Stage::next(FrameType type) {
    run_until([&] { return has_sent(type); });
    const auto found = std::find_if(sent.begin(), sent.end(), [&](const Bytes& frame) {
        return decode_frame_header(frame)->type == type;
    });
    Bytes frame = std::move(*found);
    sent.erase(found);
    return frame;
}

void Stage::hang_up(std::uint16_t code, std::string reason) {
    if (!std::exchange(connected, false)) return;
    if (hold_closing) return;
    post([this, code, reason = std::move(reason)] { core->on_closed(code, reason); });
}

std::uint64_t Stage::welcome() {
    const std::uint64_t told_bytes = decode_hello(next(FrameType::hello))->device.budget_bytes;
    give(welcome_frame());
    return told_bytes;
}

Bytes Stage::welcome_frame() const {
    return encode_welcome({.worker_id = 7,
                           .model_name = "m",
                           .package_sha256 = std::string(64, 'a'),
                           .limits = limits,
                           .expert_shape = shape,
                           .top_k = 2,
                           .expert_blob_bytes = expert_blob_layout(shape).size_bytes,
                           .dtype = Dtype::f32,  // as in group_of()
                           .caps = hub_caps,
                           .arithmetic = hub_asks,
                           .nonce = hub_nonce,
                           .hub = hub_id,
                           .need = hub_need,
                           .hubs = hubs});
}

void Stage::assign(const std::vector<std::uint16_t>& experts) {
    give(encode_assign(units_of(experts)));
    std::size_t ready = 0;
    while (ready < experts.size())
        ready += decode_ready(next(FrameType::ready), limits)->units.size();
    EXPECT_EQ(ready, experts.size());
}

void Stage::serve(const std::vector<std::uint16_t>& experts) {
    core->start();
    welcome();
    assign(experts);
}

void Stage::expect_answer(std::uint32_t sequence_id, std::uint16_t expert) {
    const GroupDispatch group = group_of(sequence_id, expert);
    give(encode_group_dispatch(group, false));
    const auto result = decode_group_result(next(FrameType::group_result), limits);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->sequence_id, sequence_id);
    EXPECT_LE(error_of(result->y, group, shape), 1e-6) << "expert " << expert;
}

double Stage::lose_device(const std::string& reason) {
    const double began_ms = clock_ms;
    const int before = devices_opened;
    device->break_down(reason);
    long_waits = true;
    run_until([&] { return devices_opened > before || status().phase == WorkerPhase::failed; });
    long_waits = false;
    return devices_opened > before ? clock_ms - began_ms : -1;
}

}  // namespace moex
