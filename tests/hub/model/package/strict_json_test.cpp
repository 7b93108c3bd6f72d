#include "hub/model/strict_json.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

std::string error_of(std::string_view json) {
    const auto parsed = parse_strict_json(json, "config.json");
    return parsed.ok() ? "parsed" : parsed.error().message;
}

// Errors have a text of this project, because the messages of the JSON library
// ("[json.exception.parse_error.101] ...") did not help users.
TEST(StrictJsonTest, InvalidJsonIsRefusedWithOurMessage) {
    EXPECT_EQ(error_of(""), "config.json: is empty, wanted JSON");
    EXPECT_EQ(error_of(" \n\t"), "config.json: is empty, wanted JSON");
    EXPECT_EQ(error_of("{\"a\": 1"), "config.json: not JSON: it ends inside a value; truncated?");
    EXPECT_EQ(error_of("{\"a\": \"b"), "config.json: not JSON: it ends inside a value; truncated?");
    EXPECT_EQ(error_of("{\n  \"a\": x}"), "config.json: not JSON, at line 2, column 8");
    EXPECT_EQ(error_of("nonsense"), "config.json: not JSON, at line 1, column 2");
    EXPECT_EQ(error_of("{} {}"), "config.json: not JSON, at line 1, column 4");

    EXPECT_EQ(error_of("[1e400]"), "config.json: a number too large, at line 1, column 6");
    EXPECT_EQ(error_of("{\"a\": \"\xff\"}").find("json.exception"), std::string::npos);
}

}  // namespace
}  // namespace moex
