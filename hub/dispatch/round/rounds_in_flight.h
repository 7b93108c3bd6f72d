// The rounds that are open, their attempts that are live, and the queue of rounds that wait for a
// worker. Storage only: SwarmRounds and SwarmAttempts decide. Owner: the dispatch strand.
//
// A closed round or an ended attempt goes to a free list, so that the vectors in it are used again
// by the next one.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "hub/dispatch/round/round.h"

namespace moex {

class RoundsInFlight {
  public:
    // Opens a round with a new id. All its other fields still have the values of its last use.
    Round& new_round();
    // Null when no open round has this id.
    Round* find_round(RoundId id);
    // Moves the round to the free list. Its attempts must have ended.
    void erase_round(RoundId id);

    // Adds an attempt to `round`. Worker 0 is the local backend.
    Attempt& new_attempt(Round& round, WorkerId worker);
    // Null when no live attempt has this id.
    Attempt* find_attempt(AttemptId id);
    // Moves the attempt to the free list. round.end() must have been called for it.
    void erase_attempt(AttemptId id);

    // wait() puts the round at the end of the queue, stop_waiting() removes it. Both are harmless
    // if the round is in that state already.
    void wait(Round& round);
    void stop_waiting(Round& round);

    // Returns true if the newest attempt at the slice is at the local backend.
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
    std::vector<std::unique_ptr<Round>> round_reserve_;  // the free lists
    std::vector<std::unique_ptr<Attempt>> attempt_reserve_;
    RoundId last_round_ = 0;
    AttemptId last_attempt_ = 0;
    std::vector<RoundId> waiting_;
};

}  // namespace moex
