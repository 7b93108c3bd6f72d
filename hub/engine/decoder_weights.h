// The hub's share of a model, found in the package and
// checked: matrices stay mapped, vectors are copied to f32.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hub/engine/kernels.h"
#include "hub/model/package/package.h"

namespace moex {

struct DecoderLayer {
    std::vector<float> input_norm, post_attention_norm;  // [hidden_size]
    std::vector<float> q_norm, k_norm;                   // [head_dim]
    WeightMatrix q, k, v, o;
    std::vector<float> q_bias, k_bias, v_bias, o_bias;  // empty without attention_bias
    WeightMatrix router;                                // MoE layers
    WeightMatrix gate, up, down;                        // dense layers
};

struct DecoderWeights {
    TensorView embeddings;
    WeightMatrix head;
    std::vector<float> final_norm;
    std::vector<DecoderLayer> layers;
    // matrices whose dtype the kernels do not read (f16)
    std::vector<std::unique_ptr<float[]>> converted;
};

// An error names the tensor, what was found and what was wanted.
Result<DecoderWeights> load_decoder_weights(const ModelPackage& package);

}  // namespace moex
