#include "tests/sim/sim_goals_lies.h"

#include <algorithm>
#include <map>
#include <set>

namespace moex::sim {
namespace {

constexpr std::uint32_t r4_workers = 40;

SimOptions checked_options(const GoalOptions& goal) {
    SimOptions options = goal_options(goal, r4_workers, true);
    // more frequent complete checks would take three quarters of the run time
    options.check_whole_every = 20'000;
    options.swarm.checks.on = options.swarm.checks.judge = true;
    options.swarm.checks.seed = goal.seed;
    return options;
}

std::string by_record(const SwarmCounters& counters) {
    const auto pairs = static_cast<double>(counters.pairs_verified + counters.pairs_proven +
                                           counters.pairs_unchecked);
    return text(number(100 * static_cast<double>(counters.pairs_proven) / std::max(1.0, pairs)),
                " % by record, residual ", number(counters.residual_max, 2));
}

// Turns every third worker into a liar from now on, up to `num_liars` workers, and returns their
// ids.
std::set<WorkerId> make_liars(GoalSwarm& at, const WorkerProfile& way, std::uint32_t num_liars) {
    std::set<WorkerId> liars;
    const auto workers = at.swarm.workers_alive();
    for (std::size_t i = 0; i < num_liars; ++i) {
        WorkerProfile profile = usual_profile(at.random);
        profile.stall = profile.never = 0;
        profile.lie = plausible_lies[i % plausible_lies.size()];
        profile.lie_share = way.lie_share;
        profile.honest_first = way.honest_first;
        at.swarm.set_profile(workers[3 * i], profile);
        liars.insert(workers[3 * i]);
    }
    return liars;
}

}  // namespace

Goal liars(const GoalOptions& goal, const char* name, const WorkerProfile& way,
           std::uint32_t num_tokens, std::uint32_t num_streams, double changed_max) {
    GoalSwarm at(goal, checked_options(goal), r4_workers, false);
    const std::set<WorkerId> liars = make_liars(at, way, 12);
    const TokenReport report = at.tokens(num_tokens, num_streams);

    std::map<WorkerId, std::uint32_t> lies;
    std::uint32_t num_banned = 0, honest_banned = 0, lies_most = 0;
    for (const WorkerEvent& event : at.swarm.worker_events()) {
        if (event.kind == WorkerEvent::Kind::lied)
            lies_most = std::max(lies_most, ++lies[event.worker]);
        if (event.kind == WorkerEvent::Kind::banned)
            ++(liars.contains(event.worker) ? num_banned : honest_banned);
    }

    constexpr double false_rows_max = 1e-5;
    const double false_share = static_cast<double>(report.rows_wrong) /
                               static_cast<double>(std::max<std::uint64_t>(1, report.rows));
    return {.name = name,
            .wanted = text(number(changed_max), " changed, <= 1e-5 rows, out after <= 3"),
            .measured = text(report.changed, " of ", num_tokens * num_streams, " changed, ",
                             report.rows_wrong, " of ", report.rows, " rows (",
                             report.rows_wrong_unmarked, " unmarked), ", num_banned,
                             " liars out after <= ", lies_most, ", ", honest_banned, " honest; ",
                             by_record(report.counters)),
            .holds = static_cast<double>(report.changed) <= changed_max && honest_banned == 0 &&
                     lies_most <= 3 && report.failed == 0 && report.rows_wrong_unmarked == 0 &&
                     false_share <= false_rows_max,
            .violations = report.violations};
}

Goal honest_days(const GoalOptions& goal, double worker_days, bool stalls) {
    constexpr Duration between_tokens = 30s;
    GoalSwarm at(goal, checked_options(goal), r4_workers, stalls);
    const TimePoint start = at.swarm.now();
    const double tokens_a_day = 86'400'000 / to_ms(between_tokens);
    const std::uint32_t num_tokens = scaled(goal, worker_days / r4_workers * tokens_a_day);
    const TokenReport report = run_tokens(
        at.swarm, {.num_tokens = num_tokens,
                   .before = [&](SimSwarm& swarm, auto) { swarm.run_for(between_tokens); }});

    std::uint32_t num_accused = 0, num_ejected = 0;
    for (const WorkerEvent& event : at.swarm.worker_events()) {
        num_accused += event.kind == WorkerEvent::Kind::lied ||
                       event.kind == WorkerEvent::Kind::banned ||
                       event.kind == WorkerEvent::Kind::removed;
        num_ejected += event.kind == WorkerEvent::Kind::unhealthy &&
                       event.view->health == Health::ejected;
    }
    const double days = to_ms(at.swarm.now() - start) / 86'400'000 * r4_workers;
    return {
        .name = text("R4 honest, ", stalls ? "1 % of groups stall" : "healthy"),
        .wanted = text("none accused", stalls ? "" : ", none ejected"),
        .measured = text(number(days, 1), " worker-days, ", num_tokens, " tokens, ", num_accused,
                         " accused, ", num_ejected, " ejections, ", report.rows_wrong, " of ",
                         report.rows, " rows changed; ", by_record(report.counters)),
        .holds = num_accused == 0 && report.rows_wrong == 0 && report.failed == 0 &&
                 (stalls || num_ejected == 0) && report.counters.residual_max <= 1.0 / 3,
        .violations = report.violations};
}

}  // namespace moex::sim
