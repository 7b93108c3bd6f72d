#include "hub/model/json_fields.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

struct Sentences {
    using Problem = std::string;
    std::string wrong(std::string_view name, std::string_view wanted, const Json* found) const {
        return text(name, " wants ", wanted, ", is ",
                    found == nullptr ? std::string("absent") : found->dump());
    }
};
using SentenceFields = JsonFields<Json, Sentences>;

TEST(JsonFieldsTest, AbsentAndNullLeaveTheTargetAlone) {
    const Json object = Json::parse(R"({"null": null})");

    SentenceFields fields(object);
    double real = 1.5;
    int whole = 2;
    bool flag = true;
    std::string word = "kept";
    for (const char* name : {"null", "absent"}) {
        fields.real(name, 0, 1, real);
        fields.positive(name, real);
        fields.whole(name, 0, 1, whole);
        fields.boolean(name, flag);
        fields.string(name, word);
    }

    EXPECT_FALSE(fields.problem());
    EXPECT_EQ(real, 1.5);
    EXPECT_EQ(whole, 2);
    EXPECT_TRUE(flag);
    EXPECT_EQ(word, "kept");
}

TEST(JsonFieldsTest, TheFirstProblemIsKept) {
    const Json object = Json::parse(R"({"a": "x", "b": -1, "null": null})");
    SentenceFields fields(object);
    int whole = 7;
    fields.whole("b", 0, 5, whole);
    bool flag = false;
    fields.boolean("a", flag);
    EXPECT_EQ(fields.problem(), "b wants a whole number from 0 to 5, is -1");

    EXPECT_EQ(whole, 7);

    SentenceFields strict(object);
    strict.whole("null", 0, 5, whole, Presence::required);
    EXPECT_EQ(strict.problem(), "null wants a whole number from 0 to 5, is null");

    SentenceFields absent(object);
    EXPECT_EQ(absent.object("c"), nullptr);
    EXPECT_EQ(absent.problem(), "c wants an object, is absent");
}

TEST(JsonFieldsTest, WholeNumbersMayBeWrittenAsReals) {
    EXPECT_EQ(whole_number(Json::parse("3.0")), 3);
    EXPECT_EQ(whole_number(Json::parse("-9223372036854775808")),
              std::numeric_limits<std::int64_t>::min());
    for (const char* other : {"3.5", "1e300", "18446744073709551615", "\"3\"", "true", "null"})
        EXPECT_EQ(whole_number(Json::parse(other)), std::nullopt) << other;
}

TEST(JsonFieldsTest, NonObjectReadsAsEmptyObject) {
    const Json list = Json::array({1});
    SentenceFields fields(list);
    EXPECT_EQ(fields.find("a"), nullptr);
    EXPECT_TRUE(member(list, "a").is_null());
}

}  // namespace
}  // namespace moex
