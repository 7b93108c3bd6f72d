// Trains the estimator while the model reads a text. The rows of one step of the model form one
// training batch. A batch is used once and not stored, since the rows of a whole text would take
// gigabytes. The loss is the Kullback-Leibler divergence between the distributions of the router
// and of the estimator; the optimiser is Adam (Kingma and Ba, 2015). Equal inputs and an equal seed
// give the same parameters to the bit, for any number of threads.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hub/engine/decoder.h"
#include "hub/foresight/predict/estimator.h"

namespace moex {

struct AdamOptions {
    double rate = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};
// The Adam optimiser; it stores two moments for each parameter.
class Adam {
  public:
    Adam(std::size_t num_parameters, AdamOptions options)
        : options_(options),
          first_(num_parameters),
          second_(num_parameters) {}
    // Updates the parameters once by `gradient`, with `rate_share` times the learning rate.
    void step(std::span<float> parameters, std::span<const float> gradient, double rate_share);

  private:
    AdamOptions options_;
    std::vector<float> first_, second_;  // moments
    std::uint64_t num_steps_ = 0;
};

// Returns the mean over rows of KL(softmax(wanted) ‖ softmax(said)) in nats, and writes its
// gradient with respect to `said`. `wanted` and `said` are logits [num_rows, num_experts].
double kl_loss(std::span<float> gradient, std::span<const float> said,
               std::span<const float> wanted, std::size_t num_experts);

struct TrainingOptions {
    std::uint32_t window_tokens = 512;
    // Number of the text's windows to train on, drawn at random without repetition; 0: all whole
    // windows. The number is rounded down to a multiple of `side_by_side`.
    std::uint64_t num_windows = 0;
    // A step reads `chunk_tokens` tokens of `side_by_side` windows, so that a batch has rows of
    // different texts.
    std::uint32_t side_by_side = 8, chunk_tokens = 16;
    AdamOptions adam;
    std::uint64_t seed = 1;
    KvDtype kv_dtype = KvDtype::f32;
};
struct TrainingReport {
    std::uint64_t num_tokens = 0, num_steps = 0;
    double first_loss =
        0;                 // mean loss of the first steps, near that of the quasi-hidden gate alone
    double last_loss = 0;  // mean loss of the last tenth of the steps
};
// Trains `estimator` on the text. Calls `progress(steps_done, steps, loss)` if it is not empty. The
// error is invalid_argument if the text or num_windows has fewer than `side_by_side` windows.
Result<TrainingReport> train_estimator(
    Estimator& estimator, Decoder& decoder, ExpertBackend& experts, const RouterGates& gates,
    const ExpertProfile& profile, std::span<const TokenId> tokens, const TrainingOptions& options,
    const std::function<void(std::uint64_t, std::uint64_t, double)>& progress);

}  // namespace moex
