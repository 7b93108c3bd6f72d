// The tensors with which the hub itself computes: their names in hub.safetensors, and their shapes
// by the model's configuration. The packer, the hub, the GPU's decoder and the predictors find
// tensors by this table alone; a family's own names end in `pack` (hub/model/families.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/model/config.h"

namespace moex {

enum class HubPart : std::uint8_t {
    embeddings,
    final_norm,
    head,
    // parts of a head that drafts tokens (hub/model/package/draft_head.h)
    draft_join,
    draft_embedding_norm,
    draft_hidden_norm,
    // parts of a layer
    input_norm,
    q,
    k,
    v,
    o,
    q_bias,
    k_bias,
    v_bias,
    o_bias,
    output_gate,
    q_norm,
    k_norm,
    sinks,
    delta_qkv,
    delta_z,
    delta_b,
    delta_a,
    delta_conv,
    delta_a_log,
    delta_dt_bias,
    delta_norm,
    delta_out,
    post_attention_norm,
    router,
    router_bias,
    correction_bias,
    gate,
    up,
    down,
    shared_gate,
    shared_up,
    shared_down,
    shared_expert_gate,
};

// Specification of one tensor with which the hub itself computes.
struct HubTensorSpec {
    std::string name;
    std::vector<std::uint64_t> shape;
    const char* shape_words;  // names of the sizes: "num_experts, hidden_size"
    // true for norms, biases and routers, which are small and sensitive: such a tensor stays f32
    // unless the checkpoint stores it as bf16
    bool precise = false;
    bool is_table = false;  // embeddings or LM head, where small errors can change the token
};
// Returns the specs of all hub tensors in the order of hub.safetensors.
std::vector<HubTensorSpec> hub_tensor_specs(const ModelConfig& config);
// Returns the spec of one tensor; `layer` is ignored for parts outside the layers.
HubTensorSpec hub_tensor_spec(const ModelConfig& config, HubPart part, std::uint32_t layer = 0);
// Returns the name of a tensor: "model.layers.3.self_attn.q_proj.weight".
std::string hub_tensor_name(HubPart part, std::uint32_t layer = 0);

}  // namespace moex
