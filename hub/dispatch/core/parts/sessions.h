// The connections of workers: first frames, heartbeats, drain, and the end of each connection.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hub/dispatch/core/event_context.h"

namespace moex {

class SwarmSessions : public SwarmPart {
  public:
    explicit SwarmSessions(SwarmState& swarm);

    // ---- The following functions admit a worker by its first frame (swarm_hello.cpp).
    void on_first_frame(EventContext& context, Worker& worker, const FrameHeader& header,
                        ByteView frame);

    // ---- The following functions begin, run and end connections (swarm_sessions.cpp).
    // Adds the connection to the pool. Refuses the connection while the hub stops, or when there
    // are too many connections.
    WorkerId connect(EventContext& context, std::string address, bool authorized);
    // Closes a connection that has not sent HELLO in time.
    void on_hello_time(EventContext& context, WorkerId id);
    // Sets the largest frame that the worker may send. The limit follows from the worker's
    // outstanding answers. It is set before the request is sent, so that no honest answer, late or
    // not, exceeds it.
    void set_frame_limit(EventContext& context, Worker& worker);
    // Reports the error to the peer, then closes the connection.
    void refuse(EventContext& context, Worker& worker, const Error& error, CloseCode code);
    // Ends a connection. If `code` is set, the hub closes the connection; otherwise the other side
    // has closed it. The worker's attempts are sent to other workers.
    void remove_worker(EventContext& context, WorkerId id, WorkerEvent::Kind kind,
                       std::string reason, std::optional<CloseCode> code);

    void on_heartbeat_time(EventContext& context, Worker& worker);
    void on_heartbeat(EventContext& context, Worker& worker, const FrameHeader& header);
    void send_heartbeat(EventContext& context, Worker& worker, std::vector<std::uint32_t> units);
    // Sends the worker a heartbeat, and no calls until a frame arrives from it. After a second
    // without a frame the worker counts as silent, so that others get its experts.
    void ask_for_sign(EventContext& context, Worker& worker);
    void on_sign_time(EventContext& context, Worker& worker);

    void on_worker_drain(EventContext& context, Worker& worker, ByteView frame);
    // Lets workers leave that sent DRAIN and have handed over their units. Called when a worker has
    // units ready, or has left.
    void end_hand_overs(EventContext& context);
    // Ends the connections of workers that sent DRAIN and have answered everything.
    void close_leavers(EventContext& context);
    // Sends DRAIN to all workers. Their connections end `deadline` from now.
    void drain(EventContext& context, Duration deadline);
    // Handles a deadline of DRAIN: with `id` 0 the deadline of the hub's own drain, otherwise the
    // deadline of worker `id`, which sent DRAIN.
    void on_drain_time(EventContext& context, WorkerId id);
    bool draining() const { return draining_; }

  private:
    std::optional<Error> no_place_for(const Worker& worker, const std::string& worker_key,
                                      const std::vector<std::string>& caps);
    void on_hello(EventContext& context, Worker& worker, ByteView frame);
    void take_hello(Worker& worker, const Hello& hello);
    void on_published_peer(EventContext& context, Worker& worker, ByteView frame);
    void welcome(EventContext& context, Worker& worker);
    void begin_leaving(EventContext& context, Worker& worker);

    WorkerId last_worker_ = 0;
    // Workers that sent DRAIN and are still connected: those that still hand over their units, and
    // those that only answer what they were sent.
    std::vector<WorkerId> handing_over_, leavers_;
    bool draining_ = false;
    TimePoint drain_at_{};
    // largest frame that a worker sends without a request, in bytes: a READY that lists every unit,
    // plus a margin
    std::uint64_t control_bytes_max_ = 0;
};

}  // namespace moex
