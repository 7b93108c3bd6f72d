#include <rapidcheck.h>

#include <limits>
#include <random>

#include "tests/protocol/frame_samples.h"

namespace moex {
namespace {

Dispatch sample_dispatch(Dtype dtype = Dtype::f16, std::uint32_t num_tokens = 3) {
    Dispatch message;
    message.sequence_id = 77;
    message.layer = 2;
    message.expert = 5;
    message.dtype = dtype;
    message.x = exact_rows(num_tokens * 32);
    for (std::uint32_t i = 0; i < num_tokens; ++i)
        message.gates.push_back(float_to_half(0.25f * static_cast<float>(i + 1)));
    return message;
}
ExpertResult sample_result(Dtype dtype = Dtype::f16) {
    return {78, 3, 7, dtype, exact_rows(2 * 32)};
}

auto decoder_of_dispatch() {
    return [](ByteView frame) { return decode_dispatch(frame, small_limits()); };
}
auto decoder_of_result() {
    return [](ByteView frame) { return decode_result(frame, small_limits()); };
}

TEST(DispatchTest, ComesBackInEveryDtypeWithAndWithoutLz4) {
    EXPECT_TRUE(rc::check("dispatch", [] {
        const auto dtype = *rc::gen::element(Dtype::f16, Dtype::bf16, Dtype::int8);
        const auto num_tokens = *rc::gen::inRange<std::uint32_t>(1, 7);
        Dispatch sent = sample_dispatch(dtype, num_tokens);
        sent.sequence_id = *rc::gen::arbitrary<std::uint32_t>();
        sent.layer = *rc::gen::inRange<std::uint16_t>(0, 4);
        sent.expert = *rc::gen::inRange<std::uint16_t>(0, 8);
        // In some of the messages all values are equal, so that LZ4 compresses them.
        if (*rc::gen::arbitrary<bool>()) std::fill(sent.x.begin(), sent.x.end(), 1.5f);
        const Bytes frame = encode_dispatch(sent, 32, *rc::gen::arbitrary<bool>());
        RC_ASSERT(frame.size() <= tensor_frame_bytes_max(small_limits()));
        const auto got = decode_dispatch(frame, small_limits());
        RC_ASSERT(got.ok());
        round_rows(dtype, sent.x, 32);
        RC_ASSERT(got->sequence_id == sent.sequence_id);
        RC_ASSERT(got->layer == sent.layer);
        RC_ASSERT(got->expert == sent.expert);
        RC_ASSERT(got->dtype == sent.dtype);
        RC_ASSERT(got->x == sent.x);
        RC_ASSERT(got->gates == sent.gates);
    }));
}

TEST(DispatchTest, BadHeadersAreRefused) {
    const Bytes frame = encode_dispatch(sample_dispatch(), 32, false);
    const auto decode = decoder_of_dispatch();
    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(with_u16(frame, 6, 2))), "unknown_type");     // a RESULT
    EXPECT_EQ(verdict(decode(with_u16(frame, 16, 4))), "unknown_expert");  // layer
    EXPECT_EQ(verdict(decode(with_u16(frame, 18, 8))), "unknown_expert");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 0))), "num_tokens_range");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 7))), "num_tokens_range");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 0xffffffff))), "num_tokens_range");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 2))), "payload_size");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 4))), "payload_size");
    EXPECT_EQ(verdict(decode(with_u16(frame, 24, 31))), "bad_field");
    EXPECT_EQ(verdict(decode(with_byte(frame, 26, 0))), "unknown_dtype");

    // Dtype 3 is int8. The int8 payload of these rows would be shorter than the f16 payload in this
    // frame, so the size is refused.
    EXPECT_EQ(verdict(decode(with_byte(frame, 26, 3))), "payload_size");
    EXPECT_EQ(verdict(decode(with_byte(frame, 26, 4))), "unknown_dtype");
    EXPECT_EQ(verdict(decode(with_byte(frame, 26, 5))), "unknown_dtype");
    EXPECT_EQ(verdict(decode(with_byte(frame, 27, 2))), "unknown_flags");
    EXPECT_EQ(verdict(decode(resized(frame, 1))), "payload_size");
    EXPECT_EQ(verdict(decode(resized(frame, -1))), "payload_size");
}

TEST(DispatchTest, NonFiniteRowsAndGatesAreRefused) {
    const Bytes frame = encode_dispatch(sample_dispatch(), 32, false);
    const auto decode = decoder_of_dispatch();
    for (const unsigned bits : {0x7c00u, 0xfc00u, 0x7e00u, 0x7c01u}) {
        EXPECT_EQ(verdict(decode(with_u16(frame, 28, bits))), "non_finite");
        // Replace the last value of x by a value that is not finite.
        EXPECT_EQ(verdict(decode(with_u16(frame, frame.size() - 8, bits))), "non_finite");
        // the last gate
        EXPECT_EQ(verdict(decode(with_u16(frame, frame.size() - 2, bits))), "non_finite");
    }
}

TEST(ResultMessageTest, ComesBackInEveryDtypeWithAndWithoutLz4) {
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8})
        for (const bool lz4 : {false, true}) {
            ExpertResult sent = sample_result(dtype);
            const auto got = decode_result(encode_result(sent, 32, lz4), small_limits());
            ASSERT_TRUE(got.ok());
            round_rows(dtype, sent.y, 32);
            EXPECT_EQ(got->y, sent.y);
            EXPECT_EQ(got->sequence_id, 78u);
            EXPECT_EQ(got->layer, 3);
            EXPECT_EQ(got->expert, 7);
            EXPECT_EQ(got->dtype, dtype);
        }
}

