// Runs a SwarmCore on one strand: an ExpertBackend in which workers compute the experts. hub/net
// provides the strand, the timer and the sockets through SwarmHost. Local calls run on a thread of
// their own, and so does the judge.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hub/dispatch/core/swarm_core.h"

namespace moex {

// The services that the swarm needs from hub/net. Any thread may call post(). The other functions
// may be called from posted functions only.
class SwarmHost {
  public:
    virtual ~SwarmHost() = default;
    // Runs `function` on the swarm's strand, in the order of the calls.
    virtual void post(std::function<void()> function) = 0;
    // Replaces the timer that was set before.
    virtual void set_timer(TimePoint at, std::function<void()> function) = 0;
};

// A worker's socket, seen from the swarm's strand. No call blocks.
class WorkerLink {
  public:
    virtual ~WorkerLink() = default;
    // Closes the connection when its outbox exceeds the cap in bytes.
    virtual void send(WireFrame frame) = 0;
    virtual void close(CloseCode code, const std::string& reason) = 0;
    // A longer frame ends the connection with code 1009. The limit holds from the next frame header
    // on; a read that is already waiting for a header is bound by it as well.
    virtual void set_frame_limit(std::uint64_t bytes) = 0;
};

class SwarmBackend : public ExpertBackend {
  public:
    // `local` may be null when the hub has no expert weights: then no judge checks answers.
    // `on_event` runs on the strand.
    SwarmBackend(SwarmOptions options, SwarmHost& host, const ExpertCompute* local,
                 std::function<void(const WorkerEvent&)> on_event);
    ~SwarmBackend() override;

    // The engine's thread calls these.
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "swarm"; }
    bool works_elsewhere() const override { return true; }
    bool wants_hints() const override;
    void hint(std::span<const ExpertHint> hints) override;

    // Returns true if the worker was caught with a false answer. Any thread may call it. The last
    // 10,000 such workers are remembered.
    bool has_lied(WorkerId worker) const;

    // The strand calls these.
    WorkerId on_connect(std::shared_ptr<WorkerLink> link, std::string address, bool authorized);
    void on_frame(WorkerId worker, ByteView frame);
    // Passes an answer that the connection's thread has already read with core().answer_reader().
    void on_answer(WorkerId worker, WorkerAnswer answer);
    void on_disconnect(WorkerId worker);
    void drain(Duration deadline);
    Status order(WorkerId worker, WorkerOrder order);
    SwarmCore& core();

  private:
    struct State;
    std::shared_ptr<State> state_;  // posted functions share it, since they may outlive the backend
};

}  // namespace moex
