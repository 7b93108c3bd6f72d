#include "tests/sim/sim_sweep.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace moex::sim {
namespace {

constexpr std::uint32_t num_workers = 24, sweep_layers = 48, num_experts = 64;

struct Profile {
    const char* name;
    WorkerProfile usual;
    double speed_spread = 0;  // standard deviation of the logarithm of the workers' median times
    double slow_factor = 1;   // factor on the first worker's times
    double churn_per_minute = 0;  // share of the workers that leave per minute; as many join
};

// Names of two rows that bound every policy. The oracle hedges exactly the stalled calls, at the
// moment at which they stall. In "no stalls", no worker stalls.
constexpr std::string_view oracle = "oracle", no_stalls = "no stalls";

std::vector<Profile> profiles() {
    const WorkerProfile lan{.compute = 4ms, .spread = 0.1};
    WorkerProfile wifi{.compute = 12ms,
                       .spread = 0.4,
                       .up_bytes_per_s = 2'500'000,
                       .down_bytes_per_s = 10'000'000};
    WorkerProfile stalls = wifi;
    stalls.spread = 0.1;
    stalls.stall = 0.01;
    stalls.stall_min = 100ms;
    stalls.stall_max = 1000ms;
    WorkerProfile steady = wifi;
    steady.spread = 0.1;
    return {{.name = "healthy LAN", .usual = lan, .speed_spread = 0.1},
            {.name = "Wi-Fi", .usual = wifi, .speed_spread = 0.3},
            {.name = "1 % stalls", .usual = stalls, .speed_spread = 0.25},
            {.name = "one 10 x slower", .usual = steady, .speed_spread = 0.25, .slow_factor = 10},
            {.name = "20 % churn a minute",
             .usual = steady,
             .speed_spread = 0.25,
             .churn_per_minute = 0.2}};
}

class Sweep {
  public:
    Sweep(const Profile& profile, const HedgePolicy& policy, std::uint64_t seed, bool foresees)
        : profile_(profile),
          random_(seed),
          swarm_(options_of(policy, seed, foresees)) {
        for (std::uint32_t i = 0; i < num_workers; ++i) join(i == 0 ? profile.slow_factor : 1);
        swarm_.run_until_ready(1h);
    }

    TokenReport tokens(std::uint32_t num_tokens) {
        return run_tokens(
            swarm_, {.num_tokens = num_tokens, .before = [this](SimSwarm&, auto) { churn(); }});
    }

  private:
    static SimOptions options_of(const HedgePolicy& policy, std::uint64_t seed, bool foresees) {
        SimOptions options{.num_workers = 0,
                           .seed = seed,
                           .num_layers = sweep_layers,
                           .num_experts = num_experts,
                           .top_k = 8,
                           .budget_experts = 3 * sweep_layers * num_experts / num_workers,
                           .latency = 1ms,
                           .foresees_stalls = foresees};
        options.swarm.local_fallback = false;
        options.swarm.hedge = policy;
        return options;
    }
    void join(double slower) {
        std::lognormal_distribution<double> speed(0, profile_.speed_spread);
        WorkerProfile own = profile_.usual;
        own.compute = Duration(static_cast<std::int64_t>(static_cast<double>(own.compute.count()) *
                                                         speed(random_) * slower));
        ++last_;
        swarm_.join_as(own, text("10.", last_ % 8, ".", last_ / 8, ".1"));
    }
    void churn() {
        if (profile_.churn_per_minute <= 0) return;
        const Duration every(
            static_cast<std::int64_t>(6e10 / (profile_.churn_per_minute * num_workers)));
        if (next_churn_ == TimePoint{}) next_churn_ = swarm_.now() + every;
        for (; next_churn_ <= swarm_.now(); next_churn_ += every) {
            const auto alive = swarm_.workers_alive();
            swarm_.leave(alive[random_() % alive.size()]);
            join(1);
        }
    }

    const Profile& profile_;
    std::mt19937_64 random_;
    SimSwarm swarm_;
    std::uint32_t last_ = 0;
    TimePoint next_churn_{};
};

SweepRow sweep_cell(Profile profile, std::string_view policy, const SweepOptions& options) {
    const bool is_bound = policy == oracle || policy == no_stalls;
    if (policy == no_stalls) profile.usual.stall = 0;
    const HedgePolicy hedge = *parse_hedge_policy(is_bound ? "off" : policy);
    const auto num_tokens = std::max(4u, static_cast<std::uint32_t>(200 * options.effort));
    TokenReport report;
    for (std::uint64_t seed = options.seed; seed < options.seed + options.num_seeds; ++seed) {
        Sweep sweep(profile, hedge, seed, policy == oracle);
        sweep.tokens(num_tokens / 8);  // warm-up: the hub learns the latencies
        report.add(sweep.tokens(num_tokens));
    }
    return {.profile = profile.name,
            .policy = std::string(policy),
            .p50_ms = report.quantile_ms(0.5),
            .p99_ms = report.quantile_ms(0.99),
            .longest_ms = report.longest_ms(),
            .extra_share = report.extra_share(),
            .failed = report.failed};
}

}  // namespace

void sweep_policies(const SweepOptions& options, const std::function<void(const SweepRow&)>& row) {
    std::vector<std::pair<Profile, std::string_view>> cells;
    for (const Profile& profile : profiles()) {
        if (!options.only.empty() && options.only != profile.name) continue;
        for (const char* policy : {"off", "delayed", "adaptive", "fixed 2"})
            cells.emplace_back(profile, policy);
        if (profile.usual.stall > 0)
            for (const std::string_view bound : {oracle, no_stalls})
                cells.emplace_back(profile, bound);
    }

    std::mutex mutex;
    std::size_t next = 0, next_row = 0;
    std::vector<std::optional<SweepRow>> rows(cells.size());
    const auto work = [&] {
        while (true) {
            std::unique_lock lock(mutex);
            const std::size_t cell = next++;
            if (cell >= cells.size()) return;
            lock.unlock();
            SweepRow done = sweep_cell(cells[cell].first, cells[cell].second, options);
            lock.lock();
            rows[cell] = std::move(done);
            while (next_row < rows.size() && rows[next_row]) row(*rows[next_row++]);
        }
    };

    std::vector<std::jthread> threads;
    const std::uint32_t num_threads = options.num_threads != 0
                                          ? options.num_threads
                                          : std::max(1u, std::thread::hardware_concurrency());
    for (std::uint32_t i = 0; i < num_threads; ++i) threads.emplace_back(work);
}

}  // namespace moex::sim
