#include "bench/foresight/linear_estimator.h"

#include <algorithm>
#include <cmath>

#include "hub/foresight/predict/gate_predictors.h"

namespace moex::bench {
namespace {

constexpr std::uint32_t linear_windows_max = 32;
constexpr std::uint64_t linear_fit_mib_max = 512;
constexpr double ridge_share =
    1e-3;  // the ridge, relative to a mean square of 1, which normalised rows nearly have

// Returns the index of `layer` among the MoE layers, or the number of MoE layers if `layer` is
// dense.
std::uint32_t place_of(const RouterGates& gates, std::uint32_t layer) {
    const auto layers = gates.moe_layers();
    return static_cast<std::uint32_t>(std::find(layers.begin(), layers.end(), layer) -
                                      layers.begin());
}

class Linear : public ExpertPredictor {
  public:
    Linear(std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile,
           std::shared_ptr<const LinearEstimator> linear)
        : gates_(std::move(gates)),
          profile_(std::move(profile)),
          linear_(std::move(linear)) {}
    std::string_view name() const override { return "linear"; }
    bool predict(const RouteView& seen, std::uint32_t target_layer,
                 std::span<float> confidence) override {
        const std::uint32_t place = place_of(*gates_, target_layer);
        const auto layers = gates_->moe_layers();
        if (place == 0 || place == layers.size() || layers[place - 1] != seen.layer) return false;

        hidden_.resize(seen.residual.size());
        quasi_hidden(hidden_, seen, target_layer, *gates_, *profile_);
        gates_->logits(confidence, target_layer, hidden_);
        const std::span<const float> weights = linear_->of(place - 1);
        const std::size_t size = seen.hidden_size;
        for (std::size_t row = 0; row < seen.num_tokens; ++row)
            for (std::size_t expert = 0; expert < seen.num_experts; ++expert) {
                const float *const w = weights.data() + expert * (size + 1), *const q =
                                                                                 hidden_.data() +
                                                                                 row * size;
                float sum = w[size];
                for (std::size_t i = 0; i < size; ++i) sum += w[i] * q[i];
                confidence[row * seen.num_experts + expert] += sum;
            }
        return true;
    }

  private:
    std::shared_ptr<const RouterGates> gates_;
    std::shared_ptr<const ExpertProfile> profile_;
    std::shared_ptr<const LinearEstimator> linear_;
    std::vector<float> hidden_;
};

// Fits the linear estimator during a walk. Keeps a layer's quasi-hidden states until the next
// layer's router logits are known.
class LinearFit {
  public:
    LinearFit(const RouterGates& gates, const ExpertProfile& profile)
        : gates_(gates),
          profile_(profile),
          fits_(gates.moe_layers().size() - 1,
                RidgeFit(gates.config().hidden_size, gates.config().num_experts)) {}

    void watch(const RouteView& seen) {
        const auto layers = gates_.moe_layers();
        const std::uint32_t place = place_of(gates_, seen.layer);
        if (place > 0) learn(seen, fits_[place - 1]);
        if (place + 1 == layers.size()) return;

        hidden_.resize(seen.residual.size());
        quasi_hidden(hidden_, seen, layers[place + 1], gates_, profile_);
        guess_.resize(std::size_t{seen.num_tokens} * seen.num_experts);
        gates_.logits(guess_, layers[place + 1], hidden_);
    }
    std::vector<float> solve() const {
        std::vector<float> all;
        for (const RidgeFit& fit : fits_) {
            const std::vector<float> one = fit.solve(ridge_share);
            all.insert(all.end(), one.begin(), one.end());
        }
        return all;
    }

  private:
    void learn(const RouteView& seen, RidgeFit& fit) {
        const std::size_t size = seen.hidden_size, experts = seen.num_experts;
        std::vector<float> left(experts);
        for (std::size_t row = 0; row < seen.num_tokens; ++row) {
            for (std::size_t i = 0; i < experts; ++i)
                left[i] = seen.router_logits[row * experts + i] - guess_[row * experts + i];
            fit.add(std::span(hidden_).subspan(row * size, size), left);
        }
    }

