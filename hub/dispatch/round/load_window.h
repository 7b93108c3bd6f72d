// How long the experts of a layer may take to reach a worker's memory without anybody waiting: with
// n groups of workers that take layers in turn, n times the hub's own time between two layers,
// (n - 1) times a worker's for one, and a round trip, which a worker waits through as well.
// Measured here, for people: nothing is decided by it. It holds where hints lead by n layers. Pure;
// owner: the dispatch strand. Source: OD-MoE's bound on loading in time, by n rather than for four
// groups, and with the network.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "hub/base/clock.h"

namespace moex {

// Means over everything since the hub's start; 0 where nothing is known.
struct LoadWindow {
    std::uint32_t groups = 1;
    double hub_ms = 0;     // from a layer's sum to the next one's round: steps of few rows
    double worker_ms = 0;  // inside a worker, beside waiting for experts
    double trip_ms = 0;    // of a group's time what is the worker's is left out

    double most_ms() const { return groups * hub_ms + (groups - 1) * worker_ms + trip_ms; }
};

class LoadWindowMeter {
  public:
    static constexpr std::uint32_t rows_max = 16;  // of a round that counts: hints are of such

    // `moe_layer` counts MoE layers.
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
    // What a worker tells may be wrong: it took no longer than the hub waited.
    void on_group(Duration took, std::uint32_t worker_us) {
        const double took_ms = to_ms(took), worker_ms = std::min(took_ms, 1e-3 * worker_us);
        worker_ms_ += worker_ms;
        trip_ms_ += took_ms - worker_ms;
        ++num_groups_;
    }

    // `waited_us`: for experts, of all groups of workers, as they say.
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
