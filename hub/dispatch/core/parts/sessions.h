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

    // ---- swarm_hello.cpp: the first frame, and admission
    void on_first_frame(EventContext& context, Worker& worker, const FrameHeader& header,
                        ByteView frame);

    // ---- swarm_sessions.cpp: after the first frame
    // Adds the connection to the pool. Refuses it while the hub stops, or when there are too many
    // connections.
    WorkerId connect(EventContext& context, std::string address, bool authorized);
    // Closes a connection that has not sent HELLO in time.
    void on_hello_time(EventContext& context, WorkerId id);
    // Sets the largest frame that the worker may send, which follows from its outstanding answers.
    // The limit is set before the request is sent, so that no honest answer, late or not, exceeds
    // it.
    void set_frame_limit(EventContext& context, Worker& worker);
    // Reports the error to the peer, then closes the connection.
    void refuse(EventContext& context, Worker& worker, const Error& error, CloseCode code);
    // Ends a connection. With `code` the hub closes it, otherwise the other side has. Its attempts
    // are sent to other workers.
    void remove_worker(EventContext& context, WorkerId id, WorkerEvent::Kind kind,
                       std::string reason, std::optional<CloseCode> code);

    void on_heartbeat_time(EventContext& context, Worker& worker);
    void on_heartbeat(EventContext& context, Worker& worker, const FrameHeader& header);
    void send_heartbeat(EventContext& context, Worker& worker, std::vector<std::uint32_t> units);

    void on_worker_drain(EventContext& context, Worker& worker, ByteView frame);
    // Ends the connections of workers that sent DRAIN and have answered everything.
    void close_leavers(EventContext& context);
    // Sends DRAIN to all workers. Their connections end `deadline` from now.
    void drain(EventContext& context, Duration deadline);
    // `id` 0: the deadline of the hub's own drain. Otherwise the deadline of a worker that sent
    // DRAIN.
    void on_drain_time(EventContext& context, WorkerId id);
    bool draining() const { return draining_; }

  private:
    std::optional<Error> no_place_for(const Worker& worker, const std::string& worker_key);
    void on_hello(EventContext& context, Worker& worker, ByteView frame);
    void take_hello(Worker& worker, const Hello& hello);
    void on_published_peer(EventContext& context, Worker& worker, ByteView frame);
    void welcome(EventContext& context, Worker& worker);

    WorkerId last_worker_ = 0;
    std::vector<WorkerId> leavers_;  // sent DRAIN, still connected
    bool draining_ = false;
    TimePoint drain_at_{};
    // the size of a READY of every unit, plus a margin: the largest unrequested frame of a worker
    std::uint64_t control_bytes_max_ = 0;
};

}  // namespace moex
