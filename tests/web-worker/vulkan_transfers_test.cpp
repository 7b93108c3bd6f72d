// Copies beside the kernels. On any Vulkan device; lavapipe where there is no GPU.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "tests/support/must.h"
#include "tests/support/posted_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex::gpu {
namespace {

constexpr std::size_t memory_bytes = 1u << 20, piece_bytes = 4096;
constexpr std::size_t num_pieces = memory_bytes / piece_bytes;

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
                                                       [this] { ++num_done_; });
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

// In another order than they lie there, all of them under way when the copy is submitted.
TEST_F(VulkanTransfersTest, WhatIsSubmittedBehindATransferSeesIt) {
    Bytes expected(memory_bytes);
    std::uint64_t last = 0;
    for (std::size_t i = 0; i < num_pieces; ++i) {
        const std::size_t to = i * 37 % num_pieces;
        const std::uint64_t number = transfer(i, to);
        EXPECT_EQ(number, last + 1);
        last = number;
        std::ranges::copy(piece(i),
                          expected.begin() + static_cast<std::ptrdiff_t>(to * piece_bytes));
    }
    device_->await_transfer(last);
    EXPECT_EQ(read(), expected);
    EXPECT_TRUE(device_->transferred(last));
    run_until_done(num_pieces);
    EXPECT_EQ(device_->counters().transfers, num_pieces);
    EXPECT_EQ(device_->counters().bytes_transferred, memory_bytes);
}

TEST_F(VulkanTransfersTest, ItIsToldOnceItIsOver) {
    for (std::size_t i = 0; i < 8; ++i) {
        const std::uint64_t number = transfer(i, 0);
        EXPECT_EQ(num_done_, i) << "never inside the call";
        run_until_done(i + 1);
        EXPECT_TRUE(device_->transferred(number));
    }
    EXPECT_TRUE(std::ranges::equal(ByteView(read()).first(piece_bytes), piece(7)));
}

// A buffer's zeros and what write_buffer() gave it come first.
TEST_F(VulkanTransfersTest, WhatWasWrittenBeforeItIsReplaced) {
    for (std::size_t round = 0; round < 20; ++round) {
        const BufferId fresh = test::must(
            device_->create_buffer(2 * piece_bytes, BufferUsage::storage, "f"));
        device_->write_buffer(fresh, 0, piece(round));
        const std::uint64_t number = device_->transfer(fresh, 0, piece(round + 1), [] {});
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
    EXPECT_EQ(device_->transfer(target_, 0, elsewhere, never), 0u);
    const ByteView all = std::as_bytes(memory_);
    EXPECT_EQ(device_->transfer(target_, 0, {all.data() + memory_bytes - 4, 8}, never), 0u)
        << "beyond its end";

    transfer(3, 0);
    device_->unshare_memory(all);
    EXPECT_EQ(device_->transfer(target_, 0, piece(0), never), 0u);
    EXPECT_TRUE(std::ranges::equal(ByteView(read()).first(piece_bytes), piece(3)))
        << "unsharing waits for who reads it";
    EXPECT_FALSE(device_->share_memory(all.subspan(4)).ok()) << "not on a page";
}

TEST_F(VulkanTransfersTest, ADeviceThatGoesTellsNobodyOfWhatIsUnderWay) {
    for (std::size_t i = 0; i < num_pieces; ++i) transfer(i, i);
    device_.reset();
    EXPECT_EQ(num_done_, 0u) << "by nobody but the loop";
}

}  // namespace
}  // namespace moex::gpu
