// Hints: the experts that the next MoE layers will probably request, sent to workers that hold more
// experts than they have memory for. Such a worker copies hinted experts into slots before the call
// arrives. A wrong or late hint costs time and never changes an answer.
//
// The path of a hint, while the answers of a layer are in flight:
//
//   predictor    confidence per row and expert     predict/{estimator,gate_predictors}.h
//      |           or a shadow's routers           shadow/served_shadow.h
//   Hints        surest experts of all rows        this file
//      |  std::span<const ExpertHint>
//   engine       calls foresee(), then hint()      hub/engine/decoder.cpp, expert_backend.h
//      |
//   hub's strand workers that hold the expert      hub/dispatch/core/swarm_hints.cpp
//      |  PREFETCH frame                           protocol/messages.h
//   worker's judge  drops ranks that are wrong     web-worker/slots/hint_judge.h
//      |
//   worker's trial  drops all, if faster so        web-worker/slots/hint_trial.h
//      |
//   copy         slot cache loads the expert       web-worker/slots/slot_cache.h
#pragma once

#include <memory>
#include <vector>

#include "hub/engine/expert_foresight.h"
#include "hub/foresight/predict/router_gates.h"

namespace moex {

// Appends hints for the `per_row` surest experts of each row. An expert that several rows have is
// appended once, with its best rank. `confidence` is [num_rows, num_experts], where a larger value
// is surer; `order` is a scratch buffer.
void append_hints(std::vector<ExpertHint>& hints, std::uint32_t layer,
                  std::span<const float> confidence, std::size_t num_experts, std::uint32_t per_row,
                  std::vector<std::uint16_t>& order);

// Turns the confidence values of a predictor into hints for the next layers.
class Hints : public ExpertForesight {
  public:
    // `per_row` is the number of predicted experts per row and layer, at most all experts of the
    // layer. A number above top_k predicts more experts than a row requests. `lead` is the number
    // of MoE layers between the layer that is seen and the first prediction of a layer; if it is
    // above 1, the layer is predicted once more, and better, one layer before it. A lead beyond a
    // token's last layer continues with the first layers of the next token, if the predictor can
    // predict those.
    Hints(std::shared_ptr<const RouterGates> gates, std::unique_ptr<ExpertPredictor> predictor,
          std::uint32_t per_row, std::uint32_t lead = 1);

    // Returns hints for all rows together, each expert once. Returns no hints for a step of more
    // than rows_max rows: a prompt requests most experts of a layer anyway.
    std::span<const ExpertHint> foresee(const RouteView& seen) override;

    static constexpr std::uint32_t rows_max = 16;

  private:
    // Adds the hints for one layer. `index` counts MoE layers; indices from the number of MoE
    // layers on mean layers of the next token.
    void add_layer(const RouteView& seen, std::size_t index);

    std::shared_ptr<const RouterGates> gates_;
    std::unique_ptr<ExpertPredictor> predictor_;
    std::uint32_t per_row_, lead_;
    std::vector<float> confidence_;     // [rows, num_experts]
    std::vector<std::uint16_t> order_;  // scratch buffer of append_hints()
    std::vector<ExpertHint> hints_;
};

}  // namespace moex
