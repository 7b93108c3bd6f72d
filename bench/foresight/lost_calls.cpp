#include "bench/foresight/lost_calls.h"

#include "hub/foresight/lossy/late_calls.h"
#include "hub/foresight/predict/random.h"

namespace moex::bench {
namespace {

// One round. Requests lost (row, expert) pairs with a weight of 0, and adds their default vectors
// at the end.
class LossyRound : public ExpertRound {
  public:
    LossyRound(ExpertBackend& experts, const ExpertProfile& profile, const ExpertBatch& batch,
               std::vector<float> weights)
        : profile_(profile),
          batch_(batch),
          weights_(std::move(weights)) {
        ExpertBatch kept = batch;
        kept.expert_weights = weights_;
        round_ = experts.submit(kept);
    }

    Result<ExpertAnswer> wait(std::stop_token stop) override {
        auto answer = round_->wait(std::move(stop));
        if (!answer.ok()) return answer;

        for (std::size_t pair = 0; pair < weights_.size(); ++pair)
            if (weights_[pair] == 0 && batch_.expert_weights[pair] != 0)
                add_default_vector(batch_, profile_, pair);
        return answer;
    }

  private:
    const ExpertProfile& profile_;
    ExpertBatch batch_;
    std::vector<float> weights_;
    std::unique_ptr<ExpertRound> round_;
};

class LostCalls : public ExpertBackend {
  public:
    LostCalls(ExpertBackend& experts, std::shared_ptr<const ExpertProfile> profile, double share,
              std::uint64_t seed)
        : experts_(experts),
          profile_(std::move(profile)),
          share_(share),
          random_(seed) {}
    const char* name() const override { return "lossy"; }

    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        std::vector<float> weights(batch.expert_weights.begin(), batch.expert_weights.end());
        for (float& weight : weights)
            if (random_.unit() < share_) weight = 0;
        return std::make_unique<LossyRound>(experts_, *profile_, batch, std::move(weights));
    }

  private:
    ExpertBackend& experts_;
    std::shared_ptr<const ExpertProfile> profile_;
    double share_ = 0;
    SplitMix64 random_;
};

}  // namespace

std::unique_ptr<ExpertBackend> make_lost_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile,
                                               double share, std::uint64_t seed) {
    return std::make_unique<LostCalls>(experts, std::move(profile), share, seed);
}

}  // namespace moex::bench