TEST(ResultMessageTest, BadResultsAreRefused) {
    const Bytes frame = encode_result(sample_result(), 32, false);
    const auto decode = decoder_of_result();
    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(with_u16(frame, 28 + 30, 0x7c00))), "non_finite");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 1))), "payload_size");
    EXPECT_EQ(verdict(decode(resized(frame, 4))), "payload_size");
    ExpertResult overflowing = sample_result();
    overflowing.y[5] = 1e6f;  // 1e6 is too large for f16: refused, not clamped
    EXPECT_EQ(verdict(decode(encode_result(overflowing, 32, false))), "non_finite");
}

TEST(Lz4MessageTest, ShortLongDamagedAndBombBlocksAreRefused) {
    ExpertResult sent = sample_result();
    std::fill(sent.y.begin(), sent.y.end(), 2.0f);
    const Bytes frame = encode_result(sent, 32, true);
    ASSERT_EQ(std::to_integer<unsigned>(frame[27]), flag_lz4);
    ASSERT_LT(frame.size(), 28u + 128);

    const auto decode = decoder_of_result();
    ASSERT_EQ(verdict(decode(frame)), "ok");
    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(resized(frame, -1))), "bad_compression");
    EXPECT_EQ(verdict(decode(resized(frame, 1))), "bad_compression");

    // With num_tokens 1 in the header, the LZ4 block decodes to more bytes than one row.
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 1))), "bad_compression");
    // With num_tokens 3 in the header, the LZ4 block decodes to fewer bytes than three rows.
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 3))), "bad_compression");

    // The payload is longer than the longest LZ4 block of such a message.
    EXPECT_EQ(verdict(decode(resized(frame, 4000))), "payload_size");
    EXPECT_EQ(verdict(decode(with_byte(frame, 27, 0))), "payload_size");  // no LZ4 flag

    // A block that is too short for the size which the header claims is refused before it is
    // decoded.
    WireLimits wide = small_limits();
    wide.hidden_size = 0x8000;
    wide.num_tokens_max = 512;
    Bytes bomb = with_u16(with_u32(frame, 20, 512), 24, 0x8000);
    EXPECT_EQ(verdict(decode_result(bomb, wide)), "bad_compression");

    wide.num_tokens_max = 0xffffffff;
    // The size that the header claims is above the limit of a frame.
    EXPECT_EQ(verdict(decode_result(with_u32(bomb, 20, 0xffffffff), wide)), "payload_size");
}

TEST(WeightSyncTest, ComesBackAndBadOnesAreRefused) {
    WeightSync sent;
    sent.sequence_id = 3;
    sent.layer = 1;
    sent.expert = 6;
    for (std::size_t i = 0; i < 32; ++i) sent.blob[i] = static_cast<std::byte>(i * 7);
    const Bytes frame = encode_weight_sync(sent, 32);

    const auto decode = [](ByteView bytes) { return decode_weight_sync(bytes, small_limits()); };
    const auto got = decode(frame);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->sequence_id, 3u);
    EXPECT_EQ(got->layer, 1);
    EXPECT_EQ(got->expert, 6);
    EXPECT_EQ(got->blob, sent.blob);

    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 1))), "num_tokens_range");
    EXPECT_EQ(verdict(decode(with_byte(frame, 26, 1))), "unknown_dtype");
    EXPECT_EQ(verdict(decode(with_byte(frame, 27, 1))), "unknown_flags");
    EXPECT_EQ(verdict(decode(with_u16(frame, 18, 8))), "unknown_expert");
    EXPECT_EQ(verdict(decode(with_u16(frame, 24, 64))), "bad_field");
    EXPECT_EQ(verdict(decode(resized(frame, -1))), "payload_size");
    EXPECT_EQ(verdict(decode(resized(frame, 1))), "payload_size");
}

TEST(Sha256Test, HexComesBackAndOtherTextIsRefused) {
    const std::string hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    EXPECT_EQ(to_hex(*parse_sha256(hex)), hex);
    std::string upper = hex;
    upper[0] = 'E';
    for (const std::string& bad : {std::string(), hex.substr(1), hex + "0", upper,
                                   "g" + hex.substr(1), hex.substr(1) + " ", "/" + hex.substr(1)})
        EXPECT_EQ(verdict(parse_sha256(bad)), "bad_field") << bad;
}

TEST(CancelTest, HasNoPayload) {
    EXPECT_EQ(verdict(decode_cancel(encode_cancel(9))), "ok");
    EXPECT_EQ(decode_frame_header(encode_cancel(9))->sequence_id, 9u);
    EXPECT_EQ(verdict(decode_cancel(frame_of(FrameType::cancel, "x"))), "payload_size");
    EXPECT_EQ(verdict(decode_cancel(encode_heartbeat(9))), "unknown_type");
}

TEST(TensorMessagesTest, RandomDamageNeverCrashes) {
    std::mt19937 random(20);
    const std::vector<Bytes> frames{encode_dispatch(sample_dispatch(), 32, true),
                                    encode_dispatch(sample_dispatch(Dtype::int8), 32, false),
                                    encode_result(sample_result(), 32, true),
                                    encode_weight_sync({}, 32)};
    for (int round = 0; round < 20000; ++round) {
        Bytes frame = frames[random() % frames.size()];
        for (unsigned i = 0; i < 1 + random() % 4; ++i)
            frame[4 + random() % (frame.size() - 4)] = static_cast<std::byte>(random());
        (void)decode_dispatch(frame, small_limits());
        (void)decode_result(frame, small_limits());
        (void)decode_weight_sync(frame, small_limits());
    }
}

}  // namespace
}  // namespace moex
