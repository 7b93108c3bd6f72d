#include "web-worker/gpu/vulkan/vulkan_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "protocol/life_guard.h"
#include "web-worker/gpu/kernel_source.h"
#include "web-worker/gpu/vulkan/vulkan_api.h"
#include "web-worker/gpu/vulkan/vulkan_awake.h"
#include "web-worker/gpu/vulkan/vulkan_memory.h"
#include "web-worker/gpu/vulkan/vulkan_pipeline.h"
#include "web-worker/gpu/vulkan/vulkan_transfers.h"

namespace moex::gpu {
namespace {

constexpr std::uint64_t staging_bytes_min = 4u << 20;
// pending writes beyond this are sent off at once
constexpr std::uint64_t staging_bytes_max = 64u << 20;
// Uploads that are on their way. Beyond it the next one waits, so that a model never lies in
// staging buffers as a whole, however slowly the GPU takes it.
constexpr std::uint64_t uploads_bytes_max = 256u << 20, upload_bytes_min = 1u << 20;
// A sleeping wait costs more than most rounds take: it is waited actively for twice as long as the
// GPU took last, within these bounds. A spin that ends just before the GPU does is the worst of
// both.
constexpr double spin_us_min = 150, spin_us_max = 2000;
constexpr std::chrono::seconds others_asked_every{1};
constexpr std::uint32_t bind_groups_max = 8192;
// One submission of so many is timed: timestamps and their way back are not free.
constexpr std::uint64_t submits_per_time = 16;
// A GPU that takes longer is taken for lost. A software one also compiles the kernels within the
// first submission that runs them: on a busy machine with an empty cache that took minutes.
constexpr std::uint64_t fence_wait_s = 60, fence_wait_software_s = 900;

struct BindGroup {
    VkDescriptorSet set = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
};
// One submission: its commands, its fence, and the bytes that
// wait to be copied. Reused when the fence has signalled.
struct Slot {
    VkCommandBuffer commands = VK_NULL_HANDLE;
    VkFence fence = VK_NULL_HANDLE;
    VkQueryPool times = VK_NULL_HANDLE;  // begin and end of submit()'s commands
    bool timed = false;
    VulkanBuffer staging;
    std::uint64_t staged_bytes = 0;
    std::uint32_t reads = 0;  // readbacks that wait for its fence
    bool recording = false, submitted = false;
    std::uint64_t number = 0;  // of its submission
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
        MOEX_TRY(make_pools());
        make_transfers();
        describe();
        stay_awake(options.stay_awake);
        waiter_ = std::thread([this] { wait_for_fences(); });
        return {};
    }

