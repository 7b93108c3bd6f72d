// Tests the checks of a worker's answers and their consequences: the judge with the demo model's
// experts, the trust records, and the judge's thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <random>

#include "hub/dispatch/trust/answer_judge.h"
#include "hub/dispatch/trust/answer_trust.h"
#include "hub/dispatch/trust/judge_thread.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/packer.h"
#include "protocol/expert_reference.h"
#include "protocol/half.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/lies.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

constexpr TimePoint start{1s};

// Answers as workers give them: x and y are rounded as on the wire, and each row of y is the sum
// over `pairs_per_row` experts.
class AnswerJudgeTest : public testing::TestWithParam<Dtype> {
  protected:
    AnswerJudgeTest()
        : package_(*ModelPackage::open(repository() / "static/models/demo")),
          threads_(2),
          experts_(package_, threads_, {}) {}

    // Draws rows like the output of an RMSNorm: with a mean square of 1 and a few outliers.
    std::vector<float> hidden_rows(std::uint32_t num_rows) {
        std::normal_distribution<float> normal;
        std::vector<float> x(std::size_t{num_rows} * hidden());
        for (float& value : x) value = normal(random_);
        for (std::uint32_t row = 0; row < num_rows; ++row) x[row * hidden() + row % 7] *= 8;
        return x;
    }

    AnswerSample honest_sample(std::uint32_t num_rows, std::uint32_t pairs_per_row) {
        AnswerSample sample{
            .layer = 3, .hidden_size = hidden(), .dtype = GetParam(), .x = hidden_rows(num_rows)};
        std::uniform_real_distribution<float> gate(0.01f, 0.5f);
        for (std::uint32_t expert = 0; expert < pairs_per_row; ++expert)
            for (std::uint32_t row = 0; row < num_rows; ++row)
                sample.pairs.push_back({.expert = static_cast<std::uint16_t>(expert + 2),
                                        .x_row = row,
                                        .y_row = row,
                                        .gate = half_to_float(float_to_half(gate(random_)))});
        sample.y = answer_to(sample, 0);
        return sample;
    }

    // Returns the answer of a worker that computes in f32. With `shift`, the worker uses the
    // weights of other experts, with ids greater by `shift`.
    std::vector<float> answer_to(const AnswerSample& sample, std::uint32_t shift) const {
        std::vector<float> x = sample.x, y(sample.x.size()), one(hidden());
        round_rows(sample.dtype, x, hidden());
        for (const CheckedPair& pair : sample.pairs) {
            const float gate[] = {pair.gate};
            EXPECT_TRUE(experts_
                            .compute(sample.layer, pair.expert + shift,
                                     std::span(x).subspan(pair.x_row * hidden(), hidden()), gate,
                                     one)
                            .ok());
            for (std::uint32_t i = 0; i < hidden(); ++i) y[pair.y_row * hidden() + i] += one[i];
        }
        round_rows(sample.dtype, y, hidden());
        return y;
    }

    // Factor by which an answer must be wrong to be noticed. Rounding to 8 bits hides an error of a
    // twentieth in rows with a large value.
    static float clear_factor() { return GetParam() == Dtype::int8 ? 1.5f : 1.05f; }
    std::uint32_t hidden() const { return package_->config().hidden_size; }

    std::mt19937_64 random_{7};
    std::shared_ptr<const ModelPackage> package_;
    ThreadPool threads_;
    LocalExperts experts_;
};

TEST_P(AnswerJudgeTest, HonestRowsStayWithinAThirdOfTheTolerance) {
    for (const std::uint32_t pairs_per_row : {1u, 4u}) {
        const AnswerSample sample = honest_sample(32, pairs_per_row);
        const Judgement judgement = judge_answer(sample, experts_);
        EXPECT_EQ(judgement.verdict, Verdict::honest);
        EXPECT_LE(judgement.residual, 1.0 / 3);
        EXPECT_EQ(judgement.gains.size(), sample.pairs.size());
    }
}

