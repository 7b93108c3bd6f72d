// moex-sim: runs the dispatch core under a seeded clock and network. The same seed gives the same
// hash of the event log.
#include <CLI/CLI.hpp>

#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "tests/sim/sim_goals.h"
#include "tests/sim/sim_sweep.h"
#include "tests/sim/sim_theory.h"

namespace {

// Prints the table of reliability goals. Returns 1 if an invariant was broken. A missed goal is
// printed too, but it is not a broken invariant.
int print_goals(const moex::sim::GoalOptions& options, bool csv) {
    bool any_broken = false;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (csv)
        std::printf("seed,goal,wanted,measured,holds\n");
    else
        std::printf("%-36s %-44s %-58s %s\n", "goal", "wanted", "measured", "");
    for (const moex::sim::Goal& goal : moex::sim::measure_goals(options)) {
        if (csv)
            std::printf("%" PRIu64 ",\"%s\",\"%s\",\"%s\",%s\n", options.seed, goal.name.c_str(),
                        goal.wanted.c_str(), goal.measured.c_str(),
                        goal.holds ? "holds" : "missed");
        else
            std::printf("%-36s %-44s %-58s %s\n", goal.name.c_str(), goal.wanted.c_str(),
                        goal.measured.c_str(), goal.holds ? "holds" : "missed");
        for (const std::string& violation : goal.violations)
            std::printf("VIOLATION %s\n", violation.c_str());
        any_broken |= !goal.violations.empty();
    }
    return any_broken ? 1 : 0;
}

int print_sweep(const moex::sim::SweepOptions& options) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::printf("profile,policy,token_p50_ms,token_p99_ms,longest_ms,extra_percent,failed\n");
    moex::sim::sweep_policies(options, [](const moex::sim::SweepRow& row) {
        std::printf("%s,%s,%.0f,%.0f,%.0f,%.1f,%" PRIu64 "\n", row.profile.c_str(),
                    row.policy.c_str(), row.p50_ms, row.p99_ms, row.longest_ms,
                    100 * row.extra_share, row.failed);
    });
    return 0;
}

