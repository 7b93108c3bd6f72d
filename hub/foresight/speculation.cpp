#include "hub/foresight/speculation.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "hub/engine/kernels.h"
#include "hub/engine/router.h"
#include "hub/foresight/gate_predictors.h"
#include "hub/foresight/recall.h"
#include "protocol/check.h"

namespace moex {
namespace {

constexpr std::pair<std::string_view, RouteGuess> route_names[] = {
    {"next-gate", RouteGuess::next_gate},
    {"quasi-hidden", RouteGuess::quasi_hidden},
    {"estimator", RouteGuess::estimator},
    {"hybrid", RouteGuess::hybrid}};

// The first two MoE layers change rows most.
constexpr std::uint32_t early_from_default = 2;

Error unknown_name(std::string_view name) {
    return {ErrorCode::invalid_argument,
            text("speculation \"", name,
                 "\", wanted next-gate, quasi-hidden, estimator or hybrid, each also with +weights "
                 "or :N, or early or early:N")};
}

}  // namespace

Result<Speculation> parse_speculation(std::string_view name) {
    std::string_view base = name;
    Speculation what;
    constexpr std::string_view weights = "+weights";
    if (base.ends_with(weights)) {
        base.remove_suffix(weights.size());
        what.true_weights = true;
    }

    std::optional<std::uint32_t> number;
    if (const auto colon = base.find(':'); colon != base.npos) {
        const std::string_view digits = base.substr(colon + 1);
        std::uint32_t value = 0;
        const auto read = std::from_chars(digits.begin(), digits.end(), value);
        if (read.ec != std::errc() || read.ptr != digits.end() || value == 0 || what.true_weights)
            return unknown_name(name);
        number = value;
        base = base.substr(0, colon);
    }

    if (base == "early" && !what.true_weights) {
        what.early_from = number.value_or(early_from_default);
        return what;
    }
    for (const auto& [known, routes] : route_names)
        if (base == known) {
            what.routes = routes;
            what.guessed = number.value_or(0);
            return what;
        }
    return unknown_name(name);
}

void choose_guessed(const Speculation& what, const ModelConfig& config,
                    std::span<const float> confidence, std::span<const float> router_logits,
                    std::span<std::uint16_t> expert_ids, std::span<float> expert_weights) {
    const RouterOptions options{config.top_k, config.norm_topk_prob};
    const std::uint32_t guessed = std::min(std::max(what.guessed, config.top_k),
                                           config.num_experts);
    if (!what.true_weights && guessed == config.top_k)
        return route(confidence, options, expert_ids, expert_weights);

    std::vector<float> logits(router_logits.size(), -std::numeric_limits<float>::infinity());
    for (const std::uint16_t expert : surest_experts(confidence, guessed))
        logits[expert] = router_logits[expert];
    route(logits, {config.top_k, true}, expert_ids, expert_weights);
    if (config.norm_topk_prob) return;

    // Their shares among all experts, not among the guessed.
    const float sum = log_sum_exp(router_logits);
    for (std::size_t i = 0; i < expert_ids.size(); ++i)
        expert_weights[i] = std::exp(router_logits[expert_ids[i]] - sum);
}

Speculator::Speculator(const Speculation& what, SpeculationSources sources)
    : what_(what),
      sources_(std::move(sources)),
      pairs_(sources_.gates->moe_layers().size()),
      hits_(pairs_.size()) {
    const RouteGuess routes = what.routes;
    if (routes == RouteGuess::next_gate) gate_ = make_next_gate_predictor(sources_.gates);
    if (routes == RouteGuess::quasi_hidden || routes == RouteGuess::hybrid)
        gate_ = make_quasi_hidden_predictor(sources_.gates, sources_.profile);
    if (routes == RouteGuess::estimator || routes == RouteGuess::hybrid)
        estimator_ = make_estimator_predictor(sources_.gates, sources_.profile, sources_.estimator);
}

Result<std::unique_ptr<Speculator>> Speculator::create(const Speculation& what,
                                                       SpeculationSources sources) {
    MOEX_CHECK(sources.gates != nullptr, "a speculator has the model's routers");
    const bool reads_profile = what.routes != RouteGuess::next_gate || what.early_from,
               reads_estimator = what.routes == RouteGuess::estimator ||
                                 what.routes == RouteGuess::hybrid;
    if (reads_profile && !sources.profile)
        return Error{ErrorCode::not_found,
                     "no default vectors; `moex-hub pack --calibrate` makes "
                     "them"};
    if (reads_estimator && !sources.estimator)
        return Error{ErrorCode::not_found, "no estimator; `moex-hub train-estimator` makes one"};
    if (what.routes == RouteGuess::hybrid && sources.estimator_layers.empty())
        return Error{ErrorCode::not_found, "no layers chosen for the hybrid's estimator"};
    return std::unique_ptr<Speculator>(new Speculator(what, std::move(sources)));
}

std::uint32_t Speculator::index_of(std::uint32_t layer) const {
    const auto layers = moe_layers();
    return static_cast<std::uint32_t>(std::lower_bound(layers.begin(), layers.end(), layer) -
                                      layers.begin());
}

double Speculator::hit_rate(std::uint32_t index) const {
    return pairs_[index] == 0
               ? 1
               : static_cast<double>(hits_[index]) / static_cast<double>(pairs_[index]);
}

void Speculator::take_guess(const RouteView& seen, std::uint32_t index,
                            std::span<std::uint16_t> expert_ids, std::span<float> expert_weights) {
    const ModelConfig& config = sources_.gates->config();
    const std::size_t experts = seen.num_experts, top_k = seen.top_k;
    MOEX_CHECK(guess_index_ == index && guess_.size() == seen.num_tokens * experts,
               "a guess is of the rows of its step");

    std::vector<std::uint16_t> wanted(top_k);
    for (std::size_t row = 0; row < seen.num_tokens; ++row) {
        const auto ids = expert_ids.subspan(row * top_k, top_k);
        std::copy(ids.begin(), ids.end(), wanted.begin());
        choose_guessed(what_, config, std::span(guess_).subspan(row * experts, experts),
                       seen.router_logits.subspan(row * experts, experts), ids,
                       expert_weights.subspan(row * top_k, top_k));
        for (const std::uint16_t expert : wanted)
            if (std::find(ids.begin(), ids.end(), expert) != ids.end()) ++hits_[index];
    }
    pairs_[index] += seen.num_tokens * top_k;
}

void Speculator::choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                        std::span<float> expert_weights) {
    if (what_.routes == RouteGuess::router) return;

    const std::uint32_t index = index_of(seen.layer);
    if (index > 0) take_guess(seen, index, expert_ids, expert_weights);

    const std::uint32_t next = index + 1;
    guess_index_ = 0;
    if (next >= moe_layers().size()) return;

    const auto& mine = sources_.estimator_layers;
    const bool asks_estimator = !gate_ || (estimator_ &&
                                           std::find(mine.begin(), mine.end(), next) != mine.end());
    ExpertPredictor& predictor = asks_estimator ? *estimator_ : *gate_;
    guess_.resize(std::size_t{seen.num_tokens} * seen.num_experts);
    // `seen` shows what is asked: its spans are those that were written.
    MOEX_CHECK(predictor.predict(seen, moe_layers()[next], guess_),
               "a predictor of the next layer knows it");
    guess_index_ = next;
}

bool Speculator::stand_in(const RouteView& asked, std::span<float> y) {
    if (!what_.early_from) return false;
    const std::uint32_t index = index_of(asked.layer);
    if (index < *what_.early_from || (index - *what_.early_from) % 2 != 0) return false;

    const std::size_t size = asked.hidden_size;
    std::fill(y.begin(), y.end(), 0.0f);
    for (std::size_t row = 0; row < asked.num_tokens; ++row)
        for (std::size_t i = row * asked.top_k; i < (row + 1) * asked.top_k; ++i)
            add_scaled_to(y.subspan(row * size, size),
                          sources_.profile->default_vector(asked.layer, asked.expert_ids[i]),
                          asked.expert_weights[i]);
    return true;
}

}  // namespace moex
