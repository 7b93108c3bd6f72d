#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "protocol/group_rows.h"
#include "tests/protocol/frame_samples.h"

namespace moex {
namespace {

// Returns a group message in which each expert of `experts` has the rows that its bit mask selects.
GroupDispatch group_of(Dtype dtype, std::uint32_t num_tokens,
                       const std::vector<std::pair<std::uint16_t, unsigned>>& experts) {
    GroupDispatch message;
    message.sequence_id = 1234;
    message.shape = {
        2, num_tokens, 32, dtype, false, 0, static_cast<std::uint16_t>(experts.size())};
    for (const auto& [expert, mask] : experts) {
        GroupExpert entry{expert, 0};
        for (std::uint32_t row = 0; row < num_tokens; ++row)
            if ((mask >> row & 1) != 0) {
                message.rows.push_back(static_cast<std::uint16_t>(row));
                message.gates.push_back(float_to_half(0.125f * static_cast<float>(row + 1)));
                ++entry.num_rows;
            }
        message.experts.push_back(entry);
    }
    message.shape.num_pairs = static_cast<std::uint32_t>(message.rows.size());
    message.x = exact_rows(num_tokens * 32);
    return message;
}
// Returns a group message with 3 tokens. Expert 1 has rows 0, 2; expert 4 has row 1; expert 7 has
// rows 0, 1, 2.
GroupDispatch sample_group(Dtype dtype = Dtype::f16) {
    return group_of(dtype, 3, {{1, 0b101}, {4, 0b010}, {7, 0b111}});
}
constexpr std::size_t experts_at = 32, rows_at = 32 + 3 * 4, gates_at = rows_at + 6 * 2,
                      x_at = gates_at + 6 * 2;

auto decoder() {
    return [](ByteView frame) { return decode_group_dispatch(frame, small_limits()); };
}
auto result_decoder() {
    return [](ByteView frame) { return decode_group_result(frame, small_limits()); };
}

TEST(GroupDispatchTest, ComesBackInEveryDtypeWithAndWithoutLz4) {
    EXPECT_TRUE(rc::check("group dispatch", [] {
        const auto dtype = *rc::gen::element(Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::f32);
        const auto num_tokens = *rc::gen::inRange<std::uint32_t>(1, 7);
        const auto chosen = *rc::gen::suchThat(
            rc::gen::inRange<unsigned>(1, 256),
            [](unsigned mask) { return __builtin_popcount(mask) <= 3; });
        std::vector<std::pair<std::uint16_t, unsigned>> experts;
        for (std::uint16_t expert = 0; expert < 8; ++expert)
            if ((chosen >> expert & 1) != 0)
                experts.emplace_back(expert, *rc::gen::inRange(1u, 1u << num_tokens));
        GroupDispatch sent = group_of(dtype, num_tokens, experts);
        sent.shape.unsummed = *rc::gen::arbitrary<bool>();
        sent.x_int8 = *rc::gen::arbitrary<bool>();
        const Bytes frame = encode_group_dispatch(sent, *rc::gen::arbitrary<bool>());
        RC_ASSERT(frame.size() <= tensor_frame_bytes_max(small_limits()));
        const auto got = decode_group_dispatch(frame, small_limits());
        RC_ASSERT(got.ok());
        round_rows(sent.x_int8 ? Dtype::int8 : dtype, sent.x, 32);
        RC_ASSERT(got->x_int8 == sent.x_int8);
        RC_ASSERT(got->sequence_id == sent.sequence_id);
        RC_ASSERT((got->shape == sent.shape));
        RC_ASSERT((got->experts == sent.experts));
        RC_ASSERT(got->rows == sent.rows);
        RC_ASSERT(got->gates == sent.gates);
        RC_ASSERT(got->x == sent.x);
    }));
}

TEST(GroupDispatchTest, Int8RowsHalveTheBytesAndKeepTheAnswersDtype) {
    GroupDispatch sent = sample_group();
    const std::size_t whole_bytes = encode_group_dispatch(sent, false).size();
    sent.x_int8 = true;
    const Bytes frame = encode_group_dispatch(sent, false);
    EXPECT_EQ(frame.size(), whole_bytes - 3 * (32 - 4)) << "a byte a value, and a scale a row";

    GroupDispatchView view;
    Bytes scratch;
    ASSERT_TRUE(decode_group_dispatch_into(view, frame, small_limits(), scratch).ok());
    EXPECT_EQ(view.x_dtype(), Dtype::int8);
    EXPECT_EQ(view.shape.dtype, Dtype::f16);
    EXPECT_EQ(verdict(decoder()(with_byte(frame, 27, 0))), "payload_size");
}

TEST(GroupDispatchTest, ViewBorrowsTheFrameOrTheScratch) {
    GroupDispatchView view;
    Bytes scratch;
    const Bytes plain = encode_group_dispatch(sample_group(), false);
    ASSERT_TRUE(decode_group_dispatch_into(view, plain, small_limits(), scratch).ok());
    EXPECT_EQ(view.x_bytes.data(), plain.data() + x_at);
    EXPECT_EQ(view.x_bytes.size(), 3u * 32 * 2);
    EXPECT_TRUE(scratch.empty());

    GroupDispatch flat = sample_group();
    std::fill(flat.x.begin(), flat.x.end(), 1.0f);
    const Bytes packed = encode_group_dispatch(flat, true);
    ASSERT_EQ(std::to_integer<unsigned>(packed[27]), flag_lz4);
    ASSERT_TRUE(decode_group_dispatch_into(view, packed, small_limits(), scratch).ok());
    EXPECT_EQ(view.x_bytes.data() + view.x_bytes.size(), scratch.data() + scratch.size());
    EXPECT_EQ(view.rows, flat.rows);
}

TEST(GroupDispatchTest, BadHeadersAreRefused) {
    const Bytes frame = encode_group_dispatch(sample_group(), false);
    ASSERT_EQ(frame.size(), x_at + 3 * 32 * 2);
    const auto decode = decoder();
    ASSERT_EQ(verdict(decode(frame)), "ok");

    expect_truncations_refused(frame, decode);
    for (std::ptrdiff_t size = 16; size < 32; ++size)
        EXPECT_EQ(verdict(decode(resized(frame, size - static_cast<std::ptrdiff_t>(frame.size())))),
                  "truncated_frame")
            << size;
    EXPECT_EQ(verdict(decode(resized(frame, -1))), "payload_size");
    EXPECT_EQ(verdict(decode(resized(frame, 1))), "payload_size");
    EXPECT_EQ(verdict(decode(with_u16(frame, 6, 22))), "unknown_type");
    EXPECT_EQ(verdict(decode(with_u16(frame, 16, 4))), "unknown_expert");  // layer

    for (const unsigned num_experts : {0u, 9u, 0xffffu})
        EXPECT_EQ(verdict(decode(with_u16(frame, 18, num_experts))), "bad_field");
    EXPECT_EQ(verdict(decode(with_u16(frame, 18, 2))), "payload_size");

    for (const std::uint32_t num_tokens : {0u, 7u, 0xffffffffu})
        EXPECT_EQ(verdict(decode(with_u32(frame, 20, num_tokens))), "num_tokens_range");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 2))), "payload_size");
    EXPECT_EQ(verdict(decode(with_u16(frame, 24, 64))), "bad_field");

    for (const unsigned dtype : {0u, 4u, 6u, 255u})
        EXPECT_EQ(verdict(decode(with_byte(frame, 26, dtype))), "unknown_dtype");
    for (const unsigned flags : {4u, 16u, 128u, 255u})
        EXPECT_EQ(verdict(decode(with_byte(frame, 27, flags))), "unknown_flags");
    for (const std::uint32_t num_pairs : {0u, 2u, 21u, 0xffffffffu})
        EXPECT_EQ(verdict(decode(with_u32(frame, 28, num_pairs))), "bad_field");
    EXPECT_EQ(verdict(decode(with_u32(frame, 28, 7))), "payload_size");
}

