// The choice of the predictor that gives hints, by name (`serve --prefetch-by`). A hub serves three
// predictors; bench/foresight measures them beside others (foresight_bench).
#pragma once

#include <memory>
#include <string_view>

#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/speculation_sources.h"

namespace moex {

// Makes the predictor called `name`: estimator, quasi-hidden, next-gate or auto. "auto" takes the
// first of these three that the package has the files for. `sees_residual` is false if the hub's
// steps run on a GPU, which returns only the rows that routers read; "auto" is next-gate then.
// not_found: the package lacks a file, and the message names the command that makes it;
// unsupported: the predictor reads the residual, which is not seen; invalid_argument: no predictor
// has this name.
Result<std::unique_ptr<ExpertPredictor>> make_predictor(std::string_view name,
                                                        const SpeculationSources& sources,
                                                        bool sees_residual = true);

}  // namespace moex
