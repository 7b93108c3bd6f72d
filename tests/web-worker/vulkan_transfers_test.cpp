// Tests copies that run beside kernels, on any Vulkan device; lavapipe if there is no GPU.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

#include "tests/support/must.h"
#include "tests/support/posted_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/gpu/vulkan/vulkan_memory.h"
#include "web-worker/gpu/vulkan/vulkan_transfers.h"

namespace moex::gpu {
namespace {

constexpr std::size_t memory_bytes = 1u << 20, piece_bytes = 4096;
constexpr std::size_t num_pieces = memory_bytes / piece_bytes;
// If the whole memory is copied this number of times, the copies have more bytes than may be in
// flight.
constexpr std::uint64_t many = 5 * VulkanTransfers::busy_bytes / memory_bytes;

// Alternates both kinds.
TransferKind kind_of(std::size_t number) {
    return number % 3 == 1 ? TransferKind::awaited : TransferKind::prefetch;
}

class VulkanTransfersTest : public testing::Test {
  protected:
    VulkanTransfersTest() {
        void* const mapped = mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::runtime_error("no memory");
        memory_ = {static_cast<std::uint32_t*>(mapped), memory_bytes / 4};
        std::iota(memory_.begin(), memory_.end(), 1u);
        target_ = test::must(device_->create_buffer(memory_bytes, BufferUsage::storage, "target"));
        readback_ = test::must(
            device_->create_buffer(memory_bytes, BufferUsage::readback, "readback"));
    }
    ~VulkanTransfersTest() override {
        device_.reset();
        munmap(memory_.data(), memory_bytes);
    }
    void SetUp() override {
        const Status shared = device_->share_memory(std::as_bytes(memory_));
        if (!shared.ok()) GTEST_SKIP() << shared.error().message;
    }

    ByteView piece(std::size_t index) const {
        return std::as_bytes(std::span(memory_)).subspan(index * piece_bytes, piece_bytes);
    }
    std::uint64_t transfer(std::size_t from, std::size_t to) {
        const std::uint64_t number = device_->transfer(target_, to * piece_bytes, piece(from),
                                                       kind_of(from), [this] { ++num_done_; });
        EXPECT_NE(number, 0u);
        return number;
    }
    Bytes read() {
        Command copy;
        copy.kind = Command::Kind::copy;
        copy.source = target_;
        copy.target = readback_;
        copy.size_bytes = memory_bytes;
        device_->submit(std::span(&copy, 1));
        Bytes bytes;
        bool finished = false;
        device_->read_buffer(readback_, memory_bytes, [&](Result<ByteView> read) {
            const ByteView view = test::must(std::move(read));
            bytes.assign(view.begin(), view.end());
            finished = true;
        });
        loop_.run_until(finished);
        return bytes;
    }
    void run_until_done(std::size_t count) {
        while (num_done_ < count) loop_.run_one();
    }

