#include "protocol/lz4_block.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <random>

namespace moex {
namespace {

// Returns bytes with runs and repetitions, so that every kind of LZ4 sequence occurs in their
// block.
Bytes compressible(unsigned seed, std::size_t num_bytes) {
    std::mt19937 random(seed);
    Bytes out;
    while (out.size() < num_bytes) {
        const std::size_t length = 1 + random() % 600;
        const unsigned kind = random() % 3;
        const std::byte fill{static_cast<unsigned char>(random())};
        const std::size_t back = out.empty() ? 0 : 1 + random() % out.size();
        for (std::size_t i = 0; i < length; ++i)
            out.push_back(kind == 0 || back == 0 ? static_cast<std::byte>(random())
                          : kind == 1            ? fill
                                                 : out[out.size() - back]);
    }
    out.resize(num_bytes);
    return out;
}

// Runs liblz4 and our own decoder on one block. Expects the same verdict, and the same bytes if the
// block is valid.
bool decode_both(ByteView block, std::size_t raw_bytes, Bytes& out) {
    Bytes ours(raw_bytes, std::byte{0xcc}), theirs(raw_bytes, std::byte{0xcc});
    const bool ours_ok = lz4_decode_portable(block, ours);
    EXPECT_EQ(ours_ok, lz4_decode(block, theirs));
    if (ours_ok) {
        EXPECT_EQ(ours, theirs);
    }
    out = ours;
    return ours_ok;
}

TEST(Lz4BlockTest, BothDecodersReadWhatLiblz4Writes) {
    for (unsigned seed = 0; seed < 200; ++seed) {
        const Bytes raw = compressible(seed, 16 + seed * 97);
        const Bytes block = lz4_encode(raw);
        if (block.empty()) continue;
        Bytes back;
        ASSERT_TRUE(decode_both(block, raw.size(), back)) << "seed " << seed;
        ASSERT_EQ(back, raw) << "seed " << seed;
    }
}

TEST(Lz4BlockTest, WhatDoesNotShrinkIsNotEncoded) {
    std::mt19937 random(1);
    Bytes noise(1000);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    EXPECT_TRUE(lz4_encode(noise).empty());
    EXPECT_TRUE(lz4_encode({}).empty());
}

TEST(Lz4BlockTest, EveryTruncationAndWrongSizeIsRefused) {
    const Bytes raw = compressible(7, 700);
    const Bytes block = lz4_encode(raw);
    ASSERT_FALSE(block.empty());
    Bytes out;
    for (std::size_t size = 0; size < block.size(); ++size)
        EXPECT_FALSE(decode_both(ByteView(block).first(size), raw.size(), out)) << size;
    for (const std::size_t size :
         {raw.size() - 1, raw.size() + 1, raw.size() / 2, raw.size() * 2, std::size_t{1}})
        EXPECT_FALSE(decode_both(block, size, out)) << size;
}

TEST(Lz4BlockTest, DamagedBlocksGetTheSameVerdictFromBoth) {
    std::mt19937 random(99);
    for (unsigned round = 0; round < 20000; ++round) {
        const Bytes raw = compressible(round % 50, 64 + round % 400);
        Bytes block = lz4_encode(raw);
        if (block.empty()) continue;
        for (unsigned i = 0; i < 1 + round % 3; ++i)
            block[random() % block.size()] = static_cast<std::byte>(random());
        Bytes ours(raw.size()), theirs(raw.size());
        const bool ours_ok = lz4_decode_portable(block, ours);
        const bool theirs_ok = lz4_decode(block, theirs);
        if (ours_ok) {
            ASSERT_TRUE(theirs_ok) << "round " << round;
            ASSERT_EQ(ours, theirs) << "round " << round;
        }
    }
}

TEST(Lz4BlockTest, AZeroOffsetIsRefusedByOurs) {
    // The damaged block has one literal, then a match at offset 0, then five literals and the end.
    const unsigned char block[] = {0x14, 'a', 0, 0, 0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    Bytes out(1 + 8 + 12);
    EXPECT_FALSE(lz4_decode_portable(std::as_bytes(std::span(block)), out));
}

TEST(Lz4BlockTest, LongLengthsDoNotOverflow) {
    Bytes block(100'000, std::byte{0xff});
    Bytes out(64);
    EXPECT_FALSE(lz4_decode_portable(block, out));
    EXPECT_FALSE(lz4_decode(block, out));
}

}  // namespace
}  // namespace moex
