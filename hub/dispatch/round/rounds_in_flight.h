// The open rounds, their live attempts, and the queue of rounds that wait for a worker. The class
// only stores; SwarmRounds and SwarmAttempts decide what happens to a round. Owner: the dispatch
// strand.
//
// A closed round or an ended attempt is moved to a free list, so that the next round or attempt
// reuses its vectors.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "hub/dispatch/round/round.h"

namespace moex {

class RoundsInFlight {
  public:
    // Opens a round with a new id. All other fields still have the values from the object's
    // previous use.
    Round& new_round();
    // Returns null when no open round has this id.
    Round* find_round(RoundId id);
    // Moves the round to the free list. All attempts of the round must have ended.
    void erase_round(RoundId id);

    // Adds an attempt to `round`. Worker 0 is the local backend.
    Attempt& new_attempt(Round& round, WorkerId worker);
    // Returns null when no live attempt has this id.
    Attempt* find_attempt(AttemptId id);
    // Moves the attempt to the free list. round.end() must have been called for it.
    void erase_attempt(AttemptId id);

    // wait() appends the round to the queue of waiting rounds, stop_waiting() removes it. A call is
    // harmless if the round is already in the queue, or already removed.
    void wait(Round& round);
    void stop_waiting(Round& round);

    // Returns true if the local backend computes the newest attempt at the slice.
    bool is_local(const CallSlice& slice);

    const std::unordered_map<RoundId, std::unique_ptr<Round>>& rounds() const { return rounds_; }
    const std::unordered_map<AttemptId, std::unique_ptr<Attempt>>& attempts() const {
        return attempts_;
    }
    // Rounds that wait for a worker, in order of arrival.
    const std::vector<RoundId>& waiting() const { return waiting_; }

  private:
    std::unordered_map<RoundId, std::unique_ptr<Round>> rounds_;
    std::unordered_map<AttemptId, std::unique_ptr<Attempt>> attempts_;
    std::vector<std::unique_ptr<Round>> round_reserve_;  // the free lists of rounds and attempts
    std::vector<std::unique_ptr<Attempt>> attempt_reserve_;
    RoundId last_round_ = 0;
    AttemptId last_attempt_ = 0;
    std::vector<RoundId> waiting_;
};

}  // namespace moex