    // A device that cannot is as good as another.
    void stay_awake(StayAwake wanted) {
        const bool can = !chosen_.software && chosen_.has_memory_budget;
        if (wanted == StayAwake::never || (wanted == StayAwake::alone && !can)) return;
        auto awake = std::make_unique<VulkanAwake>(device_, queue_);
        if (awake->open(chosen_, wanted == StayAwake::alone).ok() && awake->ends_when_told())
            awake_ = std::move(awake);
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

    Status make_pools() {
        VkCommandPoolCreateInfo pool{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
        pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
        pool.queueFamilyIndex = chosen_.queue_family;
        MOEX_VULKAN(vkCreateCommandPool(device_, &pool, nullptr, &command_pool_),
                    "vkCreateCommandPool");

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

    // A device that cannot is as good as another: what is written goes through staging memory.
    void make_transfers() {
        if (chosen_.shared_page_bytes == 0) return;
        VkQueue queue = VK_NULL_HANDLE;
        vkGetDeviceQueue(device_, chosen_.transfer_family, 0, &queue);
        auto transfers = std::make_unique<VulkanTransfers>(device_, queue, post_);
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
        ns_per_tick_ = chosen_.has_timestamps ? limits.timestampPeriod : 0;
    }

    ~VulkanDevice() override {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }

        wake_.notify_all();
        if (waiter_.joinable()) waiter_.join();
        awake_.reset();
        if (device_ == VK_NULL_HANDLE) return;

        vkDeviceWaitIdle(device_);
        transfers_.reset();
        waits_.clear();  // what never ran may own buffers of this device

        for (Slot& slot : slots_) {
            vkDestroyFence(device_, slot.fence, nullptr);
            vkDestroyQueryPool(device_, slot.times, nullptr);
            free_buffer(device_, slot.staging);
        }
        for (VulkanPipeline& pipeline : pipelines_) free_pipeline(device_, pipeline);
        for (VulkanBuffer& buffer : buffers_) free_buffer(device_, buffer);

        vkDestroyDescriptorPool(device_, descriptor_pool_, nullptr);
        vkDestroyCommandPool(device_, command_pool_, nullptr);
        vkDestroyDevice(device_, nullptr);
    }

    const AdapterInfo& adapter() const override { return adapter_; }
    DeviceCounters counters() const override { return counters_; }
    double gpu_us() const override { return gpu_us_; }
    void on_lost(std::function<void(Loss)> handler) override { lost_ = std::move(handler); }

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
            // Fresh memory holds anything; a kernel must find zeros, as in a browser.
            Slot& slot = open_slot();
            vkCmdFillBuffer(slot.commands, made.buffer, 0, VK_WHOLE_SIZE, 0);
            barrier(slot.commands);
            made.written_by = submissions_ + 1;
        }
        made.used = true;
        buffers_.push_back(made);
        ++counters_.buffers_created;
        counters_.buffer_bytes += size_bytes;
        return BufferId{static_cast<std::uint32_t>(buffers_.size())};
    }

    void destroy_buffer(BufferId id) override {
        if (id.value == 0 || id.value > buffers_.size() || !buffers_[id.value - 1].used) return;
        flush();
        vkDeviceWaitIdle(device_);  // rare: at the end of a self-test, or of the worker
        VulkanBuffer& buffer = buffers_[id.value - 1];
        counters_.buffer_bytes -= buffer.size_bytes;
        free_buffer(device_, buffer);
    }

    void write_buffer(BufferId id, std::uint64_t offset_bytes, ByteView bytes) override {
        ++counters_.buffer_writes;
        counters_.bytes_written += bytes.size();
        while (!bytes.empty()) {
            const ByteView part = bytes.first(
                std::min<std::size_t>(bytes.size(), staging_bytes_max));
            write_part(buffers_[id.value - 1], offset_bytes, part);
            offset_bytes += part.size();
            bytes = bytes.subspan(part.size());
        }
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
                           std::function<void()> done) override {
        if (dead_ || !transfers_ || !may_transfer() || !transfers_->is_shared(bytes)) return 0;
        const VulkanBuffer& target = buffers_[id.value - 1];
        finish(target.written_by);
        const Result<std::uint64_t> number = transfers_->copy(bytes, target.buffer, offset_bytes,
                                                              std::move(done));
        if (!number.ok()) {
            die(loss_of(number.error()));
            return 0;
        }
        ++counters_.transfers;
        counters_.bytes_transferred += bytes.size();
        return *number;
    }
    void await_transfer(std::uint64_t number) override { await_ = std::max(await_, number); }
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
        flush();
        vkDeviceWaitIdle(device_);
        vkFreeDescriptorSets(device_, descriptor_pool_, 1, &bind_groups_[id.value - 1].set);
        bind_groups_[id.value - 1] = {};
    }

