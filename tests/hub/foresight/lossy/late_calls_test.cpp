// Tests the default vectors that substitute for late answers.
#include "hub/foresight/lossy/late_calls.h"

#include "tests/hub/foresight/lossy/lossy_fixture.h"

namespace moex {
namespace {

using LateCallsTest = test::LossyFixture;

// A backend with late answers: the first answer of each row that has a latency budget.
class FirstIsLate : public ExpertBackend {
  public:
    explicit FirstIsLate(ExpertBackend& experts) : experts_(experts) {}
    const char* name() const override { return "first-is-late"; }
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        struct Round : ExpertRound {
            Result<ExpertAnswer> wait(std::stop_token stop) override {
                auto answer = inner->wait(std::move(stop));
                if (answer.ok()) answer->late = late;
                return answer;
            }
            std::vector<float> weights;
            std::vector<LatePair> late;
            std::unique_ptr<ExpertRound> inner;
        };
        auto round = std::make_unique<Round>();
        round->weights.assign(batch.expert_weights.begin(), batch.expert_weights.end());
        for (const RowPatience& one : batch.patience) {
            round->weights[one.row * batch.top_k] = 0;
            round->late.push_back({one.row, batch.expert_ids[one.row * batch.top_k]});
        }
        ExpertBatch kept = batch;
        kept.expert_weights = round->weights;
        round->inner = experts_.submit(kept);
        return round;
    }

  private:
    ExpertBackend& experts_;
};

TEST_F(LateCallsTest, DefaultVectorSubstitutesForALateAnswerAlone) {
    FirstIsLate first_is_late(experts_);
    const auto late = make_late_calls(first_is_late, sources_.profile);
    EXPECT_STREQ(late->name(), "first-is-late");
    const std::uint32_t size = package_->config().hidden_size;
    const auto x = test::random_floats(2 * size, 4);
    const std::vector<std::uint16_t> ids{5, 1, 5, 1};
    const std::vector<float> weights{0.75f, 0.25f, 0.75f, 0.25f};
    const auto ask = [&](ExpertBackend& experts, std::span<const float> gates,
                         std::span<const RowPatience> patience) {
        std::vector<float> y(2 * size, 7.0f);
        EXPECT_TRUE(experts
                        .submit({.layer = 2,
                                 .num_tokens = 2,
                                 .hidden_size = size,
                                 .top_k = 2,
                                 .x = x,
                                 .expert_ids = ids,
                                 .expert_weights = gates,
                                 .y = y,
                                 .patience = patience})
                        ->wait()
                        .ok());
        return y;
    };
    const std::vector<float> whole = ask(experts_, weights, {});
    EXPECT_EQ(ask(*late, weights, {}), whole) << "rows without a bound get all answers";

    const RowPatience second[] = {{.row = 1, .wait = 1ms, .pairs_max = 1}};
    const std::vector<float> y = ask(*late, weights, second),
                             rest = ask(experts_, std::vector<float>{0.75f, 0.25f, 0, 0.25f}, {});
    for (std::uint32_t i = 0; i < size; ++i) {
        EXPECT_EQ(y[i], whole[i]);
        EXPECT_NEAR(y[size + i], rest[size + i] + 0.75f * sources_.profile->default_vector(2, 5)[i],
                    1e-6f);
    }
}

}  // namespace
}  // namespace moex