    test::PostedLoop loop_;
    std::unique_ptr<Device> device_ = test::must(open_vulkan_device({}, loop_.poster()));
    std::span<std::uint32_t> memory_;
    BufferId target_, readback_;
    std::size_t num_done_ = 0;
};

// The order of the copies differs from the order of their memory. All copies are in flight when the
// kernel is submitted.
TEST_F(VulkanTransfersTest, LaterSubmissionSeesTheTransfer) {
    Bytes expected(memory_bytes);
    for (std::size_t i = 0; i < num_pieces; ++i) {
        const std::size_t to = i * 37 % num_pieces;
        EXPECT_EQ(transfer(i, to), i + 1);
        std::ranges::copy(piece(i),
                          expected.begin() + static_cast<std::ptrdiff_t>(to * piece_bytes));
    }
    for (std::size_t i = 0; i < num_pieces; ++i) device_->await_transfer(i + 1);
    EXPECT_EQ(read(), expected);
    for (std::size_t i = 0; i < num_pieces; ++i) EXPECT_TRUE(device_->transferred(i + 1)) << i;
    run_until_done(num_pieces);
    EXPECT_EQ(device_->counters().transfers, num_pieces);
    EXPECT_EQ(device_->counters().bytes_transferred, memory_bytes);
}

TEST_F(VulkanTransfersTest, DoneIsCalledWhenTheTransferIsOver) {
    for (std::size_t i = 0; i < 8; ++i) {
        const std::uint64_t number = transfer(i, 0);
        EXPECT_EQ(num_done_, i) << "never inside the call";
        run_until_done(i + 1);
        EXPECT_TRUE(device_->transferred(number));
    }
    EXPECT_TRUE(std::ranges::equal(ByteView(read()).first(piece_bytes), piece(7)));
}

// A transfer to a new buffer takes effect after the zeros that fill the buffer, and after
// write_buffer().
TEST_F(VulkanTransfersTest, TransferReplacesEarlierWrites) {
    for (std::size_t round = 0; round < 20; ++round) {
        const BufferId fresh = test::must(
            device_->create_buffer(2 * piece_bytes, BufferUsage::storage, "f"));
        device_->write_buffer(fresh, 0, piece(round));
        const std::uint64_t number = device_->transfer(fresh, 0, piece(round + 1), kind_of(round),
                                                       [] {});
        device_->await_transfer(number);
        Command copy;
        copy.kind = Command::Kind::copy;
        copy.source = fresh;
        copy.target = target_;
        copy.size_bytes = 2 * piece_bytes;
        device_->submit(std::span(&copy, 1));
        const Bytes seen = read();
        EXPECT_TRUE(std::ranges::equal(ByteView(seen).first(piece_bytes), piece(round + 1)))
            << round;
        EXPECT_EQ(seen[piece_bytes], std::byte{0});
        device_->destroy_buffer(fresh);
    }
}

TEST_F(VulkanTransfersTest, MemoryThatIsNotSharedIsNotRead) {
    const Bytes elsewhere(piece_bytes, std::byte{1});
    const auto never = [] { FAIL() << "nothing was transferred"; };
    EXPECT_EQ(device_->transfer(target_, 0, elsewhere, TransferKind::awaited, never), 0u);
    const ByteView all = std::as_bytes(memory_);
    EXPECT_EQ(device_->transfer(target_, 0, {all.data() + memory_bytes - 4, 8},
                                TransferKind::awaited, never),
              0u)
        << "beyond its end";

    transfer(3, 0);
    device_->unshare_memory(all);
    EXPECT_EQ(device_->transfer(target_, 0, piece(0), TransferKind::awaited, never), 0u);
    EXPECT_TRUE(std::ranges::equal(ByteView(read()).first(piece_bytes), piece(3)))
        << "unsharing waits for the copies that read it";
    EXPECT_FALSE(device_->share_memory(all.subspan(4)).ok()) << "not on a page";
}

TEST_F(VulkanTransfersTest, DestroyedDeviceCallsNoPendingDone) {
    for (std::size_t i = 0; i < num_pieces; ++i) transfer(i, i);
    device_.reset();
    EXPECT_EQ(num_done_, 0u) << "only the loop calls back";
}

// The test runs with a transfer queue, to which a thread submits copies, and with the compute
// queue, which only the owner may use. lavapipe has just one queue.
class TransferQueueTest : public testing::TestWithParam<bool> {
  protected:
    TransferQueueTest() {
        void* const mapped = mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::runtime_error("no memory");
        memory_ = {static_cast<std::uint32_t*>(mapped), memory_bytes / 4};
        std::iota(memory_.begin(), memory_.end(), 1u);
    }
    ~TransferQueueTest() override {
        transfers_.reset();
        free_buffer(device_, target_);
        if (device_ != VK_NULL_HANDLE) vkDestroyDevice(device_, nullptr);
        munmap(memory_.data(), memory_bytes);
    }
    void SetUp() override {
        if (adapter_.shared_page_bytes == 0) GTEST_SKIP() << "it reads no memory of this process";
        ASSERT_EQ(make_device(), VK_SUCCESS);
        VkPhysicalDeviceMemoryProperties memory;
        vkGetPhysicalDeviceMemoryProperties(adapter_.device, &memory);
        const Status made = allocate_buffer(target_, device_, memory, memory_bytes,
                                            VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                            VulkanMemory::readback);
        ASSERT_TRUE(made.ok());
        VkQueue queue = VK_NULL_HANDLE;
        vkGetDeviceQueue(device_, adapter_.transfer_family, 0, &queue);
        transfers_ = std::make_unique<VulkanTransfers>(
            device_, queue, GetParam(), loop_.poster(),
            [](const Error& error) { FAIL() << error.message; });
        ASSERT_TRUE(transfers_->open(adapter_).ok());
        ASSERT_TRUE(transfers_->share(std::as_bytes(memory_)).ok());
    }
    VkResult make_device() {
        const float priority = 1.0f;
        VkDeviceQueueCreateInfo queue{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
        queue.queueFamilyIndex = adapter_.transfer_family;
        queue.queueCount = 1;
        queue.pQueuePriorities = &priority;
        VkPhysicalDeviceTimelineSemaphoreFeatures timeline{
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES};
        timeline.timelineSemaphore = VK_TRUE;
        const char* const extensions[] = {VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME,
                                          VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME};
        VkDeviceCreateInfo info{.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
        info.pNext = &timeline;
        info.queueCreateInfoCount = 1;
        info.pQueueCreateInfos = &queue;
        info.enabledExtensionCount = 2;
        info.ppEnabledExtensionNames = extensions;
        return vkCreateDevice(adapter_.device, &info, nullptr, &device_);
    }

    ByteView piece(std::size_t index) const {
        return std::as_bytes(std::span(memory_)).subspan(index * piece_bytes, piece_bytes);
    }
    std::uint64_t copy_all(TransferKind kind, std::function<void()> done) {
        return transfers_->copy(std::as_bytes(memory_), target_.buffer, 0, kind, std::move(done));
    }
    bool lies_at(std::size_t from, std::size_t to) const {
        return std::ranges::equal(piece(from),
                                  ByteView(target_.mapped + to * piece_bytes, piece_bytes));
    }

    test::PostedLoop loop_;
    const VulkanAdapter adapter_ = test::must(choose_vulkan_adapter(""));
    VkDevice device_ = VK_NULL_HANDLE;
    VulkanBuffer target_;
    std::unique_ptr<VulkanTransfers> transfers_;
    std::span<std::uint32_t> memory_;
};

// Copies are requested in bursts of different lengths. No copy to a place of the buffer starts
// before the earlier copy to that place is over.
TEST_P(TransferQueueTest, EachCopyIsReportedOnceWithItsBytes) {
    std::set<std::uint64_t> told;
    std::uint64_t asked = 0;
    for (std::size_t burst = 0; burst < 120; ++burst) {
        for (std::size_t i = 0; i <= burst % 7; ++i) {
            const std::size_t at = asked % num_pieces;
            const std::uint64_t number = transfers_->copy(
                piece(at), target_.buffer, (num_pieces - 1 - at) * piece_bytes, kind_of(burst + i),
                [this, &told, at, number = asked + 1] {
                    EXPECT_TRUE(transfers_->is_over(number));
                    EXPECT_TRUE(lies_at(at, num_pieces - 1 - at));
                    EXPECT_TRUE(told.insert(number).second) << number;
                });
            EXPECT_EQ(number, ++asked);
        }
        if (burst % 3 == 0) {
            EXPECT_GT(transfers_->give(asked), 0u);
        }
        if (burst % 5 == 0) {
            EXPECT_TRUE(transfers_->is_over(asked, true));
        }
        while (asked > told.size() + num_pieces / 2) loop_.run_one();
    }
    while (told.size() < asked) loop_.run_one();
    EXPECT_EQ(*told.rbegin(), asked);
}

// The test requests prefetches of more bytes than may be in flight. Further prefetches are
// submitted when earlier copies end, or when a copy is awaited.
TEST_P(TransferQueueTest, PrefetchesFollowEachOther) {
    std::set<std::uint64_t> told;
    for (std::uint64_t number = 1; number <= many; ++number)
        copy_all(TransferKind::prefetch, [&told, number] { told.insert(number); });
    EXPECT_TRUE(transfers_->is_over(many, true));
    const std::uint64_t awaited = copy_all(TransferKind::awaited,
                                           [&told] { told.insert(many + 1); });
    EXPECT_EQ(awaited, many + 1);
    while (told.size() < many + 1) loop_.run_one();
    EXPECT_TRUE(transfers_->is_over(awaited));
    for (std::size_t i = 0; i < num_pieces; ++i) EXPECT_TRUE(lies_at(i, i)) << i;
}

TEST_P(TransferQueueTest, DestructionWithPendingCopiesCallsNoDone) {
    bool told = false;
    for (std::uint64_t i = 0; i < many; ++i) copy_all(kind_of(i), [&told] { told = true; });
    transfers_.reset();
    EXPECT_FALSE(told);
}

TEST_P(TransferQueueTest, UnsharingWaitsForWhatWasAskedForJustNow) {
    for (std::uint64_t i = 0; i < many; ++i) copy_all(TransferKind::prefetch, [] {});
    transfers_->unshare(std::as_bytes(memory_));
    EXPECT_FALSE(transfers_->is_shared(piece(0)));
    for (std::uint64_t number = 1; number <= many; ++number)
        EXPECT_TRUE(transfers_->is_over(number)) << number;
    for (std::size_t i = 0; i < num_pieces; ++i) EXPECT_TRUE(lies_at(i, i)) << i;
}

TEST_P(TransferQueueTest, AnIdleDeviceHasCopiedAll) {
    for (std::uint64_t i = 0; i < many; ++i) copy_all(TransferKind::prefetch, [] {});
    transfers_->wait_idle();
    for (std::uint64_t number = 1; number <= many; ++number)
        EXPECT_TRUE(transfers_->is_over(number)) << number;
}

INSTANTIATE_TEST_SUITE_P(Queues, TransferQueueTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "OfKernels" : "OfItsOwn"; });

}  // namespace
}  // namespace moex::gpu
