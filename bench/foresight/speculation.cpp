#include "bench/foresight/speculation.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "bench/foresight/recall.h"
#include "hub/engine/kernels.h"
#include "hub/engine/router.h"
#include "hub/foresight/predict/gate_predictors.h"
#include "hub/foresight/predict/hints.h"
#include "protocol/check.h"

namespace moex::bench {
namespace {

constexpr std::pair<std::string_view, RouteGuess> route_names[] = {
    {"next-gate", RouteGuess::next_gate},     {"quasi-hidden", RouteGuess::quasi_hidden},
    {"estimator", RouteGuess::estimator},     {"hybrid", RouteGuess::hybrid},
    {"router-free", RouteGuess::router_free}, {"linear", RouteGuess::linear}};

// The first two MoE layers change rows more than later MoE layers do.
constexpr std::uint32_t early_from_default = 2;

Error unknown_name(std::string_view name) {
    return {
        ErrorCode::invalid_argument,
        text("speculation \"", name,
             "\", wanted next-gate, quasi-hidden, estimator or hybrid, each also with +weights "
             "or :N, or router-free, or early or early:N, also behind one of these and a plus")};
}

bool asks_estimator(RouteGuess routes) {
    return routes == RouteGuess::estimator || routes == RouteGuess::hybrid ||
           routes == RouteGuess::router_free;
}

}  // namespace

Result<Speculation> parse_speculation(std::string_view name) {
    std::string_view base = name;
    Speculation what;
    if (const auto early = base.rfind("+early"); early != base.npos && early > 0) {
        const auto both = parse_speculation(base.substr(early + 1));
        if (!both.ok() || both->routes != RouteGuess::router) return unknown_name(name);
        what.early_from = both->early_from;
        base = base.substr(0, early);
    }

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

    if (base == "early" && !what.true_weights && !what.early_from) {
        what.early_from = number.value_or(early_from_default);
        return what;
    }
    for (const auto& [known, routes] : route_names)
        if (base == known) {
            what.routes = routes;
            what.guessed = number.value_or(0);
            const bool wants_router = what.true_weights || number;
            if (routes == RouteGuess::router_free && wants_router) break;
            return what;
        }
    return unknown_name(name);
}

std::string name_of(const Speculation& what) {
    std::string name;
    for (const auto& [known, routes] : route_names)
        if (what.routes == routes) name = known;
    if (what.true_weights) name += "+weights";
    if (what.guessed > 0) name += text(':', what.guessed);
    if (what.early_from) name += text(name.empty() ? "" : "+", "early:", *what.early_from);
    return name;
}

void choose_guessed(const Speculation& what, const ModelConfig& config,
                    std::span<const float> confidence, std::span<const float> router_logits,
                    std::span<std::uint16_t> expert_ids, std::span<float> expert_weights) {
    const RouterOptions options{config.top_k, config.layers.front().router};
    const std::uint32_t guessed = std::min(std::max(what.guessed, config.top_k),
                                           config.num_experts);
    if (!what.true_weights && guessed == config.top_k)
        return route(confidence, options, expert_ids, expert_weights);

    std::vector<float> logits(router_logits.size(), -std::numeric_limits<float>::infinity());
    for (const std::uint16_t expert : surest_experts(confidence, guessed))
        logits[expert] = router_logits[expert];
    route(logits, {config.top_k, {.is_normalised = true}}, expert_ids, expert_weights);
    if (options.plan.is_normalised) return;

    // If the model does not normalise weights, a weight is a share among all
    // experts, not only among the guessed experts.
    const float sum = log_sum_exp(router_logits);
    for (std::size_t i = 0; i < expert_ids.size(); ++i)
        expert_weights[i] = std::exp(router_logits[expert_ids[i]] - sum);
}

Speculator::Speculator(const Speculation& what, TrialSources sources)
    : what_(what),
      sources_(std::move(sources)),
      pairs_(moe_layers().size()),
      hits_(pairs_.size()) {
    const auto& [gates, profile, estimator] = sources_.package;
    const RouteGuess routes = what.routes;
    if (routes == RouteGuess::next_gate) gate_ = make_next_gate_predictor(gates);
    if (routes == RouteGuess::linear)
        gate_ = make_linear_predictor(gates, profile, sources_.linear);
    if (routes == RouteGuess::quasi_hidden || routes == RouteGuess::hybrid)
        gate_ = make_quasi_hidden_predictor(gates, profile);
    if (asks_estimator(routes)) estimator_ = make_estimator_predictor(gates, profile, estimator);
}

Result<std::unique_ptr<Speculator>> Speculator::create(const Speculation& what,
                                                       TrialSources sources) {
    MOEX_CHECK(sources.package.gates != nullptr, "a speculator has the model's routers");
    const bool reads_profile = what.routes != RouteGuess::next_gate || what.early_from;
    if (reads_profile) MOEX_TRY(require_profile(sources.package));
    if (asks_estimator(what.routes)) MOEX_TRY(require_estimator(sources.package));
    if (what.routes == RouteGuess::linear && !sources.linear)
        return Error{ErrorCode::not_found,
                     "no package holds a linear estimator; --calibrate TEXT fits one"};
    if (what.routes == RouteGuess::hybrid && sources.estimator_layers.empty())
        return Error{ErrorCode::not_found,
                     "no layers are chosen for the hybrid's estimator; --calibrate TEXT chooses "
                     "them"};

    std::unique_ptr<Speculator> made(new Speculator(what, std::move(sources)));
    if (what.early_from) {
        MOEX_ASSIGN(early, EarlyCalls::create(made->sources_.package, *what.early_from));
        made->early_ = std::move(early);
    }
    return made;
}

double Speculator::hit_rate(std::uint32_t index) const {
    return pairs_[index] == 0
               ? 1
               : static_cast<double>(hits_[index]) / static_cast<double>(pairs_[index]);
}

void Speculator::take_guess(const RouteView& seen, std::uint32_t index,
                            std::span<std::uint16_t> expert_ids, std::span<float> expert_weights) {
    const ModelConfig& config = sources_.package.gates->config();
    const std::size_t experts = seen.num_experts, top_k = seen.top_k;
    MOEX_CHECK(guess_index_ == index && guess_.size() == seen.num_tokens * experts,
               "a guess is of the rows of its step");

    std::vector<std::uint16_t> wanted(top_k);
    for (std::size_t row = 0; row < seen.num_tokens; ++row) {
        const auto ids = expert_ids.subspan(row * top_k, top_k);
        if (what_.routes == RouteGuess::router_free) {
            choose_guessed(what_, config, std::span(guess_).subspan(row * experts, experts), {},
                           ids, expert_weights.subspan(row * top_k, top_k));
            continue;
        }
        std::copy(ids.begin(), ids.end(), wanted.begin());
        choose_guessed(what_, config, std::span(guess_).subspan(row * experts, experts),
                       seen.router_logits.subspan(row * experts, experts), ids,
                       expert_weights.subspan(row * top_k, top_k));
        for (const std::uint16_t expert : wanted)
            if (std::find(ids.begin(), ids.end(), expert) != ids.end()) ++hits_[index];
    }
    if (what_.routes != RouteGuess::router_free) pairs_[index] += seen.num_tokens * top_k;
}

bool Speculator::replaces_router(std::uint32_t layer) const {
    return what_.routes == RouteGuess::router_free && layer != moe_layers().front();
}

void Speculator::choose(const RouteView& seen, std::span<std::uint16_t> expert_ids,
                        std::span<float> expert_weights) {
    if (what_.routes == RouteGuess::router) return;

    const std::uint32_t index = moe_index_of(*sources_.package.gates, seen.layer);
    if (index > 0) take_guess(seen, index, expert_ids, expert_weights);
}

void Speculator::look_ahead(const RouteView& asked) {
    if (what_.routes == RouteGuess::router) return;

    const std::uint32_t next = moe_index_of(*sources_.package.gates, asked.layer) + 1;
    guess_index_ = 0;
    if (next >= moe_layers().size()) return;

    const auto& mine = sources_.estimator_layers;
    const bool is_mine = std::find(mine.begin(), mine.end(), next) != mine.end();
    ExpertPredictor& predictor = !gate_ || (estimator_ && is_mine) ? *estimator_ : *gate_;
    guess_.resize(std::size_t{asked.num_tokens} * asked.num_experts);
    MOEX_CHECK(predictor.predict(asked, moe_layers()[next], guess_),
               "a predictor of the next layer knows it");
    guess_index_ = next;
}

std::span<const ExpertHint> Speculator::hints() {
    const ModelConfig& config = sources_.package.gates->config();
    hints_.clear();
    const std::size_t experts = config.num_experts;
    if (guess_index_ == 0 || guess_.size() > Hints::rows_max * experts) return hints_;
    append_hints(hints_, moe_layers()[guess_index_], guess_, experts,
                 std::max(what_.guessed, config.top_k), order_);
    return hints_;
}

bool Speculator::stand_in(const RouteView& asked, std::span<float> y) {
    return early_ && early_->stand_in(asked, y);
}

}  // namespace moex::bench
