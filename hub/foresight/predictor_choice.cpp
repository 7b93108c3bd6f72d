#include "hub/foresight/predictor_choice.h"

#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/past_predictors.h"

namespace moex {
namespace {

constexpr std::uint64_t random_seed = 1;

std::string_view best_of(const SpeculationSources& sources, bool sees_residual) {
    if (!sees_residual || !sources.profile) return "next-gate";
    return sources.estimator ? "estimator" : "quasi-hidden";
}

}  // namespace

Result<std::unique_ptr<ExpertPredictor>> make_predictor(std::string_view name,
                                                        const SpeculationSources& sources,
                                                        bool sees_residual) {
    if (name == "auto") name = best_of(sources, sees_residual);
    const ModelConfig& config = sources.gates->config();
    const bool is_estimator = name == "estimator",
               reads_residual = is_estimator || name == "quasi-hidden";
    if (reads_residual && !sees_residual)
        return Error{ErrorCode::unsupported,
                     text(name, " reads rows that stay on the GPU (--gpu); next-gate does not")};
    if ((reads_residual || name == "popularity") && !sources.profile)
        return Error{ErrorCode::not_found,
                     text(name,
                          ": the package has no default vectors and uses of experts; "
                          "`moex-hub pack --calibrate` makes them")};
    if (is_estimator && !sources.estimator)
        return Error{ErrorCode::not_found,
                     "estimator: the package has none; `moex-hub train-estimator` makes one"};

    if (is_estimator)
        return make_estimator_predictor(sources.gates, sources.profile, sources.estimator);
    if (name == "quasi-hidden") return make_quasi_hidden_predictor(sources.gates, sources.profile);
    if (name == "next-gate") return make_next_gate_predictor(sources.gates);
    if (name == "previous-token") return make_previous_token_predictor(config);
    if (name == "lru") return make_lru_predictor(config);
    if (name == "lfu") return make_lfu_predictor(config);
    if (name == "popularity") return make_popularity_predictor(sources.profile);
    if (name == "request-popularity")
        return make_request_popularity_predictor(config, sources.profile);
    if (name == "random") return make_random_predictor(random_seed);
    return Error{ErrorCode::invalid_argument, text("no predictor is called \"", name, '"')};
}

}  // namespace moex
