#include "web-worker/gpu/vulkan/vulkan_device.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "web-worker/gpu/kernel_source.h"
#include "web-worker/gpu/vulkan/vulkan_api.h"
#include "web-worker/gpu/vulkan/vulkan_awake.h"
#include "web-worker/gpu/vulkan/vulkan_memory.h"
#include "web-worker/gpu/vulkan/vulkan_pipeline.h"
#include "web-worker/gpu/vulkan/vulkan_submissions.h"
#include "web-worker/gpu/vulkan/vulkan_transfers.h"

namespace moex::gpu {
namespace {

constexpr std::uint32_t bind_groups_max = 8192;
// On an idle GPU the driver, or a desktop, holds less than this share of the memory.
constexpr double idle_share_max = 1.0 / 128;
constexpr std::uint64_t idle_bytes_max = 1ull << 30;

struct BindGroup {
    VkDescriptorSet set = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
};

class VulkanDevice : public Device {
  public:
    VulkanDevice(VulkanAdapter chosen, PostFunction post)
        : chosen_(std::move(chosen)),
          post_(std::move(post)) {}

    Status open(const VulkanOptions& options) {
        drop_clamping_ = options.robust_access == RobustAccess::unless_checked &&
                         chosen_.has_pipeline_robustness;
        MOEX_TRY(make_device(options.robust_access != RobustAccess::never));
        submissions_ = std::make_unique<VulkanSubmissions>(chosen_, device_, queue_, post_);
        MOEX_TRY(submissions_->open());
        MOEX_TRY(make_descriptor_pool());
        make_transfers();
        describe();
        stay_awake(options.stay_awake);
        return {};
    }

    // Errors are ignored: a device without keep-alive dispatches works, too.
    void stay_awake(StayAwake wanted) {
        const bool can = !chosen_.software && chosen_.has_memory_budget;
        if (wanted == StayAwake::never || (wanted == StayAwake::alone && !can)) return;
        auto awake = std::make_unique<VulkanAwake>(device_, queue_);
        if (awake->open(chosen_, wanted == StayAwake::alone).ok() && awake->ends_when_told())
            submissions_->stay_awake(std::move(awake));
    }

