// Runs once a second on the swarm's strand. Updates the speed that the status page shows, and
// writes the counts of calls, workers and minutes to the registry. In a fleet it also asks workers
// to join hubs that need them more.
#pragma once

#include <deque>
#include <map>
#include <random>
#include <set>

#include "hub/net/fleet/trust_keeper.h"
#include "hub/net/fleet/worker_moves.h"
#include "hub/net/hub_context.h"

namespace moex::net {

class Housekeeping {
  public:
    explicit Housekeeping(HubContext& hub);
    void start();  // any thread
    void stop();   // any thread
    // Adds the counts until now to the registry when the hub stops. Called on the swarm's strand.
    void finish();
    // Called on the swarm's strand.
    void on_worker_event(const WorkerEvent& event);

  private:
    void record();
    struct Seen {
        std::uint64_t pairs_credited = 0, bytes_received = 0, bad_answers = 0;
        bool operator==(const Seen&) const = default;
    };
    void tick();
    void watch_minute();
    void end_minute();
    void count_copies();
    void tell_hubs(const FleetPlaces& places);
    void look_at_fleet();
    void move_worker(const FleetView& fleet);
    // The workers in asked_ that may still go.
    std::set<WorkerId> leaving() const;

    HubContext& hub_;
    asio::steady_timer timer_;
    bool stopped_ = false;
    std::uint32_t ticks_ = 0;
    // (time, generated tokens in all) at the last ticks
    std::deque<std::pair<TimePoint, std::uint64_t>> tokens_;
    // Counter values at the last write to the registry.
    std::map<std::string, std::uint64_t> counters_;
    std::map<WorkerId, Seen> workers_;
    TrustKeeper trust_;
    HubNews told_hubs_;  // the other hubs, as the workers know them
    // Connected workers that were asked to join another hub, and the tick of the request.
    std::map<WorkerId, std::uint32_t> asked_;
    MovePause pause_;
    std::minstd_rand random_;  // spreads these requests over the hubs of a fleet

    // The record of the current minute, and the counts at the beginning of that minute.
    HistoryMinute minute_;
    std::uint64_t tokens_before_ = 0, calls_before_ = 0, answers_before_ = 0, first_us_before_ = 0;
};

}  // namespace moex::net
