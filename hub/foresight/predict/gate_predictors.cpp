#include "hub/foresight/predict/gate_predictors.h"

#include <algorithm>

#include "hub/engine/kernels.h"

namespace moex {
namespace {

// rows per range of a parallel loop: a row takes only a few passes over hidden_size floats
constexpr std::size_t rows_grain = 8;

class NextGate : public ExpertPredictor {
  public:
    explicit NextGate(std::shared_ptr<const RouterGates> gates) : gates_(std::move(gates)) {}
    std::string_view name() const override { return "next-gate"; }
    bool predict(const RouteView& seen, std::uint32_t target_layer,
                 std::span<float> confidence) override {
        hidden_.assign(seen.hidden.begin(), seen.hidden.end());
        gates_->logits(confidence, target_layer, hidden_);
        return true;
    }
    std::span<const float> expected_hidden() const override { return hidden_; }

  private:
    std::shared_ptr<const RouterGates> gates_;
    std::vector<float> hidden_;
};

class QuasiHidden : public ExpertPredictor {
  public:
    QuasiHidden(std::shared_ptr<const RouterGates> gates,
                std::shared_ptr<const ExpertProfile> profile)
        : gates_(std::move(gates)),
          profile_(std::move(profile)) {}
    std::string_view name() const override { return "quasi-hidden"; }
    bool predict(const RouteView& seen, std::uint32_t target_layer,
                 std::span<float> confidence) override {
        hidden_.resize(seen.residual.size());
        quasi_hidden(hidden_, seen, target_layer, *gates_, *profile_);
        gates_->logits(confidence, target_layer, hidden_);
        return true;
    }
    std::span<const float> expected_hidden() const override { return hidden_; }

  private:
    std::shared_ptr<const RouterGates> gates_;
    std::shared_ptr<const ExpertProfile> profile_;
    std::vector<float> hidden_;
};

}  // namespace

void quasi_hidden(std::span<float> out, const RouteView& route, std::uint32_t target_layer,
                  const RouterGates& gates, const ExpertProfile& profile) {
    const std::size_t size = route.hidden_size;
    const float eps = static_cast<float>(gates.config().rms_norm_eps);
    const auto fill = [&](std::size_t row) {
        const auto residual = route.residual.subspan(row * size, size);
        const auto sum = out.subspan(row * size, size);
        std::copy(residual.begin(), residual.end(), sum.begin());
        for (std::size_t i = row * route.top_k; i < (row + 1) * route.top_k; ++i)
            add_scaled_to(sum, profile.default_vector(route.layer, route.expert_ids[i]),
                          route.expert_weights[i]);
        rms_norm(sum, sum, gates.norm(target_layer), eps);
    };

    gates.threads().parallel_for(route.num_tokens, rows_grain,
                                 [&](std::size_t begin, std::size_t end) {
                                     for (std::size_t row = begin; row < end; ++row) fill(row);
                                 });
}

std::unique_ptr<ExpertPredictor> make_next_gate_predictor(
    std::shared_ptr<const RouterGates> gates) {
    return std::make_unique<NextGate>(std::move(gates));
}
std::unique_ptr<ExpertPredictor> make_quasi_hidden_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile) {
    return std::make_unique<QuasiHidden>(std::move(gates), std::move(profile));
}

}  // namespace moex