    void submit(std::span<const Command> commands) override {
        Slot& slot = open_slot();
        slot.timed = slot.times != VK_NULL_HANDLE && counters_.submits % submits_per_time == 0;
        ++counters_.submits;
        if (slot.timed) {
            vkCmdResetQueryPool(slot.commands, slot.times, 0, 2);
            vkCmdWriteTimestamp(slot.commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, slot.times, 0);
        }
        for (const Command& command : commands) {
            const bool dispatches = command.kind == Command::Kind::dispatch;
            if (!command.same_stage)
                barrier(slot.commands, dispatches ? Followed::by_dispatch : Followed::by_copy);
            if (dispatches) {
                const VulkanPipeline& pipeline = pipelines_[command.pipeline.value - 1];
                const BindGroup& group = bind_groups_[command.bind_group.value - 1];
                vkCmdBindPipeline(slot.commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.pipeline);
                vkCmdBindDescriptorSets(slot.commands, VK_PIPELINE_BIND_POINT_COMPUTE, group.layout,
                                        0, 1, &group.set, 0, nullptr);
                vkCmdDispatch(slot.commands, command.workgroups[0], command.workgroups[1],
                              command.workgroups[2]);
            } else {
                const VkBufferCopy region{command.source_offset_bytes, command.target_offset_bytes,
                                          command.size_bytes};
                vkCmdCopyBuffer(slot.commands, buffers_[command.source.value - 1].buffer,
                                buffers_[command.target.value - 1].buffer, 1, &region);
                buffers_[command.target.value - 1].written_by = submissions_ + 1;
            }
        }
        if (slot.timed)
            vkCmdWriteTimestamp(slot.commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, slot.times, 1);
        flush();
    }

    void read_buffer(BufferId id, std::uint64_t size_bytes,
                     std::function<void(Result<ByteView>)> done) override {
        ++counters_.readbacks;
        counters_.bytes_read += size_bytes;
        flush();
        if (dead_ || last_submitted_ == nullptr) {
            post_([done = std::move(done)] {
                done(Error{ErrorCode::device_lost, "the Vulkan device is lost"});
            });
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            waits_.push_back(
                {last_submitted_, buffers_[id.value - 1].mapped, size_bytes, std::move(done)});
        }
        ++last_submitted_->reads;
        if (!owner_answers_) wake_.notify_one();
        if (awake_) awake_->follow();
    }

    void set_owner_answers(bool owner_answers) override {
        {
            const std::lock_guard lock(mutex_);
            owner_answers_ = owner_answers;
        }
        if (!owner_answers) wake_.notify_one();
    }
    bool answer_read(bool wait) override {
        Wait oldest;
        {
            const std::lock_guard lock(mutex_);
            if (!owner_answers_ || waiting_ || waits_.empty()) return false;
            if (!wait && vkGetFenceStatus(device_, waits_.front().slot->fence) == VK_NOT_READY)
                return false;
            oldest = std::move(waits_.front());
            waits_.pop_front();
        }
        const VkResult result = wait_for(oldest.slot->fence);
        answer(oldest, result, result == VK_SUCCESS ? time_of(*oldest.slot) : 0);
        return true;
    }

  private:
    struct Wait {
        Slot* slot;
        const std::byte* mapped;
        std::uint64_t size_bytes;
        std::function<void(Result<ByteView>)> done;
    };

    // Everything before is visible to what follows. A barrier before a dispatch that names copies
    // and the host, too, costs an H200 another 1.2 us: a token of 533 dispatches 0.6 ms.
    enum class Followed { by_dispatch, by_copy, by_anything };
    static void barrier(VkCommandBuffer commands, Followed followed = Followed::by_anything) {
        constexpr VkAccessFlags shader = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                                         VK_ACCESS_UNIFORM_READ_BIT,
                                transfer = VK_ACCESS_TRANSFER_READ_BIT |
                                           VK_ACCESS_TRANSFER_WRITE_BIT;
        constexpr VkPipelineStageFlags compute = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                       copies = VK_PIPELINE_STAGE_TRANSFER_BIT;
        VkMemoryBarrier memory{.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER};
        memory.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
        VkPipelineStageFlags next = compute;
        if (followed == Followed::by_dispatch) {
            memory.dstAccessMask = shader;
        } else if (followed == Followed::by_copy) {
            memory.dstAccessMask = transfer;
            next = copies;
        } else {
            memory.dstAccessMask = shader | transfer | VK_ACCESS_HOST_READ_BIT;
            next = compute | copies | VK_PIPELINE_STAGE_HOST_BIT;
        }
        vkCmdPipelineBarrier(commands, compute | copies, next, 0, 1, &memory, 0, nullptr, 0,
                             nullptr);
    }

