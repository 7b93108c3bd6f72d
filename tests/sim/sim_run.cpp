// Implements run_simulation(): one run under faults, with rounds spread over time and with workers
// that join and leave, and its report of broken invariants.
#include <algorithm>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {

namespace {

SimOptions drawn_options(const SimRun& run, std::mt19937_64& random) {
    SimOptions options{.num_workers = run.num_workers,
                       .seed = run.seed,
                       .published_share = 0.15,
                       .faults = run.faults,
                       .log = run.log};
    options.budget_experts = 12 + static_cast<std::uint32_t>(random() % 60);
    options.watches_liveness = true;
    options.reports_held = random() % 4 != 0;
    options.swarm.rounding.deterministic = random() % 4 != 0;
    options.swarm.local_fallback = random() % 3 != 0;
    switch (random() % 4) {
        case 0: break;
        case 1:
            options.swarm.hedge = {.mode = HedgeMode::fixed,
                                   .copies = 2 + static_cast<std::uint32_t>(random() % 2)};
            break;
        default: options.swarm.hedge = {.mode = HedgeMode::delayed};
    }
    options.swarm.queue_depth = 1 + static_cast<std::uint32_t>(random() % 4);
    options.swarm.limits.num_tokens_max = random() % 3 == 0 ? 5 : 512;
    options.swarm.limits.num_pairs_max = random() % 3 == 0 ? 12 : 4096;
    // In every second seed, create and remove copies of hot experts often. The rounds request all
    // experts equally often, so the thresholds must be close to the mean.
    if (run.seed % 2 == 0)
        options.swarm.hot = {.copies_max = 8,
                             .half_life = 3s,
                             .hot_above = 1.2,
                             .cold_below = 0.9,
                             .count_min = 4,
                             .look_every = 500ms,
                             .rests_for = 2s};
    options.swarm.checks = {.on = random() % 2 == 0,
                            .judge = random() % 3 != 0,
                            .to_prove = random() % 2 == 0 ? 64u : 1024u,
                            .seed = run.seed};
    return options;
}

// Adds a violation unless the round was answered exactly once and, if the hub has a local backend,
// succeeded. Cancelled rounds are not checked.
void judge(const RoundOutcome& outcome, RoundId id, bool local_fallback, SimReport& report) {
    if (outcome.cancelled) return;
    if (outcome.times_done != 1)
        report.violations.push_back(
            text("round ", id, " was answered ", outcome.times_done, " times"));
    if (!outcome.answer) return;

    ++(outcome.answer->ok() ? report.rounds_ok : report.rounds_failed);
    if (!outcome.answer->ok() && local_fallback)
        report.violations.push_back(
            text("round ", id, " failed: ", outcome.answer->error().message));
}

}  // namespace

SimReport run_simulation(const SimRun& run) {
    std::mt19937_64 random(run.seed * 0x9e3779b97f4a7c15ull + 1);
    const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
    const SimOptions options = drawn_options(run, random);
    SimSwarm swarm(options);
    std::vector<RoundId> rounds;
    const TimePoint start = swarm.now();
    const Duration churn_every =
        run.faults.churn_per_minute <= 0 || run.num_workers == 0
            ? Duration::max() / 4
            : Duration(static_cast<std::int64_t>(
                  6e10 / (2 * run.faults.churn_per_minute * run.num_workers)));
    TimePoint next_churn = start + churn_every;
    for (std::uint32_t i = 0; i < run.num_rounds; ++i) {
        const TimePoint due = start + run.length * i / std::max(1u, run.num_rounds);
        while (next_churn < due) {
            swarm.run_for(std::max(Duration{}, next_churn - swarm.now()));
            next_churn += churn_every;
            const auto alive = swarm.workers_alive();
            if (uniform() < 0.5 && !alive.empty()) {
                const WorkerId leaver = alive[random() % alive.size()];
                if (random() % 3 == 0)
                    swarm.say(leaver, encode_drain(static_cast<std::uint32_t>(random() % 3000)));
                else
                    swarm.leave(leaver);
            } else if (alive.size() < 2 * run.num_workers)
                swarm.join(uniform() < 0.15 ? Peer::published : Peer::ours,
                           text("10.0.", random() % 4, ".7"));
        }
        if (due > swarm.now()) swarm.run_for(due - swarm.now());
        // Add a worker in place of those that the hub removed, or that lost their connection after
        // a broken frame.
        if (run.faults.churn_per_minute > 0 && swarm.workers_alive().size() < run.num_workers / 2)
            swarm.join();
        RoundSpec spec{.layer = static_cast<std::uint32_t>(random() % options.num_layers),
                       .num_tokens = 1 + static_cast<std::uint32_t>(
                                             uniform() < 0.1 ? random() % 40 : random() % 3)};
        // In every third seed, one row of each round has a latency budget and does not wait for
        // late answers.
        if (run.seed % 3 == 0)
            spec.patience = {{.row = i % spec.num_tokens, .wait = 20ms, .pairs_max = 1 + i % 3}};
        rounds.push_back(swarm.submit(std::move(spec)));
        if (uniform() < 0.02) swarm.cancel(rounds.back());
    }
    SimReport report;
    const bool all_ended = swarm.run_until_idle(60s);
    report.violations = swarm.violations();
    if (!all_ended)
        report.violations.push_back("rounds are still open a minute after the last submit");

    for (const RoundId id : rounds)
        judge(swarm.outcome(id), id, options.swarm.local_fallback, report);

    report.rounds = rounds.size();
    report.counters = swarm.core().counters();
    report.workers_left = static_cast<std::uint32_t>(swarm.workers_alive().size());
    report.event_hash = swarm.event_hash();
    report.num_events = swarm.num_events();
    report.frames_gathered = swarm.num_gathered();
    report.log = swarm.log();
    return report;
}

}  // namespace moex::sim
