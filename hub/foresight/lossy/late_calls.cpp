#include "hub/foresight/lossy/late_calls.h"

#include <algorithm>

#include "hub/engine/kernels.h"
#include "protocol/check.h"

namespace moex {
namespace {

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
            MOEX_CHECK(found != ids.end(),
                       text("row ", late.row, " did not request expert ", late.expert));
            add_default_vector(batch_, profile_,
                               first + static_cast<std::size_t>(found - ids.begin()));
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

void add_default_vector(const ExpertBatch& batch, const ExpertProfile& profile, std::size_t pair) {
    add_scaled_to(batch.y.subspan(pair / batch.top_k * batch.hidden_size, batch.hidden_size),
                  profile.default_vector(batch.layer, batch.expert_ids[pair]),
                  batch.expert_weights[pair]);
}

std::unique_ptr<ExpertBackend> make_late_calls(ExpertBackend& experts,
                                               std::shared_ptr<const ExpertProfile> profile) {
    return std::make_unique<LateCalls>(experts, std::move(profile));
}

}  // namespace moex
