// Predictors over a text, side by side on one walk through the model: each is asked as early as its
// lead says, and held to what the router then chose.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/recall.h"
#include "hub/foresight/predict/windows.h"

namespace moex {

struct Contestant {
    std::unique_ptr<ExpertPredictor> predictor;
    // MoE layers between the rows it sees and the layer it speaks of. 0: it knows the past alone
    // and is asked row by row, as if each token were decoded by itself.
    std::uint32_t lead = 0;
};

// m of recall@m: top_k, and one and a half, twice and three times as many, as far as there are
// experts.
std::vector<std::uint32_t> contest_fetches(const ModelConfig& config);

class Contest {
  public:
    Contest(const ModelConfig& config, std::vector<Contestant> contestants);
    ~Contest();

    void watch(const RouteView& route);
    void end_window();

    std::size_t size() const { return runners_.size(); }
    std::string_view name(std::size_t index) const;
    std::uint32_t lead(std::size_t index) const;
    // Its layers are MoE layers, counted from 0. Means over layers leave out the first, and those
    // before the first that the lead reaches.
    const RecallMeter& meter(std::size_t index) const;
    std::span<const std::uint32_t> moe_layers() const { return moe_layers_; }

  private:
    struct Runner;
    void score(Runner& runner, const RouteView& route, std::uint32_t index);
    void score_past(Runner& runner, const RouteView& route, std::uint32_t index);
    void ask(Runner& runner, const RouteView& route, std::uint32_t index);
    std::vector<std::uint32_t> moe_layers_;
    std::vector<std::uint32_t> index_of_layer_;  // among the MoE layers
    std::vector<std::unique_ptr<Runner>> runners_;
};

}  // namespace moex
