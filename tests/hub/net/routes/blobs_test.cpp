// Tests of byte ranges, with a blob of 1000 bytes.
#include "hub/net/routes/blobs.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

BlobAnswer ask(std::vector<std::pair<std::string, std::string>> headers) {
    HttpRequest request;
    request.headers = std::move(headers);
    return answer_blob(request, 1000, "\"abc\"");
}

TEST(BlobsTest, Ranges) {
    struct Row {
        const char* range;
        unsigned status;
        std::uint64_t offset, size;
    };

    for (const Row& row :
         {Row{"bytes=0-0", 206, 0, 1}, Row{"bytes=0-999", 206, 0, 1000},
          Row{"bytes=500-", 206, 500, 500}, Row{"bytes=-1", 206, 999, 1},
          Row{"bytes=-5000", 206, 0, 1000}, Row{"bytes=990-2000", 206, 990, 10},
          Row{"bytes=1000-", 416, 0, 0}, Row{"bytes=-0", 416, 0, 0}, Row{"bytes=5-4", 200, 0, 1000},
          Row{"bytes=0-1,5-6", 200, 0, 1000}, Row{"bytes=a-b", 200, 0, 1000},
          Row{"bytes=-", 200, 0, 1000}, Row{"items=0-1", 200, 0, 1000},
          Row{"bytes=99999999999999999999-", 200, 0, 1000}, Row{"bytes=+1-2", 200, 0, 1000}}) {
        const BlobAnswer answer = ask({{"range", row.range}});
        EXPECT_EQ(answer.head.status, row.status) << row.range;
        EXPECT_EQ(answer.offset, row.offset) << row.range;
        EXPECT_EQ(answer.size, row.size) << row.range;
    }
}

TEST(BlobsTest, Conditions) {
    EXPECT_EQ(ask({{"if-none-match", "\"abc\""}}).head.status, 304u);
    EXPECT_EQ(ask({{"if-none-match", "\"x\", W/\"abc\""}}).head.status, 304u);
    EXPECT_EQ(ask({{"if-none-match", "*"}, {"range", "bytes=0-1"}}).head.status, 304u);
    EXPECT_EQ(ask({{"if-none-match", "\"other\""}}).head.status, 200u);
    EXPECT_EQ(ask({{"if-range", "\"abc\""}, {"range", "bytes=0-1"}}).head.status, 206u);
    EXPECT_EQ(ask({{"if-range", "\"old\""}, {"range", "bytes=0-1"}}).head.status, 200u);
    EXPECT_EQ(ask({{"if-range", "W/\"abc\""}, {"range", "bytes=0-1"}}).head.status, 200u);
}

}  // namespace
}  // namespace moex::net
