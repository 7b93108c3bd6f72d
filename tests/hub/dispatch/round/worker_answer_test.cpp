// Tests the classes with which threads other than the strand read workers' answers and the rows of
// a batch.
#include "hub/dispatch/round/worker_answer.h"

#include <gtest/gtest.h>

#include <limits>

#include "hub/dispatch/round/round_rows.h"
#include "hub/dispatch/round/round_sum.h"
#include "protocol/group_rows.h"
#include "protocol/lz4_block.h"

namespace moex {
namespace {

constexpr WireLimits limits{.hidden_size = 32,
                            .num_layers = 2,
                            .num_experts = 4,
                            .num_tokens_max = 16,
                            .num_pairs_max = 16};

GroupResult answer_of(std::vector<float> y) {
    return {.sequence_id = 9,
            .shape = {.layer = 1,
                      .num_tokens = 2,
                      .hidden_dim = 32,
                      .dtype = Dtype::f16,
                      .num_pairs = 2,
                      .num_experts = 1},
            .y = std::move(y),
            .times = RoundTimes{.worker_us = 70, .gpu_us = 50}};
}

class AnswerReaderTest : public testing::Test {
  protected:
    AnswerReaderTest() { asked_->add(9, answer_of({}).shape); }

    std::shared_ptr<AnswerMemory> memory_ = std::make_shared<AnswerMemory>();
    std::shared_ptr<AskedGroups> asked_ = std::make_shared<AskedGroups>();
    AnswerReader reader_{limits, memory_, asked_};
};

TEST_F(AnswerReaderTest, ReaderMeasuresWhatTheStrandNeeds) {
    std::vector<float> y(64, 0.5f);
    for (std::size_t i = 32; i < 64; ++i) y[i] = -2;
    const Bytes frame = encode_group_result(answer_of(y), false);

    const auto answer = reader_.read(frame);
    ASSERT_TRUE(answer && answer->asked_for);
    EXPECT_FALSE(answer->broken);
    EXPECT_EQ(answer->sequence_id, 9u);
    EXPECT_EQ(answer->frame_bytes, frame.size());
    EXPECT_EQ(answer->shape, answer_of(y).shape);
    EXPECT_EQ(answer->times->gpu_us, 50u);
    EXPECT_EQ(answer->y, y);
    EXPECT_EQ(answer->square_sums, (std::vector<double>{8, 128}));
}

TEST_F(AnswerReaderTest, BrokenAnswerIsReportedAndTheStrandDecides) {
    std::vector<float> y(64, 0.5f);
    y[40] = std::numeric_limits<float>::infinity();
    const auto infinite = reader_.read(encode_group_result(answer_of(y), false));
    ASSERT_TRUE(infinite && infinite->broken);
    EXPECT_EQ(infinite->broken->code, ErrorCode::non_finite);
    EXPECT_EQ(infinite->sequence_id, 9u);

    Bytes short_of_rows = encode_group_result(answer_of(std::vector<float>(64)), false);
    short_of_rows.resize(short_of_rows.size() - 2);
    patch_payload_bytes(short_of_rows, short_of_rows.size() - frame_header_bytes);
    const auto broken = reader_.read(short_of_rows);
    ASSERT_TRUE(broken && broken->broken);
    EXPECT_EQ(broken->broken->code, ErrorCode::payload_size);
}

TEST_F(AnswerReaderTest, OtherFramesAreLeftToTheStrand) {
    EXPECT_FALSE(reader_.read({}));
    EXPECT_FALSE(reader_.read(Bytes(40)));
    EXPECT_FALSE(reader_.read(encode_heartbeat(3)));
}

// Decoding an answer costs time, so an attacker could load the hub with unrequested answers. The
// unrequested answer in this test contains infinities: the reader would report them if it had
// decoded the answer.
TEST_F(AnswerReaderTest, UnrequestedAnswerIsNotDecoded) {
    GroupResult unasked = answer_of(std::vector<float>(64, std::numeric_limits<float>::infinity()));
    unasked.sequence_id = 10;
    const Bytes frame = encode_group_result(unasked, false);
    const auto answer = reader_.read(frame);
    ASSERT_TRUE(answer);
    EXPECT_FALSE(answer->asked_for);
    EXPECT_FALSE(answer->broken);
    EXPECT_TRUE(answer->y.empty());
    EXPECT_EQ(answer->sequence_id, 10u);
    EXPECT_EQ(answer->frame_bytes, frame.size());

    const Bytes single = encode_result({.sequence_id = 10, .layer = 1, .expert = 2, .y = unasked.y},
                                       32, false);
    ASSERT_TRUE(reader_.read(single));
    EXPECT_FALSE(reader_.read(single)->broken);

    asked_->add(10, unasked.shape);
    EXPECT_EQ(reader_.read(frame)->broken->code, ErrorCode::non_finite);
    asked_->remove(10);  // request 10 is now answered
    EXPECT_FALSE(reader_.read(frame)->asked_for);
}

TEST_F(AnswerReaderTest, RowsOfAWrongShapeAreNotDecoded) {
    GroupResult more = answer_of(std::vector<float>(96, std::numeric_limits<float>::infinity()));
    more.shape.num_tokens = more.shape.num_pairs = 3;
    const auto answer = reader_.read(encode_group_result(more, false));
    ASSERT_TRUE(answer && answer->asked_for);
    EXPECT_FALSE(answer->broken);
    EXPECT_TRUE(answer->y.empty());
    EXPECT_EQ(answer->shape, more.shape);

    const std::vector<float> three_rows(96, std::numeric_limits<float>::infinity());
    const auto single = reader_.read(
        encode_result({.sequence_id = 9, .layer = 1, .expert = 2, .y = three_rows}, 32, false));
    ASSERT_TRUE(single && single->asked_for);
    EXPECT_FALSE(single->broken);
    EXPECT_TRUE(single->y.empty());
    EXPECT_EQ(single->shape.num_tokens, 3u);
}

TEST_F(AnswerReaderTest, CompressedAnswerTakesMemoryOfTheRequestOnly) {
    if (!lz4_can_encode) GTEST_SKIP() << "SKIPPED: built without an LZ4 encoder";
    const GroupResult result = answer_of(std::vector<float>(64, 1.0f));
    const Bytes packed = encode_group_result(result, true);
    ASSERT_LT(packed.size(), 100u);
    EXPECT_EQ(reader_.read(packed)->y, result.y);

    asked_->remove(9);
    GroupShape fewer = result.shape;
    fewer.num_tokens = fewer.num_pairs = 1;
    asked_->add(9, fewer);
    EXPECT_TRUE(reader_.read(packed)->y.empty());
}

TEST_F(AnswerReaderTest, MemoryOfASumIsReused) {
    {
        RoundSum sum(1, 32);
        sum.keep(std::vector<float>(64));
        sum.give_back_to(memory_);
        const RoundSum moved = std::move(sum);
        EXPECT_EQ(memory_->bytes(), 0u);
    }
    EXPECT_EQ(memory_->bytes(), 64 * sizeof(float));
    const Bytes frame = encode_group_result(answer_of(std::vector<float>(64, 1.0f)), false);
    EXPECT_EQ(reader_.read(frame)->y, std::vector<float>(64, 1.0f));
    EXPECT_EQ(memory_->bytes(), 0u);
}

// Slow connections keep the rows of their unsent frames alive, and thereby all rows of the frames'
// rounds.
TEST(WireRowsPoolTest, ConnectionGetsItsShareAndAnIdleOneAlways) {
    const auto pool = std::make_shared<WireRowsPool>();
    const std::vector<float> x(std::size_t{1024} * 2048, 0.5f);  // x takes 4 MiB as f16
    constexpr std::uint64_t round_bytes = 4 << 20;
    using Lent = std::vector<std::shared_ptr<const WireRows>>;
    // Borrows the rows of one round after the other, until the pool refuses.
    const auto lend_all = [&](const std::shared_ptr<RowsHeld>& held) {
        Lent lent;
        for (;;) {
            auto rows = pool->lend(pool->encode(Dtype::f16, x, 2048), 1024, held);
            if (!rows) return lent;
            lent.push_back(std::move(rows));
        }
    };

    std::vector<std::shared_ptr<RowsHeld>> connections;
    std::vector<Lent> slow;
    for (int i = 0; i < 20; ++i) {
        connections.push_back(std::make_shared<RowsHeld>());
        slow.push_back(lend_all(connections.back()));
    }
    EXPECT_EQ(slow.front().size(), WireRowsPool::held_bytes_max / round_bytes);
    EXPECT_EQ(*connections.front(), WireRowsPool::held_bytes_max);
    EXPECT_EQ(slow.back().size(), 1u) << "all together hold enough";
    const std::uint64_t out = pool->bytes_out();
    EXPECT_LE(out, WireRowsPool::bytes_out_max + 20 * round_bytes);

    // This connection writes its frames at once, so it may always borrow.
    const auto quick = std::make_shared<RowsHeld>();
    for (int i = 0; i < 100; ++i)
        ASSERT_TRUE(pool->lend(pool->encode(Dtype::f16, x, 2048), 1024, quick)) << i;
    EXPECT_EQ(*quick, 0u);
    EXPECT_EQ(pool->bytes_out(), out);

    const std::shared_ptr<const WireRows> last = slow.front().back();
    slow.clear();
    EXPECT_EQ(pool->bytes_out(), round_bytes);
    EXPECT_EQ(*connections.front(), round_bytes);
    EXPECT_EQ(*connections.back(), 0u);
    EXPECT_EQ(last->values_of(1023).size(), 2 * 2048u);
}

TEST(WireRowsPoolTest, AFewRowsAreCopied) {
    const auto pool = std::make_shared<WireRowsPool>(1000);
    const auto held = std::make_shared<RowsHeld>();
    const auto rows = pool->encode(Dtype::f16, std::vector<float>(64 * 100), 100);
    EXPECT_FALSE(pool->lend(rows, 4, held));
    EXPECT_TRUE(pool->lend(rows, 5, held));
}

TEST(RowReaderTest, LastUsedEncodingIsMadeInAdvance) {
    const RowReader reader({}, std::make_shared<AnswerMemory>());
    const std::vector<float> x(64, 0.5f);
    const ExpertBatch batch{.num_tokens = 2, .hidden_size = 32, .x = x};
    EXPECT_TRUE(reader.read(batch).encodings.empty()) << "no worker is likely connected";

    reader.travels(Dtype::f16, true);
    const RoundRows rows = reader.read(batch);
    ASSERT_EQ(rows.encodings.size(), 1u);
    EXPECT_EQ(rows.encodings[0]->dtype, Dtype::int8);
    EXPECT_EQ(rows.encodings[0]->num_rows(), 2u);
    EXPECT_EQ(*rows.x, x);
    EXPECT_EQ(rows.x_rms, (std::vector<double>{0.5, 0.5}));
}

// The worker that accepted rows as int8 has left. The reader encodes int8 rows for a few more
// rounds, and then stops.
TEST(RowReaderTest, UnusedEncodingIsNoLongerMade) {
    const RowReader reader({}, std::make_shared<AnswerMemory>());
    const std::vector<float> x(64, 0.5f);
    const ExpertBatch batch{.num_tokens = 2, .hidden_size = 32, .x = x};
    for (int i = 0; i < 100; ++i) {
        reader.travels(Dtype::f16, true);
        reader.read(batch);
    }
    std::uint64_t num_made = 0;
    for (int i = 0; i < 100; ++i) {
        reader.travels(Dtype::f16, false);
        num_made += reader.read(batch).has_encoding(Dtype::int8);
    }
    EXPECT_EQ(num_made, 7u);
    EXPECT_TRUE(reader.read(batch).has_encoding(Dtype::f16));
}

}  // namespace
}  // namespace moex