int print_theory(std::uint64_t seed, double effort) {
    const auto num_rounds = static_cast<std::uint32_t>(20'000 * effort);
    bool holds = true;
    std::printf("copies,calls,rounds,integral_ms,simulated_ms,off_percent\n");
    for (std::uint32_t copies = 1; copies <= 4; ++copies)
        for (std::uint32_t calls = 1; calls <= 8; ++calls) {
            const auto cell = moex::sim::measure_fixed(copies, calls, num_rounds, seed);
            std::printf("%u,%u,%u,%.3f,%.3f,%.2f\n", copies, calls, num_rounds, cell.wanted_ms,
                        cell.measured_ms, 100 * cell.deviation());
            std::fflush(stdout);
            holds &= std::abs(cell.deviation()) <= 0.01;
        }
    return holds ? 0 : 1;
}

void print_report(const moex::sim::SimReport& report, std::uint64_t seed) {
    const moex::SwarmCounters& counts = report.counters;
    std::printf("seed=%" PRIu64 " rounds=%" PRIu64 " ok=%" PRIu64 " failed=%" PRIu64
                " calls_remote=%" PRIu64 " calls_local=%" PRIu64 " groups=%" PRIu64 "\n",
                seed, report.rounds, report.rounds_ok, report.rounds_failed, counts.calls_remote,
                counts.calls_local, counts.groups_sent);
    std::printf(
        "hedges=%" PRIu64 " hedges_won=%" PRIu64 " timeouts=%" PRIu64 " redispatched=%" PRIu64
        " late=%" PRIu64 " bad_frames=%" PRIu64 " bad_answers=%" PRIu64 " removed=%" PRIu64
        " workers_left=%u"
        " gathered=%" PRIu64 " extras_given=%" PRIu64 " extras_taken=%" PRIu64 "\n",
        counts.hedges_sent, counts.hedges_won, counts.timeouts, counts.redispatched, counts.late,
        counts.bad_frames, counts.bad_answers, counts.removed, report.workers_left,
        report.frames_gathered, counts.extras_given, counts.extras_taken);
    std::printf("events=%" PRIu64 " event_hash=%016" PRIx64 "\n", report.num_events,
                report.event_hash);
    for (const std::string& violation : report.violations)
        std::printf("VIOLATION %s\n", violation.c_str());
}

struct Arguments {
    std::uint64_t seed = 1;
    double minutes = 1, effort = 1;
    std::uint32_t num_workers = 12, num_rounds = 0;
    std::string faults_list = "all", hedge = "delayed", only;
    bool verbose = false, tokens = false, sweep = false, theory = false, csv = false;
};

void add_options(CLI::App& app, Arguments& to) {
    app.add_option("--seed", to.seed, "the same seed gives the same run")->capture_default_str();
    app.add_option("--minutes", to.minutes, "simulated time over which the rounds are spread")
        ->capture_default_str()
        ->check(CLI::Range(0.01, 1e4));
    app.add_option("--workers", to.num_workers,
                   "workers at the start; with churn they join and leave")
        ->capture_default_str()
        ->check(CLI::Range(0u, 10000u));
    app.add_option("--rounds", to.num_rounds, "rounds in total; 0: 200 per simulated minute")
        ->capture_default_str();
    app.add_option("--faults", to.faults_list,
                   "none, all, or a list: "
                   "loss,delay,duplication,reorder,truncation,flips,stalls,busy,errors,churn,liars")
        ->capture_default_str();
    app.add_flag("--verbose", to.verbose, "print the event log");
    app.add_flag("--tokens", to.tokens,
                 "measure the reliability goals by runs of whole tokens; print a table");
    app.add_flag("--sweep", to.sweep,
                 "compare hedge policies over several kinds of swarms; print CSV");
    app.add_flag("--theory", to.theory,
                 "compare `fixed h` for k calls with independent log-normal times to the integral; "
                 "print CSV; exit 1 if a value differs by more than 1 %");
    app.add_flag("--csv", to.csv, "with --tokens: print the table as CSV");
    app.add_option("--hedge", to.hedge, "with --tokens: off, fixed H, adaptive or delayed")
        ->capture_default_str();
    app.add_option("--effort", to.effort,
                   "with --tokens, --sweep or --theory: share of the usual number of tokens")
        ->capture_default_str()
        ->check(CLI::Range(0.05, 100.0));
    app.add_option("--only", to.only,
                   "with --tokens: one goal, R1 to R9, R1-spans, R2-spans, R4-spans, R6-spans, or "
                   "R4-always, R4-rare, R4-sleepers (10,000 tokens each), or R4-honest, "
                   "R4-stalls (320 worker-days each); "
                   "with --sweep: the name of a kind of swarm");
}

}  // namespace

int main(int argc, char** argv) {
    using namespace moex;
    using namespace moex::sim;
    Arguments given;
    CLI::App app(
        "Replays the dispatch core against simulated workers that stall, lie, refuse and "
        "leave.\nexample: moex-sim --seed 7 --minutes 10 --faults loss,stalls\n"
        "exit: 0 every invariant held, 1 an invariant broke, 2 wrong arguments",
        "moex-sim");
    add_options(app, given);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    if (given.theory) return print_theory(given.seed, given.effort);
    if (given.sweep)
        return print_sweep({.seed = given.seed, .effort = given.effort, .only = given.only});
    if (given.tokens) {
        const Result<HedgePolicy> policy = parse_hedge_policy(given.hedge);
        if (policy.ok())
            return print_goals(
                {.seed = given.seed, .hedge = *policy, .effort = given.effort, .only = given.only},
                given.csv);
        std::fprintf(stderr, "moex-sim: %s\n", policy.error().message.c_str());
        return 2;
    }
    const Result<Faults> faults = parse_faults(given.faults_list);
    if (!faults.ok()) {
        std::fprintf(stderr, "moex-sim: %s\n", faults.error().message.c_str());
        return 2;
    }
    const SimReport report = run_simulation(
        {.seed = given.seed,
         .num_workers = given.num_workers,
         .num_rounds = given.num_rounds != 0
                           ? given.num_rounds
                           : std::max(1u, static_cast<std::uint32_t>(200 * given.minutes)),
         .length = Duration(static_cast<std::int64_t>(given.minutes * 6e10)),
         .faults = *faults,
         .log = given.verbose});
    for (const std::string& line : report.log) std::printf("%s\n", line.c_str());
    print_report(report, given.seed);
    return report.violations.empty() ? 0 : 1;
}
