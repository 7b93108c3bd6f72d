// Gives the tensors of a checkpoint the names and the order of rows that a package has, where a
// family stores several matrices in one tensor.
#pragma once

#include "hub/model/config.h"
#include "hub/model/pack/readers/model_source.h"

namespace moex {

//   model.language_model.X                     becomes model.X
//   self_attn.q_proj with an output gate       becomes q_proj and output_gate: per head first the
//                                              rows of q, then those of the gate
//   linear_attn.in_proj_qkvz, in_proj_ba       become in_proj_qkv, in_proj_z, in_proj_b and
//                                              in_proj_a: per key head q, k, then v and z (b and a)
//                                              of its value heads
//   linear_attn.conv1d.weight [C, 1, taps]     becomes [C, taps]
// An error names the tensor that has another shape than `config` says.
Status arrange_tensors(ModelSource& source, const ModelConfig& config);

}  // namespace moex
