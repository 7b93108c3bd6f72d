// What the hub may ask of whom, kept from the frames alone: a unit is askable from the
// READY that the hub read (or the echo that stands for it) until the RELEASE that it sent.
// A second account beside the core's own, so that a slip in the core's routes is seen.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "protocol/messages.h"

namespace moex::sim {

// The units that a DISPATCH or GROUP_DISPATCH asks for; empty for other frames and for broken ones.
inline std::vector<Unit> units_asked(ByteView frame, const WireLimits& limits) {
    std::vector<Unit> asked;
    const Result<FrameHeader> header = decode_frame_header(frame);
    if (!header.ok()) return asked;
    if (header->type == FrameType::dispatch) {
        if (const auto call = decode_dispatch(frame, limits); call.ok())
            asked.push_back({call->layer, call->expert});
    } else if (header->type == FrameType::group_dispatch) {
        if (const auto call = decode_group_dispatch(frame, limits); call.ok())
            for (const GroupExpert& expert : call->experts)
                asked.push_back({call->shape.layer, expert.expert});
    }
    return asked;
}

class UnitLedger {
  public:
    // The hub sends this frame. The first unit that it asks for and must not, if any.
    std::optional<Unit> hub_sends(ByteView frame, const WireLimits& limits) {
        const Result<FrameHeader> header = decode_frame_header(frame);
        if (!header.ok()) return std::nullopt;
        switch (header->type) {
            case FrameType::assign:
                if (const auto units = decode_assign(frame, limits); units.ok())
                    for (const AssignedUnit& unit : units->units)
                        assigned_.insert({unit.layer, unit.expert});
                break;
            case FrameType::weight_sync:
                if (const auto sync = decode_weight_sync(frame, limits); sync.ok()) {
                    assigned_.insert({sync->layer, sync->expert});
                    synced_.insert({sync->layer, sync->expert});
                }
                break;
            case FrameType::heartbeat:
                if (!synced_.empty()) before_beat_[header->sequence_id] = synced_;
                break;
            case FrameType::release:
                if (const auto units = decode_units(frame, limits); units.ok())
                    for (const Unit& unit : *units) assigned_.erase(unit), ready_.erase(unit);
                break;
            default:
                for (const Unit& unit : units_asked(frame, limits))
                    if (!ready_.contains(unit)) return unit;
        }
        return std::nullopt;
    }
    // The hub reads this frame, as the network left it.
    void hub_reads(ByteView frame, const WireLimits& limits) {
        const Result<FrameHeader> header = decode_frame_header(frame);
        if (!header.ok()) return;
        if (header->type == FrameType::ready) {
            if (const auto units = decode_units(frame, limits); units.ok())
                for (const Unit& unit : *units) mark_ready(unit);
        } else if (header->type == FrameType::budget) {
            if (const auto budget = decode_budget(frame, limits); budget.ok())
                for (const Unit& unit : budget->dropped) assigned_.erase(unit), ready_.erase(unit);
        } else if (header->type == FrameType::drain && decode_drain(frame).ok()) {
            assigned_.clear();
            ready_.clear();
        } else if (header->type == FrameType::heartbeat) {
            if (const auto beat = before_beat_.find(header->sequence_id);
                beat != before_beat_.end())
                for (const Unit& unit : beat->second) mark_ready(unit);
        }
    }

    bool is_ready(const Unit& unit) const { return ready_.contains(unit); }

  private:
    void mark_ready(const Unit& unit) {
        if (assigned_.contains(unit)) ready_.insert(unit);
    }
    std::set<Unit> assigned_, ready_, synced_;
    // published peers: what was synced before this HEARTBEAT
    std::map<std::uint32_t, std::set<Unit>> before_beat_;
};

}  // namespace moex::sim