TEST(GroupDispatchTest, BadTablesAreRefused) {
    const Bytes frame = encode_group_dispatch(sample_group(), false);
    const auto decode = decoder();
    // The expert ids 1, 1, 7 are not ascending.
    EXPECT_EQ(verdict(decode(with_u16(frame, experts_at + 4, 1))), "bad_order");

    // The expert ids 1, 0, 7 are not ascending.
    EXPECT_EQ(verdict(decode(with_u16(frame, experts_at + 4, 0))), "bad_order");
    EXPECT_EQ(verdict(decode(with_u16(frame, experts_at + 8, 8))), "unknown_expert");
    // An expert has no rows, or more rows than the group has tokens.
    EXPECT_EQ(verdict(decode(with_u16(frame, experts_at + 2, 0))), "bad_field");
    EXPECT_EQ(verdict(decode(with_u16(frame, experts_at + 2, 4))), "bad_field");
    // The experts have 7 rows together, but the group has 6 pairs.
    EXPECT_EQ(verdict(decode(with_u16(frame, experts_at + 2, 3))), "bad_field");
    // The rows 2, 2 of an expert, and the rows 1, 1, 2 of another expert, are not ascending.
    EXPECT_EQ(verdict(decode(with_u16(frame, rows_at, 2))), "bad_order");
    EXPECT_EQ(verdict(decode(with_u16(frame, rows_at + 6, 1))), "bad_order");
    // Row 3 does not exist in a group with 3 tokens.
    EXPECT_EQ(verdict(decode(with_u16(frame, rows_at + 2, 3))), "bad_field");
    EXPECT_EQ(verdict(decode(with_u16(frame, rows_at + 4, 0xffff))), "bad_field");
    EXPECT_EQ(verdict(decode(with_u16(frame, gates_at + 10, 0x7c00))), "non_finite");
    EXPECT_EQ(verdict(decode(with_u16(frame, gates_at, 0xfe00))), "non_finite");
    EXPECT_EQ(verdict(decode(with_u16(frame, x_at, 0x7c00))), "non_finite");
    EXPECT_EQ(verdict(decode(with_u16(frame, frame.size() - 2, 0xfc00))), "non_finite");
}

