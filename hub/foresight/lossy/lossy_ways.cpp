#include "hub/foresight/lossy/lossy_ways.h"

#include <algorithm>

namespace moex {
namespace {

constexpr std::string_view usual_ways[] = {
    way_by_default,         "next-gate",  "next-gate+weights", "quasi-hidden",
    "quasi-hidden+weights", "estimator",  "estimator+weights", "hybrid",
    "hybrid+weights",       "router-free"};

// Null where the package has none.
template <typename T>
Result<std::shared_ptr<const T>> held(Result<T> loaded) {
    if (!loaded.ok() && loaded.error().code == ErrorCode::not_found)
        return std::shared_ptr<const T>();
    if (!loaded.ok()) return loaded.error();
    return std::make_shared<const T>(*std::move(loaded));
}

// Numbers that change nothing are left out, so that few ways are ever made.
Result<Speculation> without_useless(Speculation what, const SpeculationSources& sources) {
    const ModelConfig& config = sources.gates->config();
    const auto num_moe = static_cast<std::uint32_t>(sources.gates->moe_layers().size());
    what.guessed = std::min(what.guessed, config.num_experts);
    if (what.guessed <= config.top_k) what.guessed = 0;

    const bool guesses = what.routes != RouteGuess::router;
    const bool is_useless = (guesses && num_moe < 2) ||
                            (what.early_from && *what.early_from + 1 >= num_moe);
    if (is_useless)
        return Error{ErrorCode::unsupported, text("the model has too few MoE layers, ", num_moe)};
    return what;
}

}  // namespace

Result<SpeculationSources> load_speculation_sources(
    const std::shared_ptr<const ModelPackage>& package, ThreadPool& threads) {
    MOEX_ASSIGN(gates, RouterGates::load(package, threads));
    MOEX_ASSIGN(profile, held(load_expert_profile(*package)));
    MOEX_ASSIGN(estimator, held(Estimator::load(*package)));
    return SpeculationSources{.gates = std::make_shared<const RouterGates>(std::move(gates)),
                              .profile = std::move(profile),
                              .estimator = std::move(estimator)};
}

LossyWays::LossyWays(SpeculationSources sources, MeasuredLosses losses)
    : sources_([&] {
          if (sources.estimator_layers.empty()) sources.estimator_layers = losses.hybrid_layers;
          return std::move(sources);
      }()),
      losses_(std::move(losses)) {}

Result<ExpertWay> LossyWays::find(std::string_view name) {
    MOEX_ASSIGN(parsed, parse_speculation(name == "speculative" ? way_by_default : name));
    MOEX_ASSIGN(what, without_useless(parsed, sources_));
    const std::string known_as = name_of(what);

    const std::lock_guard lock(mutex_);
    auto at = made_.find(known_as);
    if (at == made_.end()) {
        MOEX_ASSIGN(made, Speculator::create(what, sources_));
        at = made_.emplace(known_as, std::move(made)).first;
    }
    return ExpertWay{.name = known_as,
                     .speculator = at->second.get(),
                     .perplexity_excess = losses_.excess_of(known_as)};
}

std::vector<std::string> LossyWays::offered() {
    std::vector<std::string> names;
    const auto offer = [&](std::string_view name) {
        const auto way = find(name);
        if (way.ok() && std::find(names.begin(), names.end(), way->name) == names.end())
            names.push_back(way->name);
    };
    for (const std::string_view name : usual_ways) offer(name);
    for (const auto& [name, perplexity] : losses_.perplexity) offer(name);
    return names;
}

}  // namespace moex
