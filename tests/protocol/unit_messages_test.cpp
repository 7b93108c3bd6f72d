// Tests the messages of a few fixed fields: what a worker holds and is to hold (READY, RELEASE,
// BUDGET, PREFETCH, SLOTS), and its state (POWER, BUSY, DRAIN).
#include <rapidcheck.h>

#include "tests/protocol/frame_samples.h"

namespace moex {
namespace {

TEST(UnitsTest, ComeBackAndBadOnesAreRefused) {
    EXPECT_TRUE(rc::check("units", [](const std::vector<std::uint8_t>& picks) {
        std::vector<Unit> sent;
        for (const std::uint8_t pick : picks)
            sent.push_back(
                {static_cast<std::uint16_t>(pick % 4), static_cast<std::uint16_t>(pick / 4 % 8)});
        const auto ready = decode_units(encode_ready(sent), small_limits());
        const auto release = decode_units(encode_release(sent), small_limits());
        RC_ASSERT(ready.ok() && *ready == sent);
        RC_ASSERT(release.ok() && *release == sent);
    }));

    const Bytes frame = encode_ready({{1, 2}, {3, 7}});
    const auto decode = [](ByteView bytes) { return decode_units(bytes, small_limits()); };
    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(with_u16(frame, 16, 1))), "payload_size");
    EXPECT_EQ(verdict(decode(with_u16(frame, 16, 0xffff))), "payload_size");
    EXPECT_EQ(verdict(decode(with_u16(frame, 18, 4))), "unknown_expert");
    EXPECT_EQ(verdict(decode(with_u16(frame, 20, 8))), "unknown_expert");
    EXPECT_EQ(verdict(decode(frame_of(FrameType::ready, "x"))), "payload_size");
    EXPECT_EQ(verdict(decode(encode_cancel(0))), "unknown_type");
}

TEST(ReadyTest, ComesBackWithItsTiersOrWithoutAndBadOnesAreRefused) {
    const std::vector<Unit> units{{1, 2}, {3, 7}, {0, 0}};
    const std::vector<UnitTier> tiers{UnitTier::slot, UnitTier::store, UnitTier::memory};
    const auto decode = [](ByteView bytes) { return decode_ready(bytes, small_limits()); };
    const Bytes told = encode_ready(units, tiers);
    EXPECT_EQ(decode(told)->units, units);
    EXPECT_EQ(decode(told)->tiers, tiers);
    EXPECT_EQ(decode(encode_ready(units))->units, units) << "as older workers send it";
    EXPECT_TRUE(decode(encode_ready(units))->tiers.empty());
    EXPECT_TRUE(decode(encode_ready({}))->units.empty());
    EXPECT_EQ(verdict(decode_units(told, small_limits())), "payload_size");

    expect_truncations_refused(encode_ready(units), decode);
    for (const int cut : {-1, -2, 1})
        EXPECT_EQ(verdict(decode(resized(told, cut))), "payload_size") << cut;
    EXPECT_EQ(verdict(decode(with_u16(told, 20, 8))), "unknown_expert");
    Bytes fourth = told;
    fourth.back() = std::byte{num_unit_tiers};
    EXPECT_EQ(verdict(decode(fourth)), "bad_field");
    EXPECT_EQ(verdict(decode(encode_release(units))), "unknown_type");
}

TEST(SlotFiguresTest, ComeBackAndImpossibleCountersAreRefused) {
    SlotFigures told{.slots = 12};
    std::uint64_t value = 900;
    for (const auto counter : slot_counters) told.*counter = value--;
    told.late = 1;
    told.hits = told.foreseen;
    EXPECT_EQ(decode_slots(encode_slots(told)).value(), told);
    const Bytes at_first = encode_slots(told, false);
    expect_truncations_refused(at_first, decode_slots);
    SlotFigures without = told;
    without.expired = 0;
    EXPECT_EQ(decode_slots(at_first).value(), without) << "as older workers send it";

    const auto with = [&](std::uint64_t SlotFigures::*counter, std::uint64_t as) {
        SlotFigures one = told;
        one.*counter = as;
        return verdict(decode_slots(encode_slots(one)));
    };
    for (const auto counter : slot_counters)
        EXPECT_EQ(with(counter, slot_counter_max + 1), "bad_field");
    EXPECT_EQ(with(&SlotFigures::hits, told.asked + 1), "bad_field");
    EXPECT_EQ(with(&SlotFigures::late, told.misses() + 1), "bad_field");
    EXPECT_EQ(with(&SlotFigures::foreseen, told.hits + 1), "bad_field");
    EXPECT_EQ(verdict(decode_slots(resized(encode_slots(told), 1))), "payload_size");
    EXPECT_EQ(verdict(decode_slots(encode_drain(50))), "unknown_type");

    Bytes padded = encode_slots(told);
    padded[frame_header_bytes + 4] = std::byte{1};
    EXPECT_EQ(verdict(decode_slots(padded)), "bad_field");
}

