#include "hub/dispatch/round/reserve_rule.h"

#include <algorithm>

namespace moex {
namespace {
// The hub's work for a probe, apart from checking its answer: it encodes, sends and receives.
constexpr Duration probe_frames_cost = 100us;
constexpr Duration reserve_after = 2s;
// A verdict `faster` of this age ends the growth of the pauses between probes.
constexpr Duration faster_is_lasting = 10s;

double seconds(Duration time) { return to_ms(time) / 1000; }

// Returns the time of which `cost` is the share `share`.
Duration share_of(Duration cost, double share) {
    return Duration(static_cast<std::int64_t>(static_cast<double>(cost.count()) / share));
}
}  // namespace

bool WorkerWorth::in_reserve() const {
    if (slower_at_ == TimePoint{}) return false;
    return asked_at_ == TimePoint{} || slower_at_ - asked_at_ >= reserve_after;
}

void WorkerWorth::record(std::uint32_t num_pairs, Duration took, Duration work, TimePoint now) {
    times_.record(num_pairs, took, now);
    if (work > Duration{}) work_ = work_ == Duration{} ? work : (3 * work_ + work) / 4;
}

bool ReserveRule::measure_hub(std::uint32_t num_pairs, TimePoint now) {
    const auto measured_at = hub_.measured_at(num_pairs);
    const bool is_recent = measured_at && now - *measured_at < options_.hub_gap_min;
    if (is_recent || hub_free_at_ > now || now - hub_measured_at_ < options_.probe_gap_min)
        return false;

    hub_measured_at_ = now;
    // The call is computed twice.
    pay(hub_free_at_, 2 * hub_time(num_pairs).value_or(1ms), now);
    return true;
}

Worth ReserveRule::judge(WorkerWorth& worker, std::uint32_t num_pairs, Duration queued,
                         Duration hub, TimePoint now) const {
    WorkerWorth::Kept& kept = worker.kept_[PairTimes::class_of(num_pairs)];
    std::optional<Duration> expected = worker.times_.expected(num_pairs);
    if (expected) *expected += options_.ask_cost;
    // A worker in reserve must be clearly faster before it is asked, so that equal times do not
    // change the verdict in each round.
    const double needed = kept.verdict == Worth::faster ? 1 : options_.faster_below;
    const Duration before(static_cast<std::int64_t>(needed * static_cast<double>(hub.count())));

    Worth verdict = Worth::unknown;
    if (expected && *expected < before)
        verdict = Worth::faster;
    else if (expected &&
             (worker.times_.measured_at(num_pairs) || worker.times_.at_least(num_pairs) >= before))
        verdict = Worth::slower;

    if (verdict == Worth::slower) worker.slower_at_ = now;
    if (verdict == Worth::faster && kept.verdict != Worth::faster) kept.faster_since = now;
    if (kept.verdict == Worth::faster && verdict != Worth::faster &&
        now - kept.faster_since >= faster_is_lasting)
        kept.gap = Duration{};
    kept.verdict = verdict;

    // A queue passes, so it changes this answer and not the verdict that is kept.
    const bool is_in_time = verdict == Worth::faster && queued + *expected < before;
    return verdict == Worth::faster && !is_in_time ? Worth::slower : verdict;
}

bool ReserveRule::may_probe(WorkerWorth& worker, std::uint32_t num_pairs, TimePoint now) {
    if (worker.probe_) {
        if (now - worker.probe_->sent_at < options_.probe_lost_after) return false;
        worker.kept_[PairTimes::class_of(worker.probe_->num_pairs)].gap = options_.probe_gap_max;
        end_probe(worker, options_.probe_lost_after, now);
    }

    const WorkerWorth::Kept& kept = worker.kept_[PairTimes::class_of(num_pairs)];
    if (kept.verdict == Worth::faster || now < kept.probed_at + kept.gap) return false;
    if (worker.free_at_ > now) return false;
    if (worker.times_.at_most(num_pairs) &&
        hub_free_at_ > now + share_of(options_.hub_burst, options_.probe_share))
        return false;

    const double most = options_.probes_per_s;
    worker.probes_saved_ = std::min(
        most, worker.probes_saved_ + most * seconds(now - worker.refilled_at_));
    worker.refilled_at_ = now;
    return worker.probes_saved_ >= 1;
}

void ReserveRule::probe_sent(WorkerWorth& worker, std::uint32_t sequence_id,
                             std::uint32_t num_pairs, TimePoint now) {
    worker.probe_ = {.sequence_id = sequence_id, .num_pairs = num_pairs, .sent_at = now};
    worker.probes_saved_ -= 1;
    // A newcomer's first probe is free of the hub's share, which many newcomers would use up for
    // minutes. The check of the answer computes the same pairs again.
    if (worker.times_.at_most(num_pairs))
        pay(hub_free_at_, probe_frames_cost + hub_time(num_pairs).value_or(Duration{}), now);
}

void ReserveRule::probe_answered(WorkerWorth& worker, Duration work, TimePoint now) {
    if (!worker.probe_) return;
    const WorkerWorth::Probe probe = *worker.probe_;
    const Duration took = now - probe.sent_at;
    if (work > Duration{}) worker.work_ = work;
    pay(worker.free_at_, work > Duration{} ? std::min(work, took) : took, now);

    // A surprising time is followed by another probe soon.
    const std::optional<Duration> usual = worker.times_.at_most(probe.num_pairs);
    const bool is_usual = usual && took <= 2 * *usual && 2 * took >= *usual;
    end_probe(worker, took, now);
    Duration& gap = worker.kept_[PairTimes::class_of(probe.num_pairs)].gap;
    gap = is_usual ? std::clamp(2 * gap, options_.probe_gap_min, options_.probe_gap_max)
                   : options_.probe_gap_min;
}

void ReserveRule::end_probe(WorkerWorth& worker, Duration took, TimePoint now) {
    const std::uint32_t num_pairs = worker.probe_->num_pairs;
    worker.probe_.reset();
    worker.times_.record_probe(num_pairs, took, now);
    worker.kept_[PairTimes::class_of(num_pairs)].probed_at = now;
}

void ReserveRule::pay(TimePoint& free_at, Duration cost, TimePoint now) const {
    free_at = std::max(free_at, now) + share_of(cost, options_.probe_share);
}

}  // namespace moex
