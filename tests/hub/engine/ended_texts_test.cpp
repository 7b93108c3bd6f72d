#include "hub/engine/ended_texts.h"

#include <gtest/gtest.h>

namespace moex {
namespace {

using Pages = std::vector<std::uint32_t>;

TEST(EndedTextsTest, ATextTakesOverTheLastEndOfItsLastPage) {
    EndedTexts texts(10);
    texts.keep(7, 3, Pages{3, 9, 4});
    texts.keep(8, 3, Pages{3, 9, 5});
    EXPECT_EQ(texts.take(Pages{3, 9, 4}), 7u);
    EXPECT_EQ(texts.take(Pages{3, 9, 4}), std::nullopt) << "an id is taken over once";
    EXPECT_EQ(texts.take(Pages{3, 9}), 8u);
    EXPECT_EQ(texts.size(), 0u);
}

TEST(EndedTextsTest, ATextTakesNothingFromOneThatIsMoreThanTwiceAsLong) {
    EndedTexts texts(10);
    texts.keep(7, 5, Pages{0, 1, 2, 3, 4});
    EXPECT_EQ(texts.take(Pages{0, 1}), std::nullopt);
    EXPECT_EQ(texts.take(Pages{0, 1, 2}), 7u);
}

TEST(EndedTextsTest, APageWithOtherTokensNamesNoEnd) {
    EndedTexts texts(10);
    texts.keep(7, 2, Pages{0, 1});
    texts.forget_page(1);
    EXPECT_EQ(texts.take(Pages{0, 1}), std::nullopt);
    EXPECT_EQ(texts.take(Pages{0}), 7u);
}

TEST(EndedTextsTest, EndsThatNoPageNamesAreForgotten) {
    EndedTexts texts(2);
    for (std::uint64_t id = 1; id <= 100; ++id) {
        texts.keep(id, 1, Pages{0});
        EXPECT_LE(texts.size(), 4u);
    }
    EXPECT_EQ(texts.take(Pages{0}), 100u);
}

TEST(EndedTextsTest, WithoutPagesNothingIsTakenOver) {
    EndedTexts texts;
    EXPECT_FALSE(texts.is_on());
    texts.forget_page(3);
    EXPECT_EQ(texts.take(Pages{3}), std::nullopt);
}

}  // namespace
}  // namespace moex
