// Checks the invariants of the dispatch core's state between two events. The simulator runs the
// checks after each event. Each invariant is maintained by several functions in several files.
#include <algorithm>
#include <limits>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {

using Broken = std::vector<std::string>;

// Attempt `b` was sent later than attempt `a`. Returns true if the slices of `b` are all in `a`, or
// if no slice is in both.
bool apart_or_within(const Attempt& a, const Attempt& b) {
    const auto shared = static_cast<std::size_t>(
        std::count_if(b.slices.begin(), b.slices.end(), [&](std::uint32_t slice) {
            return std::find(a.slices.begin(), a.slices.end(), slice) != a.slices.end();
        }));
    return shared == 0 || shared == b.slices.size();
}

bool asks_what_is_live(const SequenceIds& ids) {
    return ids.asked()->size() == ids.num_live() &&
           std::ranges::all_of(ids.live(), [&](const SequenceIds::Live& live) {
               return ids.asked()->find(live.id).has_value();
           });
}

void check_round(SwarmState& state, const Round& round, Broken& broken) {
    const auto wrong = [&](auto&&... what) {
        broken.push_back(text("round ", round.id, ": ", what...));
    };

    std::vector<std::size_t> num_live(round.slices.size()), num_late(round.slices.size());
    std::vector<const Attempt*> sums;
    for (const AttemptId id : round.attempts) {
        const Attempt* attempt = state.in_flight.find_attempt(id);
        if (attempt == nullptr || attempt->round != round.id) {
            wrong("attempt ", id, " is not its own");
            continue;
        }
        for (const std::uint32_t i : attempt->slices) {
            ++num_live[i];
            num_late[i] += attempt->late;
        }
        const Worker* worker = state.pool.find(attempt->worker);
        if (attempt->worker != 0 && worker == nullptr && attempt->check_id == 0)
            wrong("attempt ", id, " is at worker ", attempt->worker, ", which is gone");
        if (worker != nullptr && !worker->published_peer && !round.unsummed)
            sums.push_back(attempt);
    }

    for (std::size_t i = 0; i < sums.size(); ++i)
        for (std::size_t j = i + 1; j < sums.size(); ++j)
            if (!apart_or_within(*sums[i], *sums[j]))
                wrong("the sums of attempts ", sums[i]->id, " and ", sums[j]->id, " overlap");

    std::uint32_t num_open = 0;
    for (std::size_t i = 0; i < round.slices.size(); ++i) {
        const CallSlice& slice = round.slices[i];
        num_open += !slice.done;
        if (slice.live.size() != num_live[i] || slice.num_late != num_late[i])
            wrong("slice ", i, " counts ", slice.live.size(), " attempts, ", slice.num_late,
                  " late; there are ", num_live[i], " and ", num_late[i]);
        if (slice.done != (slice.answer >= 0) ||
            slice.answer >= static_cast<std::int32_t>(round.answers.size()))
            wrong("slice ", i, " has answer ", slice.answer, " of ", round.answers.size());
    }
    if (num_open != round.slices_left) wrong(round.slices_left, " slices left, not ", num_open);
    if (num_open == 0) wrong("all slices are done, and it is still open");

    const std::vector<RoundId>& waiting = state.in_flight.waiting();
    if (round.waiting != (std::find(waiting.begin(), waiting.end(), round.id) != waiting.end()))
        wrong("it says waiting ", round.waiting, ", the list does not");
}

}  // namespace

std::vector<std::string> SwarmCore::check_invariants(bool whole) const {
    SwarmState& state = *state_;
    Broken broken;

    if (state.in_flight.waiting().size() > state.options.rounds_waiting_max)
        broken.push_back(text(state.in_flight.waiting().size(), " rounds wait, at most ",
                              state.options.rounds_waiting_max));

    std::size_t num_attempts = 0;
    for (const auto& [id, round] : state.in_flight.rounds()) {
        num_attempts += round->attempts.size();
        check_round(state, *round, broken);
    }
    if (num_attempts != state.in_flight.attempts().size())
        broken.push_back(
            text(state.in_flight.attempts().size(), " attempts, the rounds have ", num_attempts));

    state.checks.check_invariants(broken);

    std::size_t num_live = 0, num_weak = 0;
    for (const auto& [id, worker] : state.pool.all()) {
        num_weak += worker->pairs_max != std::numeric_limits<std::uint32_t>::max();
        for (const SequenceIds::Live& live : worker->ids.live()) {
            const Attempt* attempt = state.in_flight.find_attempt(live.attempt);
            if (attempt == nullptr || attempt->worker != id || attempt->sequence_id != live.id)
                broken.push_back(
                    text("worker ", id, ": id ", live.id, " is no attempt of its own"));
        }
        num_live += worker->ids.num_live();
        if (!asks_what_is_live(worker->ids))
            broken.push_back(
                text("worker ", id, ": the ids that are read are not the ids that are live"));
        if (worker->ids.num_live() > worker->queue_depth)
            broken.push_back(text("worker ", id, " has ", worker->ids.num_live(),
                                  " groups, at most ", worker->queue_depth));
        if (!whole) continue;
        for (const std::string& what :
             state.placement.directory().check(*worker, !state.sessions.draining()))
            broken.push_back(text("worker ", id, ": ", what));
    }

    const auto num_remote = static_cast<std::size_t>(
        std::count_if(state.in_flight.attempts().begin(), state.in_flight.attempts().end(),
                      [](const auto& entry) {
                          return entry.second->worker != 0 && entry.second->check_id == 0;
                      }));
    if (num_live != num_remote)
        broken.push_back(text(num_live, " ids are live, ", num_remote, " attempts in flight"));
    if (whole)
        for (std::string& what : state.placement.directory().placement().check_extras())
            broken.push_back(std::move(what));
    if (state.placement.directory().extras().size() > state.options.hot.copies_max)
        broken.push_back(text(state.placement.directory().extras().size(),
                              " units have one more copy, at most ", state.options.hot.copies_max));
    if (num_weak != state.pool.num_weak())
        broken.push_back(text(num_weak, " workers are weak, counted were ", state.pool.num_weak()));
    return broken;
}

}  // namespace moex