    const RouterGates& gates_;
    const ExpertProfile& profile_;
    std::vector<RidgeFit> fits_;
    // Inputs for the next layer, [rows, hidden_size or num_experts].
    std::vector<float> hidden_, guess_;
};

}  // namespace

RidgeFit::RidgeFit(std::size_t num_inputs, std::size_t num_outputs)
    : num_inputs_(num_inputs + 1),
      num_outputs_(num_outputs),
      squares_(num_inputs_ * num_inputs_),
      products_(num_outputs_ * num_inputs_) {}

void RidgeFit::add(std::span<const float> x, std::span<const float> wanted) {
    const auto input = [&](std::size_t i) { return i < x.size() ? double{x[i]} : 1.0; };
    std::vector<double> row(num_inputs_);
    for (std::size_t i = 0; i < num_inputs_; ++i) row[i] = input(i);

    for (std::size_t i = 0; i < num_inputs_; ++i)
        for (std::size_t j = 0; j <= i; ++j) squares_[i * num_inputs_ + j] += row[i] * row[j];
    for (std::size_t k = 0; k < num_outputs_; ++k)
        for (std::size_t i = 0; i < num_inputs_; ++i)
            products_[k * num_inputs_ + i] += double{wanted[k]} * row[i];
    ++num_rows_;
}

// Solves the normal equations of a least-squares fit by Cholesky decomposition.
std::vector<float> RidgeFit::solve(double ridge) const {
    const std::size_t n = num_inputs_;
    std::vector<double> lower = squares_;
    for (std::size_t i = 0; i < n; ++i) {
        lower[i * n + i] += i + 1 < n ? ridge * num_rows_ : 1e-9;
        for (std::size_t j = 0; j <= i; ++j) {
            double sum = lower[i * n + j];
            for (std::size_t k = 0; k < j; ++k) sum -= lower[i * n + k] * lower[j * n + k];
            lower[i * n + j] = i == j ? std::sqrt(sum) : sum / lower[j * n + j];
        }
    }

    std::vector<float> weights(num_outputs_ * n);
    std::vector<double> one(n);
    for (std::size_t output = 0; output < num_outputs_; ++output) {
        for (std::size_t i = 0; i < n; ++i) {
            one[i] = products_[output * n + i];
            for (std::size_t k = 0; k < i; ++k) one[i] -= lower[i * n + k] * one[k];
            one[i] /= lower[i * n + i];
        }
        for (std::size_t i = n; i-- > 0;) {
            for (std::size_t k = i + 1; k < n; ++k) one[i] -= lower[k * n + i] * one[k];
            one[i] /= lower[i * n + i];
            weights[output * n + i] = static_cast<float>(one[i]);
        }
    }
    return weights;
}

std::uint64_t linear_fit_bytes(const RouterGates& gates) {
    const std::uint64_t inputs = gates.config().hidden_size + 1,
                        targets = gates.moe_layers().size() - 1;
    return targets * inputs * (inputs + gates.config().num_experts) * sizeof(double);
}

Result<LinearEstimator> fit_linear_estimator(Decoder& decoder, ExpertBackend& experts,
                                             const RouterGates& gates, const ExpertProfile& profile,
                                             std::span<const TokenId> tokens,
                                             const WindowOptions& options) {
    LinearFit fit(gates, profile);
    MOEX_TRY(walk_windows(
        decoder, experts, tokens, options, [&](const RouteView& seen) { fit.watch(seen); },
        [](std::uint32_t, std::uint32_t) {}));
    return LinearEstimator{.hidden_size = gates.config().hidden_size,
                           .num_experts = gates.config().num_experts,
                           .weights = fit.solve()};
}

std::unique_ptr<ExpertPredictor> make_linear_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile,
    std::shared_ptr<const LinearEstimator> linear) {
    return std::make_unique<Linear>(std::move(gates), std::move(profile), std::move(linear));
}

Result<std::shared_ptr<const LinearEstimator>> fit_linear_on(
    const CalibrationText& source, const Tokenizer& tokenizer, Decoder& decoder,
    ExpertBackend& experts, KvDtype kv_dtype, const RouterGates& gates,
    const ExpertProfile& profile) {
    if (const std::uint64_t mib = linear_fit_bytes(gates) >> 20; mib > linear_fit_mib_max)
        return Error{ErrorCode::unsupported,
                     text("linear: its sums take ", mib, " MiB, at most ", linear_fit_mib_max)};
    MOEX_ASSIGN(tokens, tokens_of_file(source.path, tokenizer,
                                       std::uint64_t{linear_windows_max} * source.window_tokens));
    const auto num_tokens = static_cast<std::uint32_t>(
        std::min<std::size_t>(tokens.size(), gates.config().context_tokens));
    const WindowOptions options{.window_tokens = std::min(source.window_tokens, num_tokens),
                                .kv_dtype = kv_dtype};
    MOEX_ASSIGN(linear, fit_linear_estimator(decoder, experts, gates, profile, tokens, options));
    return std::make_shared<const LinearEstimator>(std::move(linear));
}

}  // namespace moex::bench
