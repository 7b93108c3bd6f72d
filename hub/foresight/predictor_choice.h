// Predictors by name, as `moex-hub predict` prints them: which of them says what workers that hold
// experts on demand are told (`serve --prefetch-by`).
#pragma once

#include <memory>
#include <string_view>

#include "hub/engine/expert_predictor.h"
#include "hub/foresight/lossy/speculation.h"

namespace moex {

// `name` is "auto" or a predictor's. auto: the best of what the package has learned, the estimator,
// else quasi-hidden, else next-gate; next-gate where `sees_residual` is false, as steps on a GPU
// bring back what routers read and no more. not_found: what the package lacks, and the command that
// makes it; unsupported: it reads what is not seen; invalid_argument: nothing is called so.
Result<std::unique_ptr<ExpertPredictor>> make_predictor(std::string_view name,
                                                        const SpeculationSources& sources,
                                                        bool sees_residual = true);

}  // namespace moex
