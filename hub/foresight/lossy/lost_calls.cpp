#include "hub/foresight/lossy/lost_calls.h"

#include <algorithm>

#include "hub/engine/kernels.h"
#include "hub/foresight/predict/random.h"
#include "protocol/check.h"

namespace moex {
namespace {

// Of one (row, expert) pair of the batch, in the place of its answer.
void add_default(const ExpertBatch& batch, const ExpertProfile& profile, std::size_t pair) {
    add_scaled_to(batch.y.subspan(pair / batch.top_k * batch.hidden_size, batch.hidden_size),
                  profile.default_vector(batch.layer, batch.expert_ids[pair]),
                  batch.expert_weights[pair]);
}

// The pairs that were lost are asked with a weight of 0.
class Round : public ExpertRound {
  public:
    Round(ExpertBackend& experts, const ExpertProfile& profile, const ExpertBatch& batch,
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
                add_default(batch_, profile_, pair);
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
        return std::make_unique<Round>(experts_, *profile_, batch, std::move(weights));
    }

  private:
    ExpertBackend& experts_;
    std::shared_ptr<const ExpertProfile> profile_;
    double share_ = 0;
    SplitMix64 random_;
};

class LateRound : public ExpertRound {
  public:
    LateRound(std::unique_ptr<ExpertRound> round, const ExpertBatch& batch,
              const ExpertProfile& profile)
        : round_(std::move(round)),
          batch_(batch),
          profile_(profile) {}

    Result<ExpertAnswer> wait(std::stop_token stop) override {
        auto answer = round_->wait(std::move(stop));
        if (!answer.ok()) return answer;

        for (const LatePair& late : answer->late) {
            const std::size_t first = std::size_t{late.row} * batch_.top_k;
            const auto ids = batch_.expert_ids.subspan(first, batch_.top_k);
            const auto found = std::find(ids.begin(), ids.end(), late.expert);
            MOEX_CHECK(found != ids.end(), text("row ", late.row, " never asked ", late.expert));
            add_default(batch_, profile_, first + static_cast<std::size_t>(found - ids.begin()));
        }
        return answer;
    }

  private:
    std::unique_ptr<ExpertRound> round_;
    ExpertBatch batch_;
    const ExpertProfile& profile_;
};

class LateCalls : public ExpertBackend {
  public:
    LateCalls(ExpertBackend& experts, std::shared_ptr<const ExpertProfile> profile)
        : experts_(experts),
          profile_(std::move(profile)) {}
    const char* name() const override { return experts_.name(); }
    bool works_elsewhere() const override { return experts_.works_elsewhere(); }
    bool wants_hints() const override { return experts_.wants_hints(); }
    void hint(std::span<const ExpertHint> hints) override { experts_.hint(hints); }

    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        auto round = experts_.submit(batch);
        if (batch.patience.empty()) return round;
        return std::make_unique<LateRound>(std::move(round), batch, *profile_);
    }

  private:
    ExpertBackend& experts_;
    std::shared_ptr<const ExpertProfile> profile_;
};

}  // namespace

std::unique_ptr<ExpertBackend> make_lost_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile,
                                               double share, std::uint64_t seed) {
    return std::make_unique<LostCalls>(experts, std::move(profile), share, seed);
}

std::unique_ptr<ExpertBackend> make_late_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile) {
    return std::make_unique<LateCalls>(experts, std::move(profile));
}

}  // namespace moex
