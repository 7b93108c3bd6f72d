// Texts for predictors: read, tokenised, and what they tell of the experts of a model that is ready
// to run. What predict, pack and train-estimator share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hub/commands/progress.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/linear_estimator.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// A UTF-8 file, tokenised once as a whole, specials as text; at most `tokens_max` of them.
Result<std::vector<TokenId>> tokens_of_file(const std::string& path, const Tokenizer& tokenizer,
                                            std::uint64_t tokens_max = ~std::uint64_t{0});

// "what: window 3/24" on `line`.
std::function<void(std::uint32_t, std::uint32_t)> window_progress(ProgressLine& line,
                                                                  std::string what);

struct CalibrationText {
    std::string path;
    std::uint64_t tokens_max = 0;
    std::uint32_t window_tokens = 512;  // or what the text or the context has, if that is less
};
class LocalExperts;
Result<std::shared_ptr<const ExpertProfile>> calibrate_on(const CalibrationText& source,
                                                          const Tokenizer& tokenizer,
                                                          Decoder& decoder, LocalExperts& experts,
                                                          KvDtype kv_dtype, bool progress_lines);

// Fitted to the text's first windows, at most 32. unsupported: its sums are beyond 512 MiB, as
// those of a model with large rows are.
Result<std::shared_ptr<const LinearEstimator>> fit_linear_on(
    const CalibrationText& source, const Tokenizer& tokenizer, Decoder& decoder,
    ExpertBackend& experts, KvDtype kv_dtype, const RouterGates& gates,
    const ExpertProfile& profile);

}  // namespace moex
