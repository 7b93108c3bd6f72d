// What is foreseen for a coming layer goes to those who have a use for it.
#include <gtest/gtest.h>

#include <set>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

// A worker that says READY of whatever it is assigned. What it holds.
std::set<Unit> hold_all(SimSwarm& swarm, WorkerId worker, std::vector<std::string> caps) {
    Hello hello;
    hello.token = "sim-token";
    hello.device.budget_bytes = 1 << 20;
    hello.caps = std::move(caps);
    swarm.say(worker, encode_hello(hello));
    swarm.run_for(1s);

    std::set<Unit> held;
    for (const Bytes& frame : swarm.frames_to(worker)) {
        const auto told = decode_assign(frame, swarm.core().options().limits);
        if (!told.ok()) continue;
        for (const AssignedUnit& unit : told->units) held.insert({unit.layer, unit.expert});
    }
    swarm.say(worker, encode_ready({held.begin(), held.end()}));
    return held;
}

TEST(SwarmHintsTest, GoToWhoHoldsExpertsOnDemandAndToNobodyElse) {
    SimOptions options{.num_workers = 0, .seed = 3, .log = true};
    options.swarm.local_fallback = false;
    SimSwarm swarm(options);
    SwarmCore& core = swarm.core();
    const WireLimits& limits = core.options().limits;
    const WorkerId plain = swarm.connect(false, "10.0.0.1");
    hold_all(swarm, plain, {"group"});
    EXPECT_FALSE(core.wants_hints());
    const WorkerId on_demand = swarm.connect(false, "10.1.0.1");
    const std::set<Unit> held = hold_all(swarm, on_demand, {"group", on_demand_cap});
    EXPECT_TRUE(core.wants_hints());
    ASSERT_FALSE(held.empty());

    std::vector<ExpertHint> hints;
    std::set<Unit> expected;
    for (std::uint16_t expert = 0; expert < limits.num_experts; ++expert) {
        hints.push_back({.layer = held.begin()->layer, .expert = expert, .confidence = 9});
        if (held.contains({held.begin()->layer, expert}))
            expected.insert({held.begin()->layer, expert});
    }
    const std::uint32_t top_k = core.options().top_k;
    std::vector<std::uint16_t> ids(top_k);
    for (std::uint32_t i = 0; i < top_k; ++i) ids[i] = static_cast<std::uint16_t>(i);
    const std::vector<float> x(limits.hidden_size, 0.5f), weights(top_k, 1.0f);
    std::vector<float> y(limits.hidden_size);
    std::vector<SwarmAction> actions;
    core.on_round(swarm.now(),
                  {.layer = held.begin()->layer,
                   .num_tokens = 1,
                   .hidden_size = limits.hidden_size,
                   .top_k = top_k,
                   .x = x,
                   .expert_ids = ids,
                   .expert_weights = weights,
                   .y = y,
                   .hints = hints},
                  actions);

    std::set<Unit> told;
    for (const SwarmAction& action : actions) {
        const auto* sent = std::get_if<SendFrame>(&action);
        if (sent == nullptr) continue;
        const auto units = decode_prefetch(sent->frame, limits);
        if (!units.ok()) continue;
        EXPECT_EQ(sent->worker, on_demand);
        for (const PrefetchHint& hint : *units) {
            EXPECT_EQ(hint.confidence, 9);
            told.insert(hint.unit);
        }
    }
    EXPECT_EQ(told, expected);
    EXPECT_EQ(core.counters().hints_sent, expected.size());

    swarm.leave(on_demand);
    EXPECT_FALSE(core.wants_hints());
}

}  // namespace
}  // namespace moex::sim
