// Chooses the predictor that gives hints, by name (`serve --prefetch-by`). A hub offers three
// predictors; foresight_bench in bench/foresight compares them with others.
#pragma once

#include <memory>
#include <string_view>

#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/speculation_sources.h"

namespace moex {

// Makes the predictor called `name`: estimator, quasi-hidden, next-gate or auto. "auto" takes the
// first of these three for which the package has the files. `sees_residual` is false if the hub's
// steps run on a GPU, which returns only the rows that routers read; in that case "auto" is
// next-gate. Errors: not_found: the package lacks a file, and the message names the command that
// makes this file; unsupported: the predictor needs the residual, but `sees_residual` is false;
// invalid_argument: no predictor has this name.
Result<std::unique_ptr<ExpertPredictor>> make_predictor(std::string_view name,
                                                        const SpeculationSources& sources,
                                                        bool sees_residual = true);

}  // namespace moex
