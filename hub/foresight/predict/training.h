// The estimator is trained while the model reads: a step's rows are a batch, used once and
// forgotten, since the traces of a whole text would be gigabytes. The loss is the Kullback-Leibler
// divergence of the router's distribution and the estimator's; the optimiser is Adam (Kingma and
// Ba, 2015). Equal inputs and an equal seed give equal bits, whatever the number of threads.
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
class Adam {
  public:
    Adam(std::size_t num_parameters, AdamOptions options)
        : options_(options),
          first_(num_parameters),
          second_(num_parameters) {}
    // One step along `gradient`, at `rate_share` of the rate.
    void step(std::span<float> parameters, std::span<const float> gradient, double rate_share);

  private:
    AdamOptions options_;
    std::vector<float> first_, second_;  // moments
    std::uint64_t num_steps_ = 0;
};

// Mean over rows of KL(softmax(wanted) ‖ softmax(said)), in nats; `gradient`, by `said`, is
// written.
double kl_loss(std::span<float> gradient, std::span<const float> said,
               std::span<const float> wanted, std::size_t num_experts);

struct TrainingOptions {
    std::uint32_t window_tokens = 512;
    // Of the text, drawn by the seed, each at most once; 0: all whole ones. As many of them are
    // read as fill whole rounds of windows side by side.
    std::uint64_t num_windows = 0;
    // A step reads `chunk_tokens` of each of so many windows: rows that are not alike.
    std::uint32_t side_by_side = 8, chunk_tokens = 16;
    AdamOptions adam;
    std::uint64_t seed = 1;
    KvDtype kv_dtype = KvDtype::f32;
};
struct TrainingReport {
    std::uint64_t num_tokens = 0, num_steps = 0;
    double first_loss = 0;  // of the quasi-hidden gate alone, by the first steps
    double last_loss = 0;   // mean of the last tenth of the steps
};
// Trains `estimator`. `progress(steps_done, steps, loss)`. invalid_argument when the text or
// num_windows is less than one round of windows.
Result<TrainingReport> train_estimator(
    Estimator& estimator, Decoder& decoder, ExpertBackend& experts, const RouterGates& gates,
    const ExpertProfile& profile, std::span<const TokenId> tokens, const TrainingOptions& options,
    const std::function<void(std::uint64_t, std::uint64_t, double)>& progress);

}  // namespace moex