    Status make_device(bool robust_access) {
        const float priority = 1.0f;
        VkDeviceQueueCreateInfo queues[2];
        for (VkDeviceQueueCreateInfo& queue : queues) {
            queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
            queue.queueCount = 1;
            queue.pQueuePriorities = &priority;
        }
        queues[0].queueFamilyIndex = chosen_.queue_family;
        queues[1].queueFamilyIndex = chosen_.transfer_family;

        VkPhysicalDeviceFeatures features{};
        features.robustBufferAccess = robust_access ? VK_TRUE : VK_FALSE;

        VkDeviceCreateInfo info{.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
        info.queueCreateInfoCount = chosen_.transfer_family == chosen_.queue_family ? 1 : 2;
        info.pQueueCreateInfos = queues;
        info.pEnabledFeatures = &features;

        std::vector<const char*> extensions;
        VkPhysicalDevicePipelineRobustnessFeaturesEXT robustness{
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_ROBUSTNESS_FEATURES_EXT};
        robustness.pipelineRobustness = VK_TRUE;
        if (drop_clamping_) {
            robustness.pNext = const_cast<void*>(std::exchange(info.pNext, &robustness));
            extensions.push_back(VK_EXT_PIPELINE_ROBUSTNESS_EXTENSION_NAME);
        }

        VkPhysicalDeviceTimelineSemaphoreFeatures timeline{
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES};
        timeline.timelineSemaphore = VK_TRUE;
        if (chosen_.shared_page_bytes > 0) {
            timeline.pNext = const_cast<void*>(std::exchange(info.pNext, &timeline));
            extensions.push_back(VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME);
            extensions.push_back(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
        }
        info.enabledExtensionCount = static_cast<std::uint32_t>(extensions.size());
        info.ppEnabledExtensionNames = extensions.data();
        MOEX_VULKAN(vkCreateDevice(chosen_.device, &info, nullptr, &device_), "vkCreateDevice");

        vkGetDeviceQueue(device_, chosen_.queue_family, 0, &queue_);
        vkGetPhysicalDeviceMemoryProperties(chosen_.device, &memory_);
        return {};
    }

    // Waits until the device is idle. Called rarely: at the end of a self-test, of a model, or of
    // the worker.
    void wait_idle() {
        submissions_->flush();
        if (transfers_)
            transfers_->wait_idle();
        else
            vkDeviceWaitIdle(device_);
    }

    Status make_descriptor_pool() {
        const VkDescriptorPoolSize sizes[] = {
            {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 5 * bind_groups_max},
            {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, bind_groups_max}};
        VkDescriptorPoolCreateInfo descriptors{
            .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
        descriptors.flags = VK_DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT;
        descriptors.maxSets = bind_groups_max;
        descriptors.poolSizeCount = 2;
        descriptors.pPoolSizes = sizes;
        MOEX_VULKAN(vkCreateDescriptorPool(device_, &descriptors, nullptr, &descriptor_pool_),
                    "vkCreateDescriptorPool");
        return {};
    }

    // Errors are ignored: a device without transfers writes through staging memory.
    void make_transfers() {
        if (chosen_.shared_page_bytes == 0) return;
        VkQueue queue = VK_NULL_HANDLE;
        vkGetDeviceQueue(device_, chosen_.transfer_family, 0, &queue);
        auto transfers = std::make_unique<VulkanTransfers>(
            device_, queue, queue == queue_, post_,
            [this](const Error& error) { submissions_->die(loss_of(error)); });
        if (transfers->open(chosen_).ok()) transfers_ = std::move(transfers);
    }

    void describe() {
        const VkPhysicalDeviceLimits& limits = chosen_.properties.limits;
        adapter_.backend = "vulkan";
        adapter_.vendor = chosen_.properties.vendorID == 0x10de   ? "nvidia"
                          : chosen_.properties.vendorID == 0x1002 ? "amd"
                          : chosen_.properties.vendorID == 0x8086 ? "intel"
                          : chosen_.software                      ? "mesa"
                                                                  : "unknown";
        adapter_.description = text(chosen_.properties.deviceName,
                                    chosen_.driver.empty() ? "" : ", ", chosen_.driver);
        adapter_.software = chosen_.software;
        adapter_.memory_bytes = chosen_.memory_bytes;

        adapter_.max_binding_bytes = limits.maxStorageBufferRange;
        adapter_.max_buffer_bytes = std::min<std::uint64_t>(limits.maxStorageBufferRange,
                                                            2ull << 30);
        adapter_.max_workgroup_invocations = limits.maxComputeWorkGroupInvocations;
        adapter_.max_workgroups_per_dimension = limits.maxComputeWorkGroupCount[0];
    }

    ~VulkanDevice() override {
        if (device_ == VK_NULL_HANDLE) return;
        if (transfers_) transfers_->stop();
        if (submissions_) submissions_->close();
        transfers_.reset();
        submissions_.reset();
        for (VulkanPipeline& pipeline : pipelines_) free_pipeline(device_, pipeline);
        for (VulkanBuffer& buffer : buffers_) free_buffer(device_, buffer);

        vkDestroyDescriptorPool(device_, descriptor_pool_, nullptr);
        vkDestroyDevice(device_, nullptr);
    }

    const AdapterInfo& adapter() const override { return adapter_; }
    DeviceCounters counters() const override { return counters_; }
    double gpu_us() const override { return submissions_->gpu_us(); }
    void on_lost(std::function<void(Loss)> handler) override {
        submissions_->on_lost(std::move(handler));
    }

    Result<BufferId> create_buffer(std::uint64_t size_bytes, BufferUsage usage,
                                   std::string_view label) override {
        VulkanBuffer made;
        const VkBufferUsageFlags flags = usage == BufferUsage::storage
                                             ? VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                                   VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                                                   VK_BUFFER_USAGE_TRANSFER_SRC_BIT
                                         : usage == BufferUsage::uniform
                                             ? VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT |
                                                   VK_BUFFER_USAGE_TRANSFER_DST_BIT
                                             : VkBufferUsageFlags{VK_BUFFER_USAGE_TRANSFER_DST_BIT};
        const bool readback = usage == BufferUsage::readback;
        if (const Status status = allocate(
                made, size_bytes, flags, readback ? VulkanMemory::readback : VulkanMemory::device);
            !status.ok())
            return Error{status.error().code, text("buffer ", label, " of ", size_bytes,
                                                   " bytes: ", status.error().message)};
        if (!readback) {
            // New memory may contain anything. A kernel must find zeros, as in a browser.
            const VkCommandBuffer commands = submissions_->commands();
            vkCmdFillBuffer(commands, made.buffer, 0, VK_WHOLE_SIZE, 0);
            barrier(commands);
            made.written_by = submissions_->next_number();
        }
        made.used = true;
        buffers_.push_back(made);
        ++counters_.buffers_created;
        counters_.buffer_bytes += size_bytes;
        return BufferId{static_cast<std::uint32_t>(buffers_.size())};
    }

    void destroy_buffer(BufferId id) override {
        if (id.value == 0 || id.value > buffers_.size() || !buffers_[id.value - 1].used) return;
        wait_idle();
        VulkanBuffer& buffer = buffers_[id.value - 1];
        counters_.buffer_bytes -= buffer.size_bytes;
        free_buffer(device_, buffer);
    }

    void write_buffer(BufferId id, std::uint64_t offset_bytes, ByteView bytes) override {
        ++counters_.buffer_writes;
        counters_.bytes_written += bytes.size();
        submissions_->write(buffers_[id.value - 1], offset_bytes, bytes);
    }

    Status share_memory(ByteView memory) override {
        if (!transfers_)
            return Error{ErrorCode::unsupported, "the driver reads no memory of its process"};
        return transfers_->share(memory);
    }
    void unshare_memory(ByteView memory) override {
        if (transfers_) transfers_->unshare(memory);
    }
    std::uint64_t transfer(BufferId id, std::uint64_t offset_bytes, ByteView bytes,
                           TransferKind kind, std::function<void()> done) override {
        if (submissions_->is_dead() || !transfers_ || !transfers_->is_shared(bytes)) return 0;
        const VulkanBuffer& target = buffers_[id.value - 1];
        submissions_->finish(target.written_by);
        ++counters_.transfers;
        counters_.bytes_transferred += bytes.size();
        return transfers_->copy(bytes, target.buffer, offset_bytes, kind, std::move(done));
    }
    bool is_shared() const override {
        return chosen_.has_memory_budget && !chosen_.software &&
               !is_alone(chosen_.device, idle_share_max, idle_bytes_max);
    }
    void await_transfer(std::uint64_t number) override {
        if (number <= seen_transfers_) return;
        const std::uint64_t settled = transfers_->settled();
        const std::uint64_t count = transfers_->give(number);
        if (count == 0)
            return submissions_->die({LossKind::other, "a queue of transfers took no copy"});
        submissions_->await(transfers_->over(), count);
        if (number <= settled) seen_transfers_ = settled;
    }
    bool transferred(std::uint64_t number, bool wait) override {
        return number == 0 || (transfers_ && transfers_->is_over(number, wait));
    }

    void create_pipeline(std::string_view kernel, std::span<const KernelConstant> constants,
                         std::function<void(Result<PipelineId>)> done) override {
        Result<PipelineId> made = make_pipeline(kernel, constants);
        post_(
            [done = std::move(done), made = std::move(made)]() mutable { done(std::move(made)); });
    }

    Result<BindGroupId> create_bind_group(PipelineId id,
                                          std::span<const Binding> bindings) override {
        const VulkanPipeline& pipeline = pipelines_[id.value - 1];
        MOEX_CHECK(bindings.size() == pipeline.kinds.size(),
                   text(bindings.size(), " bindings, the kernel has ", pipeline.kinds.size()));
        BindGroup group;
        group.layout = pipeline.layout;

        VkDescriptorSetAllocateInfo info{.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
        info.descriptorPool = descriptor_pool_;
        info.descriptorSetCount = 1;
        info.pSetLayouts = &pipeline.set_layout;
        MOEX_VULKAN(vkAllocateDescriptorSets(device_, &info, &group.set),
                    "vkAllocateDescriptorSets");

        std::vector<VkDescriptorBufferInfo> buffers(bindings.size());
        std::vector<VkWriteDescriptorSet> writes(bindings.size());
        for (std::size_t i = 0; i < bindings.size(); ++i) {
            buffers[i] = {buffers_[bindings[i].buffer.value - 1].buffer, bindings[i].offset_bytes,
                          bindings[i].size_bytes ? bindings[i].size_bytes : VK_WHOLE_SIZE};
            writes[i].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
            writes[i].dstSet = group.set;
            writes[i].dstBinding = static_cast<std::uint32_t>(i);
            writes[i].descriptorCount = 1;
            writes[i].descriptorType = descriptor_type(pipeline.kinds[i]);
            writes[i].pBufferInfo = &buffers[i];
        }

        vkUpdateDescriptorSets(device_, static_cast<std::uint32_t>(writes.size()), writes.data(), 0,
                               nullptr);

        bind_groups_.push_back(group);
        ++counters_.bind_groups_created;
        return BindGroupId{static_cast<std::uint32_t>(bind_groups_.size())};
    }
    void destroy_bind_group(BindGroupId id) override {
        if (id.value == 0 || id.value > bind_groups_.size() ||
            bind_groups_[id.value - 1].set == VK_NULL_HANDLE)
            return;
        wait_idle();
        vkFreeDescriptorSets(device_, descriptor_pool_, 1, &bind_groups_[id.value - 1].set);
        bind_groups_[id.value - 1] = {};
    }

    void submit(std::span<const Command> commands) override {
        ++counters_.submits;
        const VkCommandBuffer recorded = submissions_->commands();
        submissions_->begin_timed();
        for (const Command& command : commands) {
            const bool dispatches = command.kind == Command::Kind::dispatch;
            if (!command.same_stage)
                barrier(recorded, dispatches ? Followed::by_dispatch : Followed::by_copy);
            if (dispatches) {
                const VulkanPipeline& pipeline = pipelines_[command.pipeline.value - 1];
                const BindGroup& group = bind_groups_[command.bind_group.value - 1];
                vkCmdBindPipeline(recorded, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.pipeline);
                vkCmdBindDescriptorSets(recorded, VK_PIPELINE_BIND_POINT_COMPUTE, group.layout, 0,
                                        1, &group.set, 0, nullptr);
                vkCmdDispatch(recorded, command.workgroups[0], command.workgroups[1],
                              command.workgroups[2]);
            } else {
                const VkBufferCopy region{command.source_offset_bytes, command.target_offset_bytes,
                                          command.size_bytes};
                vkCmdCopyBuffer(recorded, buffers_[command.source.value - 1].buffer,
                                buffers_[command.target.value - 1].buffer, 1, &region);
                buffers_[command.target.value - 1].written_by = submissions_->next_number();
            }
        }
        submissions_->end_timed();
        submissions_->flush();
    }

    void read_buffer(BufferId id, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        ++counters_.readbacks;
        counters_.bytes_read += size_bytes;
        submissions_->read(buffers_[id.value - 1].mapped, size_bytes, std::move(done));
    }
    void set_owner_answers(bool owner_answers) override {
        submissions_->set_owner_answers(owner_answers);
    }
    bool answer_read(bool wait) override { return submissions_->answer_read(wait); }

  private:
    Status allocate(VulkanBuffer& out, std::uint64_t size_bytes, VkBufferUsageFlags usage,
                    VulkanMemory kind) {
        if (submissions_->is_dead())
            return Error{ErrorCode::device_lost, "the Vulkan device is lost"};
        // A storage buffer may be the target of a transfer. The compute queue and the transfer
        // queue then both use it.
        const std::array families{chosen_.queue_family, chosen_.transfer_family};
        const bool both = transfers_ && families[0] != families[1] &&
                          (usage & VK_BUFFER_USAGE_STORAGE_BUFFER_BIT) != 0;
        return allocate_buffer(out, device_, memory_, size_bytes, usage, kind,
                               both ? std::span(families) : std::span<const std::uint32_t>{});
    }

    Result<PipelineId> make_pipeline(std::string_view kernel,
                                     std::span<const KernelConstant> constants) {
        const KernelSource* source = find_kernel(kernel);
        MOEX_CHECK(source != nullptr, text("no kernel named ", kernel));
        const std::vector<std::uint32_t> values = override_values(*source, constants);
        const auto key = std::pair(source->name, values);
        if (const auto found = pipeline_ids_.find(key); found != pipeline_ids_.end())
            return found->second;

        MOEX_ASSIGN(made, compile_pipeline(device_, *source, values, drop_clamping_));
        pipelines_.push_back(std::move(made));
        ++counters_.pipelines_created;
        const PipelineId id{static_cast<std::uint32_t>(pipelines_.size())};
        pipeline_ids_[key] = id;
        return id;
    }

    VulkanAdapter chosen_;
    PostFunction post_;
    AdapterInfo adapter_;
    DeviceCounters counters_;
    VkDevice device_ = VK_NULL_HANDLE;
    VkQueue queue_ = VK_NULL_HANDLE;
    VkPhysicalDeviceMemoryProperties memory_{};
    VkDescriptorPool descriptor_pool_ = VK_NULL_HANDLE;
    std::vector<VulkanBuffer> buffers_;
    std::vector<VulkanPipeline> pipelines_;
    // Compiled pipelines, keyed by kernel and constants. A runner that is made again therefore
    // compiles nothing.
    std::map<std::pair<std::string_view, std::vector<std::uint32_t>>, PipelineId> pipeline_ids_;
    std::vector<BindGroup> bind_groups_;
    std::unique_ptr<VulkanSubmissions> submissions_;
    std::unique_ptr<VulkanTransfers> transfers_;  // null: not supported
    // Submissions wait for transfers up to this position.
    std::uint64_t seen_transfers_ = 0;
    bool drop_clamping_ = false;
};

}  // namespace

Result<std::unique_ptr<Device>> open_vulkan_device(const VulkanOptions& options,
                                                   PostFunction post) {
    MOEX_ASSIGN(adapter, choose_vulkan_adapter(options.device));
    auto device = std::make_unique<VulkanDevice>(std::move(adapter), std::move(post));
    MOEX_TRY(device->open(options));
    return std::unique_ptr<Device>(std::move(device));
}

Result<std::vector<std::string>> list_vulkan_devices() {
    MOEX_ASSIGN(adapters, vulkan_adapters());
    std::vector<std::string> names;
    names.reserve(adapters.size());
    for (const VulkanAdapter& adapter : adapters)
        names.push_back(text(adapter.properties.deviceName, adapter.software ? " (software)" : ""));
    return names;
}

}  // namespace moex::gpu
