// Runs a SwarmCore on one strand: the ExpertBackend whose experts
// are workers. The strand, the timer and the sockets are given by
// hub/net through SwarmHost; local calls run on a thread of its own, and so does the judge.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hub/dispatch/core/swarm_core.h"

namespace moex {

// What the swarm needs of the world. post() may be called
// from any thread; the rest only from posted functions.
class SwarmHost {
  public:
    virtual ~SwarmHost() = default;
    // runs on the swarm's strand, in order
    virtual void post(std::function<void()> function) = 0;
    // replaces the one set before
    virtual void set_timer(TimePoint at, std::function<void()> function) = 0;
};

// One worker's socket, seen from the swarm's strand. Neither call blocks.
class WorkerLink {
  public:
    virtual ~WorkerLink() = default;
    // an outbox beyond its byte cap closes the connection
    virtual void send(WireFrame frame) = 0;
    virtual void close(CloseCode code, const std::string& reason) = 0;
    // A longer frame ends the connection with 1009, from the next frame header on: a read that
    // waits for one already is bound by it as well.
    virtual void set_frame_limit(std::uint64_t bytes) = 0;
};

class SwarmBackend : public ExpertBackend {
  public:
    // `local` may be null when the hub holds no expert weights: then nobody judges answers.
    // `on_event` runs on the strand.
    SwarmBackend(SwarmOptions options, SwarmHost& host, const ExpertCompute* local,
                 std::function<void(const WorkerEvent&)> on_event);
    ~SwarmBackend() override;

    // from the engine's thread
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "swarm"; }
    bool works_elsewhere() const override { return true; }
    bool wants_hints() const override;
    void hint(std::span<const ExpertHint> hints) override;

    // Whether it was caught with a false answer. Any thread; the last 10,000 are remembered.
    bool has_lied(WorkerId worker) const;

    // From the strand.
    WorkerId on_connect(std::shared_ptr<WorkerLink> link, std::string address, bool authorized);
    void on_frame(WorkerId worker, ByteView frame);
    // An answer that its connection's thread has read already, by its core().answer_reader().
    void on_answer(WorkerId worker, WorkerAnswer answer);
    void on_disconnect(WorkerId worker);
    void drain(Duration deadline);
    Status order(WorkerId worker, WorkerOrder order);
    SwarmCore& core();

  private:
    struct State;
    std::shared_ptr<State> state_;  // outlives functions still posted
};

}  // namespace moex
