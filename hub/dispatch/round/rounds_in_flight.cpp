#include "hub/dispatch/round/rounds_in_flight.h"

#include <algorithm>

namespace moex {
namespace {
// most rounds and attempts that the free lists keep
constexpr std::size_t rounds_kept_max = 64, attempts_kept_max = 64;

template <class T>
std::unique_ptr<T> take_or_make(std::vector<std::unique_ptr<T>>& reserve) {
    if (reserve.empty()) return std::make_unique<T>();
    std::unique_ptr<T> fresh = std::move(reserve.back());
    reserve.pop_back();
    return fresh;
}
}  // namespace

Round& RoundsInFlight::new_round() {
    std::unique_ptr<Round> fresh = take_or_make(round_reserve_);
    Round& round = *fresh;
    round.id = ++last_round_;
    rounds_[round.id] = std::move(fresh);
    return round;
}

Round* RoundsInFlight::find_round(RoundId id) {
    const auto found = rounds_.find(id);
    return found == rounds_.end() ? nullptr : found->second.get();
}

void RoundsInFlight::erase_round(RoundId id) {
    auto node = rounds_.extract(id);
    if (round_reserve_.size() < rounds_kept_max) round_reserve_.push_back(std::move(node.mapped()));
}

Attempt& RoundsInFlight::new_attempt(Round& round, WorkerId worker) {
    std::unique_ptr<Attempt> fresh = take_or_make(attempt_reserve_);
    Attempt& attempt = *fresh;
    attempt.id = ++last_attempt_;
    attempt.round = round.id;
    attempt.worker = worker;
    attempt.hedge = attempt.late = attempt.probe = false;
    attempt.check_id = attempt.witness_of_check = 0;
    attempt.load = {};
    attempt.slices.clear();
    attempt.tokens.clear();
    attempts_[attempt.id] = std::move(fresh);
    round.attempts.push_back(attempt.id);

    return attempt;
}

Attempt* RoundsInFlight::find_attempt(AttemptId id) {
    const auto found = attempts_.find(id);
    return found == attempts_.end() ? nullptr : found->second.get();
}

void RoundsInFlight::erase_attempt(AttemptId id) {
    auto node = attempts_.extract(id);
    if (node && attempt_reserve_.size() < attempts_kept_max)
        attempt_reserve_.push_back(std::move(node.mapped()));
}

void RoundsInFlight::wait(Round& round) {
    if (!round.waiting) waiting_.push_back(round.id);
    round.waiting = true;
}

void RoundsInFlight::stop_waiting(Round& round) {
    if (round.waiting) std::erase(waiting_, round.id);
    round.waiting = false;
}

bool RoundsInFlight::is_local(const CallSlice& slice) {
    return !slice.live.empty() && find_attempt(slice.live.back())->worker == 0;
}

}  // namespace moex
