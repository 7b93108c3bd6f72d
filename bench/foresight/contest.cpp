#include "bench/foresight/contest.h"

#include <algorithm>
#include <cmath>

#include "protocol/check.h"

namespace moex::bench {
namespace {

double cosine_of(std::span<const float> a, std::span<const float> b) {
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        ab += double{a[i]} * b[i];
        aa += double{a[i]} * a[i];
        bb += double{b[i]} * b[i];
    }
    return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

std::vector<std::uint32_t> contest_fetches(const ModelConfig& config) {
    std::vector<std::uint32_t> fetches;
    for (const std::uint32_t halves : {2, 3, 4, 6}) {
        const std::uint32_t fetch = std::min(config.top_k * halves / 2, config.num_experts);
        if (fetches.empty() || fetch > fetches.back()) fetches.push_back(fetch);
    }
    return fetches;
}

struct Contest::Runner {
    Contestant contestant;
    RecallMeter meter;
    // What the predictor predicted for one MoE layer and the rows of the current step.
    struct Said {
        bool something = false;
        std::vector<float> confidence, hidden;
    };
    std::vector<Said> said;  // by MoE layer
};

Contest::Contest(const ModelConfig& config, std::vector<Contestant> contestants)
    : index_of_layer_(config.num_layers) {
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;
        index_of_layer_[layer] = static_cast<std::uint32_t>(moe_layers_.size());
        moe_layers_.push_back(layer);
    }

    const auto num_layers = static_cast<std::uint32_t>(moe_layers_.size());
    for (Contestant& one : contestants) {
        const RecallOptions options{.num_layers = num_layers,
                                    .first_layer = std::max(one.lead, 1u),
                                    .top_k = config.top_k,
                                    .fetches = contest_fetches(config)};
        runners_.push_back(std::unique_ptr<Runner>(new Runner{
            std::move(one), RecallMeter(options), std::vector<Runner::Said>(num_layers)}));
    }
}

Contest::~Contest() = default;

std::string_view Contest::name(std::size_t index) const {
    return runners_[index]->contestant.predictor->name();
}
std::uint32_t Contest::lead(std::size_t index) const { return runners_[index]->contestant.lead; }
const RecallMeter& Contest::meter(std::size_t index) const { return runners_[index]->meter; }

void Contest::watch(const RouteView& route) {
    MOEX_CHECK(route.first_row == 0, "a contest wants steps that are not cut into parts");
    const std::uint32_t index = index_of_layer_[route.layer];
    for (const auto& runner : runners_) {
        if (runner->contestant.lead == 0) {
            score_past(*runner, route, index);
        } else {
            score(*runner, route, index);
            ask(*runner, route, index);
        }
    }
}

void Contest::score(Runner& runner, const RouteView& route, std::uint32_t index) {
    if (index < runner.contestant.lead) return;

    const Runner::Said& said = runner.said[index];
    const std::size_t size = route.hidden_size;
    for (std::size_t row = 0; row < route.num_tokens; ++row) {
        const std::uint32_t token = route.rows[row].position;
        const auto asked = route.expert_ids.subspan(row * route.top_k, route.top_k);
        if (!said.something) {
            runner.meter.record_none(index, token);
            continue;
        }

        runner.meter.record(
            index, token,
            std::span(said.confidence).subspan(row * route.num_experts, route.num_experts), asked);
        if (!said.hidden.empty())
            runner.meter.record_cosine(index, token,
                                       cosine_of(std::span(said.hidden).subspan(row * size, size),
                                                 route.hidden.subspan(row * size, size)));
    }
}

void Contest::ask(Runner& runner, const RouteView& route, std::uint32_t index) {
    const std::uint32_t target = index + runner.contestant.lead;
    if (target >= moe_layers_.size()) return;

    Runner::Said& said = runner.said[target];
    said.confidence.resize(std::size_t{route.num_tokens} * route.num_experts);
    ExpertPredictor& predictor = *runner.contestant.predictor;
    said.something = predictor.predict(route, moe_layers_[target], said.confidence);
    const auto hidden = predictor.expected_hidden();
    said.hidden.assign(hidden.begin(), hidden.end());
}

void Contest::score_past(Runner& runner, const RouteView& route, std::uint32_t index) {
    ExpertPredictor& predictor = *runner.contestant.predictor;
    std::vector<float> confidence(route.num_experts);
    for (std::size_t row = 0; row < route.num_tokens; ++row) {
        // Pass each row to the predictor before it is routed: without the experts that its router
        // chose.
        const RouteView before{.layer = route.layer,
                               .num_tokens = 1,
                               .top_k = route.top_k,
                               .num_experts = route.num_experts,
                               .hidden_size = route.hidden_size,
                               .rows = route.rows.subspan(row, 1)};
        RouteView known = before;
        known.expert_ids = route.expert_ids.subspan(row * route.top_k, route.top_k);
        known.expert_weights = route.expert_weights.subspan(row * route.top_k, route.top_k);

        const std::uint32_t token = route.rows[row].position;
        if (predictor.predict(before, route.layer, confidence))
            runner.meter.record(index, token, confidence, known.expert_ids);
        else
            runner.meter.record_none(index, token);
        predictor.observe(known);
    }
}

void Contest::end_window() {
    for (const auto& runner : runners_) runner->meter.end_window();
}

}  // namespace moex::bench
