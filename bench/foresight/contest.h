// A contest of predictors on a walk of a text through the model. Each predictor predicts the
// experts of a layer a number of layers before it (the predictor's lead); the prediction is
// compared with what the router then chose.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/foresight/recall.h"
#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/windows.h"

namespace moex::bench {

struct Contestant {
    std::unique_ptr<ExpertPredictor> predictor;
    // MoE layers between the rows that the predictor sees and the layer that it predicts. If this
    // is 0, the predictor knows only the past, and predicts row by row, as if each token were
    // decoded alone.
    std::uint32_t lead = 0;
};

// Returns the values m of recall@m: 1, 1.5, 2 and 3 times top_k, at most num_experts.
std::vector<std::uint32_t> contest_fetches(const ModelConfig& config);

// Runs predictors side by side and measures the recall of each.
class Contest {
  public:
    Contest(const ModelConfig& config, std::vector<Contestant> contestants);
    ~Contest();

    void watch(const RouteView& route);
    void end_window();

    std::size_t size() const { return runners_.size(); }
    std::string_view name(std::size_t index) const;
    std::uint32_t lead(std::size_t index) const;
    // Returns the meter of a predictor. Its layers are MoE layers, counted from 0. Means over
    // layers leave out the first layer and the layers that the lead does not reach.
    const RecallMeter& meter(std::size_t index) const;
    std::span<const std::uint32_t> moe_layers() const { return moe_layers_; }

  private:
    struct Runner;
    void score(Runner& runner, const RouteView& route, std::uint32_t index);
    void score_past(Runner& runner, const RouteView& route, std::uint32_t index);
    void ask(Runner& runner, const RouteView& route, std::uint32_t index);
    std::vector<std::uint32_t> moe_layers_;
    std::vector<std::uint32_t> index_of_layer_;  // index of a layer among the MoE layers
    std::vector<std::unique_ptr<Runner>> runners_;
};

}  // namespace moex::bench
