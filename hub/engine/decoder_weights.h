// The hub's share of a model, found in the package and
// checked: matrices stay mapped or are packed, vectors are copied to f32.
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
    std::vector<float> q_bias, k_bias, v_bias, o_bias;  // empty where there is none
    WeightMatrix router;       // MoE layers; exact in every arithmetic: a flipped route costs most
    HubMatrix gate, up, down;  // dense layers
};

struct DecoderWeights {
    TensorView embeddings;
    HubMatrix head;
    std::vector<float> final_norm;
    std::vector<DecoderLayer> layers;
    // matrices whose dtype the kernels do not read (f16, and codes in exact arithmetic)
    std::vector<std::unique_ptr<float[]>> converted;
    PackedMemory packed;  // what the packed matrices borrow
};

// `hub_dtype`: of packed matrices; without one int6 of a package without codes. The
// head is int6 where int4 is asked for. Codes that the package has are taken as they are, int8 ones
// but the head's rounded again where fewer bits are asked for. An error names the tensor, what was
// found and what was wanted.
Result<DecoderWeights> load_decoder_weights(const ModelPackage& package, Arithmetic arithmetic,
                                            std::optional<PackedDtype> hub_dtype,
                                            ThreadPool& threads);

}  // namespace moex