// The judge computes integer answers with integers, so a worker that claims to compute in 8 bits
// gets no larger tolerance.
TEST_P(AnswerJudgeTest, IntegersAreJudgedByIntegers) {
    const LocalExperts integers(package_, threads_, {}, Arithmetic::int8);
    AnswerSample sample = honest_sample(8, 1);
    sample.arithmetic = WorkerArithmetic::int8;
    std::vector<float> x = sample.x, one(hidden());
    round_rows(sample.dtype, x, hidden());
    for (const CheckedPair& pair : sample.pairs) {
        const float gate[] = {pair.gate};
        ASSERT_TRUE(integers
                        .compute_int8(sample.layer, pair.expert,
                                      std::span(x).subspan(pair.x_row * hidden(), hidden()), gate,
                                      one)
                        .ok());
        std::copy(one.begin(), one.end(), sample.y.begin() + pair.y_row * hidden());
    }
    round_rows(sample.dtype, sample.y, hidden());
    EXPECT_EQ(judge_answer(sample, integers).verdict, Verdict::honest);
    EXPECT_LE(judge_answer(sample, integers).residual, 1.0 / 3);
    EXPECT_EQ(judge_answer(sample, experts_).verdict, Verdict::honest) << "with room to spare";
    EXPECT_LE(judge_answer(sample, experts_).residual, 1.0 / 3);

    for (float& value : sample.y) value *= clear_factor();
    EXPECT_EQ(judge_answer(sample, integers).verdict, Verdict::lie);
}

TEST_P(AnswerJudgeTest, EveryPlausibleLieIsSeenInASingleRow) {
    for (std::size_t i = 0; i < plausible_lies.size(); ++i) {
        AnswerSample sample = honest_sample(1, 2);
        std::vector<float> previous = honest_sample(1, 2).y;
        if (plausible_lies[i] == Lie::other_expert)
            sample.y = answer_to(sample, 1);
        else
            tell_lie(plausible_lies[i], std::span(sample.y), previous, random_);
        round_rows(sample.dtype, sample.y, hidden());
        EXPECT_EQ(judge_answer(sample, experts_).verdict, Verdict::lie) << plausible_lie_names[i];
    }
}

TEST_P(AnswerJudgeTest, OneFalseRowAmongManyIsALie) {
    AnswerSample sample = honest_sample(16, 2);
    for (std::uint32_t i = 0; i < hidden(); ++i) sample.y[5 * hidden() + i] *= clear_factor();
    EXPECT_EQ(judge_answer(sample, experts_).verdict, Verdict::lie);
}

TEST_P(AnswerJudgeTest, TwoHonestAnswersAgreeAndALieDoesNot) {
    const AnswerSample sample = honest_sample(4, 3);
    std::vector<float> lie = sample.y;
    for (float& value : lie) value *= clear_factor();
    EXPECT_TRUE(answers_agree(sample.y, sample.y, hidden(), sample.dtype, arithmetic_tolerance));
    EXPECT_FALSE(answers_agree(sample.y, lie, hidden(), sample.dtype, arithmetic_tolerance));
}

