// Texts on which predictors of experts are calibrated. These functions read and tokenise a file,
// and count how often the text uses each expert of a model. Shared by pack, train-estimator and the
// benches.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hub/commands/progress.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// Reads a UTF-8 file and tokenises it once as a whole; special tokens count as text. Returns the
// first `tokens_max` tokens. Returns the error not_found if the file cannot be read.
Result<std::vector<TokenId>> tokens_of_file(const std::string& path, const Tokenizer& tokenizer,
                                            std::uint64_t tokens_max = ~std::uint64_t{0});

// Returns a callback that shows the text "`what`: window 3/24" on the progress line `line`. `line`
// outlives the callback.
std::function<void(std::uint32_t, std::uint32_t)> window_progress(ProgressLine& line,
                                                                  std::string what);

struct CalibrationText {
    std::string path;
    std::uint64_t tokens_max = 0;
    // tokens of a window at most; a short text or a short context gives fewer
    std::uint32_t window_tokens = 512;
};
class LocalExperts;
// Runs the model on the text and counts the experts that it uses. Returns the error unsupported if
// the model is dense.
Result<std::shared_ptr<const ExpertProfile>> calibrate_on(const CalibrationText& source,
                                                          const Tokenizer& tokenizer,
                                                          Decoder& decoder, LocalExperts& experts,
                                                          KvDtype kv_dtype, bool progress_lines);

}  // namespace moex
