// The inputs that predictors read from a package: the routers, and the files beside the model that
// `moex-hub pack --calibrate` and `moex-hub train-estimator` write.
#pragma once

#include <memory>

#include "hub/foresight/predict/estimator.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/router_gates.h"

namespace moex {

// The inputs of all predictors of one package. Example, the demo package: routers of 8 MoE layers,
// default vectors, and an estimator with 7 heads.
struct SpeculationSources {
    std::shared_ptr<const RouterGates> gates;      // never null
    std::shared_ptr<const ExpertProfile> profile;  // null if the package has no default vectors
    std::shared_ptr<const Estimator> estimator;    // null if the package has no estimator
};

// Loads the routers and the files that the package has; a missing file leaves a null pointer. An
// error names the file that cannot be read, or is `unsupported` if the model is dense.
Result<SpeculationSources> load_speculation_sources(
    const std::shared_ptr<const ModelPackage>& package, ThreadPool& threads);

// Return the error not_found if the pointer is null; the message names the command that makes the
// missing file.
Status require_profile(const SpeculationSources& sources);
Status require_estimator(const SpeculationSources& sources);

}  // namespace moex
