#include "web-worker/gpu/webgpu/webgpu_device.h"

#include <emscripten.h>

#include <unordered_map>

#include <nlohmann/json.hpp>

#include "web-worker/gpu/kernel_source.h"
#include "web-worker/gpu/webgpu/webgpu_bridge.h"

namespace moex::gpu {
namespace {

class WebGpuDevice;

// The pending callbacks, by ticket. An answer that arrives after the device was destroyed finds no
// callback and is ignored.
struct Waiting {
    std::uint32_t next_ticket = 1;
    std::unordered_map<std::uint32_t, std::function<void(Result<std::unique_ptr<Device>>)>> devices;
    std::unordered_map<std::uint32_t, std::function<void(Result<PipelineId>)>> pipelines;
    std::unordered_map<std::uint32_t, std::function<void(Result<ByteView>)>> reads;
    Bytes read;  // the bytes of the readback that is being delivered now
    WebGpuDevice* open = nullptr;
};
Waiting& waiting() {
    static Waiting state;
    return state;
}

class WebGpuDevice : public Device {
  public:
    explicit WebGpuDevice(AdapterInfo adapter) : adapter_(std::move(adapter)) {
        waiting().open = this;
        words_.reserve(64 * 8);
    }
    ~WebGpuDevice() override {
        if (waiting().open == this) waiting().open = nullptr;
        waiting().pipelines.clear();
        waiting().reads.clear();
        mx_destroy_device();
    }

    const AdapterInfo& adapter() const override { return adapter_; }

    Result<BufferId> create_buffer(std::uint64_t size_bytes, BufferUsage usage,
                                   std::string_view label) override {
        const int handle = mx_create_buffer(static_cast<double>(size_bytes),
                                            static_cast<int>(usage), label.data(),
                                            static_cast<int>(label.size()));
        if (handle == 0)
            return Error{ErrorCode::device_lost,
                         text("the GPU gave no buffer of ", size_bytes, " bytes for ", label)};

        ++counters_.buffers_created;
        counters_.buffer_bytes += size_bytes;
        sizes_[static_cast<std::uint32_t>(handle)] = size_bytes;
        return BufferId{static_cast<std::uint32_t>(handle)};
    }
    void destroy_buffer(BufferId buffer) override {
        const auto found = sizes_.find(buffer.value);
        if (found == sizes_.end()) return;
        counters_.buffer_bytes -= found->second;
        sizes_.erase(found);
        mx_destroy_buffer(static_cast<int>(buffer.value));
    }
    void write_buffer(BufferId buffer, std::uint64_t offset_bytes, ByteView bytes) override {
        ++counters_.buffer_writes;
        counters_.bytes_written += bytes.size();
        mx_write_buffer(static_cast<int>(buffer.value), static_cast<double>(offset_bytes),
                        bytes.data(), static_cast<double>(bytes.size()));
    }

    void create_pipeline(std::string_view kernel, std::span<const KernelConstant> constants,
                         std::function<void(Result<PipelineId>)> done) override {
        const std::uint32_t ticket = waiting().next_ticket++;
        const KernelSource* source = find_kernel(kernel);
        MOEX_CHECK(source != nullptr, text("no kernel named ", kernel));

        ++counters_.pipelines_created;
        waiting().pipelines[ticket] = std::move(done);

        std::vector<std::uint8_t> kinds;
        for (const BindingKind kind : source->bindings)
            kinds.push_back(static_cast<std::uint8_t>(kind));

        const std::vector<std::uint32_t> values = override_values(*source, constants);
        std::string named;
        for (std::size_t i = 0; i < values.size(); ++i)
            named += text(i > 0 ? " " : "", source->overrides[i], "=", values[i]);

        mx_create_pipeline(source->wgsl.data(), static_cast<int>(source->wgsl.size()),
                           source->entry_point.data(), static_cast<int>(source->entry_point.size()),
                           kinds.data(), static_cast<int>(kinds.size()), named.data(),
                           static_cast<int>(named.size()), ticket);
    }
    Result<BindGroupId> create_bind_group(PipelineId pipeline,
                                          std::span<const Binding> bindings) override {
        std::vector<double> flat;
        for (const Binding& binding : bindings) {
            flat.push_back(binding.buffer.value);
            flat.push_back(static_cast<double>(binding.offset_bytes));
            flat.push_back(static_cast<double>(binding.size_bytes));
        }

        const int handle = mx_create_bind_group(static_cast<int>(pipeline.value), flat.data(),
                                                static_cast<int>(bindings.size()));
        if (handle == 0) return Error{ErrorCode::device_lost, "the GPU made no bind group"};
        ++counters_.bind_groups_created;
        return BindGroupId{static_cast<std::uint32_t>(handle)};
    }
    void destroy_bind_group(BindGroupId bind_group) override {
        mx_destroy_bind_group(static_cast<int>(bind_group.value));
    }

