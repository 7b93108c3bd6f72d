// READY, RELEASE, BUDGET, PREFETCH, POWER, BUSY and DRAIN: the small binary control messages.
#include "protocol/messages.h"
#include "protocol/payload.h"

namespace moex {
namespace {

constexpr std::size_t hint_bytes = 8;
constexpr std::size_t slots_bytes = 8 + 8 * slot_counters.size(),
                      slots_bytes_at_first = 8 + 8 * num_slot_counters_at_first;

Bytes units_frame(FrameType type, const std::vector<Unit>& units,
                  std::span<const UnitTier> tiers = {}) {
    MOEX_CHECK(units.size() <= 0xffff, text(frame_type_name(type), " of ", units.size(), " units"));
    MOEX_CHECK(tiers.empty() || tiers.size() == units.size(), "a tier for each unit, or none");
    ByteWriter out(frame_header_bytes + 2 + 4 * units.size() + tiers.size());
    begin_frame(out, type, 0);
    out.u16(static_cast<std::uint16_t>(units.size()));

    for (const Unit& unit : units) {
        out.u16(unit.layer);
        out.u16(unit.expert);
    }
    for (const UnitTier tier : tiers) out.u8(static_cast<std::uint8_t>(tier));
    return finish_frame(std::move(out));
}

Result<std::vector<Unit>> read_units(ByteReader& in, std::size_t count, const WireLimits& limits) {
    std::vector<Unit> units(count);
    for (Unit& unit : units) {
        unit.layer = in.u16();
        unit.expert = in.u16();
        MOEX_TRY(check_unit(unit.layer, unit.expert, limits.num_layers, limits.num_experts));
    }
    return units;
}

Status wrong_size(FrameType type, std::size_t found_bytes, std::size_t wanted_bytes) {
    return Error{ErrorCode::payload_size,
                 text(frame_type_name(type), " with ", found_bytes, " bytes, want ", wanted_bytes)};
}

Bytes u32_frame(FrameType type, std::uint32_t sequence_id, std::uint32_t value) {
    ByteWriter out(frame_header_bytes + 4);
    begin_frame(out, type, sequence_id);
    out.u32(value);
    return finish_frame(std::move(out));
}

Result<std::uint32_t> decode_u32_frame(ByteView frame, FrameType type) {
    MOEX_ASSIGN(header, decode_header_of(frame, type));
    if (header.payload_bytes != 4) return wrong_size(type, header.payload_bytes, 4).error();
    return ByteReader(frame.subspan(frame_header_bytes)).u32();
}

}  // namespace

Bytes encode_ready(const std::vector<Unit>& units, std::span<const UnitTier> tiers) {
    return units_frame(FrameType::ready, units, tiers);
}
Bytes encode_release(const std::vector<Unit>& units) {
    return units_frame(FrameType::release, units);
}

Result<std::vector<Unit>> decode_units(ByteView frame, const WireLimits& limits) {
    MOEX_ASSIGN(header, decode_frame_header(frame));
    if (header.type != FrameType::ready && header.type != FrameType::release)
        return Error{ErrorCode::unknown_type,
                     text(frame_type_name(header.type), " where READY or RELEASE is wanted")};

    ByteReader in(frame.subspan(frame_header_bytes));
    const std::size_t num_units = in.u16();
    if (in.overrun()) return wrong_size(header.type, header.payload_bytes, 2).error();
    if (in.remaining_bytes() != 4 * num_units)
        return wrong_size(header.type, header.payload_bytes, 2 + 4 * num_units).error();

    return read_units(in, num_units, limits);
}

Result<Ready> decode_ready(ByteView frame, const WireLimits& limits) {
    MOEX_ASSIGN(header, decode_header_of(frame, FrameType::ready));
    ByteReader in(frame.subspan(frame_header_bytes));
    const std::size_t num_units = in.u16();
    if (in.overrun()) return wrong_size(header.type, header.payload_bytes, 2).error();
    const bool has_tiers = num_units > 0 && in.remaining_bytes() == 5 * num_units;
    if (!has_tiers && in.remaining_bytes() != 4 * num_units)
        return wrong_size(header.type, header.payload_bytes, 2 + 4 * num_units).error();

    Ready message;
    MOEX_ASSIGN(units, read_units(in, num_units, limits));
    message.units = std::move(units);
    if (!has_tiers) return message;

    for (std::size_t i = 0; i < num_units; ++i) {
        const unsigned tier = in.u8();
        if (tier >= num_unit_tiers)
            return Error{ErrorCode::bad_field, text("READY: a unit in tier ", tier)};
        message.tiers.push_back(static_cast<UnitTier>(tier));
    }
    return message;
}

Bytes encode_budget(const Budget& message) {
    MOEX_CHECK(message.dropped.size() <= budget_units_max,
               text("BUDGET with ", message.dropped.size(), " units"));
    ByteWriter out(frame_header_bytes + 12 + 4 * message.dropped.size());
    begin_frame(out, FrameType::budget, 0);
    out.u64(message.budget_bytes);
    out.u16(static_cast<std::uint16_t>(message.dropped.size()));
    out.u16(0);
    for (const Unit& unit : message.dropped) {
        out.u16(unit.layer);
        out.u16(unit.expert);
    }
    return finish_frame(std::move(out));
}

Result<Budget> decode_budget(ByteView frame, const WireLimits& limits) {
    MOEX_ASSIGN(header, decode_header_of(frame, FrameType::budget));
    ByteReader in(frame.subspan(frame_header_bytes));
    Budget message;
    message.budget_bytes = in.u64();
    const std::size_t num_units = in.u16();
    const unsigned pad = in.u16();
    if (in.overrun()) return wrong_size(header.type, header.payload_bytes, 12).error();
    if (in.remaining_bytes() != 4 * num_units)
        return wrong_size(header.type, header.payload_bytes, 12 + 4 * num_units).error();
    if (pad != 0) return Error{ErrorCode::bad_field, "BUDGET: pad bytes are not zero"};
    if (num_units > budget_units_max)
        return Error{ErrorCode::bad_field,
                     text("BUDGET with ", num_units, " units, at most ", budget_units_max)};

    message.dropped.resize(num_units);
    for (Unit& unit : message.dropped) {
        unit.layer = in.u16();
        unit.expert = in.u16();
        MOEX_TRY(check_unit(unit.layer, unit.expert, limits.num_layers, limits.num_experts));
    }
    return message;
}

Bytes encode_prefetch(std::uint32_t sequence_id, const std::vector<PrefetchHint>& hints) {
    MOEX_CHECK(hints.size() <= 0xffff, text("PREFETCH of ", hints.size(), " hints"));
    ByteWriter out(frame_header_bytes + 4 + hint_bytes * hints.size());
    begin_frame(out, FrameType::prefetch, sequence_id);
    out.u16(static_cast<std::uint16_t>(hints.size()));
    out.u16(0);

    for (const PrefetchHint& hint : hints) {
        out.u16(hint.unit.layer);
        out.u16(hint.unit.expert);
        out.u16(hint.deadline_ms);
        out.u8(hint.confidence);
        out.u8(0);
    }

    return finish_frame(std::move(out));
}

Result<std::vector<PrefetchHint>> decode_prefetch(ByteView frame, const WireLimits& limits) {
    MOEX_ASSIGN(header, decode_header_of(frame, FrameType::prefetch));

    ByteReader in(frame.subspan(frame_header_bytes));
    const std::size_t num_hints = in.u16();
    unsigned pad = in.u16();
    if (in.overrun()) return wrong_size(header.type, header.payload_bytes, 4).error();
    if (in.remaining_bytes() != hint_bytes * num_hints)
        return wrong_size(header.type, header.payload_bytes, 4 + hint_bytes * num_hints).error();

    std::vector<PrefetchHint> hints(num_hints);
    for (PrefetchHint& hint : hints) {
        hint.unit.layer = in.u16();
        hint.unit.expert = in.u16();
        hint.deadline_ms = in.u16();
        hint.confidence = in.u8();
        pad |= in.u8();
        MOEX_TRY(
            check_unit(hint.unit.layer, hint.unit.expert, limits.num_layers, limits.num_experts));
    }

    if (pad != 0) return Error{ErrorCode::bad_field, "PREFETCH: pad bytes are not zero"};
    return hints;
}

Bytes encode_power(std::uint32_t percent) { return u32_frame(FrameType::power, 0, percent); }
Result<std::uint32_t> decode_power(ByteView frame) {
    MOEX_ASSIGN(percent, decode_u32_frame(frame, FrameType::power));
    if (percent < power_percent_min || percent > power_percent_max)
        return Error{ErrorCode::bad_field, text("POWER of ", percent, " %, want ",
                                                power_percent_min, " to ", power_percent_max)};
    return percent;
}

Bytes encode_slots(const SlotFigures& message, bool with_expired) {
    const auto counters = std::span(slot_counters)
                              .first(with_expired ? slot_counters.size()
                                                  : num_slot_counters_at_first);
    ByteWriter out(frame_header_bytes + 8 + 8 * counters.size());
    begin_frame(out, FrameType::slots, 0);
    out.u32(message.slots);
    out.u32(0);
    for (const auto counter : counters) out.u64(message.*counter);
    return finish_frame(std::move(out));
}

Result<SlotFigures> decode_slots(ByteView frame) {
    MOEX_ASSIGN(header, decode_header_of(frame, FrameType::slots));
    if (header.payload_bytes != slots_bytes && header.payload_bytes != slots_bytes_at_first)
        return wrong_size(header.type, header.payload_bytes, slots_bytes).error();

    ByteReader in(frame.subspan(frame_header_bytes));
    SlotFigures figures{.slots = in.u32()};
    if (in.u32() != 0) return Error{ErrorCode::bad_field, "SLOTS: pad bytes are not zero"};
    for (const auto counter : std::span(slot_counters).first(in.remaining_bytes() / 8)) {
        figures.*counter = in.u64();
        if (figures.*counter > slot_counter_max)
            return Error{ErrorCode::bad_field, text("SLOTS: a counter of ", figures.*counter)};
    }

    if (figures.hits > figures.asked || figures.late > figures.misses() ||
        figures.foreseen > figures.hits)
        return Error{ErrorCode::bad_field,
                     text("SLOTS: ", figures.hits, " in memory, ", figures.late, " late and ",
                          figures.foreseen, " foreseen of ", figures.asked)};
    return figures;
}

Bytes encode_busy(std::uint32_t sequence_id, std::uint32_t retry_ms) {
    return u32_frame(FrameType::busy, sequence_id, retry_ms);
}
Result<std::uint32_t> decode_busy(ByteView frame) {
    return decode_u32_frame(frame, FrameType::busy);
}
Bytes encode_drain(std::uint32_t deadline_ms) {
    return u32_frame(FrameType::drain, 0, deadline_ms);
}
Result<std::uint32_t> decode_drain(ByteView frame) {
    return decode_u32_frame(frame, FrameType::drain);
}

}  // namespace moex
