// From a predictor's confidence to hints: which experts the next MoE layers may be asked for,
// guessed while a layer's round is on its way. For who holds experts without having them in memory.
#pragma once

#include <memory>
#include <vector>

#include "hub/engine/expert_foresight.h"
#include "hub/foresight/predict/router_gates.h"

namespace moex {

// Appends the `per_row` surest experts of each row, each once, by its rank in the row that wants it
// most. `confidence` is [num_rows, num_experts], larger is surer; `order` is scratch.
void append_hints(std::vector<ExpertHint>& hints, std::uint32_t layer,
                  std::span<const float> confidence, std::size_t num_experts, std::uint32_t per_row,
                  std::vector<std::uint16_t>& order);

class Hints : public ExpertForesight {
  public:
    // `per_row` experts are named for a row and layer, at most all of the layer's: more than top_k
    // are spares for what was guessed second best. `lead` is how many MoE layers before a layer it
    // is guessed first: above 1 once more, better, one layer before it. Behind a token's last layer
    // stand the next token's, where the predictor knows of them.
    Hints(std::shared_ptr<const RouterGates> gates, std::unique_ptr<ExpertPredictor> predictor,
          std::uint32_t per_row, std::uint32_t lead = 1);

    // Of the rows' guesses together, each expert once. Nothing for steps of many rows: a prompt
    // asks for most of a layer anyway.
    std::span<const ExpertHint> foresee(const RouteView& seen) override;

    static constexpr std::uint32_t rows_max = 16;

  private:
    // `index`: among the MoE layers, those of the next token behind this one's.
    void add_layer(const RouteView& seen, std::size_t index);

    std::shared_ptr<const RouterGates> gates_;
    std::unique_ptr<ExpertPredictor> predictor_;
    std::uint32_t per_row_, lead_;
    std::vector<float> confidence_;     // [rows, num_experts]
    std::vector<std::uint16_t> order_;  // of one row
    std::vector<ExpertHint> hints_;
};

}  // namespace moex
