// What stays in a machine's memory of the blobs that were read there.
#include "web-worker/native/blob_memory.h"

#include <gtest/gtest.h>

namespace moex::native {
namespace {

Sha256 hash_of(int number) { return {std::byte(number)}; }
Bytes blob_of(int number, std::size_t size = 10) { return Bytes(size, std::byte(number)); }

TEST(BlobMemoryTest, GivesWhatItKeepsAndForgetsWhatWasAskedForLeastRecently) {
    BlobMemory memory(35);
    for (const int number : {1, 2, 3}) memory.keep(hash_of(number), blob_of(number));
    ASSERT_NE(memory.find(hash_of(1)), nullptr);
    EXPECT_EQ(*memory.find(hash_of(1)), blob_of(1));

    memory.keep(hash_of(4), blob_of(4));
    EXPECT_EQ(memory.find(hash_of(2)), nullptr) << "three were asked for later";
    for (const int number : {1, 3, 4}) {
        ASSERT_NE(memory.find(hash_of(number)), nullptr) << number;
        EXPECT_EQ(*memory.find(hash_of(number)), blob_of(number));
    }
}

TEST(BlobMemoryTest, ALargerBlobTakesTheRoomOfSeveralAndOneBeyondTheBudgetNone) {
    BlobMemory memory(30);
    for (const int number : {1, 2, 3}) memory.keep(hash_of(number), blob_of(number));
    memory.keep(hash_of(9), blob_of(9, 31));
    EXPECT_EQ(memory.find(hash_of(9)), nullptr);

    memory.keep(hash_of(4), blob_of(4, 15));
    EXPECT_EQ(memory.find(hash_of(1)), nullptr);
    EXPECT_EQ(memory.find(hash_of(2)), nullptr);
    EXPECT_NE(memory.find(hash_of(3)), nullptr);
    EXPECT_NE(memory.find(hash_of(4)), nullptr);
}

TEST(BlobMemoryTest, WithoutABudgetNothingStays) {
    BlobMemory memory(0);
    memory.keep(hash_of(1), blob_of(1));
    EXPECT_EQ(memory.find(hash_of(1)), nullptr);
}

TEST(BlobMemoryTest, WhatIsKeptTwiceIsHereOnce) {
    BlobMemory memory(20);
    for (int i = 0; i < 3; ++i) memory.keep(hash_of(1), blob_of(1));
    memory.keep(hash_of(2), blob_of(2));
    EXPECT_NE(memory.find(hash_of(1)), nullptr);
    EXPECT_NE(memory.find(hash_of(2)), nullptr);
}

}  // namespace
}  // namespace moex::native
