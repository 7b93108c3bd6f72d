// The hub's weights of a model, found in the package and checked. Matrices stay mapped or are
// packed; vectors are copied to f32.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/engine/arithmetic.h"
#include "hub/engine/hub_matrix.h"
#include "hub/model/package/package.h"

namespace moex {

struct DecoderLayer {
    std::vector<float> input_norm, post_attention_norm;  // [hidden_size]
    std::vector<float> q_norm, k_norm;                   // [head_dim]; empty without qk_norm
    HubMatrix q, k, v, o;
    std::vector<float> q_bias, k_bias, v_bias, o_bias;  // empty where the model has no bias
    WeightMatrix router;       // MoE layers; exact in every arithmetic: a wrong route costs most
    HubMatrix gate, up, down;  // dense layers
};

struct DecoderWeights {
    TensorView embeddings;
    HubMatrix head;
    std::vector<float> final_norm;
    std::vector<DecoderLayer> layers;
    // f32 copies of matrices whose dtype the kernels do not read (f16, and codes in exact
    // arithmetic)
    std::vector<std::unique_ptr<float[]>> converted;
    PackedMemory packed;  // memory that the packed matrices borrow
};

// Loads and checks the weights. `hub_dtype` is the dtype of packed matrices; without it, a package
// without codes is packed to int6. The head is int6 where int4 is requested. Codes that the package
// has are used as they are; only int8 codes, except the head's, are rounded again where fewer bits
// are requested. An error names the tensor, what was found and what was wanted.
Result<DecoderWeights> load_decoder_weights(const ModelPackage& package, Arithmetic arithmetic,
                                            std::optional<PackedDtype> hub_dtype,
                                            ThreadPool& threads);

}  // namespace moex
