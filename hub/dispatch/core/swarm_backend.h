// Runs a SwarmCore on one strand as an ExpertBackend: workers compute the experts. hub/net provides
// the strand, the timer and the sockets through SwarmHost. Local computations run on a thread of
// their own, and the judge runs on another one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/span/span_client.h"

namespace moex {

// The services that the swarm needs from hub/net. Any thread may call post(). set_timer() may be
// called only from functions that run on the strand.
class SwarmHost {
  public:
    virtual ~SwarmHost() = default;
    // Runs `function` on the swarm's strand, in the order of the calls.
    virtual void post(std::function<void()> function) = 0;
    // Sets the strand's only timer. A timer that was set before is replaced.
    virtual void set_timer(TimePoint at, std::function<void()> function) = 0;
};

// A worker's socket, seen from the swarm's strand. No call blocks.
class WorkerLink {
  public:
    virtual ~WorkerLink() = default;
    // Queues the frame. Closes the connection when its queue of unsent frames exceeds the cap in
    // bytes.
    virtual void send(WireFrame frame) = 0;
    virtual void close(CloseCode code, const std::string& reason) = 0;
    // Sets the largest frame that the worker may send; a longer frame ends the connection with code
    // 1009. The limit applies from the next frame header on, even if a read is already waiting for
    // that header.
    virtual void set_frame_limit(std::uint64_t bytes) = 0;
};

class SwarmBackend : public ExpertBackend {
  public:
    // `local` is null in a hub without expert weights. Such a hub has no judge that checks answers.
    // `on_event` runs on the strand.
    SwarmBackend(SwarmOptions options, SwarmHost& host, const ExpertCompute* local,
                 std::function<void(const WorkerEvent&)> on_event);
    ~SwarmBackend() override;

    // The engine's thread calls the functions from here to hint().
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "swarm"; }
    bool works_elsewhere() const override { return true; }
    bool wants_hints() const override;
    void hint(std::span<const ExpertHint> hints) override;

    // The workers that compute whole layers, for the engine's thread; null: SwarmOptions::spans is
    // off.
    SpanClient* spans() const;

    // Returns true if the worker was caught with a false answer. The backend remembers the 10,000
    // workers that were caught most recently. Any thread may call this function.
    bool has_lied(WorkerId worker) const;

    // The strand calls the functions from here to core().
    WorkerId on_connect(std::shared_ptr<WorkerLink> link, std::string address, bool authorized);
    void on_frame(WorkerId worker, ByteView frame);
    // Passes an answer that the connection's thread has already read with core().answer_reader().
    void on_answer(WorkerId worker, WorkerAnswer answer);
    void on_disconnect(WorkerId worker);
    void drain(Duration deadline);
    Status order(WorkerId worker, WorkerOrder order);
    Status tell_hubs(WorkerId worker, const HubsChange& change);
    TrustRecord trust_record(std::string_view worker_key) const;
    void set_trust_record(std::string_view worker_key, const TrustRecord& record);
    SwarmCore& core();

  private:
    struct State;
    // functions posted to the strand share it and may outlive the backend
    std::shared_ptr<State> state_;
};

}  // namespace moex
