// Answers and rows as other threads than the strand's read them.
#include "hub/dispatch/worker_answer.h"

#include <gtest/gtest.h>

#include <limits>

#include "hub/dispatch/round_rows.h"
#include "hub/dispatch/round_sum.h"
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
    std::shared_ptr<AnswerMemory> memory_ = std::make_shared<AnswerMemory>();
    AnswerReader reader_{limits, memory_};
};

TEST_F(AnswerReaderTest, ReadsWhatTheStrandWillAsk) {
    std::vector<float> y(64, 0.5f);
    for (std::size_t i = 32; i < 64; ++i) y[i] = -2;
    const Bytes frame = encode_group_result(answer_of(y), false);

    const auto answer = reader_.read_early(frame);
    ASSERT_TRUE(answer);
    EXPECT_FALSE(answer->broken);
    EXPECT_EQ(answer->sequence_id, 9u);
    EXPECT_EQ(answer->frame_bytes, frame.size());
    EXPECT_EQ(answer->shape, answer_of(y).shape);
    EXPECT_EQ(answer->times->gpu_us, 50u);
    EXPECT_EQ(answer->y, y);
    EXPECT_EQ(answer->square_sums, (std::vector<double>{8, 128}));
}

TEST_F(AnswerReaderTest, SaysWhatIsBrokenAndLeavesTheVerdictToTheStrand) {
    std::vector<float> y(64, 0.5f);
    y[40] = std::numeric_limits<float>::infinity();
    const auto infinite = reader_.read_early(encode_group_result(answer_of(y), false));
    ASSERT_TRUE(infinite && infinite->broken);
    EXPECT_EQ(infinite->broken->code, ErrorCode::non_finite);
    EXPECT_EQ(infinite->sequence_id, 9u);

    Bytes short_of_rows = encode_group_result(answer_of(std::vector<float>(64)), false);
    short_of_rows.resize(short_of_rows.size() - 2);
    patch_payload_bytes(short_of_rows, short_of_rows.size() - frame_header_bytes);
    const auto broken = reader_.read_early(short_of_rows);
    ASSERT_TRUE(broken && broken->broken);
    EXPECT_EQ(broken->broken->code, ErrorCode::payload_size);
}

// A few compressed bytes may stand for megabytes: the strand sees first whether it asked for them.
TEST_F(AnswerReaderTest, LeavesOtherFramesAndCompressedOnesToTheStrand) {
    EXPECT_FALSE(reader_.read_early({}));
    EXPECT_FALSE(reader_.read_early(Bytes(40)));
    EXPECT_FALSE(reader_.read_early(encode_heartbeat(3)));
    if (!lz4_can_encode) GTEST_SKIP() << "SKIPPED: built without an LZ4 encoder";

    const Bytes packed = encode_group_result(answer_of(std::vector<float>(64, 1.0f)), true);
    ASSERT_TRUE(has_lz4_flag(packed));
    EXPECT_FALSE(reader_.read_early(packed));
}

TEST_F(AnswerReaderTest, ACompressedAnswerOfMoreThanWasAskedIsBroken) {
    if (!lz4_can_encode) GTEST_SKIP() << "SKIPPED: built without an LZ4 encoder";
    const GroupResult result = answer_of(std::vector<float>(64, 1.0f));
    const Bytes packed = encode_group_result(result, true);
    const FrameHeader header = decode_frame_header(packed).value();
    EXPECT_EQ(reader_.read(header, packed, result.shape).y, result.y);

    GroupShape fewer = result.shape;
    fewer.num_tokens = fewer.num_pairs = 1;
    const WorkerAnswer answer = reader_.read(header, packed, fewer);
    ASSERT_TRUE(answer.broken);
    EXPECT_EQ(answer.broken->code, ErrorCode::num_tokens_range) << answer.broken->message;
    EXPECT_TRUE(answer.y.empty());
}

TEST_F(AnswerReaderTest, TakesTheMemoryThatASumGaveBack) {
    {
        RoundSum sum(1, 32);
        sum.keep(std::vector<float>(64));
        sum.give_back_to(memory_);
        const RoundSum moved = std::move(sum);
        EXPECT_EQ(memory_->bytes(), 0u);
    }
    EXPECT_EQ(memory_->bytes(), 64 * sizeof(float));
    const Bytes frame = encode_group_result(answer_of(std::vector<float>(64, 1.0f)), false);
    EXPECT_EQ(reader_.read_early(frame)->y, std::vector<float>(64, 1.0f));
    EXPECT_EQ(memory_->bytes(), 0u);
}

// Slow connections keep the rows of their frames alive, and with these all rows of their rounds.
TEST(WireRowsPoolTest, KnowsWhatIsOutUntilItsLastOwnerLetsGo) {
    const auto pool = std::make_shared<WireRowsPool>();
    const std::vector<float> x(std::size_t{1024} * 2048, 0.5f);  // 4 MiB as f16
    std::vector<std::shared_ptr<const WireRows>> held;
    while (pool->may_share()) held.push_back(pool->encode(Dtype::f16, x, 2048));
    EXPECT_EQ(held.size(), WireRowsPool::bytes_out_max / (4u << 20) + 1);
    EXPECT_EQ(pool->bytes_out(), held.size() * (4u << 20));

    const std::shared_ptr<const WireRows> last = held.back();
    held.clear();
    EXPECT_EQ(pool->bytes_out(), 4u << 20);
    EXPECT_EQ(last->values_of(1023).size(), 2 * 2048u);
}

TEST(RowReaderTest, MakesTheFormThatTravelledLastBeforeAnybodyAsks) {
    const RowReader reader({}, std::make_shared<AnswerMemory>());
    const std::vector<float> x(64, 0.5f);
    const ExpertBatch batch{.num_tokens = 2, .hidden_size = 32, .x = x};
    EXPECT_TRUE(reader.read(batch).forms.empty()) << "most likely nobody is there";

    reader.set_usual_form(Dtype::int8);
    const RoundRows rows = reader.read(batch);
    ASSERT_EQ(rows.forms.size(), 1u);
    EXPECT_EQ(rows.forms[0]->dtype, Dtype::int8);
    EXPECT_EQ(rows.forms[0]->num_rows(), 2u);
    EXPECT_EQ(*rows.x, x);
    EXPECT_EQ(rows.x_rms, (std::vector<double>{0.5, 0.5}));
}

}  // namespace
}  // namespace moex
