#include "tests/sim/sim_goals.h"

#include <algorithm>
#include <functional>

#include "tests/sim/sim_goals_lies.h"
#include "tests/sim/sim_goals_spans.h"

namespace moex::sim {
namespace {

Goal tail(const GoalOptions& goal) {
    TokenReport report;
    for (std::uint64_t seed = goal.seed; seed < goal.seed + 5; ++seed) {
        GoalOptions own = goal;
        own.seed = seed;
        GoalSwarm at(own, 64, false);
        at.tokens(scaled(goal, 20));  // warm-up: the hub learns the workers' latencies
        report.add(at.tokens(scaled(goal, 300)));
    }
    const double p50 = report.quantile_ms(0.5), p99 = report.quantile_ms(0.99);
    return {.name = "R1 tail, 64 workers, 1 % stalls, 5 seeds",
            .wanted = "p99 <= 1.5 x p50, none > 3 x, <= 5 % extra",
            .measured = text(number(p50), " / ", number(p99), " ms = ", number(p99 / p50, 2),
                             " x, longest ", number(report.longest_ms() / p50, 2), " x, ",
                             number(100 * report.extra_share(), 1), " % extra"),
            .holds = p99 <= 1.5 * p50 && report.longest_ms() <= 3 * p50 &&
                     report.extra_share() <= 0.05 && report.failed == 0,
            .violations = report.violations};
}

// Returns the least time, in seconds, until every unit has a holder again, if all connected workers
// load equal parts of the units without a holder.
double least_loading_s(SimSwarm& swarm) {
    const std::vector<std::uint16_t> replicas = swarm.core().replicas();
    const auto num_lost = static_cast<double>(std::ranges::count(replicas, 0));
    return num_lost * goal_blob_bytes /
           (goal_down_bytes_per_s * static_cast<double>(swarm.workers_alive().size()));
}

Goal half_killed(const GoalOptions& goal, bool local_fallback) {
    GoalSwarm at(goal, 64, local_fallback, false);
    at.tokens(scaled(goal, 20), 8);
    const std::uint32_t num_tokens = scaled(goal, 40);
    double loading_s = 0;  // least time, in seconds, to load the units that lost their last holder
    const TokenReport report = run_tokens(at.swarm,
                                          {.num_tokens = num_tokens,
                                           .num_streams = 8,
                                           .before = [&](SimSwarm& swarm, std::uint32_t token) {
                                               if (token != num_tokens / 4) return;
                                               const auto alive = swarm.workers_alive();
                                               for (std::size_t i = 0; i < alive.size(); i += 2)
                                                   swarm.leave(alive[i]);
                                               loading_s = least_loading_s(swarm);
                                           }});
    const double stall = (report.longest_ms() - report.quantile_ms(0.5)) / 1000;
    return {.name = text("R2 half of 64 killed, ", local_fallback ? "local backend" : "alone"),
            .wanted = local_fallback ? "0 failed, stall <= 2 s" : "0 failed; stall is loading",
            .measured = text(report.failed, " of ", num_tokens, " failed, stall ", number(stall, 1),
                             " s", local_fallback ? "" : ", loading ",
                             local_fallback ? "" : text("at least ", number(loading_s, 1), " s")),
            .holds = report.failed == 0 && (stall <= 2 || !local_fallback),
            .violations = report.violations};
}

Goal all_silent(const GoalOptions& goal) {
    GoalSwarm at(goal, 64, true, false);
    at.tokens(scaled(goal, 10));
    at.swarm.go_dark("10.");
    const TokenReport report = at.tokens(1);
    // The local backend alone takes 48 layers x 5 ms; the goal allows 2 s more.
    return {.name = "R3 all 64 silent, local backend",
            .wanted = "the backend's time + <= 2 s",
            .measured = text("a token of ", number(report.longest_ms() / 1000, 2), " s"),
            .holds = report.failed == 0 && report.longest_ms() <= 2240,
            .violations = report.violations};
}

Goal all_gone(const GoalOptions& goal) {
    GoalSwarm at(goal, 64, false, false);
    at.tokens(4);
    for (const WorkerId worker : at.swarm.workers_alive()) at.swarm.leave(worker);
    const TimePoint start = at.swarm.now();
    const RoundId round = at.swarm.submit();
    const bool ok = at.swarm.run_until_answered(round, 30s);
    const double s = to_ms(at.swarm.now() - start) / 1000;
    return {.name = "R3 all 64 gone, alone",
            .wanted = "an error within 10 s",
            .measured = text(ok ? "answered" : "an error", " after ", number(s, 1), " s"),
            .holds = !ok && s <= 10};
}

// Measures the goal for a hub on a machine that slept: all deadlines and heartbeats are due at
// once.
Goal clock_leap(const GoalOptions& goal) {
    GoalSwarm at(goal, 16, false, false);
    at.tokens(4);
    const std::uint32_t num_tokens = scaled(goal, 20);
    const TokenReport report = run_tokens(
        at.swarm, {.num_tokens = num_tokens, .before = [&](SimSwarm& swarm, std::uint32_t token) {
                       if (token == num_tokens / 2) swarm.jump_clock(10min);
                   }});
    return {.name = "R7 the clock leaps 10 min, alone",
            .wanted = "none failed, no worker lost",
            .measured = text(report.failed, " of ", num_tokens, " failed, ",
                             at.swarm.workers_alive().size(), " of 16 connected"),
            .holds = report.failed == 0 && at.swarm.workers_alive().size() == 16,
            .violations = report.violations};
}

Goal slow_one(const GoalOptions& goal) {
    GoalSwarm at(goal, 16, false, false);
    WorkerProfile slow = usual_profile(at.random);
    slow.stall = slow.never = 0;
    slow.compute = 160ms;
    at.swarm.set_profile(at.swarm.workers_alive().front(), slow);
    at.tokens(4);
    const WorkerId id = at.swarm.workers_alive().front();
    const std::uint64_t before = at.swarm.core().worker(id)->groups_sent,
                        all_before = at.swarm.core().counters().groups_sent;
    at.tokens(scaled(goal, 40));
    const auto groups = static_cast<double>(at.swarm.core().worker(id)->groups_sent - before),
               all = static_cast<double>(at.swarm.core().counters().groups_sent - all_before);
    return {.name = "R5 one of 16 is 10 x slower",
            .wanted = "<= 1 % of the groups",
            .measured = text(number(100 * groups / all, 2), " % of the groups"),
            .holds = groups <= 0.01 * all};
}

Goal all_errors(const GoalOptions& goal) {
    GoalSwarm at(goal, 16, false, false);
    at.tokens(4);
    for (const WorkerId worker : at.swarm.workers_alive())
        at.swarm.answer_error(worker, "device_lost");
    const std::uint64_t before = at.swarm.core().counters().groups_sent;
    const TimePoint start = at.swarm.now();
    std::uint64_t offered = 0;
    while (at.swarm.now() - start < 60s) {
        at.swarm.submit({.layer = static_cast<std::uint32_t>(offered++ % goal_layers)});
        at.swarm.run_for(500ms);
    }
    const auto sent = static_cast<double>(at.swarm.core().counters().groups_sent - before);
    const double most = 1.1 * 8 * static_cast<double>(offered) + 5 * 60;

    at.swarm.run_until_idle();
    for (const WorkerId worker : at.swarm.workers_alive()) at.swarm.answer_error(worker, "");
    const TimePoint mended = at.swarm.now();
    const RoundId round = at.swarm.submit();
    at.swarm.run_until_answered(round);
    const double recovery = to_ms(at.swarm.now() - mended) / 1000;
    return {.name = "R6 all of 16 err for 60 s, alone",
            .wanted = text("<= ", number(most), " groups, back in 3 s"),
            .measured = text(number(sent), " groups, back in ", number(recovery, 1), " s"),
            .holds = sent <= most && recovery <= 3};
}

Goal slower_line(const GoalOptions& goal) {
    GoalSwarm at(goal, 16, false, false);
    at.tokens(scaled(goal, 20));
    for (const WorkerId worker : at.swarm.workers_alive()) {
        WorkerProfile profile{.compute = 160ms, .spread = 0.1};
        at.swarm.set_profile(worker, profile);
    }
    at.tokens(2);  // in these tokens each worker answers at least five calls
    const TokenReport report = at.tokens(scaled(goal, 20));
    const double share = static_cast<double>(report.counters.timeouts) /
                         static_cast<double>(report.counters.groups_sent);
    return {.name = "R7 all become 10 x slower",
            .wanted = "< 1 % timeouts, none failed",
            .measured = text(number(100 * share, 2), " % timeouts, ", report.failed, " failed"),
            .holds = share < 0.01 && report.failed == 0,
            .violations = report.violations};
}

Goal faults(const GoalOptions& goal) {
    const std::uint64_t num_seeds = scaled(goal, 20);
    Goal result{.name = text("R8 ", num_seeds, " seeds, every fault"),
                .wanted = "every invariant holds"};
    for (std::uint64_t seed = goal.seed; seed < goal.seed + num_seeds; ++seed) {
        const SimReport report = run_simulation({.seed = seed, .faults = *parse_faults("all")});
        for (const std::string& violation : report.violations)
            result.violations.push_back(text("seed ", seed, ": ", violation));
    }
    result.measured = text(result.violations.size(), " broken");
    result.holds = result.violations.empty();
    return result;
}

// Measures a hub that computes experts itself, with its workers in reserve where they are slower.
// Compares the median time of its tokens with that of the better one of two hubs: one alone, and
// one that always asks its workers.
Goal reserve(const GoalOptions& goal, const char* name, Duration hub_time) {
    const auto median = [&](UseWorkers use, std::uint32_t num_workers, std::uint64_t& violations) {
        SimOptions options = goal_options(goal, 64, true);
        options.local_compute = hub_time;
        options.swarm.use_workers = use;
        GoalSwarm at(goal, options, num_workers, false);
        at.tokens(scaled(goal, 60));
        const TokenReport report = at.tokens(scaled(goal, 100));
        violations += report.violations.size() + report.failed;
        return report.quantile_ms(0.5);
    };
    std::uint64_t violations = 0;
    const double alone = median(UseWorkers::automatic, 0, violations),
                 always = median(UseWorkers::always, 64, violations),
                 chosen = median(UseWorkers::automatic, 64, violations),
                 best = std::min(alone, always);
    return {.name = name,
            .wanted = "<= 1.05 x the better one, none failed",
            .measured = text(number(alone), " ms alone, ", number(always), " ms always, ",
                             number(chosen), " ms auto = ", number(chosen / best, 2), " x"),
            .holds = chosen <= 1.05 * best && violations == 0};
}

using Measure = std::function<Goal(const GoalOptions&)>;
using Measures = std::vector<std::pair<const char*, Measure>>;

// Returns the measurements that take minutes: of 10,000 tokens of eight users each, or of days of
// simulated time. They run only if `GoalOptions::only` names them.
Measures long_measures() {
    constexpr std::uint32_t num_streams = 8, num_tokens = 10'000 / num_streams;
    const auto of = [](const char* name, WorkerProfile way, double changed_max) {
        return [=](const GoalOptions& to) {
            return liars(to, name, way, scaled(to, num_tokens), num_streams, changed_max);
        };
    };
    // Only a share of the answers of workers with a trust record is checked, so some lies pass:
    // hub/dispatch/trust/answer_trust.h gives the bound.
    constexpr double by_record_max = 10;
    return {{"R4-honest", [](const GoalOptions& to) { return honest_days(to, 320, false); }},
            {"R4-stalls", [](const GoalOptions& to) { return honest_days(to, 320, true); }},
            {"R4-always", of("R4 30 % lie always, long", {}, 0)},
            {"R4-rare", of("R4 30 % lie in 1 of 100, long", {.lie_share = 0.01}, by_record_max)},
            {"R4-sleepers",
             of("R4 30 % lie after 2,000, long", {.honest_first = 2000}, by_record_max)}};
}

}  // namespace

std::vector<Goal> measure_goals(const GoalOptions& goal) {
    const Measures all{
        {"R1", tail},
        {"R2", [](const GoalOptions& to) { return half_killed(to, true); }},
        {"R2", [](const GoalOptions& to) { return half_killed(to, false); }},
        {"R3", all_silent},
        {"R3", all_gone},
        {"R4",
         [](const GoalOptions& to) {
             return liars(to, "R4 30 % lie always, eleven ways", {}, scaled(to, 30), 1, 0);
         }},
        {"R4",
         [](const GoalOptions& to) {
             return liars(to, "R4 30 % lie in 1 of 100 answers", {.lie_share = 0.01},
                          scaled(to, 60), 1, 0);
         }},
        {"R4",
         [](const GoalOptions& to) {
             return liars(to, "R4 the same, 8 users", {.lie_share = 0.01}, scaled(to, 240), 8, 0);
         }},
        {"R4",
         [](const GoalOptions& to) {
             return liars(to, "R4 30 % lie after 20 answers", {.honest_first = 20}, scaled(to, 30),
                          1, 0);
         }},
        {"R1-spans", spans_tail},
        {"R2-spans", spans_half_killed},
        {"R4-spans", spans_liars},
        {"R6-spans", spans_all_fail},
        {"R5", slow_one},
        {"R6", all_errors},
        {"R7", slower_line},
        {"R7", clock_leap},
        {"R8", faults},
        {"R9",
         [](const GoalOptions& to) { return reserve(to, "R9 64 workers, a faster hub", 5ms); }},
        {"R9",
         [](const GoalOptions& to) { return reserve(to, "R9 64 workers, a slower hub", 100ms); }}};

    std::vector<Goal> goals;
    for (const auto& [name, measure] : long_measures())
        if (goal.only == name) goals.push_back(measure(goal));
    for (const auto& [name, measure] : all)
        if (goal.only.empty() || goal.only == name) goals.push_back(measure(goal));
    return goals;
}

}  // namespace moex::sim