TEST(GroupDispatchTest, BadInt8ScalesAreRefused) {
    const Bytes frame = encode_group_dispatch(sample_group(Dtype::int8), false);
    ASSERT_EQ(frame.size(), x_at + 3 * 32 + 12);
    EXPECT_EQ(verdict(decoder()(with_u32(frame, frame.size() - 4, 0x7f800000))), "non_finite");
    EXPECT_EQ(verdict(decoder()(with_u32(frame, frame.size() - 12, 0xffc00000))), "non_finite");
}

TEST(GroupDispatchTest, Lz4ShortLongAndBombAreRefused) {
    GroupDispatch flat = sample_group();
    std::fill(flat.x.begin(), flat.x.end(), 1.0f);
    const Bytes frame = encode_group_dispatch(flat, true);
    const auto decode = decoder();
    ASSERT_EQ(verdict(decode(frame)), "ok");

    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(resized(frame, -1))), "bad_compression");
    EXPECT_EQ(verdict(decode(resized(frame, 1))), "bad_compression");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 2))), "bad_compression");
    EXPECT_EQ(verdict(decode(with_u32(frame, 20, 4))), "bad_compression");
    EXPECT_EQ(verdict(decode(resized(frame, 2000))), "payload_size");

    // an empty block
    EXPECT_EQ(verdict(decode(resized(frame, 32 - static_cast<std::ptrdiff_t>(frame.size())))),
              "bad_compression");
}