    void submit(std::span<const Command> commands) override {
        ++counters_.submits;
        words_.clear();
        for (const Command& command : commands) {
            if (command.kind == Command::Kind::dispatch) {
                const std::uint32_t words[8] = {0,
                                                command.pipeline.value,
                                                command.bind_group.value,
                                                command.workgroups[0],
                                                command.workgroups[1],
                                                command.workgroups[2],
                                                0,
                                                0};
                words_.insert(words_.end(), words, words + 8);
            } else {
                const std::uint32_t words[8] = {
                    1,
                    command.source.value,
                    command.target.value,
                    static_cast<std::uint32_t>(command.source_offset_bytes),
                    static_cast<std::uint32_t>(command.target_offset_bytes),
                    static_cast<std::uint32_t>(command.size_bytes),
                    0,
                    0};
                words_.insert(words_.end(), words, words + 8);
            }
        }
        mx_submit(words_.data(), static_cast<int>(commands.size()));
    }
    void read_buffer(BufferId buffer, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        const std::uint32_t ticket = waiting().next_ticket++;
        ++counters_.readbacks;
        counters_.bytes_read += size_bytes;
        waiting().reads[ticket] = std::move(done);
        mx_read_buffer(static_cast<int>(buffer.value), static_cast<double>(size_bytes), ticket);
    }

    void expect_work(double within_ms) override { mx_expect_work(within_ms); }

    void on_lost(std::function<void(Loss)> handler) override { lost_ = std::move(handler); }
    void lost(Loss loss) {
        if (auto handler = std::exchange(lost_, nullptr)) handler(std::move(loss));
    }
    DeviceCounters counters() const override { return counters_; }
    double gpu_us() const override { return mx_gpu_us(); }

  private:
    AdapterInfo adapter_;
    DeviceCounters counters_;
    std::unordered_map<std::uint32_t, std::uint64_t> sizes_;
    std::vector<std::uint32_t> words_;
    std::function<void(Loss)> lost_;
};

template <class Map>
typename Map::mapped_type take(Map& map, std::uint32_t ticket) {
    const auto found = map.find(ticket);
    if (found == map.end()) return {};
    typename Map::mapped_type taken = std::move(found->second);
    map.erase(found);
    return taken;
}
std::string text_at(const char* bytes, std::uint32_t size_bytes) {
    return std::string(bytes, size_bytes);
}

}  // namespace

void open_webgpu_device(std::function<void(Result<std::unique_ptr<Device>>)> done) {
    const std::uint32_t ticket = waiting().next_ticket++;
    waiting().devices[ticket] = std::move(done);
    mx_create_device(ticket);
}

extern "C" {

// `bytes`: the JSON text of the adapter if `ok`, otherwise the reason of the failure.
EMSCRIPTEN_KEEPALIVE void mx_on_device(std::uint32_t ticket, const char* bytes,
                                       std::uint32_t size_bytes, int ok) {
    auto done = take(waiting().devices, ticket);
    if (!done) return;
    if (!ok) {
        done(Error{ErrorCode::unavailable, text_at(bytes, size_bytes)});
        return;
    }

    const nlohmann::json json = nlohmann::json::parse(std::string_view(bytes, size_bytes), nullptr,
                                                      false);
    AdapterInfo adapter;
    adapter.backend = "webgpu";
    adapter.vendor = json.value("vendor", "");
    adapter.architecture = json.value("architecture", "");
    adapter.description = json.value("description", "");
    adapter.software = json.value("software", false);
    adapter.has_f16 = json.value("has_f16", false);
    adapter.has_subgroups = json.value("has_subgroups", false);
    adapter.max_buffer_bytes = static_cast<std::uint64_t>(json.value("max_buffer_bytes", 0.0));
    adapter.max_binding_bytes = static_cast<std::uint64_t>(json.value("max_binding_bytes", 0.0));
    adapter.max_workgroup_invocations = json.value("max_workgroup_invocations", 256u);
    adapter.max_workgroups_per_dimension = json.value("max_workgroups_per_dimension", 65535u);

    done(Result<std::unique_ptr<Device>>(std::make_unique<WebGpuDevice>(std::move(adapter))));
}

EMSCRIPTEN_KEEPALIVE void mx_on_pipeline(std::uint32_t ticket, int handle, const char* reason,
                                         std::uint32_t size_bytes) {
    auto done = take(waiting().pipelines, ticket);
    if (!done) return;
    if (handle > 0)
        done(PipelineId{static_cast<std::uint32_t>(handle)});
    else
        done(Error{handle < 0 ? ErrorCode::device_lost : ErrorCode::unsupported,
                   text_at(reason, size_bytes)});
}

// Returns the address where JavaScript writes the bytes of a readback. The device may be destroyed
// during the delivery.
EMSCRIPTEN_KEEPALIVE std::byte* mx_read_room(std::uint32_t size_bytes) {
    Bytes& read = waiting().read;
    if (read.size() < size_bytes) read.resize(size_bytes);
    return read.data();
}
EMSCRIPTEN_KEEPALIVE void mx_on_read(std::uint32_t ticket, std::uint32_t size_bytes) {
    auto done = take(waiting().reads, ticket);
    if (!done) return;
    if (size_bytes > 0)
        done(ByteView(waiting().read).first(size_bytes));
    else
        done(Error{ErrorCode::device_lost, "the GPU did not give the result back"});
}

// `kind`: gpu::LossKind.
EMSCRIPTEN_KEEPALIVE void mx_on_lost(std::uint32_t kind, const char* reason,
                                     std::uint32_t size_bytes) {
    if (WebGpuDevice* device = waiting().open)
        device->lost({static_cast<LossKind>(kind), text_at(reason, size_bytes)});
}

}  // extern "C"

}  // namespace moex::gpu
