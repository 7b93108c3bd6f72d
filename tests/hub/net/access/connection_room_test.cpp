// Tests that no client can take the connections that are kept for the operator.
#include "hub/net/access/connection_room.h"

#include <gtest/gtest.h>

namespace moex::net {
namespace {

constexpr ConnectionRoom room{
    .connections_max = 4096, .per_address_max = 256, .loopback_factor = 16};

TEST(ConnectionRoomTest, RemoteClientsLeaveTheReserveToThisMachine) {
    EXPECT_EQ(room.reserve(), 16u);
    EXPECT_TRUE(has_room(room, {.all = 4079, .of_address = 0}, ClientKind::remote));
    for (const std::size_t all : {4080, 4095}) {
        EXPECT_FALSE(has_room(room, {.all = all}, ClientKind::remote));
        EXPECT_FALSE(has_room(room, {.all = all}, ClientKind::trusted_proxy));
        EXPECT_TRUE(has_room(room, {.all = all}, ClientKind::loopback));
    }
    EXPECT_FALSE(has_room(room, {.all = 4096}, ClientKind::loopback));
}

TEST(ConnectionRoomTest, OneAddressOfThisMachineLeavesTheReserveToAnother) {
    EXPECT_FALSE(has_room(room, {.all = 4080, .of_address = 4080}, ClientKind::loopback));
    EXPECT_TRUE(has_room(room, {.all = 4080, .of_address = 0}, ClientKind::loopback));
}

TEST(ConnectionRoomTest, OneAddressIsLimitedUnlessItIsATrustedProxy) {
    EXPECT_TRUE(has_room(room, {.all = 300, .of_address = 255}, ClientKind::remote));
    EXPECT_FALSE(has_room(room, {.all = 300, .of_address = 256}, ClientKind::remote));
    EXPECT_TRUE(has_room(room, {.all = 300, .of_address = 256}, ClientKind::loopback));
    EXPECT_TRUE(has_room(room, {.all = 4000, .of_address = 4000}, ClientKind::trusted_proxy));
}

TEST(ConnectionRoomTest, AFewConnectionsHaveNoReserve) {
    const ConnectionRoom few{.connections_max = 7, .per_address_max = 256, .loopback_factor = 16};
    EXPECT_EQ(few.reserve(), 0u);
    EXPECT_TRUE(has_room(few, {.all = 6, .of_address = 6}, ClientKind::remote));
    EXPECT_FALSE(has_room(few, {.all = 7, .of_address = 0}, ClientKind::loopback));
}

}  // namespace
}  // namespace moex::net
