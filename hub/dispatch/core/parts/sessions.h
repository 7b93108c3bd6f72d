// The connections of workers: first frames, heartbeats, drain, and the end of each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hub/dispatch/core/event_context.h"

namespace moex {

class SwarmSessions : public SwarmPart {
  public:
    explicit SwarmSessions(SwarmState& swarm);

    // ---- swarm_hello.cpp: the first frame, and what follows from it
    void on_first_frame(EventContext& context, Worker& worker, const FrameHeader& header,
                        ByteView frame);

    // ---- swarm_sessions.cpp
    // Adds the connection to the pool; refuses it while the hub stops or has too many.
    WorkerId connect(EventContext& context, std::string address, bool authorized);
    // Closes a connection that has not sent HELLO in time.
    void on_hello_time(EventContext& context, WorkerId id);
    // A frame may be as large as the answers that are outstanding. Told before the question goes
    // out, so that an honest answer, late or not, is never above the limit.
    void set_frame_limit(EventContext& context, Worker& worker);
    // Tells the peer what was wrong, then closes.
    void refuse(EventContext& context, Worker& worker, const Error& error, CloseCode code);
    // The end of a connection, by us (`code` given) or by
    // the other side. Its attempts are given to others.
    void remove_worker(EventContext& context, WorkerId id, WorkerEvent::Kind kind,
                       std::string reason, std::optional<CloseCode> code);

    void on_heartbeat_time(EventContext& context, Worker& worker);
    void on_heartbeat(EventContext& context, Worker& worker, const FrameHeader& header);
    void send_heartbeat(EventContext& context, Worker& worker, std::vector<std::uint32_t> units);

    void on_worker_drain(EventContext& context, Worker& worker, ByteView frame);
    // Ends the connections of workers that sent DRAIN and have answered.
    void close_leavers(EventContext& context);
    // Sends DRAIN to all workers; at `deadline` from now their connections end.
    void drain(EventContext& context, Duration deadline);
    // `id` 0: the hub's own deadline; else that of a worker that sent DRAIN.
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
    // READY of every unit, with room to spare: what a worker may send unasked
    std::uint64_t control_bytes_max_ = 0;
};

}  // namespace moex
