// Tests SHA-256 of growing bytes against the hash of the whole bytes.
#include "hub/base/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace moex {
namespace {

// Source of the digest: FIPS 180-4, examples.
TEST(Sha256Test, GrowingBytesHashAsTheWhole) {
    GrowingSha256 hash;
    EXPECT_EQ(hash.value(), sha256({}));
    hash.add(as_byte_view("a"));
    hash.add({});
    hash.add(as_byte_view("bc"));
    EXPECT_EQ(to_hex(hash.value()),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");

    // Sizes around the blocks of 64 bytes.
    for (const std::size_t size : {63u, 64u, 65u, 1000u}) {
        Bytes bytes(size);
        for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7);
        for (const std::size_t piece : {1u, 7u, 64u}) {
            GrowingSha256 growing;
            for (std::size_t at = 0; at < size; at += piece)
                growing.add(ByteView(bytes).subspan(at, std::min(piece, size - at)));
            EXPECT_EQ(growing.value(), sha256(bytes)) << size << " bytes, pieces of " << piece;
        }
    }
}

TEST(Sha256Test, CopiesOfAGrowingHashAreIndependent) {
    GrowingSha256 first;
    first.add(as_byte_view("ab"));
    GrowingSha256 second = first, third;
    third = first;
    second.add(as_byte_view("c"));
    EXPECT_EQ(first.value(), sha256(as_byte_view("ab")));
    EXPECT_EQ(second.value(), sha256(as_byte_view("abc")));
    EXPECT_EQ(third.value(), first.value());
    EXPECT_EQ(first.value(), first.value()) << "reading the value changes nothing";
}

}  // namespace
}  // namespace moex
