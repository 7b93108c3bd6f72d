#include "hub/foresight/predict/training.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "hub/engine/kernels.h"
#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/random.h"
#include "hub/foresight/predict/windows.h"
#include "protocol/check.h"

namespace moex {

void Adam::step(std::span<float> parameters, std::span<const float> gradient, double rate_share) {
    ++num_steps_;
    const auto steps = static_cast<double>(num_steps_);
    const double rate = options_.rate * rate_share *
                        std::sqrt(1 - std::pow(options_.beta2, steps)) /
                        (1 - std::pow(options_.beta1, steps));
    const auto beta1 = static_cast<float>(options_.beta1),
               beta2 = static_cast<float>(options_.beta2), eps = static_cast<float>(options_.eps);

    for (std::size_t i = 0; i < parameters.size(); ++i) {
        first_[i] = beta1 * first_[i] + (1 - beta1) * gradient[i];
        second_[i] = beta2 * second_[i] + (1 - beta2) * gradient[i] * gradient[i];
        parameters[i] -= static_cast<float>(rate) * first_[i] / (std::sqrt(second_[i]) + eps);
    }
}

double kl_loss(std::span<float> gradient, std::span<const float> said,
               std::span<const float> wanted, std::size_t num_experts) {
    const std::size_t num_rows = said.size() / num_experts;
    double loss = 0;
    for (std::size_t row = 0; row < num_rows; ++row) {
        const auto q = said.subspan(row * num_experts, num_experts),
                   p = wanted.subspan(row * num_experts, num_experts);
        const float q_sum = log_sum_exp(q), p_sum = log_sum_exp(p);
        for (std::size_t i = 0; i < num_experts; ++i) {
            const float q_log = q[i] - q_sum, p_log = p[i] - p_sum;
            const float p_now = std::exp(p_log);
            loss += double{p_now} * (p_log - q_log);
            gradient[row * num_experts + i] = (std::exp(q_log) - p_now) /
                                              static_cast<float>(num_rows);
        }
    }
    return loss / static_cast<double>(num_rows);
}

namespace {

// Collects the rows of one step as a training batch, in which block t predicts MoE layer t + 1.
class Batch {
  public:
    Batch(const RouterGates& gates, const ExpertProfile& profile)
        : gates_(gates),
          profile_(profile),
          index_of_layer_(gates.config().num_layers) {
        const auto layers = gates.moe_layers();
        for (std::uint32_t i = 0; i < layers.size(); ++i) index_of_layer_[layers[i]] = i;
    }

    void watch(const RouteView& route) {
        MOEX_CHECK(route.first_row == 0, "training wants steps that are not cut into parts");
        const std::uint32_t index = index_of_layer_[route.layer];
        const auto num_targets = static_cast<std::uint32_t>(gates_.moe_layers().size() - 1);
        const std::size_t rows = route.num_tokens, experts = route.num_experts;
        if (index == 0) {
            x_.resize(num_targets * rows * route.hidden_size);
            router_.resize(num_targets * rows * experts);
            wanted_.resize(router_.size());
            blocks_.clear();
        } else {
            std::copy(route.router_logits.begin(), route.router_logits.end(),
                      wanted_.begin() + static_cast<std::ptrdiff_t>((index - 1) * rows * experts));
        }
        if (index == num_targets) return;

        const std::uint32_t target = gates_.moe_layers()[index + 1];
        const auto x = std::span(x_).subspan(index * rows * route.hidden_size,
                                             rows * route.hidden_size);
        quasi_hidden(x, route, target, gates_, profile_);
        gates_.logits(std::span(router_).subspan(index * rows * experts, rows * experts), target,
                      x);
        blocks_.push_back({index, static_cast<std::uint32_t>(index * rows), route.num_tokens});
    }

    // Returns the loss of the collected rows and writes the loss's gradient.
    double differentiate(const Estimator& estimator, std::span<float> gradient) {
        estimator.forward(pass_, x_, blocks_, gates_.threads());
        said_.resize(router_.size());
        for (std::size_t i = 0; i < said_.size(); ++i) said_[i] = router_[i] + pass_.logits[i];

        logit_gradient_.resize(said_.size());
        const double loss = kl_loss(logit_gradient_, said_, wanted_, gates_.config().num_experts);
        estimator.backward(gradient, pass_, x_, logit_gradient_, blocks_, gates_.threads());
        return loss;
    }

