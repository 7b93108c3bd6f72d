#include "hub/foresight/lossy/served_modes.h"

#include <algorithm>

#include "hub/engine/kernels.h"
#include "hub/engine/router.h"
#include "hub/foresight/predict/hints.h"
#include "protocol/check.h"

namespace moex {

std::uint32_t moe_index_of(const RouterGates& gates, std::uint32_t layer) {
    const auto layers = gates.moe_layers();
    return static_cast<std::uint32_t>(std::lower_bound(layers.begin(), layers.end(), layer) -
                                      layers.begin());
}

EarlyCalls::EarlyCalls(SpeculationSources sources, std::uint32_t first_layer)
    : sources_(std::move(sources)),
      first_layer_(first_layer) {}

Result<std::unique_ptr<EarlyCalls>> EarlyCalls::create(SpeculationSources sources,
                                                       std::uint32_t first_layer) {
    MOEX_TRY(require_profile(sources));
    return std::unique_ptr<EarlyCalls>(new EarlyCalls(std::move(sources), first_layer));
}

bool EarlyCalls::stand_in(const RouteView& asked, std::span<float> y) {
    const std::uint32_t index = moe_index_of(*sources_.gates, asked.layer);
    if (index < first_layer_ || (index - first_layer_) % 2 != 0) return false;

    const std::size_t size = asked.hidden_size;
    std::fill(y.begin(), y.end(), 0.0f);
    for (std::size_t row = 0; row < asked.num_tokens; ++row)
        for (std::size_t i = row * asked.top_k; i < (row + 1) * asked.top_k; ++i)
            add_scaled_to(y.subspan(row * size, size),
                          sources_.profile->default_vector(asked.layer, asked.expert_ids[i]),
                          asked.expert_weights[i]);
    return true;
}

GuessedExperts::GuessedExperts(SpeculationSources sources)
    : sources_(std::move(sources)),
      estimator_(make_estimator_predictor(sources_.gates, sources_.profile, sources_.estimator)) {}

Result<std::unique_ptr<GuessedExperts>> GuessedExperts::create(SpeculationSources sources) {
    MOEX_TRY(require_profile(sources));
    MOEX_TRY(require_estimator(sources));
    return std::unique_ptr<GuessedExperts>(new GuessedExperts(std::move(sources)));
}

void GuessedExperts::choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                            std::span<float> expert_weights) {
    const std::uint32_t index = moe_index_of(*sources_.gates, seen.layer);
    if (index == 0) return;

    const std::size_t experts = seen.num_experts, top_k = seen.top_k;
    MOEX_CHECK(guess_index_ == index && guess_.size() == seen.num_tokens * experts,
               "the guess belongs to the rows of this step");
    const RouterOptions options = sources_.gates->options(seen.layer);
    for (std::size_t row = 0; row < seen.num_tokens; ++row)
        route(std::span(guess_).subspan(row * experts, experts), options,
              expert_ids.subspan(row * top_k, top_k), expert_weights.subspan(row * top_k, top_k));
}

void GuessedExperts::look_ahead(const RouteView& asked) {
    const auto layers = sources_.gates->moe_layers();
    const std::uint32_t next = moe_index_of(*sources_.gates, asked.layer) + 1;
    guess_index_ = 0;
    if (next >= layers.size()) return;

    guess_.resize(std::size_t{asked.num_tokens} * asked.num_experts);
    MOEX_CHECK(estimator_->predict(asked, layers[next], guess_),
               "the estimator knows the next MoE layer");
    guess_index_ = next;
}

std::span<const ExpertHint> GuessedExperts::hints() {
    const ModelConfig& config = sources_.gates->config();
    hints_.clear();
    const std::size_t experts = config.num_experts;
    if (guess_index_ == 0 || guess_.size() > Hints::rows_max * experts) return hints_;
    append_hints(hints_, sources_.gates->moe_layers()[guess_index_], guess_, experts, config.top_k,
                 order_);
    return hints_;
}

}  // namespace moex
