// Predictors that ask a later layer's own router about rows of this one.
// Sources: Eliseev and Mazur, "Fast Inference of Mixture-of-Experts Language Models with
// Offloading", 2023 (the next gate on this layer's router input); "Speculating Experts Accelerates
// Inference for Mixture-of-Experts", section 3.2 (quasi-hidden state).
#pragma once

#include <memory>

#include "hub/engine/expert_predictor.h"
#include "hub/foresight/predict/expert_profile.h"
#include "hub/foresight/predict/router_gates.h"

namespace moex {

// router_t · h, where h is what this layer's router reads.
std::unique_ptr<ExpertPredictor> make_next_gate_predictor(std::shared_ptr<const RouterGates> gates);

// router_t · norm_t(x + sum over the chosen experts of weight · default vector), where x is the
// residual behind attention: what the layer will probably have added to it, without the attention
// of those that follow.
std::unique_ptr<ExpertPredictor> make_quasi_hidden_predictor(
    std::shared_ptr<const RouterGates> gates, std::shared_ptr<const ExpertProfile> profile);

// The quasi-hidden state itself, the argument of router_t: out [num_tokens, hidden_size].
void quasi_hidden(std::span<float> out, const RouteView& route, std::uint32_t target_layer,
                  const RouterGates& gates, const ExpertProfile& profile);

}  // namespace moex