  private:
    const RouterGates& gates_;
    const ExpertProfile& profile_;
    std::vector<std::uint32_t> index_of_layer_;
    std::vector<float> x_, router_, wanted_, said_, logit_gradient_;
    std::vector<Estimator::Block> blocks_;
    Estimator::Pass pass_;
};

// Returns the learning rate of a step as a share of the maximum: a short linear warm-up, then a
// cosine down to zero.
double rate_share_of(std::uint64_t step, std::uint64_t num_steps) {
    const double done = static_cast<double>(step) / static_cast<double>(num_steps);
    const double warm = std::min(1.0, (static_cast<double>(step) + 1) / 32);
    return warm * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

// Returns the indices of the text's windows in a random order, which depends on `seed`.
std::vector<std::size_t> shuffled_windows(std::size_t count, std::uint64_t seed) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    SplitMix64 random(seed);
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

// Returns the number of training rounds; each round reads `side_by_side` whole windows of the text.
Result<std::uint64_t> count_rounds(const ModelConfig& config, std::size_t num_tokens,
                                   const TrainingOptions& options, std::size_t num_moe_layers) {
    if (num_moe_layers < 2)
        return Error{ErrorCode::invalid_argument,
                     "a model with one MoE layer has no layer to look ahead to"};
    if (options.window_tokens > config.context_tokens ||
        options.window_tokens % options.chunk_tokens != 0)
        return Error{
            ErrorCode::invalid_argument,
            text("a window of ", options.window_tokens, " tokens, wanted a multiple of ",
                 options.chunk_tokens, " within the context (", config.context_tokens, ")")};

    const std::uint64_t whole = num_tokens / options.window_tokens,
                        wanted = options.num_windows == 0 ? whole : options.num_windows;
    if (wanted > whole || wanted < options.side_by_side)
        return Error{ErrorCode::invalid_argument,
                     text("the text has ", num_tokens, " tokens: ", whole, " whole windows of ",
                          options.window_tokens, ", requested ", wanted, "; training wants ",
                          options.side_by_side, " at least")};
    return wanted / options.side_by_side;
}

}  // namespace

Result<TrainingReport> train_estimator(
    Estimator& estimator, Decoder& decoder, ExpertBackend& experts, const RouterGates& gates,
    const ExpertProfile& profile, std::span<const TokenId> tokens, const TrainingOptions& options,
    const std::function<void(std::uint64_t, std::uint64_t, double)>& progress) {
    const ModelConfig& config = decoder.config();
    MOEX_ASSIGN(num_rounds,
                count_rounds(config, tokens.size(), options, gates.moe_layers().size()));

    const std::uint32_t width = options.side_by_side, window = options.window_tokens;
    const std::uint64_t steps_a_round = window / options.chunk_tokens,
                        num_steps = num_rounds * steps_a_round;
    const auto order = shuffled_windows(tokens.size() / window, options.seed);

    constexpr std::uint32_t page_tokens = 16;
    KvCache cache(config, {page_tokens, width * ((window + page_tokens - 1) / page_tokens),
                           options.kv_dtype});
    Batch batch(gates, profile);
    Adam adam(estimator.parameters().size(), options.adam);
    std::vector<float> gradient(estimator.parameters().size());
    TrainingReport report{.num_tokens = num_rounds * width * window, .num_steps = num_steps};
    const std::uint64_t tail = std::max<std::uint64_t>(num_steps / 10, 1);

    for (std::uint64_t step = 0; step < num_steps;) {
        std::vector<KvCache::Sequence> sequences;
        for (std::uint32_t i = 0; i < width; ++i) sequences.emplace_back(cache);

        for (std::uint64_t chunk = 0; chunk < steps_a_round; ++chunk, ++step) {
            std::vector<StepRows> rows;
            for (std::uint32_t i = 0; i < width; ++i) {
                const std::size_t at = order[step / steps_a_round * width + i] * window +
                                       chunk * options.chunk_tokens;
                rows.push_back({.kv = &sequences[i],
                                .tokens = tokens.subspan(at, options.chunk_tokens),
                                .no_logits = true});
            }
            MOEX_TRY(
                decoder.step(rows, experts, [&](const RouteView& route) { batch.watch(route); }));

            const double loss = batch.differentiate(estimator, gradient);
            adam.step(estimator.parameters(), gradient, rate_share_of(step, num_steps));
            if (step == 0) report.first_loss = loss;
            if (step + tail >= num_steps) report.last_loss += loss / static_cast<double>(tail);
            if (progress) progress(step + 1, num_steps, loss);
        }
    }
    return report;
}

}  // namespace moex
