#include "protocol/frame.h"

#include "tests/protocol/frame_samples.h"

namespace moex {
namespace {

TEST(FrameTest, EveryTypeHasANameAndOnlyThoseAreKnown) {
    int known = 0;
    for (unsigned type = 0; type <= 0xffff; ++type) {
        const bool named = std::string(frame_type_name(static_cast<FrameType>(type))) != "unknown";
        EXPECT_EQ(named, is_known_frame_type(static_cast<std::uint16_t>(type))) << type;
        known += named ? 1 : 0;
    }
    EXPECT_EQ(known, 31);
}

TEST(FrameTest, HeaderComesBack) {
    for (unsigned type = 0; type <= 41; ++type) {
        if (!is_known_frame_type(static_cast<std::uint16_t>(type)) ||
            has_tensor_header(static_cast<FrameType>(type)))
            continue;
        const Bytes frame = frame_of(static_cast<FrameType>(type), "abc", 0xdeadbeef);
        const auto header = decode_frame_header(frame);
        ASSERT_TRUE(header.ok());
        EXPECT_EQ(header->type, static_cast<FrameType>(type));
        EXPECT_EQ(header->payload_bytes, 3u);
        EXPECT_EQ(header->sequence_id, 0xdeadbeefu);
    }
}

TEST(FrameTest, TensorHeaderComesBackAndIsNotPayload) {
    ByteWriter out;
    begin_tensor_frame(out, FrameType::dispatch, 5, {1, 2, 3, 4, Dtype::int8, flag_lz4});
    out.u8(9);
    const Bytes frame = finish_frame(std::move(out));
    ASSERT_EQ(frame.size(), 29u);
    EXPECT_EQ(decode_frame_header(frame)->payload_bytes, 1u);

    const auto header = decode_tensor_header(frame);
    ASSERT_TRUE(header.ok());
    EXPECT_EQ(header->layer, 1);
    EXPECT_EQ(header->expert, 2);
    EXPECT_EQ(header->num_tokens, 3u);
    EXPECT_EQ(header->hidden_dim, 4);
    EXPECT_EQ(header->dtype, Dtype::int8);
    EXPECT_EQ(header->flags, flag_lz4);
}

TEST(FrameTest, WrongMagicVersionTypeAndLengthAreRefused) {
    const Bytes frame = frame_of(FrameType::error, "payload");
    for (std::size_t i = 0; i < 4; ++i)
        EXPECT_EQ(verdict(decode_frame_header(with_byte(frame, i, 0))), "bad_magic");
    for (const unsigned version : {0u, 2u, 0x100u, 0xffffu})
        EXPECT_EQ(verdict(decode_frame_header(with_u16(frame, 4, version))), "unsupported_version");
    for (const unsigned type : {0u, 6u, 15u, 42u, 0x101u, 0xffffu})
        EXPECT_EQ(verdict(decode_frame_header(with_u16(frame, 6, type))), "unknown_type");
    EXPECT_EQ(verdict(decode_frame_header(with_u32(frame, 8, 6))), "payload_size");
    EXPECT_EQ(verdict(decode_frame_header(with_u32(frame, 8, 8))), "truncated_frame");
    EXPECT_EQ(verdict(decode_frame_header(with_u32(frame, 8, 0xffffffff))), "truncated_frame");
    expect_truncations_refused(frame, [](ByteView bytes) { return decode_frame_header(bytes); });
}

TEST(FrameTest, UnknownDtypesAndFlagsAreRefused) {
    ByteWriter out;
    begin_tensor_frame(out, FrameType::result, 5, {0, 0, 1, 4, Dtype::f16, 0});
    const Bytes frame = finish_frame(std::move(out));
    for (unsigned value = 0; value < 256; ++value) {
        EXPECT_EQ(verdict(decode_tensor_header(with_byte(frame, 26, value))),
                  value >= 1 && value <= 4 ? "ok" : "unknown_dtype")
            << value;
        EXPECT_EQ(verdict(decode_tensor_header(with_byte(frame, 27, value))),
                  value <= 1 ? "ok" : "unknown_flags")
            << value;
    }
}

TEST(ResultTest, EveryErrorHasANameOfItsOwn) {
    std::vector<std::string> names;
    for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code)
        names.push_back(error_code_name(static_cast<ErrorCode>(code)));
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
    EXPECT_EQ(names.size(), 28u);
}

}  // namespace
}  // namespace moex