    Status allocate(VulkanBuffer& out, std::uint64_t size_bytes, VkBufferUsageFlags usage,
                    VulkanMemory kind) {
        if (dead_) return Error{ErrorCode::device_lost, "the Vulkan device is lost"};
        // What is transferred to is used by both queues.
        const std::array families{chosen_.queue_family, chosen_.transfer_family};
        const bool both = transfers_ && families[0] != families[1] &&
                          (usage & VK_BUFFER_USAGE_STORAGE_BUFFER_BIT) != 0;
        return allocate_buffer(out, device_, memory_, size_bytes, usage, kind,
                               both ? std::span(families) : std::span<const std::uint32_t>{});
    }

    void write_part(VulkanBuffer& target, std::uint64_t offset_bytes, ByteView bytes) {
        if (slots_.size() > current_ && slots_[current_].recording &&
            slots_[current_].staged_bytes + bytes.size() > staging_bytes_max)
            flush();
        Slot& slot = open_slot();
        if (slot.staging.size_bytes < slot.staged_bytes + bytes.size()) {
            // The commands recorded so far point into the old staging
            // buffer: send them off, then grow a fresh slot's.
            if (slot.staged_bytes > 0) {
                flush();
                return write_part(target, offset_bytes, bytes);
            }
            free_buffer(device_, slot.staging);
            std::uint64_t size_bytes = staging_bytes_min;
            while (size_bytes < bytes.size()) size_bytes *= 2;
            const Status made = allocate(slot.staging, size_bytes, VK_BUFFER_USAGE_TRANSFER_SRC_BIT,
                                         VulkanMemory::staging);
            if (!made.ok()) return die(loss_of(made.error()));
        }

        std::memcpy(slot.staging.mapped + slot.staged_bytes, bytes.data(), bytes.size());
        const VkBufferCopy region{slot.staged_bytes, offset_bytes, bytes.size()};
        vkCmdCopyBuffer(slot.commands, slot.staging.buffer, target.buffer, 1, &region);
        target.written_by = submissions_ + 1;
        slot.staged_bytes += (bytes.size() + 15) / 16 * 16;
        // On its way while the next is staged, and before anything asks for it.
        if (slot.staged_bytes >= upload_bytes_min) flush();
    }

