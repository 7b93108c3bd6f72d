// Tests which blobs stay in a machine's memory after they were read.
#include "web-worker/native/blob_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace moex::native {
namespace {

constexpr std::uint64_t page = 64u << 10;  // blobs and the budget are multiples of this size

Sha256 hash_of(int number) { return {std::byte(number)}; }
Bytes blob_of(int number, std::size_t size = page) { return Bytes(size, std::byte(number)); }

bool is_here(BlobMemory& memory, int number, std::size_t size = page) {
    const HeldBlob found = memory.find(hash_of(number));
    if (!found) return false;
    const Bytes expected = blob_of(number, size);
    EXPECT_TRUE(
        std::equal(found.bytes.begin(), found.bytes.end(), expected.begin(), expected.end()))
        << number;
    return true;
}

TEST(BlobMemoryTest, LeastRecentlyUsedBlobIsEvicted) {
    BlobMemory memory(3 * page + page / 2);
    for (const int number : {1, 2, 3}) memory.keep(hash_of(number), blob_of(number));
    EXPECT_TRUE(is_here(memory, 1));

    memory.keep(hash_of(4), blob_of(4));
    EXPECT_FALSE(is_here(memory, 2)) << "three blobs were used later";
    for (const int number : {1, 3, 4}) EXPECT_TRUE(is_here(memory, number)) << number;
}

// All places of a piece have the same size. A piece with places of another size is freed when its
// last blob is evicted.
TEST(BlobMemoryTest, ALargerBlobTakesTheRoomOfSeveralAndOneBeyondTheBudgetNone) {
    BlobMemory memory(4 * page);
    for (const int number : {1, 2, 3}) memory.keep(hash_of(number), blob_of(number));
    memory.keep(hash_of(9), blob_of(9, 4 * page + 1));
    EXPECT_FALSE(is_here(memory, 9));
    for (const int number : {1, 2, 3}) EXPECT_TRUE(is_here(memory, number)) << number;

    memory.keep(hash_of(4), blob_of(4, 2 * page));
    for (const int number : {1, 2, 3}) EXPECT_FALSE(is_here(memory, number)) << number;
    EXPECT_TRUE(is_here(memory, 4, 2 * page));
    memory.keep(hash_of(5), blob_of(5, 2 * page));
    EXPECT_TRUE(is_here(memory, 4, 2 * page));
    EXPECT_TRUE(is_here(memory, 5, 2 * page));
}

TEST(BlobMemoryTest, WithoutABudgetNothingStays) {
    BlobMemory memory(0);
    memory.keep(hash_of(1), blob_of(1));
    EXPECT_FALSE(is_here(memory, 1));
}

TEST(BlobMemoryTest, BlobKeptTwiceIsStoredOnce) {
    BlobMemory memory(2 * page);
    for (int i = 0; i < 3; ++i) memory.keep(hash_of(1), blob_of(1));
    memory.keep(hash_of(2), blob_of(2));
    EXPECT_TRUE(is_here(memory, 1));
    EXPECT_TRUE(is_here(memory, 2));
}

// A held blob stays valid after its eviction: a GPU, for example, may still copy from it.
TEST(BlobMemoryTest, HeldBlobKeepsItsBytesAndPlaceAfterEviction) {
    std::optional<BlobMemory> memory(2 * page);
    for (const int number : {1, 2}) memory->keep(hash_of(number), blob_of(number));
    HeldBlob held = memory->find(hash_of(1));
    EXPECT_TRUE(is_here(*memory, 2));
    memory->keep(hash_of(3), blob_of(3));
    EXPECT_FALSE(is_here(*memory, 1));
    EXPECT_FALSE(is_here(*memory, 2)) << "the place of the first is still taken";
    EXPECT_TRUE(is_here(*memory, 3));
    EXPECT_EQ(held.bytes.front(), std::byte(1));

    held = {};
    memory->keep(hash_of(4), blob_of(4));
    EXPECT_TRUE(is_here(*memory, 3));
    EXPECT_TRUE(is_here(*memory, 4));

    held = memory->find(hash_of(4));
    memory.reset();
    EXPECT_EQ(held.bytes.front(), std::byte(4));
}

TEST(BlobMemoryTest, PiecesOfMemoryAreReported) {
    std::vector<ByteView> pieces;
    const auto told = [&](ByteView piece, bool begins) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data()) % 4096, 0u);
        EXPECT_EQ(piece.size() % page, 0u);
        if (begins) return pieces.push_back(piece);
        const auto same = [&](ByteView one) { return one.data() == piece.data(); };
        EXPECT_EQ(std::erase_if(pieces, same), 1u);
    };
    {
        BlobMemory memory(4 * page, told);
        EXPECT_TRUE(pieces.empty());
        memory.keep(hash_of(1), blob_of(1));
        memory.keep(hash_of(2), blob_of(2));
        ASSERT_EQ(pieces.size(), 1u) << "one piece for the whole budget";
        EXPECT_EQ(memory.pieces().front().data(), pieces.front().data());
        const HeldBlob blob = memory.find(hash_of(2));
        EXPECT_GE(blob.bytes.data(), pieces.front().data());
        EXPECT_LE(blob.bytes.data() + blob.bytes.size(),
                  pieces.front().data() + pieces.front().size());
    }
    EXPECT_TRUE(pieces.empty());
}

TEST(BlobMemoryTest, UnusedPieceOfAnotherSizeIsFreed) {
    std::vector<std::uint64_t> sizes;
    BlobMemory memory(2 * page, [&](ByteView piece, bool begins) {
        if (begins)
            sizes.push_back(piece.size());
        else
            sizes.pop_back();
    });
    memory.keep(hash_of(1), blob_of(1));
    memory.keep(hash_of(2), blob_of(2, 2 * page));
    EXPECT_FALSE(is_here(memory, 1));
    EXPECT_TRUE(is_here(memory, 2, 2 * page));
    EXPECT_EQ(sizes, std::vector<std::uint64_t>{2 * page});
}

}  // namespace
}  // namespace moex::native
