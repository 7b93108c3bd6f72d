// Tests the message with a worker's public key, and the texts that a worker signs.
#include "protocol/identity.h"

#include "tests/protocol/frame_samples.h"

namespace moex {
namespace {

TEST(IdentityTest, ComesBackAndBadOnesAreRefused) {
    Identity sent;
    sent.public_key.fill(std::byte{0x11});
    sent.signature.fill(std::byte{0x22});
    sent.shows_nickname = true;
    const Bytes frame = encode_identity(sent);
    EXPECT_EQ(frame.size(), frame_header_bytes + identity_bytes);
    const auto got = decode_identity(frame);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->public_key, sent.public_key);
    EXPECT_EQ(got->signature, sent.signature);
    EXPECT_TRUE(got->shows_nickname);
    EXPECT_FALSE(decode_identity(encode_identity({}))->shows_nickname);

    expect_truncations_refused(frame, decode_identity);
    EXPECT_EQ(verdict(decode_identity(resized(frame, 1))), "payload_size");
    EXPECT_EQ(verdict(decode_identity(resized(frame, -1))), "payload_size");
    EXPECT_EQ(verdict(decode_identity(with_byte(frame, 16 + 96, 2))), "unknown_flags");
    for (const std::size_t pad : {97u, 98u, 99u})
        EXPECT_EQ(verdict(decode_identity(with_byte(frame, 16 + pad, 1))), "bad_field");
    EXPECT_EQ(verdict(decode_identity(encode_cancel(0))), "unknown_type");
}

TEST(IdentityTest, SignedTextNamesItsPurposeAndSeparatesFields) {
    EXPECT_EQ(identity_text("ab", "https://hub:8443", 17),
              "MoEx identity 1\nab\nhttps://hub:8443\n17");
    EXPECT_EQ(forget_text("ab", "https://hub:8443"), "MoEx forget 1\nab\nhttps://hub:8443");

    const std::string hex = "00ff" + std::string(60, 'a');
    ASSERT_TRUE(parse_public_key(hex).ok());
    EXPECT_EQ(to_hex(*parse_public_key(hex)), hex);
    for (const std::string& bad :
         {hex.substr(1), hex + "0", "0g" + hex.substr(2), "AA" + hex.substr(2), std::string()})
        EXPECT_EQ(verdict(parse_public_key(bad)), "bad_field") << bad;
    EXPECT_TRUE(parse_signature(hex + hex).ok());
    EXPECT_EQ(verdict(parse_signature(hex)), "bad_field");
}

}  // namespace
}  // namespace moex
