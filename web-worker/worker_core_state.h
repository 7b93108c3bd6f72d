// The state of an expert worker: the parts, and the phase that follows from them. WorkerCore
// (worker_core.h) is its outside. worker_core_state.cpp has the phases, the model and the memory
// limit, worker_core_frames.cpp the frames.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "web-worker/call_queue.h"
#include "web-worker/device_keeper.h"
#include "web-worker/expert_loader.h"
#include "web-worker/span_host.h"

namespace moex {

// The part of the memory limit for calls in flight; the rest is for weights. The split is reported
// before the model is known, so the lanes are made to fit.
inline std::uint64_t lanes_bytes(std::uint64_t limit_bytes) {
    return std::min<std::uint64_t>(limit_bytes / 4, 256ull << 20);
}
inline std::uint64_t weights_bytes(std::uint64_t limit_bytes) {
    return limit_bytes - lanes_bytes(limit_bytes);
}

// Name of the capability of a hub that understands BUDGET.
inline constexpr const char* budget_cap = "budget";

// The time in which a worker that leaves its hub hands its experts over.
inline constexpr std::uint32_t leave_within_ms = 10'000;

// The parts that exist for one model on one device. They are destroyed together when the model or
// the device changes.
struct WorkerModel {
    WorkerModel(Platform& platform, StatusReport& report, HubConnection& hub, Compute& compute,
                Welcome given, SlotCache::Options slots, ExpertLoader::Events events);

    Welcome welcome;
    Compute::Parts parts;
    UnitStore& store;
    GroupRunner& runner;
    SlotCache cache;
    ExpertLoader loader;
    CallQueue calls;
    // The part that computes spans; null if this worker or the hub has no spans. It is destroyed
    // before the other parts.
    std::unique_ptr<SpanHost> spans;
    std::uint64_t span_bytes = 0;  // memory that is kept free of experts for a span
    std::uint64_t lent_by = 0;     // the newest load of a span whose buffers the store uses
    bool runner_ready = false;
    // True if all planned experts are held: from then on rounds create no buffer.
    bool warm = false;

    // The slot counters at the begin of this connection, and the slot figures that were last sent
    // on it.
    SlotCounters slots_before;
    SlotFigures slots_sent;
    LifeGuard life;

    bool hub_takes(const char* cap) const {
        return std::count(welcome.caps.begin(), welcome.caps.end(), cap) > 0;
    }
};

struct WorkerCoreState {
    WorkerCoreState(Platform& on, WorkerOptions with);

    Platform& platform;
    WorkerOptions options;
    StatusReport report;
    HubConnection hub;
    DeviceKeeper keeper;
    std::unique_ptr<WorkerModel> model;
    bool paused = false;
    bool leaves = false;  // DRAIN was sent
    std::uint64_t leave_timer = 0;
    bool connect_when_closed = false;
    std::string moves_to;  // id of the hub that the next connection goes to; empty: no move
    double moves_after_ms = std::numeric_limits<double>::lowest();  // earlier moves are ignored
    std::uint64_t move_timer = 0;
    bool has_chosen_hub = false;       // the worker has joined its first hub of a fleet
    std::uint64_t reported_bytes = 0;  // the budget that the newest HELLO or BUDGET reported
    // The worker has failed, was refused or was stopped: no further events.
    bool over = false;

    void gather(WorkerStatus& status);
    const char* here() const;

    // ---- The following functions end the worker.
    void end(WorkerPhase phase, std::string detail);
    void fail(std::string reason);

    // ---- The following functions change the phase.
    // Enters the phase that matches the state, after experts or the connection have changed.
    void settle();
    void lost(const gpu::Loss& loss);
    void connect();
    void reconnect_later(std::string why);
    // Leaves this hub politely, as leave() does, and joins the hub of a HUBS after that. The
    // weights stay where they are.
    void move_to(const HubPlace& to);
    // Forgets the move. A balancer, or the list of hubs, may have led the worker elsewhere. Then
    // the hub would repeat the hint after each connection; the pause limits how often the worker
    // drains for nothing.
    void end_move(const std::string& arrived_at);
    void hang_up(std::string_view why);

    // ---- The following functions make the parts of a model.
    // Returns true if this worker can hold spans. A worker that holds more experts than its memory
    // has room for has no memory for a span.
    bool offers_spans() const;
    // Returns the limit of the memory for spans: a part of that for weights. The rest stays for
    // experts.
    std::uint64_t spans_bytes() const { return spans_bytes(report.status.budget_bytes); }
    std::uint64_t spans_bytes(std::uint64_t budget_bytes) const;
    // Makes the part for spans where the hub has the capability.
    void open_spans();
    // ---- The following functions let experts use the memory of a span (SpanContext::lend), where
    // the hub counts with that. An earlier hub reckons with two copies.
    std::uint32_t num_held(std::uint32_t first_layer, std::uint32_t end_layer) const;
    std::uint64_t bytes_for_slots() const;
    Status lend(const LentUnits& units);
    // The memory of the span is free soon. Experts that have no other place take it already.
    void end_lending(std::uint64_t load, bool is_readable);
    // The device was tested with plain experts when it was opened. If this model has experts of
    // another form, their known answers are computed before the first call.
    void test_form();
    void runner_ready();

    // ---- The following functions apply the memory limit.
    // Reports the new limit, and in `dropped` the assigned experts that are not held any more.
    void send_budget(const std::vector<Unit>& dropped);
    // Refuses `units`: the hub sent ASSIGN before it received BUDGET, or the hub counts
    // differently.
    void no_room_for(const std::vector<Unit>& units);
    void resize();
    // Returns true if there is at least a slot for one expert, or for all experts of a token if the
    // worker holds more experts than slots.
    bool has_slots() const;
    std::string no_room() const;

    // ---- The following functions send and handle frames.
    void send_hello();
    void on_welcome(Welcome welcome);
    void send_power();
    // Sends the counters of the slots, if they have changed since they were last sent.
    void send_slots();
    // Handles a frame. `around`: memory that ends with the frame and may be overwritten; empty if
    // none may be.
    void on_frame(ByteView frame, std::span<std::byte> around);
    void on_error(ByteView frame);
    // Handles a hint. If every expert has a slot, there is nothing to bring. A call of that layer
    // arrives soon in any case, and the GPU is kept awake for it: half of the hint's deadline is
    // twice the usual time from the hint to the call.
    void prefetch(std::vector<PrefetchHint> hints);
    // Handles a frame that concerns the model of WELCOME.
    void on_model_frame(const FrameHeader& header, ByteView frame);
};

}  // namespace moex
