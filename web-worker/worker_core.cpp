#include "web-worker/worker_core.h"

#include <algorithm>

#include "web-worker/worker_core_state.h"

namespace moex {

WorkerCore::WorkerCore(Platform& platform, WorkerOptions options)
    : state_(std::make_unique<WorkerCoreState>(platform, std::move(options))) {}
WorkerCore::~WorkerCore() = default;

void WorkerCore::start() {
    state_->report.enter(WorkerPhase::starting);
    state_->report.show();
    state_->keeper.open();
}

// A paused worker answers no calls: it leaves the hub, which requests its experts from other
// workers at once, and keeps its weights.
void WorkerCore::pause() {
    WorkerCoreState& s = *state_;
    if (s.over || std::exchange(s.paused, true)) return;
    s.report.pause();
    if (!s.keeper.ready()) return;  // a paused worker does not connect when the GPU becomes ready
    s.hub.stop_retrying();
    if (s.hub.greeted()) s.hang_up("paused by the contributor");
    if (s.model) s.model->loader.stop_fetching();
}
void WorkerCore::resume() {
    WorkerCoreState& s = *state_;
    if (s.over || !std::exchange(s.paused, false)) return;
    s.report.resume();
    if (!s.keeper.ready()) return;  // the worker connects when the GPU becomes ready
    if (!s.hub.closing()) return s.connect();
    s.connect_when_closed = true;
    s.report.enter(WorkerPhase::connecting);
}

void WorkerCore::set_budget(std::uint64_t budget_bytes) {
    WorkerCoreState& s = *state_;
    if (s.report.status.budget_bytes == budget_bytes) return;
    // A span that is too large for the new limit ends first, while the old one holds: the store
    // takes its experts over, and resize() drops those for which there is no more room.
    if (s.model && s.model->spans && !s.over)
        s.model->spans->set_bytes_max(s.spans_bytes(budget_bytes));
    s.report.status.budget_bytes = budget_bytes;
    s.report.changed();
    if (s.model && !s.over) s.resize();
}

void WorkerCore::set_keep(std::uint64_t keep_bytes) {
    WorkerCoreState& s = *state_;
    if (std::exchange(s.options.keep_bytes, keep_bytes) == keep_bytes || !s.model || s.over) return;
    s.model->cache.set_keep(keep_bytes);
    s.resize();
}

void WorkerCore::set_power(std::uint32_t percent) {
    WorkerCoreState& s = *state_;
    percent = std::clamp(percent, power_percent_min, power_percent_max);
    if (std::exchange(s.report.status.power_percent, percent) == percent || s.over) return;
    s.report.changed();
    s.send_power();
}

void WorkerCore::identify(std::uint64_t worker_id, const Identity& identity) {
    WorkerCoreState& s = *state_;
    // A signature for an earlier connection is not valid on this one.
    const WorkerStatus& status = s.report.status;
    if (s.hub.online() && worker_id == status.worker_id && !status.nonce.empty())
        s.hub.send(encode_identity(identity));
}

void WorkerCore::on_network_back() {
    if (!state_->over && state_->hub.retrying()) {
        state_->hub.stop_retrying();
        state_->connect();
    }
}

void WorkerCore::leave() {
    WorkerCoreState& s = *state_;
    if (s.over || s.paused || !s.hub.online()) return stop();
    if (std::exchange(s.leaves, true)) return;

    s.hub.send(encode_drain(leave_within_ms));
    s.report.enter(s.report.status.phase,
                   "This worker serves until others hold its experts, then it stops.");
    s.report.show();
    s.leave_timer = s.platform.set_timer(leave_within_ms, [this] {
        state_->leave_timer = 0;
        stop();
    });
}

void WorkerCore::stop() {
    WorkerCoreState& s = *state_;
    if (s.report.status.phase == WorkerPhase::stopped) return;
    s.platform.close(1001, "the contributor left");
    if (!s.over) s.end(WorkerPhase::stopped, {});
}

void WorkerCore::on_open() {
    WorkerCoreState& s = *state_;
    s.hub.opened();
    if (s.over || s.paused || !s.keeper.ready()) return s.platform.close(1001, "not serving");
    s.send_hello();
}

void WorkerCore::on_frame(ByteView frame) {
    if (!state_->over && state_->hub.listening()) state_->on_frame(frame, {});
}

void WorkerCore::on_frame_in_place(std::span<std::byte> memory, std::size_t frame_bytes) {
    if (!state_->over && state_->hub.listening())
        state_->on_frame(memory.last(frame_bytes), memory);
}

void WorkerCore::on_text() {
    if (!state_->over && state_->hub.listening())
        state_->hub.protocol_error(Error{ErrorCode::unknown_type, "frames are binary messages"},
                                   CloseCode::text_frame);
}

void WorkerCore::on_closed(std::uint16_t code, std::string_view reason) {
    WorkerCoreState& s = *state_;
    const HubConnection::End end = s.hub.closed(code);
    const bool connect_now = std::exchange(s.connect_when_closed, false);
    if (s.move_timer != 0) s.platform.clear_timer(std::exchange(s.move_timer, 0));
    if (s.model) s.model->calls.clear();
    if (s.leaves && !s.over) return s.end(WorkerPhase::stopped, {});
    // The worker connects when the GPU becomes ready.
    if (s.over || s.paused || !s.keeper.ready()) return;
    if (connect_now) return s.connect();
    if (end.refused)
        return s.end(WorkerPhase::refused,
                     text("The hub refused this worker", reason.empty() ? "" : ": ", reason, ".",
                          end.bad_token ? " Ask the host for a fresh join link." : ""));
    s.reconnect_later(reason.empty()
                          ? std::string("The hub is not there. Trying again.")
                          : text("The hub closed the connection (", reason, "). Trying again."));
}

void WorkerCore::on_better_hub(const HubPlace& hub) {
    if (!state_->over && state_->hub.online()) state_->move_to(hub);
}

void WorkerCore::on_other_hub(std::string reason) {
    if (!state_->over) state_->end(WorkerPhase::refused, std::move(reason));
}

const WorkerStatus& WorkerCore::status() const { return state_->report.status; }

}  // namespace moex
