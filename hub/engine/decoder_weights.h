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

// Weights of a layer's gated delta rule (decoder_delta_net.h).
struct DeltaNetWeights {
    HubMatrix qkv, z, out;
    WeightMatrix b, a;                       // exact in every arithmetic, because they are small
    std::vector<float> conv;                 // [conv_taps, channels]
    std::vector<float> decay_rate, dt_bias;  // [value_heads]; decay_rate is −exp(A_log)
    std::vector<float> norm;                 // [value_dim]
};

struct DecoderLayer {
    std::vector<float> input_norm, post_attention_norm;  // [hidden_size]
    // [head_dim], or over all heads, as the plan says; empty if the layer has no q and k norms
    std::vector<float> q_norm, k_norm;
    HubMatrix q, k, v, o;
    // biases of the projections; empty if the model has none
    std::vector<float> q_bias, k_bias, v_bias, o_bias;
    HubMatrix output_gate;      // [num_heads · head_dim, hidden_size]; empty if the layer has none
    DeltaNetWeights delta_net;  // of a layer with a gated delta rule, which has no q, k, v and o
    std::vector<float> sinks;   // [num_heads]; empty if the layer has none
    // routed layers only; exact in every arithmetic, since a wrong expert choice costs the most
    WeightMatrix router;
    std::vector<float> router_bias, correction_bias;  // [num_experts]; empty if it has none
    HubMatrix gate, up, down;                         // of a dense layer, or of the shared expert
    WeightMatrix shared_expert_gate;                  // [1, hidden_size]
};

struct DecoderWeights {
    TensorView embeddings;
    HubMatrix head;
    std::vector<float> final_norm;
    std::vector<DecoderLayer> layers;
    // of a draft head (hub/model/package/draft_head.h); empty in a model
    HubMatrix draft_join;                                        // [hidden_size, 2 * hidden_size]
    std::vector<float> draft_embedding_norm, draft_hidden_norm;  // [hidden_size]
    // f32 copies of matrices in a dtype that the kernels cannot read (f16; codes in exact
    // arithmetic)
    std::vector<std::unique_ptr<float[]>> converted;
    PackedMemory packed;  // memory in which packed matrices are stored
};

// Loads and checks the weights. `hub_dtype` is the dtype of packed matrices; if it is absent,
// matrices without codes are packed to int6. The head is int6 where int4 is requested. Codes in the
// package are used unchanged, with one exception: int8 codes, except the head's, are rounded again
// if `hub_dtype` has fewer bits. An error names the tensor, the found shape or dtype and the
// expected one.
// `model`: for a package that is a draft head, the weights of its model. The head uses the
// embeddings and the LM head of the model, which must outlive the result. Null: `package` is a
// model.
Result<DecoderWeights> load_decoder_weights(const ModelPackage& package, Arithmetic arithmetic,
                                            std::optional<PackedDtype> hub_dtype,
                                            ThreadPool& threads,
                                            const DecoderWeights* model = nullptr);
// Loads embeddings and LM head only, of a model whose layers are computed elsewhere.
Result<DecoderWeights> load_decoder_tables(const ModelPackage& package, Arithmetic arithmetic,
                                           std::optional<PackedDtype> hub_dtype,
                                           ThreadPool& threads);

}  // namespace moex