TEST(GroupResultTest, ComesBackSummedAndUnsummed) {
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::f32})
        for (const bool unsummed : {false, true})
            for (const bool lz4 : {false, true}) {
                GroupResult sent{99, sample_group(dtype).shape, {}};
                sent.shape.unsummed = unsummed;
                sent.y = exact_rows((unsummed ? 6u : 3u) * 32);
                if (lz4) std::fill(sent.y.begin(), sent.y.end(), 0.5f);
                const Bytes frame = encode_group_result(sent, lz4);
                const auto got = decode_group_result(frame, small_limits());
                ASSERT_TRUE(got.ok()) << got.error().message;
                EXPECT_EQ(got->sequence_id, 99u);
                EXPECT_EQ(got->shape, sent.shape);
                round_rows(dtype, sent.y, 32);
                EXPECT_EQ(got->y, sent.y);
            }
}

TEST(GroupResultTest, WireFormBytesGiveTheSameFrame) {
    const GroupResult result{5, sample_group(Dtype::int8).shape, exact_rows(3 * 32)};
    Bytes wire(wire_rows_bytes(Dtype::int8, 3, 32));
    encode_rows(Dtype::int8, result.y, 32, wire);
    EXPECT_EQ(encode_group_result_bytes(5, result.shape, wire), encode_group_result(result, false));
}

TEST(GroupResultTest, BadResultsAreRefused) {
    const Bytes frame = encode_group_result({5, sample_group().shape, exact_rows(3 * 32)}, false);
    const auto decode = result_decoder();
    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(with_u16(frame, 40, 0x7c00))), "non_finite");
    EXPECT_EQ(verdict(decode(with_byte(frame, 27, flag_unsummed))), "payload_size");
    EXPECT_EQ(verdict(decode(with_byte(frame, 27, 8))), "unknown_flags");
    EXPECT_EQ(verdict(decode(with_byte(frame, 27, flag_times))), "payload_size");
    EXPECT_EQ(verdict(decode(with_byte(frame, 26, 4))), "unknown_dtype");
    EXPECT_EQ(verdict(decode(with_byte(frame, 26, 5))), "payload_size");
    EXPECT_EQ(verdict(decode(with_u32(frame, 28, 21))), "bad_field");
    EXPECT_EQ(verdict(decode(resized(frame, 2))), "payload_size");
}

TEST(GroupResultTest, ReusedMemoryDoesNotChangeTheRows) {
    const GroupResult sent{5, sample_group().shape, exact_rows(3 * 32), {}};
    const Bytes frame = encode_group_result(sent, false);
    for (const std::size_t held : {0, 1, 3 * 32, 1000}) {
        const auto got = decode_group_result(frame, small_limits(), std::vector<float>(held, 7.0f));
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_EQ(got->y, sent.y) << held;
    }
}

TEST(GroupResultTest, TimesFollowPlainAndCompressedRows) {
    GroupResult sent{5, sample_group().shape, exact_rows(3 * 32), RoundTimes{1234, 56}};
    for (const bool lz4 : {false, true}) {
        const Bytes frame = encode_group_result(sent, lz4);
        const auto got = decode_group_result(frame, small_limits());
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_EQ(got->times, sent.times);
        EXPECT_EQ(got->y, sent.y);
        expect_truncations_refused(frame, result_decoder());
    }
    sent.times.reset();
    const auto got = decode_group_result(encode_group_result(sent, false), small_limits());
    ASSERT_TRUE(got.ok());
    EXPECT_FALSE(got->times.has_value());
}