TEST(PowerTest, ComesBackAndBadOnesAreRefused) {
    for (const std::uint32_t percent : {10u, 55u, 100u})
        EXPECT_EQ(decode_power(encode_power(percent)).value(), percent);
    expect_truncations_refused(encode_power(50), decode_power);
    EXPECT_EQ(verdict(decode_power(encode_power(9))), "bad_field");
    EXPECT_EQ(verdict(decode_power(encode_power(101))), "bad_field");
    EXPECT_EQ(verdict(decode_power(resized(encode_power(50), 1))), "payload_size");
    EXPECT_EQ(verdict(decode_power(encode_drain(50))), "unknown_type");
}

TEST(BudgetTest, ComesBackAndBadOnesAreRefused) {
    const Bytes frame = encode_budget({.budget_bytes = 0xfedcba9876543210, .dropped = {{1, 2}}});
    const auto decode = [](ByteView bytes) { return decode_budget(bytes, small_limits()); };
    const auto got = decode(frame);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->budget_bytes, 0xfedcba9876543210);
    EXPECT_EQ(got->dropped, (std::vector<Unit>{{1, 2}}));
    EXPECT_TRUE(decode(encode_budget({.budget_bytes = 1})).value().dropped.empty());

    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(with_u16(frame, 24, 2))), "payload_size");
    // Padding behind the count must be zero.
    EXPECT_EQ(verdict(decode(with_byte(frame, 26, 1))), "bad_field");
    EXPECT_EQ(verdict(decode(with_u16(frame, 28, 4))), "unknown_expert");
    EXPECT_EQ(verdict(decode(with_u16(frame, 30, 8))), "unknown_expert");
    EXPECT_EQ(verdict(decode(frame_of(FrameType::budget, "abc"))), "payload_size");
    EXPECT_EQ(verdict(decode(encode_cancel(0))), "unknown_type");

    const std::vector<Unit> most(budget_units_max, Unit{1, 2});
    EXPECT_EQ(verdict(decode(encode_budget({.dropped = most}))), "ok");
    const Bytes more = with_u16(resized(encode_budget({.dropped = most}), 4), 24,
                                budget_units_max + 1);
    EXPECT_EQ(verdict(decode(more)), "bad_field");
}

TEST(PrefetchTest, ComesBackAndBadOnesAreRefused) {
    const std::vector<PrefetchHint> sent{{{1, 2}, 30, 255}, {{3, 7}, 65535, 0}};
    const Bytes frame = encode_prefetch(4, sent);
    const auto decode = [](ByteView bytes) { return decode_prefetch(bytes, small_limits()); };
    const auto got = decode(frame);
    ASSERT_TRUE(got.ok());
    ASSERT_EQ(got->size(), 2u);

    for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ((*got)[i].unit, sent[i].unit);
        EXPECT_EQ((*got)[i].deadline_ms, sent[i].deadline_ms);
        EXPECT_EQ((*got)[i].confidence, sent[i].confidence);
    }
    expect_truncations_refused(frame, decode);
    EXPECT_EQ(verdict(decode(with_u16(frame, 16, 3))), "payload_size");
    // Padding behind the count must be zero.
    EXPECT_EQ(verdict(decode(with_byte(frame, 18, 1))), "bad_field");
    // Padding behind a hint must be zero.
    EXPECT_EQ(verdict(decode(with_byte(frame, 27, 1))), "bad_field");
    EXPECT_EQ(verdict(decode(with_u16(frame, 22, 8))), "unknown_expert");
    EXPECT_EQ(verdict(decode(frame_of(FrameType::prefetch, "abc"))), "payload_size");
}

TEST(BusyAndDrainTest, ComeBackAndBadOnesAreRefused) {
    EXPECT_EQ(*decode_busy(encode_busy(7, 250)), 250u);
    EXPECT_EQ(decode_frame_header(encode_busy(7, 250))->sequence_id, 7u);
    EXPECT_EQ(*decode_drain(encode_drain(30000)), 30000u);
    expect_truncations_refused(encode_busy(7, 250),
                               [](ByteView bytes) { return decode_busy(bytes); });
    expect_truncations_refused(encode_drain(7), [](ByteView bytes) { return decode_drain(bytes); });
    EXPECT_EQ(verdict(decode_busy(resized(encode_busy(7, 250), 1))), "payload_size");
    EXPECT_EQ(verdict(decode_busy(encode_drain(1))), "unknown_type");
    EXPECT_EQ(verdict(decode_drain(frame_of(FrameType::drain, ""))), "payload_size");
}

}  // namespace
}  // namespace moex
