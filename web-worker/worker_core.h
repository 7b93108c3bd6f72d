// Runs one expert worker, in a tab or in a process. The worker connects, sends HELLO, fetches and
// verifies its experts, keeps them on the GPU, answers groups and single calls, reconnects by
// itself with full jitter, and leaves cleanly. It is driven by the events of Platform, on one
// thread. This class wires the parts and decides the phase: device_keeper (the GPU), hub_connection
// (the connection), expert_loader (weights), call_queue (calls), status_report (what people see).
#pragma once

#include <memory>

#include "protocol/identity.h"
#include "web-worker/session/platform.h"

namespace moex {

struct WorkerCoreState;  // worker_core_state.h

class WorkerCore {
  public:
    WorkerCore(Platform& platform, WorkerOptions options);
    ~WorkerCore();

    void start();  // opens the device, compiles kernels, runs the self-test, then connects
    // Leaves the hub, which requests the experts from other workers at once. Keeps the weights, and
    // fetches nothing more.
    void pause();
    void resume();
    // Sets the limit for all memory on the GPU. The limit applies at once: experts beyond it are
    // released, the others continue to serve, and the hub is notified without a reconnect
    // (PROTOCOL.md, BUDGET).
    void set_budget(std::uint64_t budget_bytes);
    // Sets the bytes of experts to hold, if the limit has slots for fewer; 0: no more than fit into
    // the limit. The new size applies at once, but the hub sends hints for such a worker only from
    // the next connection on.
    void set_keep(std::uint64_t keep_bytes);
    // Sets the share of this worker's calls that the hub sends, 10 to 100 %. The hub is notified at
    // once and sends fewer calls. The worker answers them as fast as before.
    void set_power(std::uint32_t percent);
    // Attributes this worker's work to the contributor who signed status().nonce, on the connection
    // on which this worker is `worker_id`. May be called again with another identity.
    void identify(std::uint64_t worker_id, const Identity& identity);
    // Called when the machine is on a network again: a pending retry starts now.
    void on_network_back();
    // Leaves politely: notifies the hub, and serves until the hub closes the connection because
    // other workers hold the experts, ten seconds at most. Then the phase becomes stopped. A worker
    // that is not connected stops at once.
    void leave();
    void stop();  // closes the connection with code 1001; the phase becomes stopped

    // The platform calls these functions for the events of its socket.
    void on_open();
    void on_frame(ByteView frame);  // `frame` belongs to the caller and is valid during the call
    // Does the same as on_frame(), for a frame at the end of memory that may be overwritten. A
    // group's tables are written there beside its x, so that x is not copied.
    void on_frame_in_place(std::span<std::byte> memory, std::size_t frame_bytes);
    void on_text();  // reports a text message, which the protocol does not have
    void on_closed(std::uint16_t code, std::string_view reason);
    // The platform has found a hub of the fleet that needs the worker more, or is nearer: the
    // worker moves there.
    void on_better_hub(const HubPlace& hub);
    // Called instead of on_open() or on_closed() if the hub is another one than the known one. The
    // phase becomes refused, and the worker does not retry.
    void on_other_hub(std::string reason);

    const WorkerStatus& status() const;

  private:
    std::unique_ptr<WorkerCoreState> state_;
};

}  // namespace moex
