// Records, from the frames alone, which units the hub may request from one worker. A unit may be
// requested after the hub has read a READY for it (for published peers: the heartbeat echo that
// replaces READY), until the hub sends RELEASE for it. The ledger is independent of the core's own
// state, so the simulator notices errors in the core's routing. Example: ASSIGN {0, 7}, READY {0,
// 7}: DISPATCH {0, 7} is legal; after RELEASE {0, 7} it is not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "protocol/messages.h"

namespace moex::sim {

// Returns the units that a DISPATCH or GROUP_DISPATCH frame requests; empty for other frames and
// for malformed frames.
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

// Checks each request to one worker against the earlier frames to and from that worker.
class UnitLedger {
  public:
    // Records a frame that the hub sends to the worker. Returns the first unit that the frame may
    // not request, or nullopt if there is none.
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
    // Records a frame from the worker as the hub reads it, after faults of the network.
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
            // Until it leaves, the worker may be asked for what it had ready.
            assigned_ = ready_;
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
    // for published peers: units synced before the HEARTBEAT, keyed by the sequence id of the
    // HEARTBEAT
    std::map<std::uint32_t, std::set<Unit>> before_beat_;
};

}  // namespace moex::sim
