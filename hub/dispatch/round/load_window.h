// How long the experts of a layer may take to load into a worker's memory without delaying a token.
// With n groups of workers that take layers round-robin, the bound is n times the hub's own time
// between two layers, plus (n - 1) times a worker's time for one layer, plus one round trip, since
// a worker waits for the network as well.
//
// The bound is measured for people to read; no decision depends on it. It holds where hints lead by
// n layers. The class is pure. Owner: the dispatch strand. Source: OD-MoE's bound on loading in
// time, generalised from four groups to n, with the network added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "hub/base/clock.h"

namespace moex {

// Mean times since the hub's start; 0 without samples.
struct LoadWindow {
    std::uint32_t groups = 1;
    // from the sum of one layer to the round of the next layer, in steps with few rows
    double hub_ms = 0;
    double worker_ms = 0;  // time of a group inside the worker, without waits for experts to load
    double trip_ms = 0;    // total time of a group minus the worker's time

    double most_ms() const { return groups * hub_ms + (groups - 1) * worker_ms + trip_ms; }
};

class LoadWindowMeter {
  public:
    // Rounds with more rows are not measured, since hints are sent only for small rounds.
    static constexpr std::uint32_t rows_max = 16;

    // `moe_layer`: index of the layer among the MoE layers.
    void on_round_begin(std::uint32_t moe_layer, std::uint32_t num_rows, TimePoint now) {
        if (num_rows <= rows_max && last_ && last_->moe_layer + 1 == moe_layer) {
            hub_ms_ += to_ms(now - last_->ended);
            ++num_gaps_;
        }
        last_.reset();
    }
    void on_round_end(std::uint32_t moe_layer, TimePoint now) {
        last_ = {.moe_layer = moe_layer, .ended = now};
    }
    // The time that the worker reports may be wrong, so it is capped at the time that the hub
    // waited.
    void on_group(Duration took, std::uint32_t worker_us) {
        const double took_ms = to_ms(took), worker_ms = std::min(took_ms, 1e-3 * worker_us);
        worker_ms_ += worker_ms;
        trip_ms_ += took_ms - worker_ms;
        ++num_groups_;
    }

    // `waited_us`: total time that groups waited for experts to load, over all workers, as the
    // workers report it.
    LoadWindow window(std::uint32_t groups, std::uint64_t waited_us) const {
        const auto mean = [](double sum, std::uint64_t count) {
            return count == 0 ? 0.0 : std::max(0.0, sum) / static_cast<double>(count);
        };
        return {.groups = groups,
                .hub_ms = mean(hub_ms_, num_gaps_),
                .worker_ms = mean(worker_ms_ - 1e-3 * static_cast<double>(waited_us), num_groups_),
                .trip_ms = mean(trip_ms_, num_groups_)};
    }

  private:
    struct Ended {
        std::uint32_t moe_layer = 0;
        TimePoint ended{};
    };
    std::optional<Ended> last_;
    double hub_ms_ = 0, worker_ms_ = 0, trip_ms_ = 0;
    std::uint64_t num_gaps_ = 0, num_groups_ = 0;
};

}  // namespace moex
