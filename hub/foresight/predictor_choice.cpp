#include "hub/foresight/predictor_choice.h"

#include "hub/foresight/predict/gate_predictors.h"

namespace moex {
namespace {

std::string_view best_of(const SpeculationSources& sources, bool sees_residual) {
    if (!sees_residual || !sources.profile) return "next-gate";
    return sources.estimator ? "estimator" : "quasi-hidden";
}

}  // namespace

Result<std::unique_ptr<ExpertPredictor>> make_predictor(std::string_view name,
                                                        const SpeculationSources& sources,
                                                        bool sees_residual) {
    if (name == "auto") name = best_of(sources, sees_residual);
    if (name == "next-gate") return make_next_gate_predictor(sources.gates);
    if (name != "estimator" && name != "quasi-hidden")
        return Error{ErrorCode::invalid_argument,
                     text("no predictor is called \"", name,
                          "\", wanted auto, estimator, quasi-hidden or next-gate")};

    if (!sees_residual)
        return Error{ErrorCode::unsupported,
                     text(name, " reads rows that stay on the GPU (--gpu); next-gate does not")};
    MOEX_TRY(require_profile(sources));
    if (name == "quasi-hidden") return make_quasi_hidden_predictor(sources.gates, sources.profile);
    MOEX_TRY(require_estimator(sources));
    return make_estimator_predictor(sources.gates, sources.profile, sources.estimator);
}

}  // namespace moex
