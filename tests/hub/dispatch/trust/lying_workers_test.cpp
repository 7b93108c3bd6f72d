// Tests workers that send plausible lies. The hub checks their answers with its own weights, or
// with the answers of other workers.
#include <gtest/gtest.h>

#include "tests/sim/sim_swarm.h"

namespace moex::sim {
namespace {

SimOptions checked(std::uint32_t num_workers, bool has_weights = true) {
    SimOptions options{.num_workers = num_workers, .seed = 5};
    options.swarm.local_fallback = false;
    options.swarm.replicas = num_workers;
    options.swarm.checks.on = true;
    options.swarm.checks.judge = has_weights;
    return options;
}

struct Outcome {
    std::uint64_t wrong = 0, failed = 0;
    RowProvenance sum;
};

// Runs `num_rounds` rounds one after the other, like the layers of a token.
Outcome ask(SimSwarm& swarm, int num_rounds, std::uint32_t num_tokens = 2) {
    Outcome out;
    for (int i = 0; i < num_rounds; ++i) {
        const RoundId round = swarm.submit(
            {.layer = static_cast<std::uint32_t>(i % 3), .num_tokens = num_tokens});
        const bool ok = swarm.run_until_answered(round);
        const RoundOutcome& outcome = swarm.outcome(round);
        out.failed += !ok;
        out.wrong += outcome.wrong;
        for (const RowProvenance& row :
             ok ? (*outcome.answer)->rows : std::vector<RowProvenance>{}) {
            out.sum.pairs_remote += row.pairs_remote;
            out.sum.pairs_verified += row.pairs_verified;
            out.sum.pairs_proven += row.pairs_proven;
        }
    }
    EXPECT_TRUE(swarm.violations().empty()) << swarm.violations().front();
    return out;
}

std::size_t count(const SimSwarm& swarm, WorkerEvent::Kind kind, WorkerId worker) {
    return static_cast<std::size_t>(std::count_if(
        swarm.worker_events().begin(), swarm.worker_events().end(),
        [&](const auto& event) { return event.kind == kind && event.worker == worker; }));
}

class PlausibleLies : public testing::TestWithParam<Lie> {};

TEST_P(PlausibleLies, ChangeNothingWhereTheHubHasTheWeights) {
    for (const ExpertRounding rounding : {ExpertRounding{}, ExpertRounding{.deterministic = true},
                                          ExpertRounding{.wire_dtype = Dtype::f32}}) {
        SimOptions options = checked(3);
        options.swarm.rounding = rounding;
        SimSwarm swarm(options);
        ASSERT_TRUE(swarm.run_until_ready());
        const WorkerId liar = swarm.workers_alive()[1];
        swarm.lie(liar, GetParam());

        const Outcome out = ask(swarm, 40);
        EXPECT_EQ(out.wrong, 0u);
        EXPECT_EQ(out.failed, 0u);
        EXPECT_EQ(out.sum.pairs_verified, out.sum.pairs_remote);
        EXPECT_EQ(swarm.closed_with(liar), CloseCode::policy);
        EXPECT_EQ(count(swarm, WorkerEvent::Kind::lied, liar), 3u);
        EXPECT_EQ(count(swarm, WorkerEvent::Kind::banned, liar), 1u);
        EXPECT_EQ(swarm.core().counters().lies, 3u) << "no honest worker is blamed";
        EXPECT_LE(swarm.core().counters().residual_max, 1.0 / 3);
    }
}

TEST_P(PlausibleLies, ChangeNothingWhereTwoOthersJudge) {
    SimSwarm swarm(checked(4, false));
    ASSERT_TRUE(swarm.run_until_ready());
    const WorkerId liar = swarm.workers_alive()[1];
    swarm.lie(liar, GetParam());

    const Outcome out = ask(swarm, 80);
    EXPECT_EQ(out.wrong, 0u);
    EXPECT_EQ(out.failed, 0u);
    EXPECT_EQ(swarm.closed_with(liar), CloseCode::policy);
    EXPECT_EQ(swarm.core().counters().lies, 3u);
}

INSTANTIATE_TEST_SUITE_P(All, PlausibleLies, testing::ValuesIn(plausible_lies),
                         [](const auto& lie) { return text("lie_", lie.index); });

TEST(LyingWorkersTest, UncheckableAnswerIsMarked) {
    SimSwarm swarm(checked(1, false));
    ASSERT_TRUE(swarm.run_until_ready());
    const Outcome out = ask(swarm, 10);
    EXPECT_EQ(out.wrong, 0u);
    EXPECT_GT(out.sum.pairs_remote, 0u);
    EXPECT_EQ(out.sum.pairs_verified + out.sum.pairs_proven, 0u);
    EXPECT_EQ(swarm.core().counters().pairs_unchecked, out.sum.pairs_remote);
}

TEST(LyingWorkersTest, TwoDifferingWorkersAreSuspectedNotBanned) {
    SimSwarm swarm(checked(2, false));
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.lie(swarm.workers_alive()[0], Lie::scaled);
    const Outcome out = ask(swarm, 20);
    EXPECT_EQ(out.failed, 0u);
    EXPECT_EQ(out.sum.pairs_verified, 0u);
    EXPECT_EQ(swarm.workers_alive().size(), 2u);
    for (const WorkerView& worker : swarm.core().workers())
        EXPECT_EQ(worker.trust, Trust::suspected);
}

TEST(LyingWorkersTest, AWorkerWithARecordIsCheckedAtARateAndItsFirstLieSeenEndsIt) {
    SimOptions options = checked(2);
    options.swarm.checks.to_prove = 64;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());
    Outcome out = ask(swarm, 300, 4);
    EXPECT_EQ(out.wrong, 0u);
    EXPECT_GT(out.sum.pairs_proven, out.sum.pairs_verified);
    const WorkerId sleeper = swarm.workers_alive()[0];
    EXPECT_EQ(swarm.core().worker(sleeper)->trust, Trust::proven);
    EXPECT_LT(swarm.core().worker(sleeper)->check_rate, 0.2);