// Rows that several frames share are gathered when a frame is written. The gathered frame must
// equal a frame that is encoded with its own copy of the rows.
TEST(GroupDispatchTest, GatheredFrameEqualsTheEncodedFrame) {
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::int8})
        for (const std::vector<std::uint32_t>& numbers :
             {std::vector<std::uint32_t>{1, 2, 4}, {0, 3, 5}, {3, 4, 5}}) {
            const auto rows = std::make_shared<WireRows>();
            rows->dtype = dtype;
            rows->row_size = 32;
            const std::vector<float> x = exact_rows(6 * 32);
            rows->bytes.resize(wire_rows_bytes(dtype, 6, 32));
            encode_rows(dtype, x, 32, rows->bytes);
            ASSERT_EQ(rows->num_rows(), 6u);

            GroupDispatch message = sample_group(dtype == Dtype::int8 ? Dtype::f16 : dtype);
            message.x_int8 = dtype == Dtype::int8;
            message.x.clear();
            for (const std::uint32_t row : numbers)
                message.x.insert(message.x.end(), x.begin() + row * 32, x.begin() + row * 32 + 32);

            const Bytes want = encode_group_dispatch(message, false);
            EXPECT_EQ(encode_group_dispatch(message, *rows, numbers, false), want);
            WireFrame gathered = gather_group_dispatch(message, rows, numbers);
            EXPECT_EQ(gathered.size_bytes(), want.size());
            std::vector<ByteView> spans;
            gathered.append_spans(spans);
            const std::size_t stretches = numbers[2] == numbers[0] + 2   ? 1
                                          : numbers[1] == numbers[0] + 1 ? 2
                                                                         : 3;
            EXPECT_EQ(spans.size(), 1 + stretches + (dtype == Dtype::int8 ? 1 : 0));
            EXPECT_EQ(std::move(gathered).whole(), want);
        }
}

// The GPU of a worker writes the answer into a buffer, and the worker writes the headers around the
// answer in the same buffer.
TEST(GroupResultTest, FrameMadeInPlaceEqualsTheEncodedFrame) {
    const GroupShape shape = sample_group().shape;
    const std::vector<float> y = exact_rows(3 * 32);
    const std::uint64_t y_bytes = wire_rows_bytes(shape.dtype, 3, 32);
    for (const std::optional<RoundTimes> times :
         {std::optional<RoundTimes>(), std::optional<RoundTimes>({70'000, 15})}) {
        Bytes place(group_result_y_offset + y_bytes + group_result_times_bytes, std::byte{0xaa});
        encode_rows(shape.dtype, y, 32, std::span(place).subspan(group_result_y_offset, y_bytes));
        const ByteView frame = frame_group_result(place, 5, shape, times);
        EXPECT_EQ(Bytes(frame.begin(), frame.end()),
                  encode_group_result({5, shape, y, times}, false));
    }
}

TEST(GroupLimitsTest, FrameMaximumCoversTheLargestGroup) {
    WireLimits limits = small_limits();
    limits.num_experts = 2;
    limits.hidden_size = 512;
    limits.num_tokens_max = 40;
    limits.num_pairs_max = 80;
    GroupResult result{1, {0, 40, 512, Dtype::f32, true, 80, 2}, exact_rows(80 * 512)};
    const Bytes frame = encode_group_result(result, false);
    EXPECT_LE(frame.size(), tensor_frame_bytes_max(limits));
    EXPECT_TRUE(decode_group_result(frame, limits).ok());

    // A request with 64 experts that each compute all 64 rows has 2 MiB. Its answer would have 128
    // MiB, more than a frame may have.
    const WireLimits wide{8192, 1, 64, 64, 4096};
    GroupDispatch question{.sequence_id = 3, .shape = {0, 64, 8192, Dtype::f32, true, 4096, 64}};
    for (std::uint16_t expert = 0; expert < 64; ++expert) question.experts.push_back({expert, 64});
    for (std::uint32_t pair = 0; pair < 4096; ++pair) {
        question.rows.push_back(static_cast<std::uint16_t>(pair % 64));
        question.gates.push_back(float_to_half(1));
    }
    question.x = exact_rows(64 * 8192);
    EXPECT_EQ(verdict(decode_group_dispatch(encode_group_dispatch(question, false), wide)),
              "payload_size");

    limits.hidden_size = 0xffff;
    limits.num_pairs_max = 0xffffffff;
    EXPECT_EQ(tensor_frame_bytes_max(limits), frame_bytes_max);
    EXPECT_EQ(tensor_frame_bytes_max({32, 1, 1, 1, 1}), unauthenticated_frame_bytes_max);
}

}  // namespace
}  // namespace moex
