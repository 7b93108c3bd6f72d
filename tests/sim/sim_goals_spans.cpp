#include "tests/sim/sim_goals_spans.h"

#include <algorithm>

#include "protocol/text.h"
#include "tests/sim/sim_span_holder.h"
#include "tests/sim/sim_spans.h"

namespace moex::sim {
namespace {

// Workers with memory for 12 of 48 layers, 20 ms away, and a hub that needs 10 ms for the experts
// of a layer: half a second a token alone, and about 130 ms through four spans.
WorkerProfile span_profile() {
    return {.compute = 5ms, .spread = 0.1, .span_layers = 12, .layer_compute = 1ms};
}

SimOptions span_options(const GoalOptions& goal, std::uint32_t num_workers) {
    SimOptions options = goal_options(goal, num_workers, true);
    options.latency = 8ms;
    options.local_compute = 10ms;
    allow_spans(options);
    return options;
}

struct SpanSwarm {
    SpanSwarm(const GoalOptions& goal, std::uint32_t num_workers, std::uint32_t num_streams = 1,
              SpanLie lie = SpanLie::none, std::uint32_t num_liars = 0)
        : swarm(span_options(goal, num_workers)),
          engine(swarm, num_streams) {
        for (std::uint32_t i = 0; i < num_workers; ++i) {
            const WorkerId id = swarm.join_as(span_profile(), text("10.0.", i % 4, ".", 1 + i));
            if (i < num_liars) swarm.lie_in_spans(id, lie);
        }
        swarm.run_until_ready();
        swarm.run_for(5s);
    }
    // Ends the goal's violations with layers that could have a holder and have none.
    std::vector<std::string> violations() {
        swarm.run_for(5s);
        std::vector<std::string> all = swarm.violations();
        if (const std::uint32_t left = engine.layers_left(); left > 0)
            all.push_back(text(left, " layers have no holder, though a worker has room"));
        return all;
    }
    SimSwarm swarm;
    SimSpanEngine engine;
};

}  // namespace

Goal spans_tail(const GoalOptions& goal) {
    SpanSwarm at(goal, 8);
    at.engine.run(scaled(goal, 100));
    for (const WorkerId worker : at.swarm.workers_alive()) {
        WorkerProfile profile = span_profile();
        profile.stall = 0.01;
        profile.stall_min = 500ms;
        profile.stall_max = 2s;
        at.swarm.set_profile(worker, profile);
    }
    const std::uint32_t num_tokens = scaled(goal, 300);
    const SpanTokens tokens = at.engine.run(num_tokens);
    const double p50 = tokens.quantile_ms(0.5), longest = tokens.quantile_ms(1);
    return {
        .name = "R1 spans, 8 workers, 1 % of the steps stall",
        .wanted = "0 failed, none longer than p50 + 1 s",
        .measured = text(tokens.failed, " of ", num_tokens, " failed, p50 ", number(p50),
                         " ms, longest ", number(longest), " ms, ", tokens.counters.late, " late"),
        .holds = tokens.failed == 0 && tokens.changed == 0 && tokens.counters.trips > 0 &&
                 longest <= p50 + 1000,
        .violations = at.violations()};
}

Goal spans_half_killed(const GoalOptions& goal) {
    SpanSwarm at(goal, 8, 4);
    at.engine.run(scaled(goal, 100));
    const std::uint32_t num_tokens = scaled(goal, 60);
    const SpanTokens tokens = at.engine.run(num_tokens, [&](std::uint32_t token) {
        if (token != num_tokens / 4) return;
        std::vector<WorkerId> gone = at.engine.used();
        gone.resize(std::min<std::size_t>(gone.size(), 4));
        for (const WorkerId worker : gone) at.swarm.leave(worker);
    });
    const double stall = (tokens.quantile_ms(1) - tokens.quantile_ms(0.5)) / 1000;
    return {.name = "R2 spans, the used 4 of 8 killed",
            .wanted = "0 failed, 0 changed, stall <= 1 s",
            .measured = text(tokens.failed, " of ", num_tokens, " failed, ", tokens.changed,
                             " changed, stall ", number(stall, 2), " s"),
            .holds = tokens.failed == 0 && tokens.changed == 0 && tokens.counters.trips > 0 &&
                     stall <= 1,
            .violations = at.violations()};
}

Goal spans_liars(const GoalOptions& goal) {
    std::uint64_t changed = 0, failed = 0, trips = 0, lies = 0;
    std::vector<std::string> violations;
    for (const SpanLie lie : {SpanLie::rows, SpanLie::keys, SpanLie::values}) {
        SpanSwarm at(goal, 8, 1, lie, 3);
        const SpanTokens tokens = at.engine.run(scaled(goal, 200));
        changed += tokens.changed;
        failed += tokens.failed;
        trips += tokens.counters.trips;
        lies += tokens.counters.lies;
        for (std::string& one : at.violations()) violations.push_back(std::move(one));
    }
    return {.name = "R4 spans, 3 of 8 lie in rows, keys or values",
            .wanted = "0 changed, 0 failed, all 9 banned",
            .measured = text(changed, " changed, ", failed, " failed, ", lies, " banned, ", trips,
                             " trips"),
            .holds = changed == 0 && failed == 0 && lies == 9 && trips > 0,
            .violations = violations};
}

Goal spans_all_fail(const GoalOptions& goal) {
    SpanSwarm at(goal, 8);
    at.engine.run(scaled(goal, 100));
    for (const WorkerId worker : at.swarm.workers_alive()) at.swarm.fail_spans(worker);
    const std::uint64_t sent_before = at.engine.run(1).counters.step_rows;
    const TimePoint start = at.swarm.now();
    SpanTokens tokens;
    std::uint64_t failed = 0, num_tokens = 0;
    while (at.swarm.now() - start < 60s) {
        tokens = at.engine.run(1);
        failed += tokens.failed;
        ++num_tokens;
    }
    const std::uint64_t sent = tokens.counters.step_rows - sent_before;
    for (const WorkerId worker : at.swarm.workers_alive()) at.swarm.fail_spans(worker, false);
    const TimePoint mended = at.swarm.now();
    const std::uint64_t trips = tokens.counters.trips;
    while (at.swarm.now() - mended < 180s && at.engine.run(1).counters.trips == trips) {}
    const double recovery = to_ms(at.swarm.now() - mended) / 1000;
    // A holder that fails is asked again after 1, 2, 4, ... 60 s.
    return {.name = "R6 spans, every step of 8 fails for 60 s",
            .wanted = "0 failed, <= 64 steps asked, used again in 62 s",
            .measured = text(failed, " of ", num_tokens, " failed, ", sent, " steps, again in ",
                             number(recovery, 1), " s"),
            .holds = failed == 0 && sent <= 64 && recovery <= 62,
            .violations = at.violations()};
}

}  // namespace moex::sim
