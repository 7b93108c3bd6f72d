// One expert worker, whatever it runs in: connects, says HELLO, fetches and verifies
// its experts, keeps them on the GPU, answers groups and single calls, reconnects by
// itself with full jitter, leaves cleanly. Event-driven over Platform; one thread.
// Wires its parts and decides the phase: device_keeper (the GPU), hub_connection (the
// line), expert_loader (weights), call_queue (calls), status_report (what people see).
#pragma once

#include <memory>

#include "protocol/identity.h"
#include "web-worker/session/platform.h"

namespace moex {

class WorkerCore {
  public:
    WorkerCore(Platform& platform, WorkerOptions options);
    ~WorkerCore();

    void start();  // device, kernels, self-test, then connect
    void pause();  // leaves the hub, which asks others at once; keeps its weights, fetches no more
    void resume();
    // The limit for all that lies on the GPU. Applies at once: experts beyond it are let go of,
    // the rest serves on, and the hub is told without a reconnect (PROTOCOL.md, BUDGET).
    void set_budget(std::uint64_t budget_bytes);
    // How many experts it holds, in bytes, where that is more than fit into the limit; 0: no more.
    // Applies at once, too; the hub foresees for it from the next connection on.
    void set_keep(std::uint64_t keep_bytes);
    // The share of its turns that the hub is to ask for, 10 to 100 %. The hub is told at once and
    // asks that much less; what it does ask is answered as fast as ever.
    void set_power(std::uint32_t percent);
    // What this worker did counts for who signed status().nonce, of the connection on which it is
    // `worker_id`; may come again with another choice.
    void identify(std::uint64_t worker_id, const Identity& identity);
    // the machine is on a network again: a retry that waits goes now
    void on_network_back();
    void stop();  // closes with 1001; the phase becomes stopped

    // From the platform's socket.
    void on_open();
    void on_frame(ByteView frame);  // the buffer is the caller's; valid during the call
    // The same for a frame at the end of memory that may be overwritten: a group's tables are
    // written there beside its x, which is not copied.
    void on_frame_in_place(std::span<std::byte> memory, std::size_t frame_bytes);
    void on_text();  // a text message, which the protocol does not have
    void on_closed(std::uint16_t code, std::string_view reason);

    const WorkerStatus& status() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace moex
