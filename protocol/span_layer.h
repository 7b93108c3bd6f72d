// SpanLayer: everything that a worker needs to compute one layer of a model whole, except the blobs
// of the layer's experts, which it names. The hub serves it as a blob, by its SHA-256. A worker
// therefore needs no file of the package and no knowledge of tensor names.
// A blob has one of three versions. Version 1 describes the layers of Qwen3, Qwen2 and Llama.
// Version 2 adds windows, sinks and the other fields of gpt-oss, OLMoE and Granite. Version 3 adds
// shared experts, routers with sigmoids, output gates and gated delta rules. A layer is written in
// the first version that has all of its fields. Source: PROTOCOL.md, "Layer of a span", has every
// byte.
#pragma once

#include <array>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/rope.h"
#include "protocol/sha256.h"

namespace moex {

// The storage format of a matrix. int4 has groups of `group_size` weights, as an expert's blob.
enum class SpanMatrix : std::uint8_t { bf16 = 0, f32 = 1, int4 = 2 };

// The tensors of a layer, in their order. Vectors are f32. A matrix is [out, in]; an int4 matrix
// has its codes, then its scales and zeros. A tensor that the model does not have is empty.
enum class SpanTensor : std::uint8_t {
    input_norm,
    post_attention_norm,
    q_norm,
    k_norm,
    qkv_bias,
    o_bias,
    sinks,            // version 2
    router_bias,      // version 2
    correction_bias,  // version 3, and so are the next ones until qkv
    delta_conv,       // [channels, conv_taps]
    delta_a_log,
    delta_dt_bias,
    delta_norm,
    qkv,  // q, k and v, stacked by rows; of a gated delta rule all q, all k, all v, then z
    o,
    router,       // version 3: with the row of the shared expert's gate
    output_gate,  // version 3
    delta_gates,  // version 3: f32, b and then a
    shared,       // version 3: the blob of the shared expert, in its layout
};
inline constexpr std::size_t num_span_tensors = 19;

struct SpanLayer {
    std::uint32_t layer = 0;
    std::uint32_t hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
    std::uint32_t num_experts = 0, top_k = 0, moe_intermediate_size = 0;
    std::uint32_t group_size = 0;  // weights per scale and zero, for all int4 weights
    bool norm_topk_prob = false, qk_norm = false, qkv_bias = false, o_bias = false;
    SpanMatrix attention = SpanMatrix::bf16, router = SpanMatrix::bf16;
    double rms_norm_eps = 0, rope_theta = 0;
    RopeScaling rope_scaling;
    // Fields of version 2; hub/model/layer_plan.h says what they mean.
    bool qk_norm_all_heads = false, sinks = false, router_bias = false;
    std::uint32_t window = 0, rotary_size = 0;
    float attention_scale = 0, residual_multiplier = 1;
    float expert_clamp = 0;  // of clamped experts; 0: plain experts
    bool mxfp4_experts = false;
    // Fields of version 3.
    bool output_gate = false;
    bool sigmoid_router = false, correction_bias = false;
    std::uint32_t router_groups = 1, groups_kept = 1;
    float router_scaling = 1;
    std::uint32_t shared_size = 0;  // width of the shared expert; 0: none
    bool shared_gate = false;
    SpanMatrix shared = SpanMatrix::bf16;
    // A layer with a gated delta rule instead of attention. All layers of a model with such layers
    // have the sizes, and all fields of attention.
    bool is_delta = false;
    std::uint32_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0,
                  delta_value_dim = 0, conv_taps = 0;

    std::uint64_t delta_values() const {
        return std::uint64_t{delta_value_heads} * delta_value_dim;
    }
    std::uint64_t delta_channels() const {
        return 2 * std::uint64_t{delta_key_heads} * delta_key_dim + delta_values();
    }
    std::vector<Sha256> experts;                     // [num_experts], blobs of the experts
    std::array<ByteView, num_span_tensors> tensors;  // borrowed

    ByteView tensor(SpanTensor which) const { return tensors[static_cast<std::size_t>(which)]; }
};

// Returns the version in which a layer is written.
std::uint16_t span_layer_version(const SpanLayer& layer);

// Returns true if two layers have the same shape, so that one span may hold both. Their windows may
// differ, and one may have a gated delta rule.
bool same_span_shape(const SpanLayer& a, const SpanLayer& b);

// Returns the bytes that each tensor must have.
std::array<std::uint64_t, num_span_tensors> span_tensor_bytes(const SpanLayer& layer);

Bytes encode_span_layer(const SpanLayer& layer);
// Errors: bad_magic, unsupported_version, unknown_flags, bad_field, payload_size. The result
// borrows from `bytes`, which begin at an address that is a multiple of 4.
Result<SpanLayer> decode_span_layer(ByteView bytes);

}  // namespace moex
