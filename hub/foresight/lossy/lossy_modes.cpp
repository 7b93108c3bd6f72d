#include "hub/foresight/lossy/lossy_modes.h"

namespace moex {
namespace {

constexpr std::string_view modes[] = {early_calls_mode, estimator_mode};

}  // namespace

Result<std::string_view> parse_lossy_mode(std::string_view name) {
    if (name == "speculative") name = early_calls_mode;
    for (const std::string_view mode : modes)
        if (name == mode) return mode;
    return Error{ErrorCode::invalid_argument,
                 text("no lossy mode is called \"", name, "\", wanted speculative or estimator")};
}

LossyModes::LossyModes(SpeculationSources sources, MeasuredLosses losses)
    : sources_(std::move(sources)),
      losses_(std::move(losses)) {}

Result<ExpertMode> LossyModes::find(std::string_view name) {
    MOEX_ASSIGN(mode, parse_lossy_mode(name));

    const std::lock_guard lock(mutex_);
    auto at = made_.find(mode);
    if (at == made_.end()) {
        MOEX_ASSIGN(made, make(mode));
        at = made_.emplace(mode, std::move(made)).first;
    }
    return ExpertMode{.name = std::string(mode),
                      .speculator = at->second.get(),
                      .perplexity_excess = losses_.excess_of(mode)};
}

Result<std::unique_ptr<ExpertSpeculator>> LossyModes::make(std::string_view mode) const {
    const bool is_early = mode == early_calls_mode;
    const std::size_t num_layers = sources_.gates->moe_layers().size(),
                      wanted_layers = is_early ? 3 : 2;
    if (num_layers < wanted_layers)
        return Error{ErrorCode::unsupported, text("the model has too few MoE layers, ", num_layers,
                                                  ", wanted ", wanted_layers)};
    if (is_early) {
        MOEX_ASSIGN(made, EarlyCalls::create(sources_, 1));
        return std::unique_ptr<ExpertSpeculator>(std::move(made));
    }
    MOEX_ASSIGN(made, GuessedExperts::create(sources_));
    return std::unique_ptr<ExpertSpeculator>(std::move(made));
}

std::vector<std::string> LossyModes::offered() {
    std::vector<std::string> names;
    for (const std::string_view mode : modes)
        if (find(mode).ok()) names.emplace_back(mode);
    return names;
}

}  // namespace moex
