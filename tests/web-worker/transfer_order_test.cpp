// The order in which copies are submitted, and the place of each copy in this order.
#include "web-worker/gpu/vulkan/transfer_order.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace moex::gpu {
namespace {

using Numbers = std::vector<std::uint64_t>;
constexpr auto awaited = TransferKind::awaited, prefetch = TransferKind::prefetch;

// Copies have one byte each; four copies in flight keep the link busy.
class TransferOrderTest : public testing::Test {
  protected:
    void ask(TransferKind kind, int count) {
        for (int i = 0; i < count; ++i) order_.ask(kind, 1);
    }
    Numbers take() { return order_.take(prefetch); }
    TransferOrder order_{4};
};

TEST_F(TransferOrderTest, PrefetchesGoWhileTheLinkIsNotBusy) {
    ask(prefetch, 10);
    EXPECT_EQ(take(), (Numbers{1, 2, 3, 4}));
    EXPECT_FALSE(order_.has_next());
    EXPECT_EQ(take(), Numbers{});

    order_.over(3);
    EXPECT_EQ(take(), (Numbers{5, 6, 7}));
    order_.over(7);
    EXPECT_EQ(take(), (Numbers{8, 9, 10}));
    EXPECT_FALSE(order_.has_next());
}

TEST_F(TransferOrderTest, AwaitedCopiesGoFirstAndAtOnce) {
    ask(prefetch, 6);
    (void)take();
    ask(awaited, 2);
    EXPECT_EQ(take(), (Numbers{7, 8})) << "though the link is busy";
    order_.over(2);
    EXPECT_FALSE(order_.has_next()) << "so that these keep it busy, too";
    order_.over(4);
    EXPECT_EQ(take(), (Numbers{5, 6}));
}

TEST_F(TransferOrderTest, AwaitedCopiesGoWithoutPrefetches) {
    ask(prefetch, 2);
    EXPECT_EQ(order_.take(awaited), Numbers{});
    ask(awaited, 1);
    order_.hurry(2);
    EXPECT_EQ(order_.take(awaited), (Numbers{3, 2}));
    EXPECT_EQ(take(), Numbers{1});
}

TEST_F(TransferOrderTest, PrefetchThatBecomesAwaitedGoes) {
    ask(prefetch, 8);
    (void)take();
    order_.hurry(7);
    order_.hurry(7);
    order_.hurry(2);  // submitted already
    EXPECT_EQ(take(), Numbers{7});
    EXPECT_EQ(order_.place(7), 5u);
    order_.hurry_all();
    EXPECT_EQ(take(), (Numbers{5, 6, 8}));
    EXPECT_EQ(order_.place(8), 8u);
}

TEST_F(TransferOrderTest, PlaceIsTheOrderOfSubmission) {
    ask(prefetch, 5);
    ask(awaited, 1);
    EXPECT_EQ(order_.place(6), 0u);
    EXPECT_EQ(take(), (Numbers{6, 1, 2, 3}));
    EXPECT_EQ(order_.place(6), 1u);
    EXPECT_EQ(order_.place(3), 4u);
    EXPECT_EQ(order_.place(4), 0u);

    order_.over(3);
    EXPECT_EQ(order_.settled(), 2u) << "the third is in flight";
    EXPECT_LE(order_.place(2), 3u);
    (void)take();
    order_.over(6);
    EXPECT_EQ(order_.settled(), 6u);
    EXPECT_EQ(order_.place(6), 6u) << "any that is over";
    order_.over(6);
    order_.hurry(6);
    EXPECT_FALSE(order_.has_next());
    EXPECT_EQ(order_.ask(awaited, 1), 7u);
}

// A copy with more bytes than may be in flight is submitted when no other copy is in flight.
TEST_F(TransferOrderTest, CountsBytes) {
    order_.ask(prefetch, 100);
    order_.ask(prefetch, 2);
    order_.ask(prefetch, 2);
    order_.ask(prefetch, 2);
    EXPECT_EQ(take(), Numbers{1});
    order_.over(1);
    EXPECT_EQ(take(), (Numbers{2, 3}));
}

}  // namespace
}  // namespace moex::gpu