INSTANTIATE_TEST_SUITE_P(Wire, AnswerJudgeTest,
                         testing::Values(Dtype::f16, Dtype::bf16, Dtype::int8, Dtype::f32),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

// A judge without weights for the expert, or with a failing disk.
class NoWeights : public ExpertCompute {
  public:
    Status compute(std::uint32_t, std::uint32_t, std::span<const float>, std::span<const float>,
                   std::span<float>) const override {
        return Error{ErrorCode::not_found, "no weights"};
    }
};

// Experts that all return y = x.
class IdentityExperts : public ExpertCompute {
  public:
    Status compute(std::uint32_t, std::uint32_t, std::span<const float> x, std::span<const float>,
                   std::span<float> y) const override {
        std::copy(x.begin(), x.end(), y.begin());
        return {};
    }
};

AnswerSample identity_sample(std::uint64_t id, float answer) {
    return {.id = id,
            .hidden_size = 1,
            .dtype = Dtype::f32,
            .pairs = {{.gate = 1}},
            .x = {2},
            .y = {answer}};
}

TEST(AnswerJudge, JudgeReportsMissingWeightsAndNonNumbers) {
    EXPECT_EQ(judge_answer(identity_sample(1, 2), NoWeights()).verdict, Verdict::undecided);
    EXPECT_EQ(judge_answer(identity_sample(1, std::nanf("")), IdentityExperts()).verdict,
              Verdict::lie);
}

// gpt-oss's experts. A worker that leaves out a part of their form, as one of an earlier version
// would, is found out in one row.
class ClampedJudgeTest : public testing::TestWithParam<Dtype> {
  protected:
    static constexpr std::uint32_t hidden = 64, num_experts = 6;

    ClampedJudgeTest() : folder_("clamped-judge"), threads_(2) {
        const auto report = pack_checkpoint(repository() / "tests/golden/families/gpt-oss-mxfp4",
                                            folder_.path() / "package", {}, threads_, {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        package_ = ModelPackage::open(folder_.path() / "package").value();
    }

    // Returns the verdict on each expert's answer to one row, if a worker computes with the weights
    // as `change` leaves them; and the largest residual.
    std::vector<Verdict> verdicts(const std::function<void(ExpertWeights&)>& change) {
        const LocalExperts judge(package_, threads_, {});
        std::mt19937_64 random(11);
        std::normal_distribution<float> normal;
        std::vector<Verdict> verdicts;
        residual_ = 0;
        for (std::uint16_t expert = 0; expert < num_experts; ++expert) {
            AnswerSample sample{.layer = 1,
                                .hidden_size = hidden,
                                .dtype = GetParam(),
                                .pairs = {{.expert = expert, .gate = 0.25f}}};
            for (std::uint32_t i = 0; i < hidden; ++i) sample.x.push_back(normal(random));
            ExpertWeights weights = dequantize_expert(view_expert_blob(*package_->blob(1, expert),
                                                                       package_->expert_shape(),
                                                                       package_->expert_dtype())
                                                          .value());
            change(weights);
            std::vector<float> x = sample.x, y(hidden);
            round_rows(sample.dtype, x, hidden);
            expert_reference(std::span<float>(y), weights, std::span<const float>(x));
            for (const float value : y) sample.y.push_back(0.25f * value);
            round_rows(sample.dtype, sample.y, hidden);
            const Judgement judgement = judge_answer(sample, judge);
            verdicts.push_back(judgement.verdict);
            residual_ = std::max(residual_, judgement.residual);
        }
        return verdicts;
    }

    test::TemporaryFolder folder_;
    ThreadPool threads_;
    std::shared_ptr<const ModelPackage> package_;
    double residual_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Dtypes, ClampedJudgeTest,
                         testing::Values(Dtype::f16, Dtype::bf16, Dtype::int8),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_P(ClampedJudgeTest, APartLeftOutIsALie) {
    const std::vector<Verdict> honest(num_experts, Verdict::honest),
        lies(num_experts, Verdict::lie);
    EXPECT_EQ(verdicts([](ExpertWeights&) {}), honest);
    EXPECT_LE(residual_, 1.0 / 3);
    EXPECT_EQ(verdicts([](ExpertWeights& weights) { weights.shape.clamp = 0; }), lies);
    EXPECT_EQ(verdicts([](ExpertWeights& weights) {
                  weights.gate_bias.assign(weights.gate_bias.size(), 0);
                  weights.up_bias.assign(weights.up_bias.size(), 0);
              }),
              lies);
    EXPECT_EQ(verdicts([](ExpertWeights& weights) {
                  weights.down_bias.assign(weights.down_bias.size(), 0);
              }),
              lies);
}

TEST(JudgeThread, AwaitedSamplesAreJudgedAndAllAreAnswered) {
    constexpr std::uint64_t num_samples = 1000;
    std::promise<void> all;
    std::vector<int> seen(num_samples);
    std::uint64_t num_done = 0;
    std::mutex mutex;
    const IdentityExperts identity;
    JudgeThread judge(identity, [&](std::uint64_t id, const Judgement& judgement) {
        const std::lock_guard lock(mutex);
        ++seen[id];
        if (id % 2 == 0) {  // samples that a round awaits are never dropped
            EXPECT_EQ(judgement.verdict, id % 4 == 0 ? Verdict::honest : Verdict::lie);
        }
        if (++num_done == num_samples) all.set_value();
    });
    for (std::uint64_t id = 0; id < num_samples; ++id) {
        AnswerSample sample = identity_sample(id, id % 4 == 0 ? 2 : 3);
        sample.awaited = id % 2 == 0;
        judge.submit(std::move(sample));
    }
    all.get_future().wait();
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

// ---- trust

class AnswerTrustTest : public testing::Test {
  protected:
    CheckPlan answer(std::uint32_t num_rows = 1, bool odd = false) {
        return trust_.plan("key", 7, num_rows, 8 * num_rows, odd, now_);
    }
    bool say(Verdict verdict, const CheckPlan& plan) {
        return trust_.on_verdict("key", 7, verdict, plan, now_);
    }
    void prove() {
        for (std::uint32_t row = 0; row < options_.to_prove; ++row) say(Verdict::honest, answer());
    }
    const CheckOptions options_{.on = true, .judge = true, .seed = 5};
    AnswerTrust trust_{options_};
    TimePoint now_ = start;
};

TEST_F(AnswerTrustTest, EveryRowOfAnUnprovenWorkerIsHeldAndChecked) {
    for (std::uint32_t row = 0; row < options_.to_prove; ++row) {
        const CheckPlan plan = answer();
        EXPECT_TRUE(plan.hold);
        EXPECT_EQ(plan.rows, std::vector<std::uint32_t>{0});
        say(Verdict::honest, plan);
    }
    EXPECT_EQ(trust_.trust("key", now_), Trust::proven);
    EXPECT_FALSE(answer().hold);
}

TEST_F(AnswerTrustTest, UndecidedProvesNothing) {
    for (int i = 0; i < 5000; ++i) say(Verdict::undecided, answer());
    EXPECT_EQ(trust_.trust("key", now_), Trust::unproven);
    EXPECT_EQ(trust_.pairs_credited("key"), 0u);
}

TEST_F(AnswerTrustTest, TheRateFallsWithTheRecordDownToItsLeast) {
    prove();
    EXPECT_EQ(trust_.rate("key", now_), 1);
    std::uint64_t num_checked = 0;
    constexpr std::uint32_t num_rows = 1 << 20;
    for (std::uint32_t i = 0; i < num_rows / 64; ++i) {
        const CheckPlan plan = answer(64);
        num_checked += plan.rows.size();
        if (!plan.rows.empty()) say(Verdict::honest, plan);
    }
    EXPECT_EQ(trust_.rate("key", now_), 1.0 / 256);
    // Expected number of checked rows, the integral of the rate q: 1024 ln 256 rows while q falls,
    // and 1 row in 256 afterwards.
    const double expected = 1024 * std::log(256) + (num_rows + 1024 - 262'144) / 256.0;
    EXPECT_NEAR(static_cast<double>(num_checked), expected, 0.05 * expected);
}

// If answers have several rows, a worker is proven after as many answers as rows would be needed.
// Until then each answer waits for the verdict on some of its rows.
TEST_F(AnswerTrustTest, NewWorkerHasRowsOfEachAnswerHeldAndChecked) {
    constexpr std::uint32_t num_rows = 8;
    std::size_t num_checked = 0;
    for (std::uint32_t given = 0; given < options_.to_prove; ++given) {
        EXPECT_EQ(trust_.trust("key", now_), Trust::unproven) << given;
        const CheckPlan plan = answer(num_rows);
        EXPECT_TRUE(plan.hold);
        EXPECT_GE(plan.rows.size(), given < options_.to_prove / num_rows ? num_rows : 1u) << given;
        EXPECT_TRUE(std::ranges::is_sorted(plan.rows));
        num_checked += plan.rows.size();
        say(Verdict::honest, plan);
    }
    EXPECT_EQ(trust_.trust("key", now_), Trust::proven);
    EXPECT_FALSE(answer(num_rows).hold);
    const double expected = options_.to_prove * (1 + std::log(num_rows));
    EXPECT_NEAR(static_cast<double>(num_checked), expected, 0.1 * expected);
}

// This test checks a claim of answer_trust.h: if a tenth of all workers lie in one of a hundred
// answers, at most one false row in 100,000 counts.
TEST_F(AnswerTrustTest, OnePercentLiarIsOutBeforeALieCounts) {
    std::mt19937_64 random(3);
    for (const std::uint32_t num_rows : {1u, 8u, 40u}) {
        double rows = 0, rows_wrong = 0;
        for (int liar = 0; liar < 400; ++liar) {
            const std::string key = text(num_rows, '/', liar);
            for (bool banned = false; !banned; rows += num_rows) {
                const bool lies = random() % 100 == 0;
                const CheckPlan plan = trust_.plan(key, 0, num_rows, num_rows, false, now_);
                const bool seen = lies && !plan.rows.empty();
                if (lies && !(seen && plan.hold)) rows_wrong += num_rows;
                if (!plan.rows.empty())
                    banned = trust_.on_verdict(key, 0, seen ? Verdict::lie : Verdict::honest, plan,
                                               now_);
            }
        }
        EXPECT_LE(0.1 * rows_wrong, 1e-5 * rows) << num_rows << " rows an answer";
    }
}

// This test checks another claim of answer_trust.h: a worker that starts to lie after n honest rows
// (a sleeper) is detected after n / to_prove false rows on average.
TEST_F(AnswerTrustTest, ASleeperGetsOneInAThousandOfItsRecordThrough) {
    for (const std::uint32_t record : {8'192u, 65'536u}) {
        double passed = 0;
        constexpr int num_sleepers = 400;
        for (int sleeper = 0; sleeper < num_sleepers; ++sleeper) {
            const std::string key = text(record, '/', sleeper);
            // rows per answer, so that the record contains enough answers to make the worker proven
            const std::uint32_t each = record / 1024;
            for (std::uint32_t rows = 0; rows < record; rows += each)
                trust_.on_verdict(key, 0, Verdict::honest,
                                  trust_.plan(key, 0, each, each, false, now_), now_);
            while (trust_.plan(key, 0, 1, 1, false, now_).rows.empty()) ++passed;
        }
        const double mean = passed / num_sleepers;
        EXPECT_NEAR(mean, record / 1024.0 - 1, 0.2 * record / 1024.0) << record;
    }
}

TEST_F(AnswerTrustTest, ALieStartsTheRecordAnewAndTheThirdEndsIt) {
    prove();
    const CheckPlan plan = answer();
    EXPECT_FALSE(say(Verdict::lie, plan));
    EXPECT_EQ(trust_.trust("key", now_), Trust::suspected);
    EXPECT_TRUE(answer().hold);
    EXPECT_FALSE(say(Verdict::lie, answer()));
    EXPECT_TRUE(say(Verdict::lie, answer()));
    EXPECT_EQ(trust_.trust("key", now_), Trust::banned);
    EXPECT_EQ(trust_.banned_for("key", now_), 10min);
}

TEST_F(AnswerTrustTest, ABanGrowsAndEndsAndIsLifted) {
    trust_.ban("key", now_);
    EXPECT_EQ(trust_.banned_for("key", now_ + 4min), 6min);
    now_ += 11min;
    EXPECT_EQ(trust_.banned_for("key", now_), 0min);
    EXPECT_EQ(trust_.trust("key", now_), Trust::unproven);

    EXPECT_TRUE(say(Verdict::lie, answer())) << "one lie after a ban is enough";
    EXPECT_EQ(trust_.banned_for("key", now_), 20min);
    trust_.lift("key");
    EXPECT_EQ(trust_.banned_for("key", now_), 0min);
    for (int i = 0; i < 40; ++i) trust_.ban("key", now_);
    EXPECT_EQ(trust_.banned_for("key", now_), 720h);
}

TEST_F(AnswerTrustTest, OddAnswerOfAnyWorkerIsHeld) {
    prove();
    EXPECT_TRUE(answer(3, true).hold);
    EXPECT_EQ(answer(3, true).rows.size(), 3u);
}

TEST_F(AnswerTrustTest, CreditWaitsForARowThatWasRightAndALieStrikesOutTheRest) {
    prove();
    const std::uint64_t credited = trust_.pairs_credited("key");
    EXPECT_EQ(credited, 8u * options_.to_prove);

    const CheckPlan first = answer(10);
    EXPECT_EQ(trust_.pairs_credited("key"), credited);
    say(Verdict::honest, first);
    EXPECT_EQ(trust_.pairs_credited("key"), credited + 80);

    const CheckPlan early = answer(10);
    answer(10);
    say(Verdict::honest, early);
    EXPECT_EQ(trust_.pairs_credited("key"), credited + 160) << "only what it had answered by then";
    say(Verdict::lie, answer(10));
    const CheckPlan held = answer(2);
    say(Verdict::honest, held);
    EXPECT_EQ(trust_.pairs_credited("key"), credited + 160 + 16);
}

TEST_F(AnswerTrustTest, AddressRaisesTheRateOfItsKeysWithoutBans) {
    prove();
    for (std::uint32_t rows = 0; rows < 4 * options_.to_prove; rows += 64) answer(64);
    const auto share = [&](std::uint64_t address) {
        std::size_t num_checked = 0;
        for (int i = 0; i < 2000; ++i)
            num_checked += trust_.plan("key", address, 1, 1, false, now_).rows.size();
        return static_cast<double>(num_checked) / 2000;
    };
    const double before = share(9);
    for (const char* key : {"a", "b"})
        trust_.on_verdict(key, 9, Verdict::lie, trust_.plan(key, 9, 1, 1, false, now_), now_);
    EXPECT_GT(share(9), 1.5 * before);
    EXPECT_NEAR(share(8), before, 0.1);
    EXPECT_EQ(trust_.banned_for("key", now_), 0min);

    for (const char* key : {"c", "d"})  // address 0 is loopback
        trust_.on_verdict(key, 0, Verdict::lie, trust_.plan(key, 0, 1, 1, false, now_), now_);
    EXPECT_NEAR(share(0), before, 0.1);
}

TEST_F(AnswerTrustTest, LiesAreForgottenOneADay) {
    say(Verdict::lie, answer());
    say(Verdict::lie, answer());
    now_ += 25h;
    answer();
    EXPECT_EQ(trust_.lies("key"), 1u);
}

// A worker joins another hub, which goes on from its record, and returns with what was added there.
TEST_F(AnswerTrustTest, ARecordIsTakenOverByAnotherHub) {
    prove();
    say(Verdict::honest, answer(64, true));
    AnswerTrust elsewhere(options_);
    elsewhere.set_record("key", trust_.record("key"));
    EXPECT_EQ(elsewhere.record("key"), trust_.record("key"));
    EXPECT_EQ(elsewhere.trust("key", now_), Trust::proven);
    EXPECT_EQ(elsewhere.rate("key", now_), trust_.rate("key", now_));
    EXPECT_EQ(elsewhere.rows_verified("key"), trust_.rows_verified("key"));
    EXPECT_EQ(elsewhere.record("another key"), TrustRecord{});

    // Lies are counted over both, and the third one bans the key.
    for (int lie = 0; lie < 2; ++lie) EXPECT_FALSE(say(Verdict::lie, answer()));
    const TrustRecord lied = trust_.record("key");
    EXPECT_EQ(lied.lies, 2u);
    EXPECT_EQ(lied.times_suspected, 2u);
    EXPECT_EQ(lied.rows_answered, 0u);
    elsewhere.set_record("key", lied);
    EXPECT_EQ(elsewhere.trust("key", now_), Trust::suspected);
    const CheckPlan plan = elsewhere.plan("key", 7, 1, 8, false, now_);
    EXPECT_TRUE(plan.hold);
    EXPECT_TRUE(elsewhere.on_verdict("key", 7, Verdict::lie, plan, now_));
}

TEST_F(AnswerTrustTest, RecordsHaveABound) {
    for (int i = 0; i < 25'000; ++i) trust_.plan(text(i), 0, 1, 1, false, now_);
    EXPECT_EQ(trust_.num_records(), 20'000u);
    EXPECT_EQ(trust_.rate("24999", now_), 1);
}

TEST(ExpertGains, BoundIsFourTimesTheLargestOnceEnoughWasSeen) {
    ExpertGains gains(2);
    for (int i = 0; i < 15; ++i) gains.learn(1, 0.5f);
    EXPECT_TRUE(std::isinf(gains.bound(1)));
    gains.learn(1, 0.75f);
    EXPECT_EQ(gains.bound(1), 3);
    EXPECT_TRUE(std::isinf(gains.bound(0)));
}

}  // namespace
}  // namespace moex
