// Decides whether a worker is worth asking: a hub that computes experts itself asks a worker only
// if the worker's answer is expected before the hub itself would be done.
//
// Without such a rule the router compares workers with each other alone, and one slow tab makes
// every answer slower than a hub without contributors. A worker that is not asked is in reserve. It
// keeps its experts, and its times are measured by probes: copies of calls that the hub computes
// anyway. The rule compares measured times for the same number of pairs (PairTimes), so a worker
// may be asked for 64 rows and not for one. It returns by itself once the hub becomes slower or the
// worker becomes faster.
//
// Probes are limited three times: each worker gets at most two a second; they cost the hub and the
// worker at most one hundredth of their time each; and they become rarer while the verdict remains
// the same, up to `probe_gap_max`. The first probe of a worker is free. Limits of the way taken: a
// probe finds a GPU that slept, so it measures too long a time; PairTimes::record_probe() counts
// short probes for more. A round with many rows that no worker was probed with is computed by the
// hub alone.
//
// The classes are pure: `now` is given. Owner: the dispatch strand.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "hub/base/clock.h"
#include "hub/dispatch/round/pair_times.h"

namespace moex {

// When a hub that computes experts itself asks workers: only those that are expected to answer
// before the hub itself would be done, or always.
enum class UseWorkers { automatic, always };

// How a worker compares with the hub for calls of some number of pairs.
enum class Worth : std::uint8_t { unknown, faster, slower };

struct ReserveOptions {
    double probes_per_s = 2;         // most probes of one worker, per second
    double probe_share = 0.01;       // largest share of a worker's or the hub's time
    Duration probe_gap_min = 500ms;  // pause after a verdict; doubles with each equal verdict
    Duration probe_gap_max = 30s;
    Duration probe_lost_after = 10s;  // a probe without an answer counts as this time
    Duration hub_burst = 10ms;        // time of the hub that probes may take at once
    Duration hub_gap_min = 5s;        // pause between two measurements of the hub's own time
    // A worker in reserve is asked once it takes less than this share of the hub's time.
    double faster_below = 0.9;
    // The hub's own work for a call to a worker, which the measured times do not include: encoding
    // rows, handing a frame to a connection, decoding the answer.
    Duration ask_cost = 40us;
};

// The record of one worker: measured times, verdicts and its probe in flight.
class WorkerWorth {
  public:
    Worth verdict(std::uint32_t num_pairs) const {
        return kept_[PairTimes::class_of(num_pairs)].verdict;
    }
    const PairTimes& times() const { return times_; }
    // Returns the mean time that the worker itself computes one call; zero until that is known.
    Duration work() const { return work_; }
    // Returns true if the latest verdict is `slower`, and no call was sent for two seconds before.
    bool in_reserve() const;
    void note_asked(TimePoint now) { asked_at_ = now; }
    bool is_probe(std::uint32_t sequence_id) const {
        return probe_ && probe_->sequence_id == sequence_id;
    }
    // Records a call that the worker was asked for. `took`: without the time in which the worker
    // answered earlier calls. `work`: time at the worker itself; zero: not known.
    void record(std::uint32_t num_pairs, Duration took, Duration work, TimePoint now);

  private:
    friend class ReserveRule;
    struct Kept {  // data per class of PairTimes
        Worth verdict = Worth::unknown;
        Duration gap{};
        TimePoint probed_at{}, faster_since{};
    };
    struct Probe {
        std::uint32_t sequence_id = 0, num_pairs = 0;
        TimePoint sent_at{};
    };

    PairTimes times_;
    std::array<Kept, PairTimes::num_classes> kept_{};
    Duration work_{};
    std::optional<Probe> probe_;
    double probes_saved_ = 2;  // token bucket of `probes_per_s`
    TimePoint refilled_at_{}, free_at_{}, asked_at_{}, slower_at_{};
};

class ReserveRule {
  public:
    explicit ReserveRule(ReserveOptions options = {}) : options_(options) {}

    // ---- The following functions record and return the hub's own time.
    void hub_took(std::uint32_t num_pairs, Duration took, TimePoint now) {
        hub_.record(num_pairs, took, now);
    }
    // Records a call that was computed only to be measured. The first calls include the time in
    // which the hub prepares weights, so a shorter time has more weight than a longer one.
    void hub_measured(std::uint32_t num_pairs, Duration took, TimePoint now) {
        hub_.record_probe(num_pairs, took, now);
    }
    // Returns the time that the hub needs for the pairs; nullopt before the first measurement.
    std::optional<Duration> hub_time(std::uint32_t num_pairs) const {
        return hub_.at_most(num_pairs);
    }
    // Returns true if the hub's time for `num_pairs` pairs is unknown or old, and `probe_share`
    // permits one more measurement. A call that returns true counts as that measurement.
    bool measure_hub(std::uint32_t num_pairs, TimePoint now);

    // ---- The following function compares a worker with the hub.
    // Compares a call of `num_pairs` pairs at the worker, which begins after `queued`, with the
    // hub, which would be done after `hub`. Keeps the verdict in `worker`.
    Worth judge(WorkerWorth& worker, std::uint32_t num_pairs, Duration queued, Duration hub,
                TimePoint now) const;

    // ---- The following functions limit and record probes.
    bool may_probe(WorkerWorth& worker, std::uint32_t num_pairs, TimePoint now);
    void probe_sent(WorkerWorth& worker, std::uint32_t sequence_id, std::uint32_t num_pairs,
                    TimePoint now);
    // `work`: time at the worker itself; zero: not known, then `took` counts.
    void probe_answered(WorkerWorth& worker, Duration work, TimePoint now);

  private:
    // Reserves `cost` in a share of time: the next cost may begin once the share is paid.
    void pay(TimePoint& free_at, Duration cost, TimePoint now) const;
    void end_probe(WorkerWorth& worker, Duration took, TimePoint now);

    ReserveOptions options_;
    PairTimes hub_;
    TimePoint hub_free_at_{}, hub_measured_at_{};
};

}  // namespace moex
