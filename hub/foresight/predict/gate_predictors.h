// Gate predictors: they predict a later layer with that layer's own router, which they apply to the
// hidden rows of an earlier layer.
// Sources: Eliseev and Mazur, "Fast Inference of Mixture-of-Experts Language Models with
// Offloading", 2023 (the next gate on this layer's router input); "Speculating Experts Accelerates
// Inference for Mixture-of-Experts", section 3.2 (quasi-hidden state).
#pragma once

#include <memory>

#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/router_gates.h"

namespace moex {

// Makes the predictor "next-gate": confidence = router_t · h, where h is the input of this layer's
// router.
std::unique_ptr<ExpertPredictor> make_next_gate_predictor(std::shared_ptr<const RouterGates> gates);

// Makes the predictor "quasi-hidden": confidence = router_t · norm_t(x + sum over the chosen
// experts of weight · default vector), where x is the residual after attention. The sum estimates
// what the layer will add to the residual; the attention of the layers in between is left out.
std::unique_ptr<ExpertPredictor> make_quasi_hidden_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile);

// Writes the quasi-hidden state (the argument of router_t in the formula of "quasi-hidden") to
// `out` [num_tokens, hidden_size].
void quasi_hidden(std::span<float> out, const RouteView& route, std::uint32_t target_layer,
                  const RouterGates& gates, const ExpertProfile& profile);

}  // namespace moex
