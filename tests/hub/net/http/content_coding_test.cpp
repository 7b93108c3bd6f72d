#include "hub/net/http/content_coding.h"

#include <gtest/gtest.h>

#include <string>

namespace moex::net {
namespace {

constexpr std::string_view both[] = {"br", "gzip"};

TEST(ContentCodingTest, TheBestOfTheHeaviestIsChosen) {
    const struct {
        const char *field, *chosen;
    } cases[] = {
        {"gzip, deflate, br", "br"},
        {"gzip, deflate, br, zstd", "br"},
        {"gzip", "gzip"},
        {"GZIP", "gzip"},
        {"br;q=0.5, gzip;q=0.9", "gzip"},
        {"br ; q=1.000 , gzip ;q=0.999", "br"},
        {"br;q=0, gzip", "gzip"},
        {"*", "br"},
        {"*;q=0.1, br;q=0", "gzip"},
        {"identity;q=0.5, gzip;q=0.5", "gzip"},
        {"identity;q=0, gzip", "gzip"},
        {",, gzip ,", "gzip"},
    };
    for (const auto& [field, chosen] : cases)
        EXPECT_EQ(choose_coding(field, both), chosen) << field;
}

TEST(ContentCodingTest, AbsentUnknownRefusedOrInvalidCodingsGivePlainContent) {
    for (const char* field :
         {"", "identity", "deflate", "brotli", "br;q=0", "*;q=0", "br;q=0.0, gzip;q=0.000",
          "br;q=2", "br;q=1.5", "br;q=0.1234", "br;q=.5", "br;q=-1", "br;q=", "br;level=11",
          "identity, gzip;q=0.9", "br gzip", ";", "=", "\"br\""})
        EXPECT_EQ(choose_coding(field, both), "") << field;
    EXPECT_EQ(choose_coding(std::string(8000, ','), both), "");
    EXPECT_EQ(choose_coding("br", {}), "");
}

}  // namespace
}  // namespace moex::net
