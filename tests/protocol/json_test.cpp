// Tests the reading of JSON from peers: its limit of depth, and cut texts.
#include "protocol/json.h"

#include "tests/protocol/frame_samples.h"

namespace moex {
namespace {

TEST(JsonTest, ClipsAtCharacters) {
    EXPECT_EQ(clip_utf8("aé", 2), "a");
    EXPECT_EQ(clip_utf8("aé", 3), "aé");
    EXPECT_EQ(clip_utf8("❤", 2), "");
    EXPECT_EQ(clip_utf8("abc", 0), "");
}

TEST(JsonTest, BracketsInsideStringsAreNotDepth) {
    EXPECT_TRUE(parse_json_object(R"({"a":"[[[[[[[[[[[[\"[[[["})", 100, "test").ok());
    EXPECT_TRUE(parse_json_object(R"({"a":[[[[[[[1]]]]]]]})", 100, "test").ok());
    EXPECT_EQ(verdict(parse_json_object(R"({"a":[[[[[[[[1]]]]]]]]})", 100, "test")), "bad_json");
}

}  // namespace
}  // namespace moex
