// Tests the example exchange of frames in PROTOCOL.md: the encoders write exactly its bytes, and
// the decoders read them.
#include <fstream>
#include <map>
#include <sstream>

#include "tests/protocol/frame_samples.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

// Returns the frames in the ```hex NAME blocks of PROTOCOL.md, by name, without the comments in the
// blocks.
std::map<std::string, Bytes> printed_frames() {
    std::ifstream file(repository() / "protocol/PROTOCOL.md");
    std::map<std::string, Bytes> frames;
    std::string name;
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("```", 0) == 0) {
            name = line.rfind("```hex ", 0) == 0 ? line.substr(7) : "";
            continue;
        }
        if (name.empty()) continue;
        std::istringstream digits(line.substr(0, line.find('#')));
        for (unsigned value; digits >> std::hex >> value;)
            frames[name].push_back(static_cast<std::byte>(value));
    }
    return frames;
}

WireLimits printed_limits() { return {4, 2, 16, 512, 4096}; }

class ExchangeTest : public testing::Test {
  protected:
    void expect_printed(const char* name, const Bytes& frame) {
        ASSERT_EQ(frames_.count(name), 1u) << name;
        EXPECT_EQ(frames_[name], frame) << name;
    }
    std::map<std::string, Bytes> frames_ = printed_frames();
};

TEST_F(ExchangeTest, ControlFrames) {
    EXPECT_EQ(frames_.size(), 9u);
    expect_printed("READY", encode_ready({{1, 3}, {1, 9}}));
    expect_printed("CANCEL", encode_cancel(8));
    expect_printed("HEARTBEAT", encode_heartbeat(42));
    expect_printed("BUSY", encode_busy(7, 20));
    WeightSync sync;
    sync.layer = 1;
    sync.expert = 9;
    sync.blob = *parse_sha256("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_printed("WEIGHT_SYNC", encode_weight_sync(sync, 4));
    EXPECT_TRUE(decode_units(frames_["READY"], printed_limits()).ok());
    EXPECT_TRUE(decode_weight_sync(frames_["WEIGHT_SYNC"], printed_limits()).ok());
}

TEST_F(ExchangeTest, GroupAndItsAnswer) {
    GroupDispatch group;
    group.sequence_id = 7;
    group.shape = {1, 2, 4, Dtype::f16, false, 3, 2};
    group.experts = {{3, 2}, {9, 1}};
    group.rows = {0, 1, 1};
    group.gates = {float_to_half(0.5f), float_to_half(0.25f), float_to_half(0.75f)};
    group.x = {1, 2, -1, 0, 0.5f, -2, 4, 8};
    expect_printed("GROUP_DISPATCH", encode_group_dispatch(group, false));
    const auto read = decode_group_dispatch(frames_["GROUP_DISPATCH"], printed_limits());
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read->x, group.x);
    EXPECT_EQ(read->rows, group.rows);

    const GroupResult answer{7, group.shape, {1.5f, 0, -0.25f, 16, 3, -4, 0.125f, 1}};
    expect_printed("GROUP_RESULT", encode_group_result(answer, false));
    const auto read_answer = decode_group_result(frames_["GROUP_RESULT"], printed_limits());
    ASSERT_TRUE(read_answer.ok());
    EXPECT_EQ(read_answer->y, answer.y);
}

TEST_F(ExchangeTest, PublishedCallAndItsAnswer) {
    const Dispatch call{8, 1, 9, Dtype::f16, {0.5f, -2, 4, 8}, {float_to_half(0.75f)}};
    expect_printed("DISPATCH", encode_dispatch(call, 4, false));
    EXPECT_TRUE(decode_dispatch(frames_["DISPATCH"], printed_limits()).ok());
    const ExpertResult answer{8, 1, 9, Dtype::f16, {3, -4, 0.125f, 1}};
    expect_printed("RESULT", encode_result(answer, 4, false));
    EXPECT_TRUE(decode_result(frames_["RESULT"], printed_limits()).ok());
}

}  // namespace
}  // namespace moex
