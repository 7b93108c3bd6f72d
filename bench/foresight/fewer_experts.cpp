#include "bench/foresight/fewer_experts.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace moex::bench {
namespace {

// One round. It holds the reduced ids and weights, which the round of the wrapped backend reads.
class Round : public ExpertRound {
  public:
    Round(ExpertBackend& experts, const ExpertBatch& batch, std::uint32_t top_k) {
        std::vector<std::size_t> order(batch.top_k);
        for (std::size_t row = 0; row < batch.num_tokens; ++row) {
            const auto ids = batch.expert_ids.subspan(row * batch.top_k, batch.top_k);
            const auto weights = batch.expert_weights.subspan(row * batch.top_k, batch.top_k);
            std::iota(order.begin(), order.end(), std::size_t{0});
            std::stable_sort(order.begin(), order.end(),
                             [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });

            float kept = 0;
            for (std::size_t i = 0; i < top_k; ++i) kept += weights[order[i]];
            const float all = std::accumulate(weights.begin(), weights.end(), 0.0f);
            for (std::size_t i = 0; i < top_k; ++i) {
                ids_.push_back(ids[order[i]]);
                weights_.push_back(kept > 0 ? weights[order[i]] * all / kept : 0);
            }
        }

        ExpertBatch fewer = batch;
        fewer.top_k = top_k;
        fewer.expert_ids = ids_;
        fewer.expert_weights = weights_;
        round_ = experts.submit(fewer);
    }
    Result<ExpertAnswer> wait(std::stop_token stop) override {
        return round_->wait(std::move(stop));
    }

  private:
    std::vector<std::uint16_t> ids_;
    std::vector<float> weights_;
    std::unique_ptr<ExpertRound> round_;
};

class FewerExperts : public ExpertBackend {
  public:
    FewerExperts(ExpertBackend& experts, std::uint32_t top_k) : experts_(experts), top_k_(top_k) {}
    const char* name() const override { return "fewer"; }
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        return std::make_unique<Round>(experts_, batch, std::min(top_k_, batch.top_k));
    }

  private:
    ExpertBackend& experts_;
    std::uint32_t top_k_;
};

}  // namespace

std::unique_ptr<ExpertBackend> make_fewer_experts(ExpertBackend& experts, std::uint32_t top_k) {
    return std::make_unique<FewerExperts>(experts, top_k);
}

}  // namespace moex::bench