    swarm.lie(sleeper, Lie::scaled_1_5);
    out = ask(swarm, 300, 4);
    EXPECT_LE(out.wrong, 100u)
        << "64 rows to prove, 1,200 answered: some 20 pass before one is seen";
    EXPECT_EQ(swarm.closed_with(sleeper), CloseCode::policy);
    EXPECT_EQ(count(swarm, WorkerEvent::Kind::lied, sleeper), 3u);
    EXPECT_EQ(ask(swarm, 50, 4).wrong, 0u);
}

// An answer with a norm that is larger than any that its experts gave before is held for a check,
// even if it comes from a proven worker.
TEST(LyingWorkersTest, AnAbsurdAnswerOfAProvenWorkerIsHeld) {
    for (const Lie lie : {Lie::zero, Lie::scaled_1000, Lie::constant}) {
        SimOptions options = checked(2);
        options.swarm.checks.to_prove = 64;
        SimSwarm swarm(options);
        ASSERT_TRUE(swarm.run_until_ready());
        EXPECT_EQ(ask(swarm, 600, 4).wrong, 0u);
        swarm.lie(swarm.workers_alive()[0], lie);
        EXPECT_EQ(ask(swarm, 50, 4).wrong, 0u);
    }
}

TEST(LyingWorkersTest, ImpossibleAnswerIsALieWithoutRecomputation) {
    for (const Lie lie : {Lie::shape, Lie::not_finite, Lie::huge}) {
        SimSwarm swarm(checked(3));
        ASSERT_TRUE(swarm.run_until_ready());
        const WorkerId liar = swarm.workers_alive()[1];
        swarm.lie(liar, lie);

        const Outcome out = ask(swarm, 40);
        EXPECT_EQ(out.wrong + out.failed, 0u);
        EXPECT_EQ(swarm.closed_with(liar), CloseCode::policy);
        EXPECT_EQ(count(swarm, WorkerEvent::Kind::lied, liar), 3u);
        EXPECT_EQ(count(swarm, WorkerEvent::Kind::banned, liar), 1u);
        EXPECT_EQ(swarm.core().counters().bad_answers, 3u);
        EXPECT_EQ(swarm.core().counters().rows_wrong, 0u);
    }
}

TEST(LyingWorkersTest, ABannedKeyStaysOutForItsTime) {
    SimSwarm swarm(checked(2));
    const WorkerId liar = swarm.join(Peer::ours, "10.0.0.9", "liar");
    ASSERT_TRUE(swarm.run_until_ready());
    swarm.lie(liar, Lie::negated);
    ask(swarm, 40);
    ASSERT_EQ(swarm.closed_with(liar), CloseCode::policy);

    const WorkerId again = swarm.join(Peer::ours, "10.0.0.9", "liar");
    const WorkerId other = swarm.join(Peer::ours, "10.0.0.9", "of the same house");
    swarm.run_for(1s);
    EXPECT_EQ(swarm.closed_with(again), CloseCode::policy);
    EXPECT_EQ(swarm.closed_with(other), std::nullopt);

    swarm.run_for(11min);
    const WorkerId later = swarm.join(Peer::ours, "10.0.0.9", "liar");
    swarm.run_for(1s);
    EXPECT_EQ(swarm.closed_with(later), std::nullopt);
}

// Workers without a record get at most a fifth of the work. Otherwise a client with ten new keys
// would get most calls, and the hub would compute all of them again.
TEST(LyingWorkersTest, NewcomersGetAFifthWhileOthersHaveARecord) {
    SimOptions options = checked(2);
    options.swarm.checks.to_prove = 64;
    options.swarm.replicas = 12;
    SimSwarm swarm(options);
    ASSERT_TRUE(swarm.run_until_ready());
    ask(swarm, 600, 4);
    const std::vector<WorkerId> proven = swarm.workers_alive();
    for (const WorkerId id : proven) ASSERT_EQ(swarm.core().worker(id)->trust, Trust::proven);

    std::vector<WorkerId> newcomers;
    for (int i = 0; i < 10; ++i)
        newcomers.push_back(swarm.join(Peer::ours, text("10.1.", i, ".1")));
    ASSERT_TRUE(swarm.run_until_ready());
    const auto pairs_of = [&](const std::vector<WorkerId>& ids) {
        double sum = 0;
        for (const WorkerId id : ids)
            sum += static_cast<double>(swarm.core().worker(id)->pairs_answered);
        return sum;
    };
    // these rounds are not measured, because earlier work still counts for a while
    ask(swarm, 200, 4);
    const double of_proven = pairs_of(proven), of_new = pairs_of(newcomers);
    ask(swarm, 200, 4);
    for (const WorkerId id : newcomers) ASSERT_EQ(swarm.core().worker(id)->trust, Trust::unproven);
    const double more_of_new = pairs_of(newcomers) - of_new,
                 all = more_of_new + pairs_of(proven) - of_proven;
    EXPECT_GT(more_of_new, 0);
    EXPECT_LE(more_of_new, 0.25 * all);
}

TEST(LyingWorkersTest, RecordsOutliveAConnection) {
    SimOptions options = checked(1);
    options.swarm.checks.to_prove = 64;
    SimSwarm swarm(options);
    const WorkerId first = swarm.join(Peer::ours, "10.0.0.9", "key");
    ASSERT_TRUE(swarm.run_until_ready());
    ask(swarm, 200, 4);
    swarm.run_for(1s);  // time in which the judge finishes
    ASSERT_EQ(swarm.core().worker(first)->trust, Trust::proven);
    swarm.leave(first);
    const WorkerId again = swarm.join(Peer::ours, "10.0.0.9", "key");
    swarm.run_for(1s);
    EXPECT_EQ(swarm.core().worker(again)->trust, Trust::proven);
    EXPECT_GT(swarm.core().worker(again)->rows_verified, 64u);
    EXPECT_EQ(swarm.core().worker(again)->pairs_credited, 0u) << "each connection counts its own";
}

// All faults occur at once, with plausible lies. The invariants hold, and false rows can only come
// from workers with a trust record.
TEST(LyingWorkersTest, UnderFaultsTheCoreKeepsItsInvariants) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        SimOptions options = checked(6, seed % 2 == 0);
        options.seed = seed;
        options.swarm.replicas = 3;
        options.swarm.local_fallback = seed % 4 == 0;
        options.swarm.hedge = {.mode = seed % 3 == 0 ? HedgeMode::fixed : HedgeMode::delayed,
                               .copies = 2};
        options.faults = *parse_faults("stalls,busy,errors,delay,liars");
        SimSwarm swarm(options);
        swarm.run_until_ready();
        swarm.lie(swarm.workers_alive()[0], plausible_lies[seed % plausible_lies.size()]);
        std::mt19937_64 random(seed);
        for (int i = 0; i < 150; ++i) {
            swarm.submit({.layer = static_cast<std::uint32_t>(random() % 3),
                          .num_tokens = 1 + static_cast<std::uint32_t>(random() % 9)});
            if (random() % 20 == 0 && swarm.workers_alive().size() > 3)
                swarm.leave(swarm.workers_alive()[random() % swarm.workers_alive().size()]);
            if (random() % 10 == 0) swarm.join(Peer::ours, text("10.", random() % 3, ".0.1"));
            swarm.run_for(std::chrono::milliseconds(random() % 200));
        }
        EXPECT_TRUE(swarm.run_until_idle()) << "seed " << seed;
        for (const std::string& violation : swarm.violations()) ADD_FAILURE() << violation;
    }
}

}  // namespace
}  // namespace moex::sim
