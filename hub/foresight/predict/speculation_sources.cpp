#include "hub/foresight/predict/speculation_sources.h"

namespace moex {
namespace {

// Returns a null pointer instead of the error not_found, for a file that the package does not have.
template <typename T>
Result<std::shared_ptr<const T>> null_if_absent(Result<T> loaded) {
    if (!loaded.ok() && loaded.error().code == ErrorCode::not_found)
        return std::shared_ptr<const T>();
    if (!loaded.ok()) return loaded.error();
    return std::make_shared<const T>(*std::move(loaded));
}

}  // namespace

Result<SpeculationSources> load_speculation_sources(
    const std::shared_ptr<const ModelPackage>& package, ThreadPool& threads) {
    MOEX_ASSIGN(gates, RouterGates::load(package, threads));
    MOEX_ASSIGN(profile, null_if_absent(load_expert_profile(*package)));
    MOEX_ASSIGN(estimator, null_if_absent(Estimator::load(*package)));
    return SpeculationSources{.gates = std::make_shared<const RouterGates>(std::move(gates)),
                              .profile = std::move(profile),
                              .estimator = std::move(estimator)};
}

Status require_profile(const SpeculationSources& sources) {
    if (sources.profile) return {};
    return Error{ErrorCode::not_found,
                 "the package has no default vectors; `moex-hub pack --calibrate` makes them"};
}

Status require_estimator(const SpeculationSources& sources) {
    if (sources.estimator) return {};
    return Error{ErrorCode::not_found,
                 "the package has no estimator; `moex-hub train-estimator` makes one"};
}

}  // namespace moex