    // The slot that records now; takes a finished one or makes a new one. Never waits.
    Slot& open_slot() {
        if (current_ < slots_.size() && slots_[current_].recording) return slots_[current_];

        current_ = slots_.size();
        for (std::size_t i = 0; i < slots_.size(); ++i)
            if (!slots_[i].submitted ||
                (slots_[i].reads == 0 &&
                 vkGetFenceStatus(device_, slots_[i].fence) == VK_SUCCESS)) {
                current_ = i;
                break;
            }

        if (current_ == slots_.size()) {
            slots_.emplace_back();
            VkCommandBufferAllocateInfo info{
                .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
            info.commandPool = command_pool_;
            info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
            info.commandBufferCount = 1;
            VkFenceCreateInfo fence{.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
            if (vkAllocateCommandBuffers(device_, &info, &slots_.back().commands) != VK_SUCCESS ||
                vkCreateFence(device_, &fence, nullptr, &slots_.back().fence) != VK_SUCCESS)
                die("no command buffer");
            VkQueryPoolCreateInfo times{.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
            times.queryType = VK_QUERY_TYPE_TIMESTAMP;
            times.queryCount = 2;
            if (ns_per_tick_ > 0) vkCreateQueryPool(device_, &times, nullptr, &slots_.back().times);
        }

        Slot& slot = slots_[current_];
        if (slot.submitted) vkResetFences(device_, 1, &slot.fence);
        slot.submitted = false;
        slot.staged_bytes = 0;
        slot.recording = true;
        slot.timed = false;
        if (awake_) awake_->release();

        VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
        begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
        vkBeginCommandBuffer(slot.commands, &begin);
        return slot;
    }

    void flush() {
        if (current_ >= slots_.size() || !slots_[current_].recording) return;
        Slot& slot = slots_[current_];
        barrier(slot.commands);
        vkEndCommandBuffer(slot.commands);

        VkSubmitInfo info{.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO};
        info.commandBufferCount = 1;
        info.pCommandBuffers = &slot.commands;

        VkTimelineSemaphoreSubmitInfo timeline{
            .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
        VkSemaphore transferred = VK_NULL_HANDLE;
        const VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
        if (await_ > awaited_) {
            awaited_ = await_;
            transferred = transfers_->over();
            timeline.waitSemaphoreValueCount = 1;
            timeline.pWaitSemaphoreValues = &awaited_;
            info.pNext = &timeline;
            info.waitSemaphoreCount = 1;
            info.pWaitSemaphores = &transferred;
            info.pWaitDstStageMask = &all;
        }

        const VkResult result = vkQueueSubmit(queue_, 1, &info, slot.fence);

        slot.recording = false;
        slot.submitted = true;
        slot.number = ++submissions_;
        last_submitted_ = &slot;
        if (result != VK_SUCCESS) return die(vulkan_result_text(result));
        if (slot.staged_bytes >= upload_bytes_min) bound_uploads(slot);
    }

    // A GPU that several processes compute on gives each of their queues its turn: another queue
    // then costs more than a copy on this thread. Eight of them on an H200 were half as fast.
    bool may_transfer() {
        const auto now = std::chrono::steady_clock::now();
        if (now - looked_around_ >= others_asked_every) {
            looked_around_ = now;
            may_transfer_ = chosen_.software || !chosen_.has_memory_budget ||
                            is_alone(chosen_.device);
        }
        return may_transfer_;
    }

    // What that submission did is over; nothing where it was known to be.
    void finish(std::uint64_t submission) {
        if (submission > submissions_) flush();
        for (const Slot& slot : slots_)
            if (slot.submitted && slot.number == submission)
                vkWaitForFences(device_, 1, &slot.fence, VK_TRUE, fence_wait_ns());
    }

    void bound_uploads(const Slot& slot) {
        uploads_.push_back({&slot, slot.number, slot.staged_bytes});
        uploads_bytes_ += slot.staged_bytes;
        while (uploads_bytes_ > uploads_bytes_max) {
            const Upload oldest = uploads_.front();
            uploads_.pop_front();
            uploads_bytes_ -= oldest.size_bytes;
            // A slot that was used again was done before.
            if (oldest.slot->submitted && oldest.slot->number == oldest.number)
                vkWaitForFences(device_, 1, &oldest.slot->fence, VK_TRUE, fence_wait_ns());
        }
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

    void wait_for_fences() {
        for (;;) {
            Wait wait;
            {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [&] { return stopping_ || (!owner_answers_ && !waits_.empty()); });
                if (stopping_) return;
                wait = std::move(waits_.front());
                waits_.pop_front();
                waiting_ = true;
            }
            const VkResult result = wait_for(wait.slot->fence);
            const double gpu_us = result == VK_SUCCESS ? time_of(*wait.slot) : 0;
            post_([this, wait = std::move(wait), result, gpu_us, life = life_.watch()]() mutable {
                if (life.alive()) answer(wait, result, gpu_us);
            });
            const std::lock_guard lock(mutex_);
            waiting_ = false;
        }
    }

    // The owner's.
    void answer(const Wait& wait, VkResult result, double gpu_us) {
        --wait.slot->reads;
        if (result == VK_SUCCESS) {
            if (gpu_us > 0) gpu_us_ = gpu_us;
            return wait.done(ByteView(wait.mapped, wait.size_bytes));
        }
        wait.done(Error{ErrorCode::device_lost, vulkan_result_text(result)});
        die(result == VK_TIMEOUT
                ? text("a submission did not finish within ", fence_wait_ns() / 1'000'000'000, " s")
                : vulkan_result_text(result));
    }

    // Whoever waits: actively for as long as an answer is likely to be near, then asleep.
    VkResult wait_for(VkFence fence) {
        using Clock = std::chrono::steady_clock;
        const auto began = Clock::now();
        const auto spin = std::chrono::duration<double, std::micro>(
            std::clamp(2 * waited_us_, spin_us_min, spin_us_max));
        VkResult result = VK_NOT_READY;
        if (!adapter_.software)
            while (result == VK_NOT_READY && Clock::now() - began < spin)
                result = vkGetFenceStatus(device_, fence);
        if (result == VK_NOT_READY)
            result = vkWaitForFences(device_, 1, &fence, VK_TRUE, fence_wait_ns());
        waited_us_ = std::chrono::duration<double, std::micro>(Clock::now() - began).count();
        return result;
    }
    std::uint64_t fence_wait_ns() const {
        return (adapter_.software ? fence_wait_software_s : fence_wait_s) * 1'000'000'000;
    }
    double time_of(const Slot& slot) const {
        std::uint64_t ticks[2] = {0, 0};
        if (!slot.timed ||
            vkGetQueryPoolResults(device_, slot.times, 0, 2, sizeof ticks, ticks, sizeof ticks[0],
                                  VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
            return 0;
        return static_cast<double>(ticks[1] - ticks[0]) * ns_per_tick_ / 1000;
    }

    void die(std::string reason) { die(Loss{LossKind::other, std::move(reason)}); }
    void die(Loss loss) {
        if (std::exchange(dead_, true)) return;
        if (lost_) post_([handler = lost_, loss = std::move(loss)] { handler(loss); });
    }

    VulkanAdapter chosen_;
    PostFunction post_;
    AdapterInfo adapter_;
    DeviceCounters counters_;
    VkDevice device_ = VK_NULL_HANDLE;
    VkQueue queue_ = VK_NULL_HANDLE;
    VkPhysicalDeviceMemoryProperties memory_{};
    VkCommandPool command_pool_ = VK_NULL_HANDLE;
    VkDescriptorPool descriptor_pool_ = VK_NULL_HANDLE;
    std::vector<VulkanBuffer> buffers_;
    std::vector<VulkanPipeline> pipelines_;
    // by kernel and constants: a runner that is made anew compiles nothing
    std::map<std::pair<std::string_view, std::vector<std::uint32_t>>, PipelineId> pipeline_ids_;
    std::vector<BindGroup> bind_groups_;
    std::deque<Slot> slots_;  // references stay valid as it grows
    std::size_t current_ = 0;
    Slot* last_submitted_ = nullptr;
    struct Upload {
        const Slot* slot;
        std::uint64_t number, size_bytes;
    };
    std::deque<Upload> uploads_;
    std::uint64_t submissions_ = 0, uploads_bytes_ = 0;
    std::unique_ptr<VulkanTransfers> transfers_;  // null: it cannot
    bool may_transfer_ = false;
    std::chrono::steady_clock::time_point looked_around_{};  // who else is there
    // Transfers that the next submission waits for, and those that one waited for.
    std::uint64_t await_ = 0, awaited_ = 0;
    bool dead_ = false;
    bool drop_clamping_ = false;
    double ns_per_tick_ = 0;
    double gpu_us_ = 0;
    std::atomic<double> waited_us_ = 0;  // of who waits for fences
    std::function<void(Loss)> lost_;
    LifeGuard life_;
    std::unique_ptr<VulkanAwake> awake_;  // null: it rests

    std::mutex mutex_;  // of what follows
    std::condition_variable wake_;
    std::deque<Wait> waits_;
    bool stopping_ = false;
    bool owner_answers_ = false, waiting_ = false;  // waiting_: the waiter is, for the oldest
    std::thread waiter_;
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
